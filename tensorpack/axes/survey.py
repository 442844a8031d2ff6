"""What an object says of its axes: their sizes, their runs, its leaves in order."""

import itertools
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
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
from tensorpack._rules.marks import axes_of
from tensorpack._rules.nodes import Node, UnionNode
from tensorpack._walk.values import a_class, payload_plan
from tensorpack._walk.walk import walk
from tensorpack.axes.traversal import Place, Values, visited
from tensorpack.errors import AxisError

__all__ = [
    "Found",
    "Runs",
    "Survey",
    "check_known",
    "dim_of",
    "is_array",
    "lengths_of",
    "size_at",
    "sizes",
    "survey",
]


@attrs.frozen(eq=False)
class Found:
    """A leaf, and where it was found."""

    place: Place
    leaf: Any


@attrs.frozen(eq=False)
class Runs:
    """An axis whose items lie in runs, one for each item of another axis.

    Attributes:
        axis: the axis whose items lie in runs.
        items: the axis that has one run for each item.
        lengths: what holds the lengths, or the cumulative ones.
        cumulative: whether these are offsets.
        place: the first leaf that says so.
        field: name of the field that holds the lengths.
    """

    axis: str
    items: str
    lengths: Any
    cumulative: bool
    place: Place
    field: str


class Survey:
    """Collects what an object says of its axes; changes nothing.

    Attributes:
        cls: name of the object's class.
        sizes: the size of each axis, in the order in which they were met.
        where: the first part that has the axis.
        runs: the axes whose items lie in runs.
        leaves: the leaves in plan order.
        marked_hosts: how many host values have marks.
    """

    hooked = False
    reads = True

    def __init__(self, cls: str) -> None:
        self.cls = cls
        self.marked_hosts: int = 0
        self.sizes: dict[str, int] = {}
        self.where: dict[str, Place] = {}
        self.runs: dict[str, Runs] = {}
        self.leaves: list[Found] = []

    def leaf(self, place: Place, leaves: Values) -> Any:
        """Note a leaf and its axes."""
        (leaf,) = leaves
        self.leaves.append(Found(place, leaf))
        self._note(place, leaf)
        return leaf

    def items(self, place: Place, lists: Values) -> None:
        """Note a list and its axis."""
        self.marked_hosts += 1
        self._note(place, lists[0])

    def host(self, place: Place, values: Values) -> Any:
        """Note a host value and its axes."""
        self.marked_hosts += bool(place.axes)
        self._note(place, values[0])
        return values[0]

    def other(self, place: Place, values: Values) -> Any:  # noqa: ARG002  # inside
        """Leave no field out."""
        return NotImplemented

    def _note(self, place: Place, value: Any) -> None:
        """Note the size of each axis of a part, and its runs."""
        for mark in place.axes:
            if isinstance(mark, Index):
                continue
            size = size_at(place, mark, value)
            if size is None:
                continue
            known = self.sizes.setdefault(mark.name, size)
            first = self.where.setdefault(mark.name, place)
            if known != size:
                place.fail(
                    f"has {_count(size)} on the axis `{mark.name}`, and "
                    f"`{first.key}` has {known}",
                    "Give both one size.",
                )
            if isinstance(mark, Axis) and mark.lengths is not None:
                self._note_runs(place, mark, mark.lengths)

    def _note_runs(self, place: Place, mark: Axis, field: str) -> None:
        """Note that an axis lies in runs, and what holds their lengths."""
        owner = place.owners[0]
        lengths = getattr(owner, field)
        node = payload_plan(type(owner)).by_name[field].node
        counted = next(m for m in _marks_of(node) if isinstance(m, (Axis, Offsets)))
        if lengths is None or mark.name in self.runs:
            return
        self.runs[mark.name] = Runs(
            mark.name,
            counted.name,
            lengths,
            isinstance(counted, Offsets),
            place,
            field,
        )

    def check_whole(self, axis: str) -> None:
        """Raise for an axis that lies in runs: it can only follow another.

        Raises:
            AxisError: the lengths of its runs would no longer fit.
        """
        if axis in self.runs:
            items = self.runs[axis].items
            raise AxisError(
                cls=self.cls,
                problem=f"`{axis}` lies in runs of `{items}`, whose lengths would no "
                "longer fit",
                remedy=f"Name `{items}`: the `{axis}` of each follow.",
            )

    def check_known(self, names: Iterable[str]) -> None:
        """Raise for a name that is not an axis of the object."""
        check_known(self.cls, names, self.sizes)


def check_known(cls: str, names: Iterable[str], axes: Collection[str]) -> None:
    """Raise for a name that is not an axis.

    Raises:
        AxisError: no part of the object has such an axis.
    """
    for name in names:
        if name not in axes:
            raise AxisError(
                cls=cls,
                problem=f"has no axis `{name}`",
                remedy=listed_axes(axes),
            )


def _marks_of(node: Node) -> Sequence[AxisMark]:
    """Return the marks on a node, or on the arms of a union."""
    arms = node.arms if isinstance(node, UnionNode) else (node,)
    return [mark for arm in arms for mark in axes_of(arm)]


def listed_axes(names: Iterable[str]) -> str:
    """Say which axes there are."""
    listed = ", ".join(f"`{name}`" for name in names)
    if not listed:
        return 'Declare one: `Annotated[Tensor, Axis("requests")]`.'
    return f"Its axes are {listed}."


def _count(size: int) -> str:
    return "1 item" if size == 1 else f"{size} items"


def size_at(place: Place, mark: DimMark | Size, value: Any) -> int | None:
    """Return the size that a part has on an axis; None if it fits any.

    Raises:
        AxisError: the part has no such dim.
    """
    if isinstance(mark, Size):
        return int(value)
    dim = dim_of(place, mark, value)
    size = int(value.shape[dim]) if is_array(value) else len(value)
    if isinstance(mark, ShapeAxis) and mark.broadcast and size == 1:
        return None
    if not isinstance(mark, Offsets):
        return size
    if size == 0:
        place.fail(
            f"is empty, and offsets have one entry more than `{mark.name}` has items",
            "Let it start with 0.",
        )
    return size - 1


def dim_of(place: Place, mark: DimMark, value: Any) -> int:
    """Return which dim of a part runs along an axis.

    Raises:
        AxisError: the part has no such dim.
    """
    dim = 0 if isinstance(mark, Offsets) else mark.dim
    if is_array(value):
        there = int(value.ndim)
    elif isinstance(value, (str, bytes, dict)) or not hasattr(value, "__len__"):
        place.fail(
            f"is {a_class(type(value))}, which cannot run along `{mark.name}`",
            "Let it be a tensor, an array or a list.",
        )
    else:
        there = 1
    if not -there <= dim < there:
        dims = "1 dim" if there == 1 else f"{there} dims"
        place.fail(
            f"has {dims}, and `{mark.name}` is its dim {dim}",
            "Give it that dim, or mend the `dim` of its `Axis`.",
        )
    return dim % there


def is_array(value: object) -> bool:
    """Return whether a value is a tensor or an array of numpy."""
    return isinstance(value, Tensor) or type(value).__module__ == "numpy"


def survey(value: Any) -> Survey:
    """Return what an object says of its axes.

    Raises:
        AxisError: an axis does not have one size.
        LeafError: something in the object is not what its annotation says.
    """
    leaves = walk(value).leaves
    found = Survey(type(value).__qualname__)
    visited((value,), found)
    same = len(leaves) == len(found.leaves)
    if not same or any(
        a is not b.leaf for a, b in zip(leaves, found.leaves, strict=True)
    ):
        raise AxisError(
            cls=found.cls,
            problem="was changed by other code while it was read",
            remedy="Hand over a payload that no other code changes.",
        )
    return found


def sizes(value: object, /) -> dict[str, int]:
    """Return the size of each axis, in the order in which the fields name them.

    Args:
        value: a payload, or a container of payloads.

    Raises:
        AxisError: two parts of an axis have different sizes.

    >>> import torch
    >>> from typing import Annotated
    >>> from torch import Tensor
    >>> from tensorpack import Axis, payload
    >>> @payload
    ... class Batch:
    ...     table: Annotated[Tensor, Axis("requests"), Axis("blocks", dim=1)]
    >>> sizes(Batch(torch.zeros(4, 16)))
    {'requests': 4, 'blocks': 16}
    """
    return dict(survey(value).sizes)


def lengths_of(
    runs: Runs, found: Survey, given: Mapping[str, Sequence[int]] | None, call: str
) -> list[int]:
    """Return the lengths of runs, read on the host.

    Args:
        runs: the runs.
        found: what the object says of its axes.
        given: lengths that the caller knows, by the axis that lies in runs.
        call: what was called, for the error.

    Raises:
        AxisError: they lie on the device, or do not fit the axis.
    """
    place, lengths = runs.place, runs.lengths
    if given is not None and runs.axis in given:
        known: Any = given[runs.axis]
        counts = [operator.index(n) for n in _listed(known)]
    elif isinstance(lengths, Tensor) and not lengths.is_cpu:
        place.fail(
            f"lies in runs whose lengths, `{runs.field}`, are on the device, and the "
            "host would have to wait for them",
            f"Call `{call}` before the move, keep the lengths in a host field, or pass "
            f'`lengths={{"{runs.axis}": ...}}`.',
        )
    else:
        counts = [operator.index(n) for n in _listed(lengths)]
        if runs.cumulative:
            counts = [b - a for a, b in itertools.pairwise(counts)]
    wanted = found.sizes.get(runs.items, len(counts))
    total = found.sizes[runs.axis]
    if len(counts) != wanted or min(counts, default=0) < 0 or sum(counts) > total:
        place.fail(
            f"has {_count(total)} in {_runs(wanted)}, and the lengths in "
            f"`{runs.field}` are {len(counts)} with the sum {sum(counts)}",
            "Make the lengths fit.",
        )
    return counts


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _listed(lengths: Any) -> list[Any]:
    """Return numbers as a list."""
    return lengths.tolist() if is_array(lengths) else list(lengths)
