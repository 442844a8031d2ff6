"""The recorded machine: its memory, the current streams of its threads, its calls."""

import functools
import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tensorpack._leaves.storage import inner_tensors
from tensorpack._leaves.streams import StreamId, stream_id
from tensorpack.testing._calls import Call
from tensorpack.testing._device import Block, DeviceTensor
from tensorpack.testing._devices import CUDA
from tensorpack.testing._graphs import RecordedGraph
from tensorpack.testing._log import Log
from tensorpack.testing._memory import Memory
from tensorpack.testing._torch_functions import Functions

__all__ = ["World", "activated", "active"]


class World:
    """One recorded machine.

    Attributes:
        log: what its streams were given to do.
        real: whether it is the machine's own accelerator, watched only.
        memory: how much of its memory is in use.
        graphs: the graph that each stream is being captured into.
    """

    def __init__(self, *, real: bool) -> None:
        self.real = real
        self.log = Log(self.storages)
        self.functions = Functions(self.call)
        self.memory = Memory()
        self.graphs: dict[StreamId, RecordedGraph] = {}
        self._storage_numbers = itertools.count()
        self._stream_ids = itertools.count(1)
        self._blocks: weakref.WeakValueDictionary[int, Block] = (
            weakref.WeakValueDictionary()
        )
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self._local = threading.local()

    # Streams.

    def new_stream_id(self) -> int:
        """Return the id of a new stream."""
        return next(self._stream_ids)

    def current(self, device: torch.device | None = None) -> StreamId:
        """Return the current stream of the calling thread."""
        index = 0 if device is None or device.index is None else device.index
        if self.real:
            return stream_id(real_current_stream(index))
        entered = (found for found in reversed(self._entered) if found[1] == index)
        return next(entered, (CUDA, index, 0))

    @property
    def _entered(self) -> list[StreamId]:
        found: list[StreamId] = self._local.__dict__.setdefault("entered", [])
        return found

    def enter(self, stream: StreamId) -> None:
        """Make a stream the current one of the calling thread."""
        self._entered.append(stream)

    def set_current(self, stream: StreamId) -> None:
        """Make a stream the current one of the calling thread, for good."""
        self._entered[-1:] = [stream]

    def leave(self) -> None:
        """Make the stream the current one that was before."""
        self._entered.pop()

    @property
    def capturing(self) -> set[StreamId]:
        """The streams that are being captured, or say so."""
        return self.log.capturing_ids | self.graphs.keys()

    # Memory.

    def on_device(self, tensor: object) -> bool:
        """Return whether an object is a tensor in this world's device memory."""
        if self.real:
            return isinstance(tensor, Tensor) and tensor.is_cuda
        return isinstance(tensor, DeviceTensor)

    def storages(self, tensor: Tensor) -> list[int]:
        """Return the numbers of the blocks that a tensor owns on a device."""
        parts = [t for t in inner_tensors("", tensor) if t.is_cuda]
        return list(dict.fromkeys(self.number(part) for part in parts))

    def number(self, tensor: Tensor) -> int:
        """Return the number of the block that a plain device tensor lies in."""
        if isinstance(tensor, DeviceTensor):
            return tensor.block.number
        storage = tensor.untyped_storage()
        known = self._seen.get(storage._cdata)
        if known is None or known[0].expired():  # type: ignore[no-untyped-call]  # torch's
            # Held weakly: to look at memory must not keep it alive.
            held = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch's
            known = (held, next(self._storage_numbers))
            self._seen[storage._cdata] = known
            self.log.allocated[known[1]] = self.current(tensor.device)
        return known[1]

    def claim(self, numbers: Tensor, device: torch.device) -> DeviceTensor:
        """Make the tensor on a device that a host tensor stands for."""
        parts: list[DeviceTensor] = []
        if numbers.layout is not torch.strided:
            parts = [self.claim(p, device) for p in inner_tensors("", numbers)]
        storage = (parts[0].numbers if parts else numbers).untyped_storage()
        block = self._blocks.get(storage._cdata)
        if block is None:
            number = next(self._storage_numbers)
            stream = self.current(device)
            self.log.allocated[number] = stream
            count = storage.nbytes()
            freed = functools.partial(self._freed, stream, number, count)
            block = Block(number, device, storage, stream, freed)
            self._blocks[storage._cdata] = block
            self.memory.add(count)
        return DeviceTensor(numbers, block, self, parts)

    def _freed(self, stream: StreamId, number: int, count: int) -> None:
        self.memory.add(-count)
        self.log.add("free", stream, number)

    # Calls.

    def recorder(self) -> "Recorder":
        """Return what sees the operators of the thread that enters it."""
        return Recorder(self)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator and record what it does to device memory."""
        return Call(self, func, args, kwargs).run()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Record the calling thread."""
        with ExitStack() as stack:
            if not self.real:
                stack.enter_context(torch.no_grad())
                stack.enter_context(self.functions)
            stack.enter_context(self.recorder())
            yield


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Sees every operator of a thread before any kernel does."""

    def __init__(self, world: World) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.world = world
        self._lifts = False

    def __enter__(self) -> Any:
        self._lifts = torch._C._only_lift_cpu_tensors()
        # `torch.tensor(..., device="cuda")` then copies by an operator, seen here.
        torch._C._set_only_lift_cpu_tensors(not self.world.real)
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch's

    def __exit__(self, *details: object) -> None:
        torch._C._set_only_lift_cpu_tensors(self._lifts)
        super().__exit__(*details)  # type: ignore[no-untyped-call]  # torch's

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(map(_has_own_dispatch, types)):
            return NotImplemented  # what it does inside comes back here
        return self.world.call(func, args, kwargs or {})


def _has_own_dispatch(cls: Any) -> bool:
    """Return whether a class of tensors takes its operators apart itself."""
    disabled = torch._C._disabled_torch_dispatch_impl
    own = cls.__torch_dispatch__ is not disabled
    return own and not issubclass(cls, DeviceTensor)


real_current_stream = torch.accelerator.current_stream

_worlds: list[World] = []


def active() -> World | None:
    """Return the world that records now, if one does."""
    return _worlds[-1] if _worlds else None


@contextmanager
def activated(world: World) -> Iterator[World]:
    """Let a world record, until the block ends."""
    _worlds.append(world)
    try:
        yield world
    finally:
        _worlds.remove(world)
