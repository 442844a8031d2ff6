"""The mode that sees every operator of a thread, and tells the watch of it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tensorpack.guard.operators import (
    COPIES,
    Recipe,
    copied,
    given,
    is_asynchronous,
    is_composite,
    recipe_of,
    tensors_in,
)
from tensorpack.guard.places import Place, here
from tensorpack.guard.watch import CUDA, Touch, Watch, touch_of

__all__ = ["Dispatch", "plain_tensors"]

_aten = torch.ops.aten
_disabled = torch._C._disabled_torch_dispatch_impl


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Watches the operators of the thread that enters it."""

    supports_higher_order_operators = True

    def __init__(self, watch: Watch, deliver: Callable[[], None]) -> None:
        """Make the mode for one thread.

        Args:
            watch: is told.
            deliver: is called behind each operator: raises, or warns, if it must.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._watch = watch
        self._deliver = deliver

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(cls.__torch_dispatch__ is not _disabled for cls in types):
            return NotImplemented  # what it does inside comes back here
        kwargs = kwargs or {}
        if self._watch.closed:
            return func(*args, **kwargs)
        if is_composite(func):
            # Inference mode leaves such operators whole: take them apart.
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if func is _aten.record_stream.default:
            self._record(*args)
        elif func in COPIES:
            self._copy(func, args, kwargs, out)
        else:
            recipe = recipe_of(func)
            if recipe is not None:
                self._tell(recipe, args, kwargs, out)
        self._deliver()
        return out

    def _record(self, tensor: Tensor, stream: torch.Stream) -> None:
        """Tell of a stream that is recorded on a tensor's block."""
        number = self._watch.driver.stream_number(stream)
        key = (CUDA, stream.device_index, number)
        for part in plain_tensors(tensor):
            base = part.untyped_storage().data_ptr()
            self._watch.recorded(base, key, here())

    def _tell(self, recipe: Recipe, args: Any, kwargs: Any, out: Any) -> None:
        """Tell of what an operator read and wrote."""
        place = here()
        uses = [(x, False) for x in given(recipe.reads, args, kwargs)]
        uses += [(x, True) for x in given(recipe.writes, args, kwargs)]
        if recipe.makes:
            mine = {id(x) for x, _ in uses}
            uses += [(x, True) for x in tensors_in(out) if id(x) not in mine]
        self._use(recipe.name, place, uses)

    def _use(self, name: str, place: Place, uses: list[tuple[Tensor, bool]]) -> None:
        """Tell of uses on the current stream of each device, and by the host."""
        by_device: dict[int, list[Touch]] = {}
        host: list[Touch] = []
        looks = self._watch.has_copies
        parts: dict[int, Tensor] = {}
        for tensor, writes in uses:
            if not tensor.is_cuda:
                if looks and _has_memory(tensor):
                    host.append(touch_of(tensor, name, place, writes=writes))
                continue
            for part in plain_tensors(tensor):
                touch = touch_of(part, name, place, writes=writes)
                by_device.setdefault(part.device.index, []).append(touch)
                parts[touch.base] = part
        for device, touches in by_device.items():
            stream = self._watch.current(device)
            self._watch.ran(stream, touches, foreign=_storage_in(parts))
        if host:
            self._watch.host_used(host)

    def _copy(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Tell of a copy: by its direction, and whether the host goes on."""
        name, place = str(func), here()
        asynchronous = is_asynchronous(func, args, kwargs)
        for new, old in copied(func, args, out):
            if new is old:
                continue
            crosses = new.is_cuda is not old.is_cuda
            host = old if new.is_cuda else new
            if not crosses or not (asynchronous and _has_memory(host)):
                self._between(name, place, new, old)
                continue
            if not host.is_pinned():
                self._between(name, place, new, old)
                continue
            device = new if new.is_cuda else old
            self._use(name, place, [(device, device is new)])
            touch = touch_of(host, name, place, writes=host is new)
            stream = self._watch.current(device.device.index)
            self._watch.host_copied(host.untyped_storage(), stream, touch)

    def _between(self, name: str, place: Place, new: Tensor, old: Tensor) -> None:
        """Tell of a copy in which no host memory stays under way."""
        if not (new.is_cuda and old.is_cuda) or new.device == old.device:
            self._use(name, place, [(old, False), (new, True)])
            return
        # torch queues it on the source's stream, and lets the target's stream wait.
        stream = self._watch.current(old.device.index)
        reads, writes = (
            [touch_of(part, name, place, writes=w) for part in plain_tensors(tensor)]
            for tensor, w in ((old, False), (new, True))
        )
        self._watch.ran(stream, [*reads, *writes])


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Iterate the tensors that hold the numbers of one: itself, unless it is sparse."""
    if tensor.layout is torch.strided:
        if _has_memory(tensor):
            yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield tensor._indices()
        yield tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def _has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor is one whose numbers lie at an address."""
    strided = tensor.layout is torch.strided and tensor.device.type in ("cuda", "cpu")
    return strided and type(tensor).__torch_dispatch__ is _disabled


def _storage_in(parts: dict[int, Tensor]) -> Callable[[int], object]:
    def find(base: int) -> object:
        found = parts.get(base)
        return None if found is None else found.untyped_storage()

    return find
