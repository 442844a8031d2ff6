"""What a loop goes over, and what its targets are bound to."""

import ast

from tensorpack._audit.frames import Frame
from tensorpack._audit.trace import (
    UNKNOWN,
    Box,
    Each,
    Items,
    Key,
    Names,
    Pairs,
    Part,
    Text,
    Value,
    Whole,
    deeper,
)

__all__ = ["bind", "items_of"]


def items_of(value: Value, frame: Frame, *, values: bool = False) -> Value:
    """Return what iterating a value gives.

    Args:
        value: what is iterated.
        frame: where.
        values: whether mappings give their values, not their keys.
    """
    found: Value = UNKNOWN
    for atom in value:
        match atom:
            case Part() | Each():
                found |= deeper(frozenset({atom}))
            case Names(root=root, names=names):
                found |= frozenset({Key(root, names)})
            case Items(root=root, acted=done):
                inner = Each(root, None, done) if values else Key(root)
                found |= frozenset({inner})
            case Pairs():
                found |= frozenset({atom})
            case Whole(root=root, cls=cls):
                if (
                    cls is not None
                    and cls.kind != "namedtuple"
                    and not any(
                        "__iter__" in base.methods
                        for base in frame.world.index.mro(cls)
                    )
                ):
                    continue
                found |= frozenset({Each(root)})
            case Box(number=number):
                content = frame.trace.boxes[number]
                if content.named and not content.slots and not values:
                    found |= frozenset(Text(name) for name in content.named)
                for slot in content.slots:
                    found |= slot
                if content.named and not content.slots and values:
                    for slot in content.named.values():
                        found |= slot
            case Text():
                found |= frozenset({atom})
            case _:
                pass
    return found


def bind(target: ast.expr, value: Value, frame: Frame) -> None:
    """Bind the names of a target."""
    match target:
        case ast.Name(id=name):
            frame.assign(name, value)
        case ast.Starred(value=inner):
            bind(inner, value, frame)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            _bind_items(items, value, frame)
        case _:
            pass


def _bind_items(items: list[ast.expr], value: Value, frame: Frame) -> None:
    found: list[Value] = [UNKNOWN for _ in items]
    for atom in value:
        match atom:
            case Pairs(root=root, acted=done):
                pair: list[Value] = [
                    frozenset({Key(root)}),
                    frozenset({Each(root, None, done)}),
                ]
                for at, part in enumerate(pair[: len(items)]):
                    found[at] |= part
            case Box(number=number):
                slots = frame.trace.boxes[number].slots
                if len(slots) == len(items):
                    for at, slot in enumerate(slots):
                        found[at] |= slot
                else:
                    for slot in slots:
                        found = [each | slot for each in found]
            case Whole():
                each_part = items_of(frozenset({atom}), frame)
                found = [each | each_part for each in found]
            case Part() | Each():
                found = [each | deeper(frozenset({atom})) for each in found]
            case _:
                pass
    for item, own in zip(items, found, strict=True):
        bind(item, own, frame)
