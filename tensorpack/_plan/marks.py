"""What marks of axes may stand on: joins them to the node of the type beside them."""

import collections
from collections.abc import Iterable, Iterator, Sequence

import attrs

from tensorpack._plan.plan import FieldPlan
from tensorpack._plan.remedies import refuse
from tensorpack._rules.axes import Axis, AxisMark, Index, Offsets, ShapeAxis, Size
from tensorpack._rules.nodes import (
    AdapterNode,
    DynamicNode,
    Guard,
    KeptNode,
    MappingNode,
    NamedTupleNode,
    Node,
    PayloadNode,
    SelfMovingNode,
    SequenceNode,
    TensorNode,
    TupleNode,
    TypedDictNode,
    UnionNode,
    children,
)
from tensorpack.errors import Refusal

__all__ = ["attached", "axes_of", "marks_in", "with_axes", "wrong_lengths"]

_SEQUENCES = (list, tuple, collections.deque)


def attached(node: Node, marks: Sequence[AxisMark], name: str) -> Node:
    """Return the node with the marks that stand beside its type.

    Args:
        node: what the type means.
        marks: what stands beside it in `Annotated[...]`.
        name: the annotation as written.

    Raises:
        RefusedError: nothing of the type can run along an axis, or the marks
            contradict each other.
    """
    if isinstance(node, UnionNode):
        arms = tuple(attached(arm, marks, name) for arm in node.arms)
        return UnionNode(arms)
    for mark in marks:
        if isinstance(mark, Size):
            _check_size(node, mark, name)
        else:
            _check_runs_along(node, mark, name)
    found = _with(node, (*axes_of(node), *marks))
    _check_apart(found, name)
    return found


def _with(node: Node, axes: tuple[AxisMark, ...]) -> Node:
    """Return a node with other marks; one that can have none as it is."""
    if isinstance(node, (TensorNode, SequenceNode, KeptNode)):
        return attrs.evolve(node, axes=axes)
    return node


def axes_of(node: Node) -> tuple[AxisMark, ...]:
    """Return the marks on a node itself."""
    if isinstance(node, (TensorNode, SequenceNode, KeptNode)):
        return node.axes
    return ()


def marks_in(node: Node) -> Iterator[AxisMark]:
    """Yield the marks on a node and on what is inside."""
    yield from axes_of(node)
    if isinstance(node, KeptNode) and node.inside is not None:
        yield from marks_in(node.inside)
    for child in children(node):
        yield from marks_in(child)


def _check_size(node: Node, mark: Size, name: str) -> None:
    """Refuse a size that is not an integer on the host."""
    if not isinstance(node, KeptNode) or node.types != (int,):
        refuse(
            name,
            f"is not a host integer, so it cannot be the size of {mark.name!r}",
            f"Write `Annotated[int, {mark!r}]`.",
        )


def _check_runs_along(
    node: Node, mark: Axis | Offsets | Index | ShapeAxis, name: str
) -> None:
    """Refuse an axis on what has no dims, or no order."""
    match node:
        case TensorNode() | KeptNode(guard=Guard.DEVICE_TENSOR | Guard.NOTHING):
            return
        case SequenceNode():
            _check_list(mark, name)
        case KeptNode(types=types, inside=inside) if not isinstance(inside, TupleNode):
            if any(_is_array(tp) for tp in types):
                return
            if not types or not set(types) <= {*_SEQUENCES, type(None)}:
                _refuse_host(node, mark, name)
            _check_list(mark, name)
        case TupleNode() | KeptNode() | NamedTupleNode() | TypedDictNode():
            refuse(
                name,
                f"has a fixed number of parts, so {mark.name!r} cannot run along it",
                "Write `list[...]` or `tuple[X, ...]`, or put the axis on its parts.",
            )
        case MappingNode():
            _refuse_mapping(mark, name)
        case PayloadNode(cls=cls):
            refuse(
                name,
                "is a payload, which brings axes of its own",
                f"Put the axis on the fields of `{cls.__name__}`.",
            )
        case AdapterNode(cls=cls) | SelfMovingNode(cls=cls):
            refuse(
                name,
                f"is a `{cls.__name__}`, whose dims only it knows",
                "Take the mark out, and resize it in `__payload_resized__`.",
            )
        case DynamicNode():
            refuse(
                name,
                "is walked at run time, so no dim of it is known",
                "Write the type of the value.",
            )
        case _:
            refuse(name, "cannot run along an axis", "Take the mark out.")


def _is_array(tp: type) -> bool:
    """Return whether a class is numpy's array, without importing numpy."""
    return (tp.__module__, tp.__qualname__) == ("numpy", "ndarray")


def _check_list(mark: Axis | Offsets | Index | ShapeAxis, name: str) -> None:
    """Refuse a dim that a list does not have."""
    if isinstance(mark, (Axis, ShapeAxis)) and mark.dim != 0:
        refuse(
            name,
            f"is a list, which has no dim {mark.dim}",
            "Put the axis on what is inside: `list[Annotated[Tensor, ...]]`.",
        )


def _refuse_mapping(mark: AxisMark, name: str) -> None:
    refuse(
        name,
        f"is a mapping, which has no order for {mark.name!r} to run along",
        "Put the axis on its values: `dict[str, Annotated[Tensor, ...]]`.",
    )


def _refuse_host(node: KeptNode, mark: AxisMark, name: str) -> None:
    """Refuse a host value that has no items."""
    if isinstance(node.inside, MappingNode) or dict in node.types:
        _refuse_mapping(mark, name)
    ways = ["Put the axis on a tensor, an array or a list."]
    if node.types == (int,):
        ways.append(f"Or write `Size({mark.name!r})` if it is the size of the axis.")
    refuse(name, f"is one value, so {mark.name!r} cannot run along it", *ways)


def _check_apart(node: Node, name: str) -> None:
    """Refuse two axes on one dim, and one axis on two dims."""
    dims: dict[int, str] = {}
    for mark in axes_of(node):
        if isinstance(mark, (Axis, Offsets, ShapeAxis)):
            dim = 0 if isinstance(mark, Offsets) else mark.dim
            if dim in dims:
                refuse(
                    name,
                    f"has two axes on dim {dim}, {dims[dim]!r} and {mark.name!r}",
                    "Give each dim one axis.",
                )
            dims[dim] = mark.name
    names = [*dims.values()]
    if isinstance(node, SequenceNode):
        names += {m.name for m in marks_in(node.item) if not isinstance(m, Index)}
    written = all(isinstance(mark, ShapeAxis) for mark in axes_of(node))
    for axis in () if written else names:
        if names.count(axis) > 1:
            refuse(
                name,
                f"has the axis {axis!r} twice, so nothing says which of them to resize",
                "Give one of them another name.",
            )


def with_axes(node: Node, arms: Iterable[Node], name: str) -> Node:
    """Return the node of a union with the marks that stand on its arms.

    Raises:
        RefusedError: two arms that are one to a value have different axes.
    """
    groups: dict[object, tuple[AxisMark, ...]] = {}
    flat = list(_flat(arms))
    if not any(map(axes_of, flat)):
        return node
    for arm in flat:
        kind = _kind(arm)
        if groups.setdefault(kind, axes_of(arm)) != axes_of(arm):
            refuse(
                name,
                "has arms of one kind with different axes",
                "Put the axes on the whole union, or write two fields.",
            )
    if isinstance(node, UnionNode):
        return UnionNode(
            tuple(_with(arm, groups.get(_kind(arm), ())) for arm in node.arms)
        )
    return _with(node, groups.get(_kind(node), ()))


def _kind(arm: Node) -> object:
    """Return what a value tells apart."""
    return arm.kind if isinstance(arm, SequenceNode) else type(arm)


def _flat(arms: Iterable[Node]) -> Iterator[Node]:
    """Yield the arms of nested unions, without None."""
    for arm in arms:
        if isinstance(arm, UnionNode):
            yield from _flat(arm.arms)
        elif not (isinstance(arm, KeptNode) and arm.types == (type(None),)):
            yield arm


def wrong_lengths(fields: Sequence[FieldPlan]) -> Iterator[Refusal]:
    """Yield a refusal for each `lengths=` that names no lengths of runs."""
    known = {field.name: field for field in fields}
    for field in fields:
        for mark in dict.fromkeys(marks_in(field.node)):
            lengths = mark.lengths if isinstance(mark, Axis) else None
            if lengths is None:
                continue
            reason = way = ""
            if lengths not in known:
                reason = f"has its lengths in `{lengths}`, which is not a field"
                way = "Name a field of the class that holds the lengths of the runs."
            elif not _counts(known[lengths].node):
                reason = f"has its lengths in `{lengths}`, which runs along no axis"
                way = f'Give `{lengths}` its axis: `Annotated[..., Axis("requests")]`.'
            if reason:
                written = field.annotation
                yield Refusal(field.name, written, written, reason, (way,))


def _counts(node: Node) -> bool:
    """Return whether a node can hold the lengths of runs."""
    arms = node.arms if isinstance(node, UnionNode) else (node,)
    marks = [m for arm in arms for m in axes_of(arm)]
    return any(
        isinstance(m, Offsets) or (isinstance(m, Axis) and m.dim == 0) for m in marks
    )
