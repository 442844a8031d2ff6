"""Which items of an axis are kept: from a slice, positions or a mask."""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack.axes.survey import is_array
from tensorpack.axes.traversal import Place
from tensorpack.errors import AxisError

__all__ = ["Chosen", "chosen_items", "chosen_runs"]


@attrs.frozen(eq=False)
class Chosen:
    """Which items of an axis are kept, in which order.

    Attributes:
        axis: the axis.
        before: how many items it has.
        span: the items from one to another, if that is what they are.
        items: their positions, if the host knows them.
        index: their positions as a tensor, if they are no span.
    """

    axis: str
    before: int
    span: slice | None = None
    items: range | list[int] | None = None
    index: Tensor | None = None

    @property
    def size(self) -> int:
        """Return how many items are kept."""
        if self.items is not None:
            return len(self.items)
        assert self.index is not None  # noqa: S101  # one of the two is there
        return self.index.numel()

    @property
    def is_all(self) -> bool:
        """Return whether every item stays where it is."""
        return self.span is not None and self.size == self.before

    def of_tensor(self, place: Place, leaf: Tensor, dim: int) -> Tensor:
        """Take the items of a leaf: a view of a span, else a copy."""
        if self.span is not None:
            return leaf[(slice(None),) * dim + (self.span,)]
        index = self.index
        assert index is not None  # noqa: S101  # what is no span has one
        if index.device != leaf.device:
            if leaf.is_cpu:
                self.positions(place)
            index = index.to(leaf.device, non_blocking=True)
        return leaf.index_select(dim, index)

    def positions(self, place: Place) -> Sequence[int]:
        """Return the positions, which the host has to know.

        Raises:
            AxisError: they lie on the device.
        """
        if self.items is None:
            place.fail(
                f"is on the host, and the positions on `{self.axis}` are on the "
                "device, so the host would have to wait for them",
                "Pass a list or a host tensor.",
            )
        return self.items

    def of_list(self, place: Place, value: Any) -> list[Any]:
        """Take the items of a list."""
        if self.span is not None:
            return list(value)[self.span]
        return [value[i] for i in self.positions(place)]

    def of_array(self, place: Place, value: Any, dim: int) -> Any:
        """Take the items of an array of numpy."""
        if self.span is not None:
            return value[(slice(None),) * dim + (self.span,)]
        return value.take(self.positions(place), axis=dim)


def chosen_items(cls: str, axis: str, size: int, index: Any) -> Chosen:
    """Return which items of an axis the user means.

    Raises:
        AxisError: the index is no list of positions, or leaves the axis.
    """
    if isinstance(index, slice):
        items = range(*index.indices(size))
        if items.step > 0:
            return Chosen(axis, size, slice(items.start, items.stop, items.step), items)
        return _by_positions(axis, size, list(items))
    where = Place(cls, axis)
    if isinstance(index, int) or (is_array(index) and index.ndim == 0):
        raise AxisError(
            cls=cls,
            problem=f"`{axis}={index!r}` is one position, and the axis stays",
            remedy=f"Write `{axis}=[...]`, or a slice.",
        )
    tensor = index if isinstance(index, Tensor) else None
    if is_array(index) and index.ndim != 1:
        raise AxisError(
            cls=cls,
            problem=f"`{axis}=` has {index.ndim} dims",
            remedy="Pass positions in one dim.",
        )
    if tensor is not None and not tensor.is_cpu:
        if tensor.dtype is torch.bool:
            raise AxisError(
                cls=cls,
                problem=f"`{axis}=` is a mask on the device, whose items the host "
                "could count only by blocking",
                remedy="Pass a mask on the host, or positions.",
            )
        return Chosen(axis, size, index=tensor)
    listed = index.tolist() if is_array(index) else list(index)
    if listed and all(isinstance(i, bool) for i in listed):
        if len(listed) != size:
            raise AxisError(
                cls=cls,
                problem=f"the mask for `{axis}` has {len(listed)} items, and the axis "
                f"has {size}",
                remedy="Pass a mask of the size of the axis, or positions.",
            )
        return _by_positions(axis, size, [i for i, keep in enumerate(listed) if keep])
    positions = [_position(where, axis, size, i) for i in listed]
    return _by_positions(axis, size, positions)


def _position(where: Place, axis: str, size: int, index: Any) -> int:
    """Return a position counted from the front."""
    try:
        found = operator.index(index)
    except TypeError:
        raise AxisError(
            cls=where.cls,
            problem=f"`{axis}=` has {index!r}, which is not a position",
            remedy="Pass integers, a mask or a slice.",
        ) from None
    if not -size <= found < size:
        raise AxisError(
            cls=where.cls,
            problem=f"`{axis}=` has the position {found}, and the axis has "
            f"{size} items",
            remedy="Pass positions on the axis.",
        )
    return found % size


def _by_positions(axis: str, size: int, items: list[int]) -> Chosen:
    """Choose items one by one."""
    index = torch.tensor(items, dtype=torch.int64, device="cpu")
    return Chosen(axis, size, items=items, index=index)


def chosen_runs(axis: str, size: int, lengths: Sequence[int], by: Chosen) -> Chosen:
    """Return the items in the runs that belong to chosen items of another axis."""
    starts = [0, *itertools.accumulate(lengths)]
    if by.span is not None and by.span.step == 1 and by.items is not None:
        first = starts[by.span.start] if len(by.items) else 0
        last = starts[by.items[-1] + 1] if len(by.items) else 0
        return Chosen(axis, size, slice(first, last, 1), range(first, last))
    if by.items is None:
        raise AssertionError(by)  # the caller has asked
    spans = (range(starts[i], starts[i + 1]) for i in by.items)
    return _by_positions(axis, size, [*itertools.chain.from_iterable(spans)])
