"""New rows at the end of an axis: `pad`."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from tensorpack._rules.axes import AxisMark, DimMark, Offsets, Size
from tensorpack._rules.containers import like
from tensorpack.axes.survey import Survey, dim_of, is_array, size_at, survey
from tensorpack.axes.traversal import Place, Values, visited
from tensorpack.errors import AxisError

__all__ = ["Padding", "check_sizes", "longer_list", "pad", "pad_of", "rows_of_pad"]

T = TypeVar("T")


def pad_of(place: Place, mark: AxisMark, way: str = "") -> Any:
    """Return what fills new rows of an axis.

    Raises:
        AxisError: its mark does not say.
    """
    value = getattr(mark, "pad", None)
    if value is None:
        place.fail(
            f"has no `pad`, and new rows on `{mark.name}` need a value",
            way or f'Write `Axis("{mark.name}", pad=0)`, with the value that fits.',
        )
    return value


def rows_of_pad(leaf: Tensor, dim: int, count: int, value: Any) -> Tensor:
    """Return rows for a leaf, filled with a value."""
    shape = [*leaf.shape]
    shape[dim] = count
    return leaf.new_full(shape, value)


def longer_list(items: Sequence[Any], count: int, value: Any) -> list[Any]:
    """Return a list with new items at its end."""
    return [*items, *([value] * count)]


class Padding:
    """Puts rows at the end of every part of some axes.

    Attributes:
        sizes: how many items each axis gets.
    """

    hooked = True
    reads = False

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._done: dict[tuple[int, tuple[AxisMark, ...]], tuple[Any, Any]] = {}

    def filler(self, place: Place, mark: AxisMark, value: Any) -> Any:  # noqa: ARG002  # for others
        """Return what fills new rows of a value along an axis."""
        return pad_of(place, mark)

    def leaf(self, place: Place, leaves: Values) -> Any:
        """Pad a leaf; one object in two fields stays one."""
        (leaf,) = leaves
        key = (id(leaf), place.axes)
        if key not in self._done:
            self._done[key] = leaf, self._padded(place, leaf)
        return self._done[key][1]

    def _missing(self, place: Place, value: Any) -> list[tuple[DimMark, int]]:
        """List the marks of a part that lacks rows, and how many."""
        found: list[tuple[DimMark, int]] = []
        for mark in place.axes:
            if mark.name in self.sizes and isinstance(mark, DimMark):
                size = size_at(place, mark, value)
                if size is not None and size < self.sizes[mark.name]:
                    found.append((mark, self.sizes[mark.name] - size))
        return found

    def _padded(self, place: Place, leaf: Any) -> Any:
        """Pad a tensor along each of its dims."""
        for mark, count in self._missing(place, leaf):
            if isinstance(mark, Offsets):
                leaf = torch.cat((leaf, leaf[-1:].expand(count)))
            else:
                value, dim = self.filler(place, mark, leaf), dim_of(place, mark, leaf)
                leaf = torch.cat((leaf, rows_of_pad(leaf, dim, count, value)), dim)
        return leaf

    def items(self, place: Place, lists: Values) -> Any:
        """Pad a list of leaves; the mark alone cannot say what a new leaf would be."""
        for mark, _ in self._missing(place, lists[0]):
            place.fail(
                f"is a list of leaves along `{mark.name}`, which cannot be padded",
                "Make it longer before, or leave it out with None.",
            )

    def host(self, place: Place, values: Values) -> Any:
        """Pad a host value, or set a size."""
        (value,) = values
        for mark in place.axes:
            if isinstance(mark, Size):
                return self.sizes.get(mark.name, value)
        if isinstance(value, Tensor):
            return self._padded(place, value)
        if is_array(value):
            return self._padded_array(place, value)
        for mark, count in self._missing(place, value):
            ends = isinstance(mark, Offsets)
            last = value[-1] if ends else self.filler(place, mark, value)
            value = like(value, longer_list(value, count, last))
        return value

    def _padded_array(self, place: Place, value: Any) -> Any:
        """Pad an array of numpy along each of its dims."""
        numpy: Any = sys.modules["numpy"]  # loaded, since there is an array of it
        for mark, count in self._missing(place, value):
            dim = dim_of(place, mark, value)
            shape = (*value.shape[:dim], count, *value.shape[dim + 1 :])
            ends = isinstance(mark, Offsets)
            last = value[-1:] if ends else self.filler(place, mark, value)
            value = numpy.concatenate(
                (value, numpy.full(shape, last, value.dtype)), dim
            )
        return value

    def other(self, place: Place, values: Values) -> Any:  # noqa: ARG002  # inside
        """Leave no field out."""
        return NotImplemented


def check_sizes(found: Survey, sizes: Mapping[str, int], capacity: str = "") -> None:
    """Raise for sizes that are not those of a longer object.

    Raises:
        AxisError: an axis is unknown or has more items already.
    """
    found.check_known(sizes)
    for axis, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise AxisError(
                cls=found.cls,
                problem=f"the size of `{axis}` is {size!r}",
                remedy="Pass a whole number of items.",
            )
        if size < found.sizes[axis]:
            raise AxisError(
                cls=found.cls,
                problem=f"`{axis}` has {found.sizes[axis]} items, and {size} were "
                "asked for",
                remedy=capacity or f"Pass at least {found.sizes[axis]}, or `select`.",
            )


def pad(value: T, /, **sizes: int) -> T:
    """Return a payload with rows of `pad` at the end of some axes.

    Fields without the axis are the same objects; offsets repeat their last entry.

    Args:
        value: a payload, or a container of payloads.
        **sizes: how many items each axis gets.

    Raises:
        AxisError: a part of the axis has no `pad`, or the axis has more items already.

    Streams:
        Work on device leaves is queued on the current stream. The host does not block.

    >>> import torch
    >>> from typing import Annotated
    >>> from torch import Tensor
    >>> from tensorpack import Axis, payload
    >>> @payload
    ... class Batch:
    ...     ids: Annotated[Tensor, Axis("requests", pad=-1)]
    >>> pad(Batch(torch.arange(2)), requests=4).ids
    tensor([ 0,  1, -1, -1])
    """
    check_sizes(survey(value), sizes)
    new: T = visited((value,), Padding(sizes))
    return new
