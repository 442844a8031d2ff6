"""The nodes of a union's arms -> one node; refuses arms that no value could tell."""

from collections.abc import Iterable, Iterator, Sequence

from mypy.types import Type

from tensorpack.mypy_plugin.nodes import (
    NONE,
    Choice,
    Entries,
    Fixed,
    Guard,
    Items,
    Kept,
    Node,
    Record,
    Typed,
    Unknown,
    Walked,
    refuse,
)
from tensorpack.mypy_plugin.spelling import spell

__all__ = ["choose", "folded"]


def folded(node: Items | Fixed | Entries | Record | Typed) -> Node:
    """Keep a container by reference where nothing inside has to be looked at."""
    for inside in _children(node):
        if not isinstance(inside, Kept) or inside.guard is Guard.DEVICE_TENSOR:
            return node
    return Kept(Guard.TENSOR, type(node).__name__, node)


def _children(node: Items | Fixed | Entries | Record | Typed) -> tuple[Node, ...]:
    """Give the nodes directly below a container."""
    match node:
        case Items(item=item):
            return (item,)
        case Entries(value=value):
            return (value,)
        case Fixed(items=items) | Record(items=items) | Typed(items=items):
            return items


def choose(arms: Iterable[Node], union: Type) -> Node:
    """Make the node of a union from the nodes of its arms.

    Raises:
        RefusedError: a value could not tell which of two arms it belongs to.
    """
    flat = list(_flat(arms))
    if len(flat) == 1:
        return flat[0]
    if any(isinstance(arm, Unknown) for arm in flat):
        return Unknown()
    marked = [a for a in flat if isinstance(a, Kept) and a.guard is not Guard.TENSOR]
    others = [a for a in flat if a not in marked]
    walked = any(isinstance(arm, Walked) for arm in others)
    if marked and (len(set(marked)) > 1 or walked):
        _refuse_markers(union)
    if marked and marked[0].guard is Guard.NOTHING and others:
        _refuse_markers(union)
    if walked:
        return Walked()
    found = [*_merged(others, union), *marked[:1]]
    if not found:
        return NONE
    return found[0] if len(found) == 1 else Choice(tuple(found))


def _refuse_markers(union: Type) -> None:
    refuse(
        spell(union),
        "has a marker on one arm that another arm contradicts",
        "Mark the whole field with one of them.",
    )


def _flat(arms: Iterable[Node]) -> Iterator[Node]:
    """Iterate the arms of nested unions, without None."""
    for arm in arms:
        if isinstance(arm, Choice):
            yield from _flat(arm.arms)
        elif arm != NONE:
            yield arm


def _merged(arms: Sequence[Node], union: Type) -> list[Node]:
    """Merge containers that a value could not tell apart, and all host arms."""
    opened = [a.inside if isinstance(a, Kept) and a.inside else a for a in arms]
    containers: list[Items | Fixed | Entries | Record | Typed] = [
        *(a for a in opened if isinstance(a, Record)),
        *_sequences([a for a in opened if isinstance(a, (Items, Fixed))], union),
        *_mappings(
            [a for a in opened if isinstance(a, Entries)],
            [a for a in opened if isinstance(a, Typed)],
            union,
        ),
    ]
    forms = (Items, Fixed, Entries, Record, Typed)
    found = [
        *(a for a in opened if not isinstance(a, forms)),
        *map(folded, containers),
    ]
    host = [a for a in found if isinstance(a, Kept)]
    rest = [a for a in dict.fromkeys(found) if a not in host]
    return rest if not host else [*rest, host[0] if len(host) == 1 else _HOST]


_HOST = Kept(Guard.TENSOR)


def _sequences(arms: Sequence[Items | Fixed], union: Type) -> list[Items | Fixed]:
    """Merge sequences of one outer type; `Sequence` takes all others in."""
    kinds = dict.fromkeys(_kind(arm) for arm in arms)
    if "Sequence" in kinds:
        return [Items("Sequence", choose(_items(arms), union))]
    found: list[Items | Fixed] = []
    for kind in kinds:
        same = [arm for arm in arms if _kind(arm) == kind]
        fixed = [arm for arm in same if isinstance(arm, Fixed)]
        if len(fixed) == len(same) and len({len(arm.items) for arm in fixed}) == 1:
            columns = zip(*(arm.items for arm in fixed), strict=True)
            found.append(Fixed(tuple(choose(column, union) for column in columns)))
        else:
            found.append(Items(kind, choose(_items(same), union)))
    return found


def _kind(arm: Items | Fixed) -> str:
    return arm.kind if isinstance(arm, Items) else "tuple"


def _items(arms: Iterable[Items | Fixed]) -> list[Node]:
    """List what the items of some sequences may be."""
    return [item for arm in arms for item in _children(arm)]


def _mappings(
    arms: Sequence[Entries], typed: Sequence[Typed], union: Type
) -> list[Entries | Typed]:
    """Merge mappings of one outer type; `Mapping` takes all others in."""
    typed = list(dict.fromkeys(typed))
    if len(typed) > 1 or (typed and any(a.kind in ("dict", "Mapping") for a in arms)):
        refuse(
            spell(union),
            "has two dictionary types that a value cannot tell apart",
            "Keep one of them, or write `Dynamic[...]`.",
        )
    kinds = dict.fromkeys(arm.kind for arm in arms)
    if "Mapping" in kinds:
        return [Entries("Mapping", choose((a.value for a in arms), union)), *typed]
    same = {kind: [a.value for a in arms if a.kind == kind] for kind in kinds}
    return [*(Entries(k, choose(values, union)) for k, values in same.items()), *typed]
