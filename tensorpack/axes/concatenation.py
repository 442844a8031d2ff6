"""Several objects put together along an axis: `cat`."""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from tensorpack._rules.axes import (
    Axis,
    AxisMark,
    DimMark,
    Index,
    Offsets,
    ShapeAxis,
    Size,
)
from tensorpack._rules.containers import like
from tensorpack.axes.padding import pad_of, rows_of_pad
from tensorpack.axes.survey import Survey, check_known, dim_of, is_array, survey
from tensorpack.axes.traversal import Place, Values, visited
from tensorpack.errors import AxisError

__all__ = ["cat"]

T = TypeVar("T")

Combine = Mapping[str, Callable[[list[Any]], Any]]


class _Concatenation:
    """Puts the parts of several objects together."""

    hooked = True
    reads = False

    def __init__(
        self, axes: Sequence[str], surveys: Sequence[Survey], combine: Combine
    ) -> None:
        self._axes = axes
        self._sizes = {axis: [s.sizes.get(axis, 0) for s in surveys] for axis in axes}
        self._combine = combine
        self.used: set[str] = set()
        self._done: dict[object, tuple[Values, Any]] = {}

    def other(self, place: Place, values: Values) -> Any:
        """Combine a whole field as the caller says."""
        if place.key not in self._combine:
            return NotImplemented
        self.used.add(place.key)
        return self._combine[place.key](list(values))

    def _mark(self, place: Place) -> DimMark | None:
        """Return the mark of a part along which it grows."""
        grows = (m for m in place.axes if isinstance(m, DimMark))
        return next((m for m in grows if m.name in self._axes), None)

    def leaf(self, place: Place, leaves: Values) -> Any:
        """Put leaves together; the same objects in two fields stay one."""
        key = (*map(id, leaves), place.axes)
        if key not in self._done:
            self._done[key] = leaves, self._together(place, leaves)
        return self._done[key][1]

    def _together(self, place: Place, leaves: Values) -> Any:
        """Put tensors together along their axis."""
        mark = self._mark(place)
        if mark is None:
            return self._same(place, leaves, compare=False)
        first = next(leaf for leaf in leaves if leaf is not None)
        dim = dim_of(place, mark, first)
        tensors = self._filled(place, mark, dim, leaves)
        self._check_alike(place, dim, tensors)
        if isinstance(mark, Offsets):
            return _joined_offsets(tensors)
        for i, by in enumerate(self._shifts(place)):
            tensors[i] = tensors[i] + by if by else tensors[i]
        return torch.cat(tensors, dim)

    def _filled(
        self, place: Place, mark: DimMark, dim: int, leaves: Values
    ) -> list[Tensor]:
        """Put rows of pad where a leaf is None."""
        first = next(leaf for leaf in leaves if leaf is not None)
        sizes = self._sizes[mark.name]
        found: list[Tensor] = []
        for leaf, size in zip(leaves, sizes, strict=True):
            if leaf is None:
                found.append(rows_of_pad(first, dim, size, self._pad(place, mark)))
            else:
                found.append(leaf)
        return found

    def _pad(self, place: Place, mark: AxisMark) -> Any:
        """Return what stands for the items of an object that has None."""
        if getattr(mark, "pad", None) is None:
            place.fail(
                "is None in some and not in others, and its axis has no `pad`",
                f"{_BOTH} Or write `pad=` into its `Axis`.",
            )
        return pad_of(place, mark)

    def _check_alike(
        self,
        place: Place,
        dim: int,
        tensors: Sequence[Any],
        alike: Sequence[str] = ("dtype", "device"),
    ) -> None:
        """Raise for tensors that differ in more than their size on the axis."""
        first = tensors[0]
        for other in tensors[1:]:
            for what in alike:
                one, two = getattr(first, what), getattr(other, what)
                if one != two:
                    place.fail(
                        f"is {one} in one and {two} in another",
                        f"Give both one {what}.",
                    )
            same = first.ndim == other.ndim
            for d in range(first.ndim if same else 0):
                if d != dim and first.shape[d] != other.shape[d]:
                    place.fail(
                        f"has {first.shape[d]} and {other.shape[d]} on dim {d}",
                        self._how_to_align(place, d),
                    )
            if not same:
                place.fail(
                    f"has {first.ndim} dims in one and {other.ndim} in another",
                    "Give both one shape.",
                )

    def _how_to_align(self, place: Place, dim: int) -> str:
        """Say how a dim that does not grow is brought to one size."""
        for mark in place.axes:
            if isinstance(mark, (Axis, ShapeAxis)) and mark.dim == dim:
                return f"Call `pad(x, {mark.name}=...)` first, with one size for all."
        return "Give both one size."

    def _shifts(self, place: Place) -> list[int]:
        """Return by how much positions move, for each object; empty if they stay."""
        for mark in place.axes:
            if isinstance(mark, Index) and mark.name in self._axes:
                return [*itertools.accumulate(self._sizes[mark.name], initial=0)][:-1]
        return []

    def items(self, place: Place, lists: Values) -> Any:
        """Put lists of leaves together; None to go through them item by item."""
        mark = self._mark(place)
        if mark is None:
            return None
        for part in lists:
            if part is None:
                place.fail("is None in some, and a list in others", _BOTH)
        return [item for part in lists for item in part]

    def host(self, place: Place, values: Values) -> Any:
        """Put host values together, sum up sizes, or hold them against each other."""
        for size in place.axes:
            if isinstance(size, Size) and size.name in self._axes:
                return sum(self._sizes[size.name])
        mark = self._mark(place)
        if mark is None:
            return self._same(place, values)
        first = next(value for value in values if value is not None)
        if isinstance(first, Tensor):
            return self._together(place, values)
        if is_array(first):
            return self._arrays(place, mark, values)
        lists: list[list[Any]] = []
        for value, count in zip(values, self._sizes[mark.name], strict=True):
            if value is None:
                lists.append([self._pad(place, mark)] * count)
            else:
                lists.append(list(value))
        if isinstance(mark, Offsets):
            return like(first, _joined_list(lists))
        for i, by in enumerate(self._shifts(place)):
            lists[i] = [item + by for item in lists[i]] if by else lists[i]
        return like(first, [*itertools.chain.from_iterable(lists)])

    def _arrays(self, place: Place, mark: DimMark, values: Values) -> Any:
        """Put arrays of numpy together."""
        numpy: Any = sys.modules["numpy"]  # loaded, since there is an array of it
        first = next(value for value in values if value is not None)
        dim = dim_of(place, mark, first)
        parts: list[Any] = []
        for value, size in zip(values, self._sizes[mark.name], strict=True):
            if value is None:
                shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
                parts.append(numpy.full(shape, self._pad(place, mark), first.dtype))
            else:
                parts.append(value)
        self._check_alike(place, dim, parts, ("dtype",))
        if isinstance(mark, Offsets):
            joined = _joined_list([part.tolist() for part in parts])
            return numpy.asarray(joined, first.dtype)
        for i, by in enumerate(self._shifts(place)):
            parts[i] = parts[i] + numpy.asarray(by, first.dtype) if by else parts[i]
        return numpy.concatenate(parts, dim)

    def _same(self, place: Place, values: Values, *, compare: bool = True) -> Any:
        """Return what is the same in all objects.

        Raises:
            AxisError: it is not.
        """
        # Where a payload is None, its fields have nothing against those of the others.
        owners = place.owners or values
        found = [v for v, o in zip(values, owners, strict=True) if o is not None]
        first = found[0]
        if all(v is first or (compare and _equal(first, v)) for v in found):
            return first
        what = "is not the same in all"
        if any(v is None for v in found):
            what = "is None in some and not in others"
        place.fail(
            f"{what}, and does not run along `{self._axes[0]}`",
            "Give it an `Axis`, or say what it becomes: "
            f'`combine={{"{place.key}": lambda values: values[0]}}`.',
        )


_BOTH = "Set it in all, or in none."


def _equal(one: Any, other: Any) -> bool:
    """Return whether two host values are equal for certain."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor) and not one.is_cpu:
        return False  # the host would have to wait for it
    try:
        found: Any = one == other
        return bool(found.all()) if is_array(found) else bool(found)
    except Exception:  # noqa: BLE001  # a comparison may do anything; then they differ
        return False


def _joined_offsets(parts: Sequence[Tensor]) -> Tensor:
    """Return the cumulative lengths of runs that follow each other."""
    joined = parts[0]
    for part in parts[1:]:
        joined = torch.cat((joined, part[1:] - part[:1] + joined[-1:]))
    return joined


def _joined_list(parts: Sequence[Sequence[int]]) -> list[int]:
    """Return the same for lists."""
    joined = list(parts[0])
    for part in parts[1:]:
        last = joined[-1]
        joined += [n - part[0] + last for n in part[1:]]
    return joined


def cat(values: Sequence[T], axis: str, /, *, combine: Combine | None = None) -> T:
    """Return one payload with the items of several, in their order.

    Axes that lie in runs of the axis are put together as well; offsets and positions
    are shifted.

    Args:
        values: payloads of one class.
        axis: the axis along which they are put together.
        combine: for fields that are not the same in all and have no such axis: a
            function of the list of their values, by key (`"sampling.rope"`).

    Raises:
        AxisError: a field without the axis is not the same object or an equal host
            value in all, a leaf is None in some and its axis has no `pad`, or leaves
            differ in dtype, device or another dim.

    Streams:
        Work on device leaves is queued on the current stream. The host does not block.

    >>> import torch
    >>> from typing import Annotated
    >>> from torch import Tensor
    >>> from tensorpack import Axis, payload
    >>> @payload
    ... class Batch:
    ...     ids: Annotated[Tensor, Axis("requests")]
    ...     step: int = 0
    >>> one, two = Batch(torch.ones(1), 3), Batch(torch.zeros(2), 4)
    >>> cat([one, two], "requests", combine={"step": max})
    Batch(ids=float32[3] cpu, step=4)
    """
    if not values:
        raise AxisError(
            problem="`cat` got no payloads", remedy="Pass at least one of them."
        )
    surveys = [survey(value) for value in values]
    check_known(surveys[0].cls, [axis], {n: 0 for s in surveys for n in s.sizes})
    axes = [axis]
    for found in surveys:
        found.check_whole(axis)
    while more := {
        r.axis for s in surveys for r in s.runs.values() if r.items in axes
    }.difference(axes):
        axes += sorted(more)
    together = _Concatenation(axes, surveys, combine or {})
    new: T = visited(tuple(values), together)
    unused = [f"`{key}`" for key in combine or {} if key not in together.used]
    if unused:
        raise AxisError(
            cls=surveys[0].cls,
            problem=f"`combine=` names {', '.join(unused)}, which is not a field",
            remedy="Name fields by their keys, such as `sampling.top_k`.",
        )
    return new
