"""Some of the items of an axis: `select` and `split`."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from tensorpack._rules.axes import AxisMark, DimMark, Index, Offsets, Size
from tensorpack._rules.containers import like
from tensorpack.axes.chosen import Chosen, chosen_items, chosen_runs
from tensorpack.axes.survey import (
    Survey,
    dim_of,
    is_array,
    lengths_of,
    size_at,
    survey,
)
from tensorpack.axes.traversal import Place, Values, visited
from tensorpack.errors import AxisError

__all__ = ["select", "split"]

T = TypeVar("T")


class _Selection:
    """Takes the chosen items of every part."""

    hooked = True
    reads = False

    def __init__(self, chosen: Mapping[str, Chosen]) -> None:
        self.chosen = chosen
        self._done: dict[tuple[int, tuple[AxisMark, ...]], tuple[Tensor, Tensor]] = {}

    def leaf(self, place: Place, leaves: Values) -> Any:
        """Take the chosen items of a leaf; one object in two fields stays one."""
        (leaf,) = leaves
        if not self._concerns(place.axes):
            return leaf
        key = (id(leaf), place.axes)
        if key not in self._done:
            self._done[key] = leaf, self._taken(place, leaf)
        return self._done[key][1]

    def _concerns(self, marks: Sequence[AxisMark]) -> bool:
        """Return whether any mark is about an axis of which items are chosen."""
        return any(
            m.name in self.chosen and not self.chosen[m.name].is_all for m in marks
        )

    def items(self, place: Place, lists: Values) -> Any:
        """Take the chosen items of a list."""
        if not self._concerns(place.axes):
            return None
        return self._from_list(place, lists[0])

    def host(self, place: Place, values: Values) -> Any:
        """Take the chosen items of a host value, or set a size."""
        (value,) = values
        if not self._concerns(place.axes):
            return value
        sizes = [m for m in place.axes if isinstance(m, Size)]
        if sizes:
            return self.chosen[sizes[0].name].size
        if isinstance(value, Tensor):
            return self.leaf(place, values)
        if is_array(value):
            return self._from_array(place, value)
        return like(value, self._from_list(place, value))

    def other(self, place: Place, values: Values) -> Any:  # noqa: ARG002  # inside
        """Leave no field out."""
        return NotImplemented

    def _taken(self, place: Place, leaf: Tensor) -> Tensor:
        """Take the chosen items along each dim of a tensor, then mend its values."""
        for mark in place.axes:
            chosen = self.chosen.get(mark.name)
            if chosen is None or not isinstance(mark, DimMark):
                continue
            if isinstance(mark, Offsets):
                leaf = _offsets_of_tensor(place, leaf, chosen)
            elif size_at(place, mark, leaf) is not None:
                leaf = chosen.of_tensor(place, leaf, dim_of(place, mark, leaf))
        for mark in place.axes:
            if isinstance(mark, Index) and mark.name in self.chosen:
                leaf = self._mapped_tensor(place, leaf, self.chosen[mark.name])
        return leaf

    def _mapped_tensor(self, place: Place, leaf: Tensor, chosen: Chosen) -> Tensor:
        """Return the new positions of the items that a tensor points at."""
        if chosen.is_all:
            return leaf
        if not leaf.is_cpu:
            place.fail(
                f"holds positions on `{chosen.axis}` on the device, where nothing "
                "tells whether each is still there",
                "Select before the move, or keep the positions in a host field and "
                "make them in `__payload_prepare__`.",
            )
        mapped = _mapped(place, leaf.flatten().tolist(), chosen)
        return torch.tensor(mapped, dtype=leaf.dtype, device="cpu").reshape(leaf.shape)

    def _from_list(self, place: Place, value: Any) -> list[Any]:
        """Take the chosen items of a list, then mend its values."""
        new = list(value)
        for mark in place.axes:
            chosen = self.chosen.get(mark.name)
            if chosen is None or not isinstance(mark, DimMark):
                continue
            dim_of(place, mark, value)
            if isinstance(mark, Offsets):
                new = _offsets_of_list(new, chosen.positions(place))
            else:
                new = chosen.of_list(place, new)
        for mark in place.axes:
            if isinstance(mark, Index) and mark.name in self.chosen:
                new = _mapped(place, new, self.chosen[mark.name])
        return new

    def _from_array(self, place: Place, value: Any) -> Any:
        """Take the chosen items of an array of numpy, then mend its values."""
        for mark in place.axes:
            chosen = self.chosen.get(mark.name)
            if chosen is None or not isinstance(mark, DimMark):
                continue
            if isinstance(mark, Offsets):
                new = _offsets_of_list(value.tolist(), chosen.positions(place))
                value = _array_like(value, new)
            else:
                value = chosen.of_array(place, value, dim_of(place, mark, value))
        for mark in place.axes:
            if isinstance(mark, Index) and mark.name in self.chosen:
                flat = _mapped(place, value.ravel().tolist(), self.chosen[mark.name])
                value = _array_like(value, flat).reshape(value.shape)
        return value


def _array_like(array: Any, items: list[Any]) -> Any:
    """Return an array of the dtype of another."""
    numpy: Any = sys.modules["numpy"]  # loaded, since there is an array of it
    return numpy.asarray(items, array.dtype)


def _offsets_of_tensor(place: Place, offsets: Tensor, chosen: Chosen) -> Tensor:
    """Return the cumulative lengths of the chosen runs."""
    lengths = chosen.of_tensor(place, offsets.diff(), 0)
    sums = lengths.cumsum(0, dtype=offsets.dtype)
    return torch.cat((offsets[:1], sums + offsets[:1]))


def _offsets_of_list(offsets: Sequence[int], items: Sequence[int]) -> list[int]:
    """Return the cumulative lengths of the chosen runs."""
    lengths = [offsets[i + 1] - offsets[i] for i in items]
    return [*itertools.accumulate(lengths, initial=offsets[0])]


def _mapped(place: Place, positions: list[int], chosen: Chosen) -> list[int]:
    """Return where the items at old positions are now.

    Raises:
        AxisError: one of them is gone.
    """
    now = {old: new for new, old in enumerate(chosen.positions(place))}
    for position in positions:
        if position not in now:
            place.fail(
                f"points at position {position} of `{chosen.axis}`, which is not "
                "among those selected",
                "Select it too, or leave the rows out that point at it.",
            )
    return [now[position] for position in positions]


def select(
    value: T,
    /,
    *,
    lengths: Mapping[str, Sequence[int]] | None = None,
    **indices: Any,
) -> T:
    """Return a payload with some of the items of its axes.

    Fields without the axis are the same objects. Axes that lie in runs (`lengths=` of
    their `Axis`) follow: the items of the selected runs are taken.

    Args:
        value: a payload, or a container of payloads.
        lengths: lengths of runs that the host knows, by the axis that lies in runs;
            needed where the payload has them on the device only.
        **indices: for each axis a slice, positions (a list or an integer tensor), or
            a mask on the host.

    Returns:
        The new payload: views for a slice, copies for positions.

    Raises:
        AxisError: an axis is unknown or has several sizes, a position is not on it, or
            the host would have to wait for the device.

    Streams:
        Work on device leaves is queued on the current stream. The host does not block.

    >>> import torch
    >>> from typing import Annotated
    >>> from torch import Tensor
    >>> from tensorpack import Axis, payload
    >>> @payload
    ... class Batch:
    ...     ids: Annotated[Tensor, Axis("requests")]
    ...     names: Annotated[list[str], Axis("requests")]
    >>> batch = Batch(ids=torch.arange(3), names=["a", "b", "c"])
    >>> select(batch, requests=[2, 0]).names
    ['c', 'a']
    """
    found = survey(value)
    found.check_known(indices)
    chosen = {
        axis: chosen_items(found.cls, axis, found.sizes[axis], index)
        for axis, index in indices.items()
    }
    return _selected(value, found, chosen, lengths, "select")


def _selected(
    value: T,
    found: Survey,
    chosen: dict[str, Chosen],
    lengths: Mapping[str, Sequence[int]] | None,
    call: str,
) -> T:
    """Take the chosen items, and those in their runs."""
    for axis in chosen:
        found.check_whole(axis)
    waiting = dict(found.runs)
    while due := [r for r in waiting.values() if r.items in chosen]:
        for runs in due:
            del waiting[runs.axis]
            by = chosen[runs.items]
            if not by.is_all:
                by.positions(runs.place)
                counts = lengths_of(runs, found, lengths, call)
                size = found.sizes[runs.axis]
                chosen[runs.axis] = chosen_runs(runs.axis, size, counts, by)
    new: T = visited((value,), _Selection(chosen))
    return new


def split(
    value: T,
    axis: str,
    sizes: int | Sequence[int],
    /,
    *,
    lengths: Mapping[str, Sequence[int]] | None = None,
) -> list[T]:
    """Return the parts of a payload along an axis, as views.

    Args:
        value: a payload, or a container of payloads.
        axis: the axis.
        sizes: how many items each part has; one number for equal parts, of which the
            last may be smaller.
        lengths: as for `select`.

    Raises:
        AxisError: the sizes do not sum up to the size of the axis, or as for `select`.

    >>> import torch
    >>> from typing import Annotated
    >>> from torch import Tensor
    >>> from tensorpack import Axis, payload
    >>> @payload
    ... class Batch:
    ...     ids: Annotated[Tensor, Axis("requests")]
    >>> one, two = split(Batch(torch.arange(3)), "requests", [1, 2])
    >>> two.ids
    tensor([1, 2])
    """
    found = survey(value)
    found.check_known([axis])
    total = found.sizes[axis]
    if isinstance(sizes, int) and sizes > 0:
        sizes = [min(sizes, total - i) for i in range(0, total, sizes)]
    if isinstance(sizes, int) or min(sizes, default=0) < 0 or sum(sizes) != total:
        raise AxisError(
            cls=found.cls,
            problem=f"`{axis}` has {total} items, and cannot be split into "
            f"{sizes if isinstance(sizes, int) else list(sizes)!r}",
            remedy="Pass sizes whose sum is the size of the axis.",
        )
    ends = [*itertools.accumulate(sizes, initial=0)]
    return [
        _selected(
            value,
            found,
            {axis: Chosen(axis, total, slice(a, b, 1), range(a, b))},
            lengths,
            "split",
        )
        for a, b in itertools.pairwise(ends)
    ]
