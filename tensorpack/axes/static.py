"""Memory that is filled again and again: `empty_like`, `copy_`, and what fits where.

# Note [static memory]
A graph reads fixed addresses, so the leaves of a static payload are made once, for the
largest sizes. Its small leaves are cut out of one buffer, at whose layout a host buffer
can be filled and copied at once.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tensorpack._leaves.streams import outliving
from tensorpack._rules.axes import AxisMark, DimMark, Index, Offsets
from tensorpack.axes.padding import Padding, check_sizes, pad_of
from tensorpack.axes.survey import Found, Survey, dim_of, is_array, size_at, survey
from tensorpack.axes.traversal import Place, Values, visited
from tensorpack.errors import AxisError

__all__ = [
    "Fit",
    "Fits",
    "Region",
    "copy_",
    "empty_like",
    "fit",
    "placed",
    "shared_buffer",
]

T = TypeVar("T")

_ALIGNMENT = 256
_SHARED_BELOW = 256 << 10
"""Bytes under which a leaf lies in the shared buffer."""

_shared: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def shared_buffer(leaf: Tensor) -> tuple[Tensor, int] | None:
    """Return the buffer of bytes that a static leaf shares, and where it starts."""
    found: tuple[Tensor, int] | None = _shared.get(leaf)  # type: ignore[no-untyped-call]  # torch's
    return found


def empty_like(
    example: T,
    /,
    *,
    device: torch.device | str | int | None = None,
    pinned: bool = False,
    **sizes: int,
) -> T:
    """Return a payload of the form of another, whose leaves have memory of their own.

    New rows and all others are filled with the `pad` of their axis, else with 0. Small
    leaves share one buffer. Lists along an axis get its size, filled with its `pad`,
    else None; other host fields are the same objects.

    Args:
        example: a payload with every leaf that will ever be there.
        device: where the memory is. Left out, it is where each leaf is.
        pinned: make it pinned, for memory on the host.
        **sizes: how many items each axis gets, the others those of the example.

    Raises:
        AxisError: an axis is unknown or has more items, or a leaf cannot be made again.

    Streams:
        Memory is allocated and filled on the current stream. The host does not block.

    >>> import torch
    >>> from typing import Annotated
    >>> from torch import Tensor
    >>> from tensorpack import Axis, payload
    >>> @payload
    ... class Batch:
    ...     ids: Annotated[Tensor, Axis("requests", pad=-1)]
    >>> empty_like(Batch(torch.arange(2)), requests=4).ids
    tensor([-1, -1, -1, -1])
    """
    found = survey(example)
    check_sizes(found, sizes)
    where = None if device is None else torch.device(device)
    specs = [_spec(leaf, found.sizes | sizes, where) for leaf in found.leaves]
    leaves = _allocated(specs, pinned=pinned)
    new: T = visited((example,), _Empty(sizes, found.leaves, leaves))
    return new


@attrs.frozen(eq=False)
class _Spec:
    """One leaf to be made."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    fill: Any


def _spec(found: Found, sizes: Mapping[str, int], device: torch.device | None) -> _Spec:
    """Describe the new leaf in the place of an old one."""
    leaf = found.leaf
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        found.place.fail(
            "is not a dense tensor, so no memory can be made for it",
            "Set it to None in the example.",
        )
    shape = [*leaf.shape]
    fill = 0
    for mark in found.place.axes:
        if not isinstance(mark, DimMark) or size_at(found.place, mark, leaf) is None:
            continue
        dim = dim_of(found.place, mark, leaf)
        shape[dim] = sizes[mark.name] + isinstance(mark, Offsets)
        pad = getattr(mark, "pad", None)
        fill = pad if pad is not None else fill
    return _Spec(tuple(shape), leaf.dtype, device or leaf.device, fill)


def _allocated(specs: Sequence[_Spec], *, pinned: bool) -> list[Tensor]:
    """Make the leaves: small ones as parts of one buffer for each device."""
    new: list[Any] = [None] * len(specs)
    with outliving(), torch.no_grad():
        for device in dict.fromkeys(spec.device for spec in specs):
            own = [i for i, spec in enumerate(specs) if spec.device == device]
            pin = pinned and device.type == "cpu"
            _fill_shared(specs, own, new, pin=pin)
            for i in own:
                if new[i] is None:
                    new[i] = torch.empty(
                        specs[i].shape,
                        dtype=specs[i].dtype,
                        device=device,
                        pin_memory=pin,
                    )
        for leaf, spec in zip(new, specs, strict=True):
            leaf.fill_(spec.fill)
    return new


def _fill_shared(
    specs: Sequence[_Spec], own: Sequence[int], new: list[Any], *, pin: bool
) -> None:
    """Cut the small leaves of one device out of one buffer."""
    small = [i for i in own if _nbytes(specs[i]) < _SHARED_BELOW]
    # Leaves of one dtype lie side by side, so that one call can gather them.
    kinds = list(dict.fromkeys(specs[i].dtype for i in small))
    small.sort(key=lambda i: kinds.index(specs[i].dtype))
    if len(small) < 2:  # noqa: PLR2004  # one leaf is its own buffer
        return
    starts = _starts([_nbytes(specs[i]) for i in small])
    device = specs[small[0]].device
    buffer = torch.zeros(starts[-1], dtype=torch.uint8, device=device, pin_memory=pin)
    for i, start in zip(small, starts[:-1], strict=True):
        dtype, shape = specs[i].dtype, specs[i].shape
        row = buffer.view(dtype)
        before, count = start // dtype.itemsize, math.prod(shape)
        rest = row.numel() - before - count
        # Without a view relation: see Note [packed leaves] in `transfer.layout`.
        leaf = torch.unsafe_split_with_sizes(row, [before, count, rest])[1]
        new[i] = leaf.resize_(shape)
        _shared[new[i]] = (buffer, start)


def _nbytes(spec: _Spec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return where each part starts, each on a boundary, and where the last ends."""
    starts = [0]
    for nbytes in sizes:
        starts.append(starts[-1] + -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
    return starts


class _Empty(Padding):
    """Puts new leaves in the place of the old ones, and lengthens lists."""

    hooked = False

    def __init__(
        self, sizes: Mapping[str, int], old: Sequence[Found], new: Sequence[Tensor]
    ) -> None:
        super().__init__(sizes)
        self._new = iter(new)
        self._by_id: dict[int, Tensor] = {}
        self._old = old  # kept, so that no id comes again

    def leaf(self, place: Place, leaves: Values) -> Any:  # noqa: ARG002  # in order
        """Take the next leaf; one object in two fields stays one."""
        new = next(self._new)
        return self._by_id.setdefault(id(leaves[0]), new)

    def filler(self, place: Place, mark: AxisMark, value: Any) -> Any:  # noqa: ARG002  # as declared
        """Return the pad of an axis, else 0, or None in a list."""
        pad = getattr(mark, "pad", None)
        return 0 if pad is None and is_array(value) else pad


@attrs.frozen(eq=False)
class Region:
    """New rows of a leaf, and what fills them.

    Attributes:
        index: the part of the leaf's bucket that the rows are.
        fill: what fills them; None for the last row of the leaf.
    """

    index: tuple[slice, ...]
    fill: Any


@attrs.frozen(eq=False)
class Fit:
    """Where one leaf goes in a static leaf.

    Attributes:
        key: the leaf's key.
        leaf: the leaf.
        target: the static leaf.
        bucket: the first rows of the static leaf, as many as are asked for.
        data: the first rows of the bucket, as many as the leaf has.
        regions: the rows of the bucket beyond, and what fills them.
    """

    key: str
    leaf: Tensor
    target: Tensor
    bucket: tuple[slice, ...]
    data: tuple[slice, ...]
    regions: tuple[Region, ...]


@attrs.frozen(eq=False)
class Fits:
    """Where the leaves of an object go in a static one.

    Attributes:
        own: how many items each axis of the object has.
        fits: one for each leaf, in plan order.
        plain: whether every host field stays as it is.
    """

    own: Mapping[str, int]
    fits: Sequence[Fit]
    plain: bool


def fit(static: Any, value: Any, sizes: Mapping[str, int]) -> Fits:
    """Say where the leaves of an object go in a static one.

    Args:
        static: what has the memory.
        value: the object.
        sizes: how many items each axis has in the first rows of the static.

    Raises:
        AxisError: the object has a leaf that does not fit.
    """
    if type(static) is not type(value):
        raise AxisError(
            cls=type(value).__qualname__,
            problem=f"is not of the class of the static, `{type(static).__qualname__}`",
            remedy="Make the static by `empty_like` from an object of the same class.",
        )
    found, room = survey(value), survey(static)
    check_sizes(found, sizes)
    there = {leaf.place.key: leaf.leaf for leaf in room.leaves}
    wanted = found.sizes | dict(sizes)
    fits = [_fit(x, there.get(x.place.key), wanted, room) for x in found.leaves]
    return Fits(found.sizes, fits, plain=not found.marked_hosts)


def _fit(found: Found, target: Any, sizes: Mapping[str, int], room: Survey) -> Fit:
    """Say where one leaf goes."""
    place, leaf = found.place, found.leaf
    if target is None:
        place.fail(
            "has no memory in the static",
            "Make the static from an example that has it.",
        )
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        place.fail("is not a dense tensor", "Leave it out of the static.")
    for what in ("dtype", "ndim"):
        one, two = getattr(leaf, what), getattr(target, what)
        if one != two:
            place.fail(
                f"has the {what} {one}, and its static has {two}",
                f"Give both one {what}.",
            )
    along: dict[int, DimMark] = {}
    for mark in place.axes:
        if not isinstance(mark, DimMark) or size_at(place, mark, leaf) is None:
            continue
        along[dim_of(place, mark, leaf)] = mark
    bucket = [
        sizes[along[d].name] + isinstance(along[d], Offsets) if d in along else size
        for d, size in enumerate(leaf.shape)
    ]
    _check_room(place, along, bucket, target, room)
    regions = []
    reached = [*leaf.shape]
    for mark in place.axes:
        for dim in (d for d, m in along.items() if m is mark):
            if reached[dim] < bucket[dim]:
                rows = [slice(0, n) for n in reached]
                rows[dim] = slice(reached[dim], bucket[dim])
                fill = None if isinstance(mark, Offsets) else pad_of(place, mark)
                regions.append(Region(tuple(rows), fill))
                reached[dim] = bucket[dim]
    return Fit(
        place.key,
        leaf,
        target,
        tuple(slice(0, n) for n in bucket),
        tuple(slice(0, n) for n in leaf.shape),
        tuple(regions),
    )


def _check_room(
    place: Place,
    along: Mapping[int, DimMark],
    bucket: Sequence[int],
    target: Tensor,
    room: Survey,
) -> None:
    """Raise where a static leaf is too small, or has another size on a fixed dim."""
    for dim, size in enumerate(bucket):
        if dim in along and size > target.shape[dim]:
            axis = along[dim].name
            place.fail(
                f"needs {size - isinstance(along[dim], Offsets)} items on `{axis}`, "
                f"and its static has room for {room.sizes.get(axis, 0)}",
                f"Make the static with `{axis}={size}` or more.",
            )
        if dim not in along and size != target.shape[dim]:
            place.fail(
                f"has {size} on dim {dim}, and its static has {target.shape[dim]}",
                "Give the dim an `Axis` if it varies.",
            )


class _Placed(Padding):
    """Puts views of static leaves in the place of leaves, and pads host fields.

    No payload is asked for its `__payload_resized__`: the new rows are on their way.
    """

    hooked = False

    def __init__(
        self,
        own: Mapping[str, int],
        sizes: Mapping[str, int],
        views: Sequence[Tensor],
    ) -> None:
        super().__init__(sizes)
        self._own = own
        self._views = iter(views)

    def leaf(self, place: Place, leaves: Values) -> Any:  # noqa: ARG002  # in order
        """Take the next view."""
        return next(self._views)

    def items(self, place: Place, lists: Values) -> Any:
        """Refuse to pad a list of leaves; go through it item by item."""
        self._check(place, lists[0])
        super().items(place, lists)

    def host(self, place: Place, values: Values) -> Any:
        """Pad a host value, or set a size."""
        self._check(place, values[0])
        return super().host(place, values)

    def _check(self, place: Place, value: Any) -> None:
        """Raise for a host value that has not the size of its axis."""
        for mark in place.axes:
            if isinstance(mark, Index):
                continue
            size = size_at(place, mark, value)
            if size is not None and size != self._own.get(mark.name, size):
                place.fail(
                    f"has {size} items on the axis `{mark.name}`, and the leaves have "
                    f"{self._own[mark.name]}",
                    "Give both one size.",
                )


def placed(
    value: T,
    own: Mapping[str, int],
    sizes: Mapping[str, int],
    views: Sequence[Tensor],
) -> T:
    """Return an object with views of static leaves, and its own host fields.

    Args:
        value: the object.
        own: how many items each of its axes has.
        sizes: how many the new object has.
        views: the leaves of the new object, in plan order.

    Raises:
        AxisError: a host field has not the size of its axis, or cannot be padded.
    """
    new: T = visited((value,), _Placed(own, sizes, views))
    return new


def copy_(static: T, value: T, /) -> T:
    """Copy a payload into the first rows of another one's memory.

    The other rows stay as they are. It is plain torch, so a graph may capture it.

    Args:
        static: what has the memory: made by `empty_like`, or any payload of the class.
        value: the payload.

    Returns:
        A payload with views of the rows that were written and the host fields of
        `value`.

    Raises:
        AxisError: a leaf does not fit; nothing was written then.

    Streams:
        Copies are queued on the current stream. The host does not block where both are
        on one device.

    >>> import torch
    >>> from typing import Annotated
    >>> from torch import Tensor
    >>> from tensorpack import Axis, payload
    >>> @payload
    ... class Batch:
    ...     ids: Annotated[Tensor, Axis("requests", pad=-1)]
    >>> static = empty_like(Batch(torch.arange(2)), requests=4)
    >>> copy_(static, Batch(torch.arange(3))).ids.tolist(), static.ids.tolist()
    ([0, 1, 2], [0, 1, 2, -1])
    """
    found = fit(static, value, {})
    views = [f.target[f.data] for f in found.fits]
    if views:
        torch._foreach_copy_(views, [f.leaf for f in found.fits], non_blocking=True)
    return placed(value, found.own, {}, views)
