"""The nodes of a union's arms -> one node whose value decides."""

from collections.abc import Iterable, Sequence

from tensorpack._plan.remedies import refuse
from tensorpack._rules.containers import CLASSES
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

__all__ = ["choose", "folded"]

_NONE = KeptNode(Guard.TENSOR, (type(None),))


def folded(
    node: SequenceNode | TupleNode | MappingNode | NamedTupleNode | TypedDictNode,
) -> Node:
    """Keep a container by reference where nothing inside has to be looked at."""
    for inside in children(node):
        if not isinstance(inside, KeptNode) or inside.guard is Guard.DEVICE_TENSOR:
            return node
    match node:
        case SequenceNode(kind=kind) | MappingNode(kind=kind):
            return KeptNode(Guard.TENSOR, CLASSES[kind], node)
        case TupleNode():
            return KeptNode(Guard.TENSOR, (tuple,), node)
        case NamedTupleNode(cls=cls):
            return KeptNode(Guard.TENSOR, (cls,), node)
        case TypedDictNode():
            return KeptNode(Guard.TENSOR, (dict,), node)


def choose(arms: Sequence[Node], union: str) -> Node:
    """Make the node of a union from the nodes of its arms.

    None is accepted everywhere and needs no arm. Containers of one outer type merge:
    `list[A] | list[B]` is read as `list[A | B]`.

    Raises:
        RefusedError: a value could not tell which of two arms it belongs to.
    """
    flat = list(_flat(arms))
    marked = [
        a for a in flat if isinstance(a, KeptNode) and a.guard is not Guard.TENSOR
    ]
    others = [a for a in flat if a not in marked]
    if marked and (
        len(set(marked)) > 1 or any(isinstance(a, DynamicNode) for a in others)
    ):
        _refuse_markers(union)
    if marked and marked[0].guard is Guard.NOTHING and others:
        _refuse_markers(union)
    if any(isinstance(arm, DynamicNode) for arm in others):
        return DynamicNode()
    found = _merged(others, union)
    if marked:  # what is kept anyway needs no arm of its own
        found = [*(a for a in found if not isinstance(a, KeptNode)), marked[0]]
    if not found:
        return _NONE
    return found[0] if len(found) == 1 else UnionNode(tuple(found))


def _refuse_markers(union: str) -> None:
    refuse(
        union,
        "has a marker on one arm that another arm contradicts",
        "Mark the whole field with one of them.",
    )


def _flat(arms: Iterable[Node]) -> Iterable[Node]:
    """Iterate the arms of nested unions, without None."""
    for arm in arms:
        if isinstance(arm, UnionNode):
            yield from _flat(arm.arms)
        elif arm != _NONE:
            yield arm


def _merged(arms: list[Node], union: str) -> list[Node]:
    """Merge what a value could not tell apart; give the arms in the order of tests."""
    opened = [a.inside if isinstance(a, KeptNode) and a.inside else a for a in arms]
    sequences = _merge_sequences(
        [a for a in opened if isinstance(a, (SequenceNode, TupleNode))], union
    )
    mappings = _merge_mappings(
        [a for a in opened if isinstance(a, MappingNode)],
        [a for a in opened if isinstance(a, TypedDictNode)],
        union,
    )
    records = [a for a in opened if isinstance(a, NamedTupleNode)]
    containers = [folded(c) for c in (*dict.fromkeys(records), *sequences, *mappings)]
    plain = [a for a in opened if isinstance(a, KeptNode)]
    kept = [c for c in (*containers, *plain) if isinstance(c, KeptNode)]
    nested = [a for a in opened if isinstance(a, PayloadNode)]
    first: list[Node] = [a for a in opened if isinstance(a, TensorNode)]
    first += nested[:1]  # whichever payload it is, the value's class decides
    first += [
        a
        for kind in (AdapterNode, SelfMovingNode)
        for a in opened
        if isinstance(a, kind)
    ]
    walked = [c for c in containers if not isinstance(c, KeptNode)]
    return [*dict.fromkeys(first), *walked, *_together(kept)]


def _together(kept: list[KeptNode]) -> list[Node]:
    """Put all host arms into one."""
    if len(kept) < 2:  # noqa: PLR2004  # two is where there is something to join
        return list(kept)
    types = dict.fromkeys(tp for arm in kept for tp in arm.types)
    return [KeptNode(Guard.TENSOR, tuple(types))]


def _merge_sequences(
    arms: list[SequenceNode | TupleNode], union: str
) -> list[SequenceNode | TupleNode]:
    """Merge sequences of one outer type; `Sequence` takes all others in."""
    kinds = dict.fromkeys(
        a.kind if isinstance(a, SequenceNode) else "tuple" for a in arms
    )
    if "Sequence" in kinds:
        return [SequenceNode("Sequence", choose(_items(arms), union))]
    found: list[SequenceNode | TupleNode] = []
    for kind in kinds:
        same = [
            a
            for a in arms
            if kind == (a.kind if isinstance(a, SequenceNode) else "tuple")
        ]
        fixed = [a for a in same if isinstance(a, TupleNode)]
        if len(fixed) == len(same) and len({len(a.items) for a in fixed}) == 1:
            columns = zip(*(a.items for a in fixed), strict=True)
            found.append(TupleNode(tuple(choose(column, union) for column in columns)))
        else:
            found.append(SequenceNode(kind, choose(_items(same), union)))
    return found


def _items(arms: Iterable[SequenceNode | TupleNode]) -> list[Node]:
    """List what the items of some sequences may be."""
    return [item for arm in arms for item in children(arm)]


def _merge_mappings(
    arms: list[MappingNode], typed: list[TypedDictNode], union: str
) -> list[MappingNode | TypedDictNode]:
    """Merge mappings of one outer type; `Mapping` takes all others in."""
    typed = list(dict.fromkeys(typed))
    if len(typed) > 1 or (typed and any(a.kind in ("dict", "Mapping") for a in arms)):
        refuse(
            union,
            "has two dictionary types that a value cannot tell apart",
            "Keep one of them, or write `Dynamic[...]`.",
        )
    kinds = dict.fromkeys(a.kind for a in arms)
    for widest in ("Mapping", "dict"):
        if widest in kinds:  # it takes the values of all others
            return [MappingNode(widest, choose([a.value for a in arms], union)), *typed]
    same = {kind: [a.value for a in arms if a.kind == kind] for kind in kinds}
    return [
        *(MappingNode(k, choose(values, union)) for k, values in same.items()),
        *typed,
    ]
