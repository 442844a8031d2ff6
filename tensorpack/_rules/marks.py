"""What marks of axes may stand beside: joins them to the node of a type.

Both readers of annotations call `attached`, so that their verdicts cannot differ. A
class is a class at run time and a full name in the mypy plugin.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from tensorpack._rules import axis_refusals as refusals
from tensorpack._rules.axes import Axis, AxisMark, DimMark, Offsets, ShapeAxis, Size
from tensorpack._rules.nodes import (
    AdapterNode,
    BorrowedNode,
    DynamicNode,
    HostNode,
    HostOnlyNode,
    MappingNode,
    NamedTupleNode,
    NodeOf,
    PayloadNode,
    SelfMovingNode,
    SequenceNode,
    TensorNode,
    TupleNode,
    TypedDictNode,
    UnionNode,
    UnseenNode,
    children,
)
from tensorpack._rules.refusals import RefusedError

__all__ = ["attached", "axes_of", "marks_in", "with_axes", "wrong_lengths"]

C = TypeVar("C")

_MARKED = (TensorNode, SequenceNode, HostNode, HostOnlyNode, BorrowedNode)
_LISTS = frozenset(
    {"builtins.list", "builtins.tuple", "collections.deque", "builtins.NoneType"}
)


def attached(node: NodeOf[C], marks: Sequence[AxisMark], name: str) -> NodeOf[C]:
    """Return the node with the marks that stand beside its type.

    Args:
        node: what the type means.
        marks: what stands beside it in `Annotated[...]`.
        name: the annotation as written.

    Raises:
        RefusedError: nothing of the type can run along an axis, or the marks
            contradict each other.
    """
    if isinstance(node, UnseenNode):
        return node
    if isinstance(node, UnionNode):
        arms = tuple(attached(arm, marks, name) for arm in node.arms)
        return UnionNode(arms)
    for mark in marks:
        if isinstance(mark, Size):
            if not (isinstance(node, HostNode) and _names(node) == {"builtins.int"}):
                refusals.NOT_A_SIZE.refuse(name, mark=mark, axis=mark.name)
        else:
            _check_runs_along(node, mark, name)
    found = _with(node, (*axes_of(node), *marks))
    _check_apart(found, name)
    return found


def _with(node: NodeOf[C], axes: tuple[AxisMark, ...]) -> NodeOf[C]:
    """Return a node with other marks; one that can have none as it is."""
    return dataclasses.replace(node, axes=axes) if isinstance(node, _MARKED) else node


def axes_of(node: NodeOf[C]) -> tuple[AxisMark, ...]:
    """Return the marks on a node itself."""
    return node.axes if isinstance(node, _MARKED) else ()


def marks_in(node: NodeOf[C]) -> Iterator[AxisMark]:
    """Yield the marks on a node and on what is inside."""
    yield from axes_of(node)
    if isinstance(node, HostNode) and node.inside is not None:
        yield from marks_in(node.inside)
    for child in children(node):
        yield from marks_in(child)


def _names(node: HostNode[C]) -> set[str]:
    """Return the full names of the classes that a host value may have."""
    return {
        tp if isinstance(tp, str) else f"{tp.__module__}.{tp.__qualname__}"
        for tp in node.types
        if isinstance(tp, (str, type))
    }


def _check_runs_along(node: NodeOf[C], mark: AxisMark, name: str) -> None:
    """Refuse an axis on what has no dims, or no order."""
    axis = mark.name
    match node:
        case TensorNode() | HostOnlyNode() | BorrowedNode():
            return
        case SequenceNode():
            _check_list(mark, name)
        case HostNode(inside=TupleNode() | NamedTupleNode() | TypedDictNode()):
            refusals.FIXED_PARTS.refuse(name, axis=axis)
        case TupleNode() | NamedTupleNode() | TypedDictNode():
            refusals.FIXED_PARTS.refuse(name, axis=axis)
        case HostNode() if "numpy.ndarray" in _names(node):
            return
        case HostNode() if node.types and _names(node) <= _LISTS:
            _check_list(mark, name)
        case HostNode() if "builtins.dict" in _names(node):
            refusals.NO_ORDER.refuse(name, axis=axis)
        case HostNode(inside=MappingNode()) | MappingNode():
            refusals.NO_ORDER.refuse(name, axis=axis)
        case HostNode() if _names(node) == {"builtins.int"}:
            refusals.ONE_INTEGER.refuse(name, axis=axis)
        case HostNode():
            refusals.ONE_VALUE.refuse(name, axis=axis)
        case PayloadNode():
            refusals.OWN_AXES.refuse(name)
        case AdapterNode() | SelfMovingNode():
            refusals.OWN_DIMS.refuse(name)
        case DynamicNode():
            refusals.UNKNOWN_DIMS.refuse(name)
        case _:
            refusals.ONE_VALUE.refuse(name, axis=axis)


def _check_list(mark: AxisMark, name: str) -> None:
    """Refuse a dim that a list does not have."""
    if isinstance(mark, (Axis, ShapeAxis)) and mark.dim != 0:
        refusals.LIST_DIM.refuse(name, dim=mark.dim)


def _check_apart(node: NodeOf[C], name: str) -> None:
    """Refuse two axes on one dim, and one axis on two dims."""
    dims: dict[int, str] = {}
    for mark in axes_of(node):
        if isinstance(mark, DimMark):
            dim = 0 if isinstance(mark, Offsets) else mark.dim
            if dim in dims:
                refusals.ONE_DIM.refuse(name, dim=dim, one=dims[dim], two=mark.name)
            dims[dim] = mark.name
    names = [*dims.values()]
    if isinstance(node, SequenceNode):
        inside = (m for m in marks_in(node.item) if isinstance(m, DimMark))
        names += {mark.name for mark in inside}
    # jaxtyping means a square by it; an operation on such an axis raises.
    if all(isinstance(mark, ShapeAxis) for mark in axes_of(node)):
        return
    for axis in names:
        if names.count(axis) > 1:
            refusals.TWO_DIMS.refuse(name, axis=axis)


def with_axes(node: NodeOf[C], arms: Iterable[NodeOf[C]], name: str) -> NodeOf[C]:
    """Return the node of a union with the marks that stand on its arms.

    Raises:
        RefusedError: two arms that are one to a value have different axes.
    """
    groups: dict[object, tuple[AxisMark, ...]] = {}
    flat = list(_flat(arms))
    if not any(map(axes_of, flat)):
        return node
    for arm in flat:
        if groups.setdefault(_kind(arm), axes_of(arm)) != axes_of(arm):
            refusals.DIFFERENT_AXES.refuse(name)
    if isinstance(node, UnionNode):
        parts = (_with(arm, groups.get(_kind(arm), ())) for arm in node.arms)
        return UnionNode(tuple(parts))
    return _with(node, groups.get(_kind(node), ()))


def _kind(arm: NodeOf[C]) -> object:
    """Return what a value tells apart."""
    return arm.kind if isinstance(arm, SequenceNode) else type(arm)


def _flat(arms: Iterable[NodeOf[C]]) -> Iterator[NodeOf[C]]:
    """Yield the arms of nested unions, without None."""
    for arm in arms:
        if isinstance(arm, UnionNode):
            yield from _flat(arm.arms)
        elif not (isinstance(arm, HostNode) and _names(arm) == {"builtins.NoneType"}):
            yield arm


def wrong_lengths(
    fields: Mapping[str, tuple[NodeOf[C], str]],
) -> Iterator[tuple[str, RefusedError]]:
    """Yield the fields whose `lengths=` names no lengths of runs, each with why.

    Args:
        fields: the node of each field, and its annotation as written.
    """
    for field, (node, written) in fields.items():
        for mark in dict.fromkeys(marks_in(node)):
            lengths = mark.lengths if isinstance(mark, Axis) else None
            if lengths is None:
                continue
            if lengths not in fields:
                yield field, refusals.NO_LENGTHS.error(written, lengths=lengths)
            elif not _counts(fields[lengths][0]):
                yield field, refusals.NOT_LENGTHS.error(written, lengths=lengths)


def _counts(node: NodeOf[C]) -> bool:
    """Return whether a node can hold the lengths of runs."""
    arms = node.arms if isinstance(node, UnionNode) else (node,)
    marks = [mark for arm in arms for mark in axes_of(arm)]
    return any(
        isinstance(m, Offsets) or (isinstance(m, Axis) and m.dim == 0) for m in marks
    )
