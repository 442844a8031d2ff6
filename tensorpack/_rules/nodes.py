"""The frozen tree that describes a class: what each field's annotation means.

`Node` is a closed union, matched exhaustively wherever it is read.
"""

import enum
from collections.abc import Iterator

import attrs

__all__ = [
    "Adapted",
    "Cached",
    "Choice",
    "Entries",
    "Fixed",
    "Guard",
    "Items",
    "Kept",
    "Leaf",
    "Nested",
    "Node",
    "Opaque",
    "Record",
    "Reset",
    "Shadowed",
    "Typed",
    "Walked",
    "children",
    "role",
    "travels",
    "why",
]


class Guard(enum.Enum):
    """What a value that is kept by reference must not be."""

    TENSOR = "host"
    DEVICE_TENSOR = "host only"
    NOTHING = "borrowed"


@attrs.frozen
class Leaf:
    """A tensor."""


@attrs.frozen
class Opaque:
    """A type that moves and records itself."""

    cls: type


@attrs.frozen
class Nested:
    """Another payload; which one is asked of the value."""

    cls: type


@attrs.frozen
class Adapted:
    """A type with an adapter."""

    cls: type


@attrs.frozen
class Walked:
    """Walked at run time by the types of its values."""


@attrs.frozen
class Kept:
    """Kept by reference: a host type, or a value marked to stay where it is.

    A container with nothing to look at inside is kept too, with `inside` as its form.
    """

    guard: Guard
    types: tuple[type, ...] = ()
    inside: "Node | None" = None


@attrs.frozen
class Items:
    """A sequence of any length: `list`, `tuple`, `deque` or `Sequence`."""

    kind: str
    item: "Node"


@attrs.frozen
class Fixed:
    """A tuple of fixed length."""

    items: tuple["Node", ...]


@attrs.frozen
class Entries:
    """A mapping: `dict`, `OrderedDict`, `defaultdict` or `Mapping`."""

    kind: str
    value: "Node"


@attrs.frozen
class Record:
    """A named tuple."""

    cls: type
    items: tuple[tuple[str, "Node"], ...]


@attrs.frozen
class Typed:
    """A dictionary whose keys are declared, each with its type."""

    cls: type
    items: tuple[tuple[str, "Node"], ...]


@attrs.frozen
class Choice:
    """A union: the value decides."""

    arms: tuple["Node", ...]


@attrs.frozen
class Reset:
    """Recorded, never moved; a twin gets the field's default instead."""

    inner: "Node"


@attrs.frozen
class Cached:
    """What a cached property keeps: recorded, never moved, and no field.

    Attributes:
        inner: what its return annotation says; walked at run time if that says little.
        slot: the slot that keeps it; None if the instance `__dict__` does.
    """

    inner: "Node"
    slot: object = None


@attrs.frozen
class Shadowed:
    """A field whose name is a property: it has no storage of its own."""


Node = (
    Leaf
    | Opaque
    | Nested
    | Adapted
    | Walked
    | Kept
    | Items
    | Fixed
    | Entries
    | Record
    | Typed
    | Choice
    | Reset
    | Cached
    | Shadowed
)


def children(node: Node) -> Iterator[Node]:
    """Iterate the nodes directly below a node."""
    match node:
        case Items(item=item):
            yield item
        case Entries(value=value):
            yield value
        case Fixed(items=items):
            yield from items
        case Record(items=named) | Typed(items=named):
            yield from (item for _, item in named)
        case Choice(arms=arms):
            yield from arms
        case Reset(inner=inner) | Cached(inner=inner):
            yield inner
        case Leaf() | Opaque() | Nested() | Adapted() | Walked() | Kept() | Shadowed():
            return


def travels(node: Node) -> bool:
    """Tell whether values of a node can hold leaves that move."""
    if isinstance(node, (Leaf, Opaque, Nested, Adapted, Walked)):
        return True
    if isinstance(node, (Reset, Cached)):
        return False
    return any(travels(child) for child in children(node))


def role(node: Node) -> str:
    """Name what happens to a field, in one or two words."""
    match node:
        case Kept(guard=guard):
            return guard.value
        case Reset():
            return "derived"
        case Cached(inner=Kept() as inner):
            return role(inner)
        case Cached():
            return "cached"
        case Shadowed():
            return "property"
        case Nested():
            return "nested payload"
        case Walked():
            return "dynamic"
        case Leaf() | Opaque() | Adapted():
            return "leaf"
        case Items() | Fixed() | Entries() | Record() | Typed() | Choice():
            return "leaves" if travels(node) else "host only"


def why(node: Node) -> str:
    """Say why a field has its role, as a clause."""
    match node:
        case Leaf():
            return "a tensor"
        case Opaque(cls=cls):
            return f"`{cls.__name__}` moves and records itself"
        case Nested(cls=cls):
            return f"the payload `{cls.__name__}` or one derived from it"
        case Adapted(cls=cls):
            return f"`{cls.__name__}` has an adapter"
        case Walked():
            return "walked at run time"
        case Kept(guard=Guard.TENSOR):
            return "a host type"
        case Kept(guard=Guard.DEVICE_TENSOR):
            return "marked `HostOnly`"
        case Kept():
            return "marked `Borrowed`"
        case Reset(inner=inner):
            return f"marked `Derived`: {why(inner)}"
        case Cached(inner=inner):
            return f"a cached property: {why(inner)}"
        case Shadowed():
            return "computed: a property has its name"
        case Choice(arms=arms):
            return "by value: " + "; or ".join(why(arm) for arm in arms)
        case Items(kind=kind, item=item):
            return f"{kind} of: {why(item)}"
        case Entries(kind=kind, value=value):
            return f"{kind} to: {why(value)}"
        case Fixed(items=items):
            return "tuple of: " + ", ".join(why(item) for item in items)
        case Record(cls=cls) | Typed(cls=cls):
            return f"the members of `{cls.__name__}`"
