"""Layout of a pack: where each small leaf lies in the one buffer that carries it.

# Note [packed leaves]
A packed leaf must be as good as a separate tensor. It starts on a 256-byte boundary,
the allocator's own habit, which vectorised kernels and Triton's specialisations need.
It is cut out by `unsafe_split`, whose chunks have a version counter each and no view
relation, and gets its shape by `resize_` or `as_strided_`: a `view` under `no_grad`
would break an in-place operation that autograd sees later. A leaf without items lies in
no pack: as the `out=` of an operation it grows, and would grow into its neighbours.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.autograd import forward_ad

from tensorpack._leaves.storage import is_plain_tensor

__all__ = [
    "ALIGNMENT",
    "LARGEST_PACK",
    "UNITS",
    "Layout",
    "Pack",
    "Slot",
    "in_forward_mode",
    "is_plain",
    "layout_of",
    "text",
]

ALIGNMENT = 256
LARGEST_PACK = 4 << 20
"""Bytes of the largest pack, so that one kept leaf does not hold much more alive."""


@attrs.frozen
class Slot:
    """The place of one leaf in a pack.

    Attributes:
        leaf: the leaf's index.
        shape: its shape.
        stride: the strides it has on the device: its own if it is dense.
        numel: how many items it has.
        room: how many items fit before the next leaf starts.
        linear: whether its items lie in memory in the order of the strides.
    """

    leaf: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    numel: int
    room: int
    linear: bool

    @property
    def contiguous(self) -> bool:
        """Return whether the leaf is laid out row by row."""
        step = 1
        for size, stride in zip(
            reversed(self.shape), reversed(self.stride), strict=True
        ):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


@attrs.frozen
class Pack:
    """One buffer: slots of one dtype lie side by side, each dtype on a boundary.

    Attributes:
        nbytes: bytes of the buffer.
        groups: dtype, bytes and slots of each run of one dtype.
    """

    nbytes: int
    groups: tuple[tuple[torch.dtype, int, tuple[Slot, ...]], ...]


@attrs.frozen
class Layout:
    """How the leaves of a list travel.

    Attributes:
        count: how many leaves there are.
        packs: those that are gathered in one pinned buffer, in parts of bounded size.
        empty: indexes of the leaves without items, for which memory is not needed.
        alone: indexes of the leaves that go alone.
        needs_strides: whether a copy of some leaf depends on its strides.
    """

    count: int
    packs: tuple[Pack, ...]
    empty: tuple[int, ...]
    alone: tuple[int, ...]
    needs_strides: bool


_HOST = torch.device("cpu")


def layout_of(leaves: Sequence[Any], below: int, *, on: torch.device = _HOST) -> Layout:
    """Lay out the leaves that are small, plain and dense; the others go alone.

    Args:
        leaves: leaves of any kind.
        below: bytes under which a leaf is packed.
        on: the device that a packed leaf is on now.
    """
    small = [i for i, leaf in enumerate(leaves) if _is_packable(leaf, below, on)]
    if len(small) < 2:  # noqa: PLR2004  # one leaf is its own buffer
        small = []
    empty = tuple(i for i in small if not leaves[i].numel())
    filled = [i for i in small if leaves[i].numel()]
    packs = tuple(_pack(part, leaves) for part in _parts(filled, leaves))
    chosen = set(small)
    alone = tuple(i for i in range(len(leaves)) if i not in chosen)
    slots = [s for pack in packs for _, _, group in pack.groups for s in group]
    needs = any(len(s.shape) > 1 and not (s.contiguous and s.linear) for s in slots)
    return Layout(len(leaves), packs, empty, alone, needs)


def is_plain(leaf: Any) -> bool:
    """Return whether a leaf is its numbers and nothing else.

    Then its bytes can be copied in the place of the leaf. What has gradients, forward
    or backward, or stands for another tensor in a transform, only torch can copy.
    """
    return (
        is_plain_tensor(type(leaf))
        and not (leaf.is_nested or leaf.requires_grad or leaf.is_quantized)
        and leaf.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(leaf)
        and not (in_forward_mode() and _has_tangent(leaf))
    )


def _has_tangent(leaf: Tensor) -> bool:
    """Return whether forward-mode autograd goes through a leaf."""
    _, tangent = forward_ad.unpack_dual(leaf)  # type: ignore[no-untyped-call]  # torch's
    return tangent is not None


def in_forward_mode() -> bool:
    """Return whether tensors may have tangents now: nothing else of them shows it."""
    return forward_ad._current_level >= 0


def _is_packable(leaf: Any, below: int, on: torch.device) -> bool:
    """Return whether a leaf may travel in a pack: plain and small."""
    return (
        is_plain(leaf)
        and leaf.device == on
        and leaf.numel() * leaf.element_size() < below
    )


def _parts(small: list[int], leaves: Sequence[Tensor]) -> list[list[int]]:
    """Cut the leaves into packs of bounded size."""
    parts: list[list[int]] = []
    filled = 0
    for index in small:
        room = _room(leaves[index]) * leaves[index].element_size()
        if not parts or filled + room > LARGEST_PACK:
            parts.append([])
            filled = 0
        parts[-1].append(index)
        filled += room
    return parts


def _room(leaf: Tensor) -> int:
    """Count the items of a leaf's size up to the next boundary."""
    per_line = ALIGNMENT // leaf.element_size()
    return -(-leaf.numel() // per_line) * per_line


def _pack(part: list[int], leaves: Sequence[Tensor]) -> Pack:
    """Lay out one pack."""
    by_dtype: dict[torch.dtype, list[Slot]] = {}
    for index in part:
        by_dtype.setdefault(leaves[index].dtype, []).append(_slot(index, leaves[index]))
    groups = tuple(
        (dtype, sum(s.room for s in slots) * dtype.itemsize, tuple(slots))
        for dtype, slots in by_dtype.items()
    )
    return Pack(sum(nbytes for _, nbytes, _ in groups), groups)


def _slot(index: int, leaf: Tensor) -> Slot:
    """Make the slot of one leaf; the strides are those that `Tensor.to` would give."""
    twin = torch.empty_like(leaf, device="meta", memory_format=torch.preserve_format)
    return Slot(
        leaf=index,
        shape=tuple(leaf.shape),
        stride=tuple(twin.stride()),
        numel=leaf.numel(),
        room=_room(leaf),
        linear=twin.stride() == leaf.stride(),
    )


def text(layout: Layout, *, together: bool = True) -> str:
    """Write the straight-line function that moves the packs of a layout.

    The function takes the leaves, the device and `pinned(count, dtype)`. It returns the
    new leaves (None where a leaf goes alone), the pinned buffers, the new blocks on the
    device, and the indexes of the leaves that go alone. It must run on the copy stream.
    It raises where a leaf has strides that its key cannot tell, or wants a gradient
    that is being traced.

    Args:
        layout: what to write it for.
        together: whether a pack is one copy; else it is only gathered together, and
            each leaf has a copy and a block of its own.
    """
    lines = ["def pack(leaves, device, pinned):"]
    packed = {s.leaf for p in layout.packs for _, _, group in p.groups for s in group}
    taken = packed.union(layout.empty)
    names = [f"x{i}" if i in taken else "_" for i in range(layout.count)]
    lines.append(f"    {', '.join(names)}, = leaves")
    for number, pack in enumerate(layout.packs):
        lines += [
            f"    {line}" for line in _pack_lines(number, pack, together=together)
        ]
    lines += [f"    y{i} = empty_like(x{i}, device=device)" for i in layout.empty]
    news = [f"y{i}" if i in taken else "None" for i in range(layout.count)]
    numbers = range(len(layout.packs))
    hosts = ", ".join(f"host{n}" for n in numbers)
    blocks = [f"buffer{n}" for n in numbers]
    buffers = ", ".join(blocks if together else [f"y{i}" for i in sorted(packed)])
    lines.append(
        f"    return [{', '.join(news)}], [{hosts}], [{buffers}], {layout.alone}"
    )
    return "\n".join(lines) + "\n"


def _pack_lines(number: int, pack: Pack, *, together: bool) -> list[str]:
    """Write the lines for one pack: gather, copy, cut; or gather, cut, copy each."""
    host = f"host{number}"
    buffer = f"buffer{number}" if together else host
    unit = _cheapest_unit(pack)
    lines = _gather_by_dtype(host, pack) if unit is None else _gather(host, pack, unit)
    if together:
        lines.append(f"{buffer} = {host}.to(device, non_blocking=True)")
    before = 0
    for dtype, nbytes, slots in pack.groups:
        after = pack.nbytes - before - nbytes
        skips = (before // dtype.itemsize, after // dtype.itemsize)
        run = buffer if dtype is unit else f"{buffer}.view({_name(dtype)})"
        lines += _cut_lines(run, slots, skips)
        before += nbytes
    if not together:
        ys = [f"y{slot.leaf}" for _, _, slots in pack.groups for slot in slots]
        lines += [f"{y} = {y}.to(device, non_blocking=True)" for y in ys]
    return lines


UNITS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_CAT, _SPLIT, _VIEW = 6.0, 3.0, 1.2
"""Microseconds that a call costs, roughly; they choose between two ways to gather."""


def _cheapest_unit(pack: Pack) -> torch.dtype | None:
    """Choose the dtype as whose items all leaves are gathered in one call.

    None means: a call for each dtype is cheaper.
    """
    groups = len(pack.groups)
    if groups == 1:
        return pack.groups[0][0]
    if any(dtype.is_complex for dtype, _, _ in pack.groups):
        return None  # a conjugate view cannot be read as items of another dtype
    best, cost = None, groups * (_CAT + _VIEW) + _SPLIT
    # Integers only: as `bool`, the bytes of other dtypes would become 0 and 1.
    for unit in UNITS:
        rows = [(d, s) for d, _, slots in pack.groups for s in slots]
        if any(s.numel * d.itemsize % unit.itemsize for d, s in rows):
            continue
        found = _CAT + _VIEW * sum(d is not unit for d, _ in rows)
        if found < cost:
            best, cost = unit, found
    return best


def _gather(host: str, pack: Pack, unit: torch.dtype) -> list[str]:
    """Write the lines that gather all leaves in one call, as items of one dtype."""
    parts: list[str] = []
    for dtype, _, slots in pack.groups:
        for slot in slots:
            row = _row(slot)
            if dtype is not unit:
                # One item may have any stride, and `view` asks for 1.
                one = ".as_strided((1,), (1,))" if slot.shape == (1,) else ""
                row = f"{row}{one}.view({_name(unit)})"
            parts.append(row)
            padding = (slot.room - slot.numel) * dtype.itemsize // unit.itemsize
            parts += [f"padding({_name(unit)}, {padding})"] if padding else []
    count = pack.nbytes // unit.itemsize
    return [
        f"{host} = pinned({count}, {_name(unit)})",
        f"cat(({', '.join(parts)},), out={host})",
    ]


def _gather_by_dtype(host: str, pack: Pack) -> list[str]:
    """Write the lines that gather the leaves of each dtype in a call of its own."""
    runs = [f"{host}_{number}" for number in range(len(pack.groups))]
    sizes = [nbytes for _, nbytes, _ in pack.groups]
    lines = [
        f"{host} = pinned({pack.nbytes}, uint8)",
        f"{', '.join(runs)}, = split({host}, {sizes})",
    ]
    for (dtype, _, slots), run in zip(pack.groups, runs, strict=True):
        parts: list[str] = []
        for slot in slots:
            padding = slot.room - slot.numel
            parts.append(_row(slot))
            parts += [f"padding({_name(dtype)}, {padding})"] if padding else []
        lines.append(f"cat(({', '.join(parts)},), out={run}.view({_name(dtype)}))")
    return lines


def _row(slot: Slot) -> str:
    """Write a leaf as a row of items."""
    x = f"x{slot.leaf}"
    if len(slot.shape) == 1:
        return x
    if slot.contiguous:
        # Raises for a leaf of other strides, which the key does not tell apart.
        return f"{x}.view(-1)" if slot.linear else f"{x}.reshape(-1)"
    dense = x if slot.linear else f"{x}.clone()"
    return f"{dense}.as_strided(({slot.numel},), (1,))"


def _cut_lines(run: str, slots: tuple[Slot, ...], skips: tuple[int, int]) -> list[str]:
    """Write the lines that cut the leaves of one dtype out of a buffer."""
    names = ["_"] * bool(skips[0])
    sizes = [skips[0]] * bool(skips[0])
    shapes: list[str] = []
    for slot in slots:
        y = f"y{slot.leaf}"
        if len(slot.shape) == 1:
            # The padding is cut off as a chunk of its own: cheaper than a `resize_`.
            rest = slot.room - slot.numel
            names += [y, "_"] if rest else [y]
            sizes += [slot.numel, rest] if rest else [slot.numel]
            continue
        names.append(y)
        sizes.append(slot.room)
        if slot.contiguous:
            shapes.append(f"{y}.resize_({slot.shape})")
        else:
            shapes.append(f"{y}.as_strided_({slot.shape}, {slot.stride})")
    names += ["_"] * bool(skips[1])
    sizes += [skips[1]] * bool(skips[1])
    return [f"{', '.join(names)}, = split({run}, {sizes})", *shapes]


def _name(dtype: torch.dtype) -> str:
    """Return a dtype's name, under which the text knows it."""
    return str(dtype).removeprefix("torch.")
