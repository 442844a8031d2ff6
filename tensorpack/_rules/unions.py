"""The nodes of a union's arms -> one node whose value decides."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tensorpack._rules import refusals
from tensorpack._rules.containers import CONTAINERS, classes_of, overlap
from tensorpack._rules.nodes import (
    NONE,
    AdapterNode,
    BorrowedNode,
    ContainerNode,
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

__all__ = ["fold", "is_host", "union_of"]

C = TypeVar("C")


def is_host(node: NodeOf[C]) -> bool:
    """Return whether values of a node are host values, or not seen at all."""
    return isinstance(node, (HostNode, UnseenNode))


def fold(node: ContainerNode[C]) -> NodeOf[C]:
    """Return a host node for a container with nothing inside to look at."""
    for inside in children(node):
        if not isinstance(inside, (HostNode, BorrowedNode)):
            return node
    match node:
        case SequenceNode(kind=kind) | MappingNode(kind=kind):
            return HostNode(classes_of(kind), node)
        case TupleNode():
            return HostNode((tuple,), node)
        case NamedTupleNode(cls=cls):
            return HostNode((cls,), node)
        case TypedDictNode():
            return HostNode((dict,), node)


def union_of(arms: Iterable[NodeOf[C]], union: str) -> NodeOf[C]:
    """Return the node of a union, from the nodes of its arms.

    None is accepted everywhere and needs no arm.

    Args:
        arms: what each arm means.
        union: the union as written.

    Raises:
        RefusedError: a value could not tell which of two arms it belongs to.
    """
    flat = list(_flat(arms))
    if any(isinstance(arm, UnseenNode) for arm in flat):
        return UnseenNode()
    _check_markers(flat, union)
    marked = [a for a in flat if isinstance(a, (HostOnlyNode, BorrowedNode))]
    others = [a for a in flat if not isinstance(a, (HostOnlyNode, BorrowedNode))]
    if any(isinstance(arm, DynamicNode) for arm in others):
        return DynamicNode()
    found = _told_apart(others, union)
    if marked:  # what is kept anyway needs no arm of its own
        found = [*(a for a in found if not isinstance(a, HostNode)), marked[0]]
    if not found:
        return HostNode(NONE.types)
    return found[0] if len(found) == 1 else UnionNode(tuple(found))


def _flat(arms: Iterable[NodeOf[C]]) -> Iterator[NodeOf[C]]:
    """Yield the arms of nested unions, without None."""
    for arm in arms:
        if isinstance(arm, UnionNode):
            yield from _flat(arm.arms)
        elif arm != NONE:
            yield arm


def _check_markers(arms: Sequence[NodeOf[C]], union: str) -> None:
    """Refuse a marker on one arm that another arm contradicts."""
    marked = {a for a in arms if isinstance(a, (HostOnlyNode, BorrowedNode))}
    others = [a for a in arms if not isinstance(a, (HostOnlyNode, BorrowedNode))]
    if not marked:
        return
    walked = any(isinstance(arm, DynamicNode) for arm in others)
    if (
        len(marked) > 1
        or walked
        or (others and any(isinstance(a, BorrowedNode) for a in marked))
    ):
        refusals.CONTRADICTED.refuse(union)


def _told_apart(arms: Sequence[NodeOf[C]], union: str) -> list[NodeOf[C]]:
    """Return the arms in the order of their tests, all host types in one of them."""
    opened: list[NodeOf[C]] = [
        a.inside if isinstance(a, HostNode) and a.inside is not None else a
        for a in arms
    ]
    first: list[NodeOf[C]] = [a for a in opened if isinstance(a, TensorNode)]
    # Whichever payload it is, the value's class decides.
    first += [a for a in opened if isinstance(a, PayloadNode)][:1]
    first += [a for a in opened if isinstance(a, AdapterNode)]
    first += [a for a in opened if isinstance(a, SelfMovingNode)]
    containers = _containers(opened, union)
    walked = [c for c in containers if not isinstance(c, HostNode)]
    host = [c for c in (*containers, *opened) if isinstance(c, HostNode)]
    if len(host) > 1:
        host = [HostNode(tuple(dict.fromkeys(tp for h in host for tp in h.types)))]
    return [*dict.fromkeys(first), *walked, *host]


def _containers(arms: Sequence[NodeOf[C]], union: str) -> list[NodeOf[C]]:
    """Return the containers among the arms, each once.

    Raises:
        RefusedError: two of them have values of one class, and one has leaves.
    """
    found: dict[ContainerNode[C], None] = {}
    for kinds in (
        (NamedTupleNode,),
        (SequenceNode, TupleNode),
        (MappingNode,),
        (TypedDictNode,),
    ):
        found |= {arm: None for arm in arms if isinstance(arm, kinds)}
    for one, other in itertools.combinations(found, 2):
        if isinstance(one, TypedDictNode) or isinstance(other, TypedDictNode):
            _check_dictionaries(one, other, union)
        elif _are_alike(one, other) and not (_stays(one) and _stays(other)):
            _refuse_alike(one, other, union)
    return [fold(container) for container in found]


def _stays(container: ContainerNode[C]) -> bool:
    """Return whether a container has nothing inside to look at."""
    return isinstance(fold(container), HostNode)


def _check_dictionaries(
    one: ContainerNode[C], other: ContainerNode[C], union: str
) -> None:
    """Refuse a typed dictionary beside another or beside `dict`: both are `dict`."""
    if all(
        isinstance(arm, TypedDictNode)
        or (isinstance(arm, MappingNode) and dict in classes_of(arm.kind))
        for arm in (one, other)
    ):
        refusals.TWO_DICTIONARIES.refuse(union)


def _are_alike(one: NodeOf[C], other: NodeOf[C]) -> bool:
    """Return whether a value could be of either of two containers."""
    kind, kind_of_other = _kind(one), _kind(other)
    if kind is None or kind_of_other is None:
        return False
    return overlap(kind, kind_of_other)


def _kind(node: NodeOf[C]) -> str | None:
    """Return the kind of a container; None for one with a class of its own."""
    match node:
        case SequenceNode(kind=kind) | MappingNode(kind=kind):
            return kind
        case TupleNode():
            return "tuple"
        case _:
            return None


def _refuse_alike(one: NodeOf[C], other: NodeOf[C], union: str) -> None:
    """Refuse two containers that a value cannot tell apart; say what to write."""
    _check_markers([*_flat(children(one)), *_flat(children(other))], union)
    kinds = list(dict.fromkeys(filter(None, (_kind(one), _kind(other)))))
    arms = f"two `{kinds[0]}` arms"
    if len(kinds) > 1:
        arms = f"`{kinds[0]}` and `{kinds[1]}` arms"
    refusals.TWO_ARMS.refuse(union, arms=arms, joined=_joined(one, other))


def _joined(one: NodeOf[C], other: NodeOf[C]) -> str:
    """Write the container that takes the values of two that are alike."""
    match one, other:
        case TupleNode(), TupleNode() if len(one.items) == len(other.items):
            columns = zip(
                one.written, other.written, one.items, other.items, strict=True
            )
            return f"tuple[{', '.join(_either(*column) for column in columns)}]"
        case MappingNode(), MappingNode():
            key = _alternatives([one.written[0], other.written[0]])
            value = _either(one.written[1], other.written[1], one.value, other.value)
            return f"{_wider(one, other)}[{key}, {value}]"
        case SequenceNode(), SequenceNode():
            item = _either(one.written[0], other.written[0], one.item, other.item)
            kind = _wider(one, other)
            return f"{kind}[{item}, ...]" if kind == "tuple" else f"{kind}[{item}]"
        case _:  # a tuple of fixed length beside a sequence of any
            both = [n for n in (one, other) if isinstance(n, (SequenceNode, TupleNode))]
            item = _alternatives(text for node in both for text in node.written)
            kind = _wider(one, other)
            return f"{kind}[{item}, ...]" if kind == "tuple" else f"{kind}[{item}]"


def _wider(one: NodeOf[C], other: NodeOf[C]) -> str:
    """Return the kind of two alike containers that takes the other's values in."""
    kind, kind_of_other = _kind(one) or "", _kind(other) or ""
    return kind_of_other if kind in CONTAINERS[kind_of_other].takes_in else kind


def _either(one: str, other: str, node: NodeOf[C], other_node: NodeOf[C]) -> str:
    """Write what is an item of one or of the other container."""
    node, other_node = _opened(node), _opened(other_node)
    if node != other_node and _are_alike(node, other_node):
        return _joined(node, other_node)
    return _alternatives([one, other])


def _opened(node: NodeOf[C]) -> NodeOf[C]:
    """Return the form of a host container."""
    if isinstance(node, HostNode) and node.inside is not None:
        return node.inside
    return node


def _alternatives(texts: Iterable[str]) -> str:
    """Write types as one union, each alternative once."""
    parts: dict[str, None] = {}
    for text in texts:
        depth, start = 0, 0
        for place, character in enumerate(f"{text}|"):
            depth += (character in "[(") - (character in "])")
            if character == "|" and depth == 0:
                parts[text[start:place].strip()] = None
                start = place + 1
    return " | ".join(parts)
