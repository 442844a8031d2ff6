"""What following a method gives: abstract values on the way, and the events."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tensorpack._audit.classes import ClassDef
from tensorpack._audit.functions import Function

__all__ = [
    "UNKNOWN",
    "Atom",
    "Box",
    "Each",
    "Event",
    "Guard",
    "Items",
    "Key",
    "Kind",
    "Made",
    "Names",
    "Nothing",
    "Pairs",
    "Part",
    "Routine",
    "Text",
    "Trace",
    "Value",
    "Whole",
]


@dataclass(frozen=True, slots=True)
class Whole:
    """An object of an audited class: `self`, another parameter, or the new object."""

    root: str
    cls: ClassDef | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A class itself: its name, `cls`, `type(self)`."""

    cls: ClassDef
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The value of one field; `acted` if it has been through a call."""

    root: str
    field: str
    acted: bool = False
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Each:
    """The value of every field in turn; `names` of those that a loop goes over."""

    root: str
    names: frozenset[str] | None = None
    acted: bool = False
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """The name of every field in turn."""

    root: str
    names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """The names of fields, or what describes them."""

    root: str
    names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """A mapping of all fields; `live` if it is the dictionary of the object."""

    root: str
    live: bool = False
    acted: bool = False


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of names and values of all fields."""

    root: str
    acted: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A list, tuple or dictionary that the function makes."""

    number: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    text: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """A constant: None, an empty container, a number."""


@dataclass(frozen=True, slots=True)
class Routine:
    """A function or method; `me` is what it is bound to."""

    function: Function | None
    owner: ClassDef | None = None
    me: Whole | Kind | None = None
    node: ast.AST | None = None


Atom = (
    Whole
    | Kind
    | Part
    | Each
    | Key
    | Names
    | Items
    | Pairs
    | Box
    | Text
    | Nothing
    | Routine
)
Value = frozenset[Atom]

UNKNOWN: Value = frozenset()


@dataclass(frozen=True, slots=True)
class Guard:
    """A test on the way to an event.

    Attributes:
        subject: the field that is tested, or "" for the value of a loop over all.
        deep: whether something inside of it is tested.
        kind: "is", "isnot", "has", "hasnot", "name" or "notname".
        names: of types, attributes or fields.
    """

    subject: str
    deep: bool
    kind: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a method does to a field.

    Attributes:
        kind: "act", "keep", "reset", "mention", "escape", "super", "raise",
            "append", "live", "class", "thrown".
        line: where.
        path: file.
        subject: the part or loop value that it is done to.
        name: of the method, function or field.
        guards: tests that must hold.
        swallowed: whether errors are swallowed around it.
        box: number of the container that is appended to.
    """

    kind: str
    line: int
    path: str
    subject: Part | Each | None = None
    name: str = ""
    guards: tuple[Guard, ...] = ()
    swallowed: str = ""
    box: int = 0


@dataclass(slots=True)
class Made:
    """A new object of the class.

    Attributes:
        cls: its class.
        mode: "constructor", "replace", "shallow" or "deep".
        line: where it is made.
        path: file.
        given: field -> what it is given.
        is_open: whether it may be given more than can be seen.
        has_rest: whether it is given the caller's own `**kwargs`.
        loops: names of the loops that give it fields; None in it means all.
    """

    cls: ClassDef
    mode: str
    line: int
    path: str
    given: dict[str, Value] = field(default_factory=dict)
    is_open: bool = False
    has_rest: bool = False
    loops: list[frozenset[str] | None] = field(default_factory=list)


@dataclass(slots=True)
class BoxContent:
    """What a container holds.

    Attributes:
        slots: items in order, as far as it is known.
        named: values under names.
        loops: names of fields that loops put in; None in it means all.
        is_open: whether it may hold more than can be seen.
    """

    slots: list[Value] = field(default_factory=list)
    named: dict[str, Value] = field(default_factory=dict)
    loops: list[frozenset[str] | None] = field(default_factory=list)
    is_open: bool = False


@dataclass(slots=True)
class Trace:
    """The events of one method, followed for one class."""

    cls: ClassDef | None
    events: list[Event] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    boxes: dict[int, BoxContent] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    result: Value = UNKNOWN
    visited: list[tuple[ClassDef | None, Function]] = field(default_factory=list)

    def new_box(self) -> tuple[Box, BoxContent]:
        """Make a container."""
        box = Box(len(self.boxes) + 1)
        self.boxes[box.number] = BoxContent()
        return box, self.boxes[box.number]

    def inside(self, value: Value, depth: int = 0) -> Iterator[Atom]:
        """Yield all atoms of a value, those in containers too."""
        for atom in value:
            yield atom
            if isinstance(atom, Box) and depth < 6:  # noqa: PLR2004 - no deeper code
                content = self.boxes[atom.number]
                for each in [*content.slots, *content.named.values()]:
                    yield from self.inside(each, depth + 1)

    def subjects(self, value: Value) -> list[Part | Each]:
        """List the parts and loop values in a value."""
        found: list[Part | Each] = []
        for atom in self.inside(value):
            if isinstance(atom, Part | Each):
                found.append(atom)
            elif isinstance(atom, Items | Pairs):
                found.append(Each(atom.root, None, atom.acted))
        return list(dict.fromkeys(found))


def acted(subjects: Iterable[Part | Each]) -> Value:
    """Return subjects as what a call on them gives."""
    return frozenset(replace(each, acted=True) for each in subjects)


def deeper(value: Value) -> Value:
    """Return what is inside of parts and loop values."""
    return frozenset(
        replace(atom, deep=True) for atom in value if isinstance(atom, Part | Each)
    )
