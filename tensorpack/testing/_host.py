"""Host memory that copies go to or come from, while they may be under way."""

import weakref

import torch
from torch import Tensor

from tensorpack._leaves.streams import StreamId
from tensorpack.guard.blocks import Shaped
from tensorpack.guard.model import Model, Use
from tensorpack.guard.places import here
from tensorpack.testing._clocks import Order
from tensorpack.testing._uses import extent_of

__all__ = ["HostMemory"]

_Key = tuple[str, int]


class HostMemory:
    """What the host may not touch before it knows that a copy is done."""

    def __init__(self, model: Model, order: Order) -> None:
        self._model = model
        self._order = order

    def copy(
        self, tensor: Tensor, stream: StreamId, *, writes: bool, operation: str
    ) -> None:
        """Take that a stream copies to a host tensor (a write), or from it."""
        storage = tensor.untyped_storage()
        with self._order.changed:
            key = _key(storage)
            if key not in self._model.host_keys:
                weakref.finalize(storage, self._free, key).atexit = False
            number = self._order.known.last(stream)
            use = _use(tensor, operation, writes=writes)
            self._model.host_copy(key, stream, use, number)

    def use(self, tensor: Tensor, *, writes: bool, operation: str) -> None:
        """Take that the host itself reads a tensor, or writes to it."""
        if not self._model.has_copies or tensor.layout is not torch.strided:
            return
        with self._order.changed:
            key = _key(tensor.untyped_storage())
            self._model.host_use(key, _use(tensor, operation, writes=writes))

    def _free(self, key: _Key) -> None:
        """Forget memory that is given back: torch waits for the copies from it."""
        with self._order.changed:
            self._model.host_free(key)


def _key(storage: torch.UntypedStorage) -> _Key:
    return ("host", storage.data_ptr())


def _use(tensor: Tensor, operation: str, *, writes: bool) -> Use:
    what = Shaped(tensor.dtype, tuple(tensor.shape), tensor.device)
    return Use(writes, operation, what, here(), extent_of(tensor))
