"""Where the leaves of an object go in static memory: `copy_`, and what fits."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor

from tensorpack._rules.axes import DimMark, Index, Offsets
from tensorpack.axes.padding import Padding, check_sizes, pad_of
from tensorpack.axes.survey import Found, Survey, dim_of, size_at, survey
from tensorpack.axes.traversal import Place, Values, visited
from tensorpack.errors import AxisError

__all__ = ["Fit", "Fits", "Region", "copy_", "fit", "placed"]

T = TypeVar("T")


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
    >>> from tensorpack.axes import empty_like
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
