"""Calls that cannot be followed: they may do anything with what they are given."""

import ast
from dataclasses import dataclass, field

from tensorpack._audit.frames import Frame
from tensorpack._audit.iteration import items_of
from tensorpack._audit.trace import (
    UNKNOWN,
    Box,
    Items,
    Nothing,
    Pairs,
    Text,
    Value,
    Whole,
    acted,
)

__all__ = ["READERS", "Arguments", "of_unknown"]

READERS = {"keys", "values", "items", "get", "pop", "setdefault", "copy"}
"""Methods of containers that give what is inside."""


@dataclass(slots=True)
class Arguments:
    """The arguments of a call.

    Attributes:
        plain: positional.
        named: by keyword.
        spread: mappings after `**`.
        starred: what is iterated after `*`.
    """

    plain: list[Value] = field(default_factory=list)
    named: dict[str, Value] = field(default_factory=dict)
    spread: list[tuple[ast.expr, Value]] = field(default_factory=list)
    starred: list[Value] = field(default_factory=list)

    def all(self) -> Value:
        """Return all arguments as one value."""
        found: Value = UNKNOWN
        for value in [*self.plain, *self.named.values(), *self.starred]:
            found |= value
        for _, value in self.spread:
            found |= value
        return found


def of_unknown(
    name: str, node: ast.Call, base: Value, given: Arguments, frame: Frame
) -> Value:
    """Return what a call gives that cannot be followed: it may do anything."""
    value = given.all()
    box_in_base = [atom for atom in base if isinstance(atom, Box)]
    for atom in box_in_base:
        _change_box(atom, name, node, given, frame)
    if box_in_base and name in {"append", "extend", "add", "insert", "update"}:
        return UNKNOWN
    if box_in_base and name in READERS:
        return frozenset(box_in_base)
    wholes = [
        atom
        for atom in frame.trace.inside(value | base)
        if isinstance(atom, Whole) and atom.root != "new"
    ]
    if wholes:
        frame.emit("escape", node, name=name)
    subjects = frame.trace.subjects(value | base)
    frame.emit("act", node, subjects, name)
    if name.startswith(("set_", "add_")):
        for inner in frame.trace.inside(value):
            if isinstance(inner, Box):
                frame.trace.stored.add(inner.number)
    return acted(subjects)


def _change_box(
    box: Box, name: str, node: ast.Call, given: Arguments, frame: Frame
) -> None:
    content = frame.trace.boxes[box.number]
    if name in {"append", "add", "insert"} and given.plain:
        content.slots.append(given.plain[-1])
        subjects = frame.trace.subjects(given.plain[-1])
        frame.emit("append", node, subjects, box=box.number)
    elif name == "extend" and given.plain:
        content.slots.append(items_of(given.plain[0], frame))
    elif name == "update":
        content.named.update(given.named)
        for value in [*given.plain, *(value for _, value in given.spread)]:
            for atom in value:
                match atom:
                    case Items() | Pairs():
                        content.loops.append(None)
                    case Box(number=number) if number != box.number:
                        other = frame.trace.boxes[number]
                        content.named.update(other.named)
                        content.loops += other.loops
                        content.slots += other.slots
                    case Text() | Nothing():
                        pass
                    case _:
                        pass
