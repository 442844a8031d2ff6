"""Small host leaves -> one pinned buffer -> one device buffer -> leaves."""

import contextlib
import functools
import inspect
import itertools
import linecache
import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack._codegen.compile import compile_functions
from tensorpack._leaves.streams import outliving
from tensorpack.transfer.layout import (
    UNITS,
    Layout,
    Pack,
    in_forward_mode,
    layout_of,
    text,
)

__all__ = ["PACK_BELOW", "Entry", "Packer", "gather"]

Pinned = Callable[[int, torch.dtype], Tensor]
Packed = tuple[list[Any], list[Tensor], list[Tensor], tuple[int, ...]]
"""New leaves, pinned buffers, device blocks, indexes of the leaves that go alone."""

_split = torch.unsafe_split_with_sizes

PACK_BELOW = 256 << 10
"""Bytes under which a leaf is packed.

On an H200 eight pageable leaves of 64 KB took 0.30 of the host time of moving them one
by one, of 128 KB 0.56 and of 256 KB 0.62; pinned ones, which need no staging when they
go alone, 0.60, 1.12 and 1.20. Most sources are pageable.
"""


@functools.lru_cache(maxsize=512)
def _padding(dtype: torch.dtype, count: int) -> Tensor:
    """Return the zeros between two leaves."""
    with outliving():
        return torch.zeros(count, dtype=dtype, device="cpu")


# Tells whether tensors are like those it was made from: class, dtype, device, sizes,
# strides, `requires_grad`, and all that dispatch goes by (conjugate, negative, sparse,
# quantized, inference). It is what torch's compiler asks, and one call of it takes a
# third of the time of a key, less with cold caches. Without it the key does all.
_Guard: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_Guard = getattr(_Guard, "TensorGuards", None)
_GUARDS = 3
"""Guards that are asked before a key is made."""


_is_nested = operator.attrgetter("is_nested")
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def _may_be_asked(leaves: Sequence[Any]) -> bool:
    """Return whether leaves may be shown to a guard.

    Asked for the strides that a nested tensor lacks, it ends the process.
    """
    try:
        return not any(map(_is_nested, leaves))
    except (AttributeError, RuntimeError):  # no tensor
        return False


def _matches_nothing(*_: object) -> bool:
    return False


@attrs.define(eq=False)
class Entry:
    """What is known of the layout behind a key.

    Attributes:
        key: the tuple of all that decides the layout; None where a leaf is odd.
        move: the layout's own function, once it has one.
        alone: the indexes of the leaves that it leaves out.
        by_strides: whether the strides have to join the key.
        fits: quickly tells whether leaves have the layout; a no proves nothing.
        guards_left: how many more guards are worth their making.
    """

    key: Hashable
    move: Callable[..., Packed] | None = None
    alone: tuple[int, ...] = ()
    by_strides: bool = False
    fits: Callable[..., bool] = _matches_nothing
    guards_left: int = 4


class Packer:
    """Packs leaves by layout; a layout that recurs gets a function of its own.

    The layout is found by one tuple of everything that decides it. A layout seen once
    is moved by a plain loop: an adversary's many shapes must cost no compile time, and
    no memory beyond the bound.
    """

    def __init__(self, below: int, *, together: bool = True, bound: int = 256) -> None:
        """Make a packer.

        Args:
            below: bytes under which a leaf is packed.
            together: whether a pack is one copy; else it is only gathered together.
            bound: how many layouts are remembered.
        """
        self.below = below
        self.together = together
        self._bound = bound
        self._known: OrderedDict[Hashable, Entry] = OrderedDict()
        self._seen: OrderedDict[Hashable, Layout] = OrderedDict()
        self._recent: dict[int, tuple[Entry, ...]] = {}
        self._lock = threading.Lock()

    def find(self, leaves: Sequence[Any]) -> Entry:
        """Look up what is known of the layout of leaves."""
        if in_forward_mode():
            return Entry(None)  # nothing here shows whether a leaf has a tangent
        recent = self._recent.get(len(leaves))
        if recent and _may_be_asked(leaves):
            for entry in recent:
                if entry.fits(*leaves):
                    return entry
        entry = self._find_by_key(leaves)
        if entry.move is not None and _Guard is not None:
            self._put_first(entry, leaves)
        return entry

    def _put_first(self, entry: Entry, leaves: Sequence[Any]) -> None:
        """Let an entry be found by its guard, before any key is made."""
        if not all(x.layout is torch.strided and not x.is_nested for x in leaves):
            return
        with self._lock:
            recent = self._recent.get(len(leaves), ())
            if entry.guards_left and (
                entry.fits is _matches_nothing or entry in recent
            ):
                # The first guard, or one for the same shapes in another mode.
                entry.guards_left -= 1
                with contextlib.suppress(TypeError, RuntimeError):  # not for all leaves
                    entry.fits = _Guard(
                        *leaves, dynamic_dims_sizes=None, dynamic_dims_strides=None
                    ).check
            others = [known for known in recent if known is not entry]
            if len(self._recent) >= self._bound:
                self._recent.clear()
            self._recent[len(leaves)] = (entry, *others[: _GUARDS - 1])

    def _find_by_key(self, leaves: Sequence[Any]) -> Entry:
        """Look up a layout by the tuple of all that decides it."""
        try:
            key: Hashable = tuple(
                [
                    (
                        type(x),
                        x.shape,
                        x.dtype,
                        x.layout,
                        x.is_cpu,
                        x.requires_grad,
                        _is_wrapped(x),
                    )
                    for x in leaves
                ]
            )
            entry = self._known.get(key)
            if entry is None:
                return Entry(key)
            if not entry.by_strides:
                return entry
            # Some leaf of these shapes has strides of its own: they join the key.
            key = (key, tuple([leaf.stride() for leaf in leaves]))
        except (AttributeError, RuntimeError, TypeError):
            return Entry(None)
        return self._known.get(key) or Entry(key, by_strides=True)

    def pack(
        self, entry: Entry, leaves: Sequence[Any], device: torch.device, pinned: Pinned
    ) -> Packed:
        """Move the small host leaves of a layout; give None where a leaf goes alone.

        Call it on the copy stream. The sources may be overwritten as soon as it
        returns.
        """
        if entry.move is not None:
            try:
                return entry.move(leaves, device, pinned)
            except (RuntimeError, TypeError):
                # A leaf is not what the key can tell (sparse, other strides). The loop
                # looks at each leaf, and raises again if that was not the reason.
                pass
        layout = layout_of(leaves, self.below)
        packed = _run(layout, leaves, device, pinned, together=self.together)
        if entry.key is not None:
            with self._lock:
                self._learn(entry, layout)
        return packed

    def _learn(self, entry: Entry, layout: Layout) -> None:
        """Remember a layout; the second time, compile its function."""
        key = entry.key
        if layout.needs_strides and not entry.by_strides:
            self._put(Entry(key, by_strides=True))
        elif entry.move is not None:
            return
        elif self._seen.pop(key, None) == layout:
            move = _compile(layout, together=self.together)
            self._put(Entry(key, move, layout.alone, entry.by_strides))
        else:
            self._seen[key] = layout
            if len(self._seen) > self._bound:
                self._seen.popitem(last=False)

    def _put(self, entry: Entry) -> None:
        """Keep an entry; the oldest goes."""
        self._known[entry.key] = entry
        if len(self._known) > self._bound:
            self._known.popitem(last=False)

    def texts(self) -> list[str]:
        """Return the source of every layout that has a function."""
        return [inspect.getsource(e.move) for e in self._known.values() if e.move]


def _compile(layout: Layout, *, together: bool) -> Callable[..., Packed]:
    """Compile the function of a layout."""
    dtypes = {dtype for pack in layout.packs for dtype, _, _ in pack.groups}
    names = {
        "cat": torch.cat,
        "empty_like": torch.empty_like,
        "padding": _padding,
        "split": _split,
        **{str(unit).removeprefix("torch."): unit for unit in UNITS},
        **{str(dtype).removeprefix("torch."): dtype for dtype in dtypes},
    }
    name = f"layout {next(_numbers)}"
    move = compile_functions(text(layout, together=together), names, __name__, name)[
        "pack"
    ]
    move.__globals__.pop("pack")  # a cycle, so that it would not die at once
    # The text is there for as long as the function is.
    file = move.__code__.co_filename
    weakref.finalize(move, linecache.cache.pop, file, None).atexit = False
    return move


_numbers = itertools.count(1)


def _run(
    layout: Layout,
    leaves: Sequence[Any],
    device: torch.device,
    pinned: Pinned,
    *,
    together: bool,
) -> Packed:
    """Move the packs of a layout by a plain loop."""
    new = _empties(layout, leaves, device)
    hosts, buffers = [], []
    for pack in layout.packs:
        hosts.append(pinned(pack.nbytes, torch.uint8))
        _fill(pack, hosts[-1], leaves)
        if together:
            buffers.append(hosts[-1].to(device, non_blocking=True))
            _cut(pack, buffers[-1], new)
            continue
        _cut(pack, hosts[-1], new)
        for slot in (slot for _, _, slots in pack.groups for slot in slots):
            new[slot.leaf] = new[slot.leaf].to(device, non_blocking=True)
            buffers.append(new[slot.leaf])
    return new, hosts, buffers, layout.alone


def _empties(layout: Layout, leaves: Sequence[Any], device: torch.device) -> list[Any]:
    """Make the new leaves without items; None in all other places."""
    new: list[Any] = [None] * layout.count
    for index in layout.empty:
        new[index] = torch.empty_like(leaves[index], device=device)
    return new


def gather(
    layout: Layout, leaves: Sequence[Any], device: torch.device, pinned: Pinned
) -> list[Any]:
    """Bring the packs of a layout back to the host; None where a leaf goes alone.

    Call it on the fetch stream and under `no_grad`: the leaves are gathered there, and
    each pack is one copy.
    """
    new = _empties(layout, leaves, torch.device("cpu"))
    for pack in layout.packs:
        buffer = torch.empty(pack.nbytes, dtype=torch.uint8, device=device)
        _fill(pack, buffer, leaves)
        host = pinned(pack.nbytes, torch.uint8)
        host.copy_(buffer, non_blocking=True)
        _cut(pack, host, new)
    return new


def _fill(pack: Pack, buffer: Tensor, leaves: Sequence[Any]) -> None:
    """Copy the leaves of a pack into its buffer."""
    runs = _split(buffer, [nbytes for _, nbytes, _ in pack.groups])
    for (dtype, _, slots), run in zip(pack.groups, runs, strict=True):
        rooms = _split(run.view(dtype), [slot.room for slot in slots])
        places = [
            room.as_strided(slot.shape, slot.stride)
            for slot, room in zip(slots, rooms, strict=True)
        ]
        torch._foreach_copy_(places, [leaves[slot.leaf] for slot in slots])


def _cut(pack: Pack, buffer: Tensor, new: list[Any]) -> None:
    """Cut the leaves of a pack out of its buffer."""
    runs = _split(buffer, [nbytes for _, nbytes, _ in pack.groups])
    for (dtype, _, slots), run in zip(pack.groups, runs, strict=True):
        chunks = _split(run.view(dtype), [slot.room for slot in slots])
        for slot, chunk in zip(slots, chunks, strict=True):
            new[slot.leaf] = chunk.as_strided_(slot.shape, slot.stride)
