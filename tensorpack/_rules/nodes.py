"""The frozen tree that describes a class: what each field's annotation means.

`Node` is a closed union, matched exhaustively wherever it is read.
"""

import enum
from collections.abc import Iterator

import attrs

from tensorpack._rules.axes import AxisMark

__all__ = [
    "AdapterNode",
    "CachedNode",
    "DerivedNode",
    "DynamicNode",
    "Guard",
    "KeptNode",
    "MappingNode",
    "NamedTupleNode",
    "Node",
    "PayloadNode",
    "PropertyNode",
    "SelfMovingNode",
    "SequenceNode",
    "TensorNode",
    "TupleNode",
    "TypedDictNode",
    "UnionNode",
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
class TensorNode:
    """A tensor.

    Attributes:
        axes: what its annotation says of the batch.
    """

    axes: tuple[AxisMark, ...] = ()


@attrs.frozen
class SelfMovingNode:
    """A type that moves and records itself."""

    cls: type


@attrs.frozen
class PayloadNode:
    """Another payload; which one is asked of the value."""

    cls: type


@attrs.frozen
class AdapterNode:
    """A type with an adapter."""

    cls: type


@attrs.frozen
class DynamicNode:
    """Walked at run time by the types of its values."""


@attrs.frozen
class KeptNode:
    """Kept by reference: a host type, or a value marked to stay where it is.

    A container with nothing to look at inside is kept too, with `inside` as its form.
    """

    guard: Guard
    types: tuple[type, ...] = ()
    inside: "Node | None" = None
    axes: tuple[AxisMark, ...] = ()


@attrs.frozen
class SequenceNode:
    """A sequence of any length: `list`, `tuple`, `deque` or `Sequence`."""

    kind: str
    item: "Node"
    axes: tuple[AxisMark, ...] = ()


@attrs.frozen
class TupleNode:
    """A tuple of fixed length."""

    items: tuple["Node", ...]


@attrs.frozen
class MappingNode:
    """A mapping: `dict`, `OrderedDict`, `defaultdict` or `Mapping`."""

    kind: str
    value: "Node"


@attrs.frozen
class NamedTupleNode:
    """A named tuple."""

    cls: type
    items: tuple[tuple[str, "Node"], ...]


@attrs.frozen
class TypedDictNode:
    """A dictionary whose keys are declared, each with its type."""

    cls: type
    items: tuple[tuple[str, "Node"], ...]


@attrs.frozen
class UnionNode:
    """A union: the value decides."""

    arms: tuple["Node", ...]


@attrs.frozen
class DerivedNode:
    """Recorded, never moved; a twin gets the field's default instead."""

    inner: "Node"


@attrs.frozen
class CachedNode:
    """What a cached property keeps: recorded, never moved, and no field.

    Attributes:
        inner: what its return annotation says; walked at run time if that says little.
        slot: the slot that keeps it; None if the instance `__dict__` does.
    """

    inner: "Node"
    slot: object = None


@attrs.frozen
class PropertyNode:
    """A field whose name is a property: it has no storage of its own."""


Node = (
    TensorNode
    | SelfMovingNode
    | PayloadNode
    | AdapterNode
    | DynamicNode
    | KeptNode
    | SequenceNode
    | TupleNode
    | MappingNode
    | NamedTupleNode
    | TypedDictNode
    | UnionNode
    | DerivedNode
    | CachedNode
    | PropertyNode
)


def children(node: Node) -> Iterator[Node]:
    """Iterate the nodes directly below a node."""
    match node:
        case SequenceNode(item=item):
            yield item
        case MappingNode(value=value):
            yield value
        case TupleNode(items=items):
            yield from items
        case NamedTupleNode(items=named) | TypedDictNode(items=named):
            yield from (item for _, item in named)
        case UnionNode(arms=arms):
            yield from arms
        case DerivedNode(inner=inner) | CachedNode(inner=inner):
            yield inner
        case (
            TensorNode()
            | SelfMovingNode()
            | PayloadNode()
            | AdapterNode()
            | DynamicNode()
            | KeptNode()
            | PropertyNode()
        ):
            return


def travels(node: Node) -> bool:
    """Tell whether values of a node can hold leaves that move."""
    if isinstance(
        node, (TensorNode, SelfMovingNode, PayloadNode, AdapterNode, DynamicNode)
    ):
        return True
    if isinstance(node, (DerivedNode, CachedNode)):
        return False
    return any(travels(child) for child in children(node))


def role(node: Node) -> str:
    """Name what happens to a field, in one or two words."""
    match node:
        case KeptNode(guard=guard):
            return guard.value
        case DerivedNode():
            return "derived"
        case CachedNode(inner=KeptNode() as inner):
            return role(inner)
        case CachedNode():
            return "cached"
        case PropertyNode():
            return "property"
        case PayloadNode():
            return "nested payload"
        case DynamicNode():
            return "dynamic"
        case TensorNode() | SelfMovingNode() | AdapterNode():
            return "leaf"
        case (
            SequenceNode()
            | TupleNode()
            | MappingNode()
            | NamedTupleNode()
            | TypedDictNode()
            | UnionNode()
        ):
            return "leaves" if travels(node) else "host only"


def why(node: Node) -> str:
    """Say why a field has its role, as a clause."""
    match node:
        case TensorNode():
            return "a tensor"
        case SelfMovingNode(cls=cls):
            return f"`{cls.__name__}` moves and records itself"
        case PayloadNode(cls=cls):
            return f"the payload `{cls.__name__}` or one derived from it"
        case AdapterNode(cls=cls):
            return f"`{cls.__name__}` has an adapter"
        case DynamicNode():
            return "walked at run time"
        case KeptNode(guard=Guard.TENSOR):
            return "a host type"
        case KeptNode(guard=Guard.DEVICE_TENSOR):
            return "marked `HostOnly`"
        case KeptNode():
            return "marked `Borrowed`"
        case DerivedNode(inner=inner):
            return f"marked `Derived`: {why(inner)}"
        case CachedNode(inner=inner):
            return f"a cached property: {why(inner)}"
        case PropertyNode():
            return "computed: a property has its name"
        case UnionNode(arms=arms):
            return "by value: " + "; or ".join(why(arm) for arm in arms)
        case SequenceNode(kind=kind, item=item):
            return f"{kind} of: {why(item)}"
        case MappingNode(kind=kind, value=value):
            return f"{kind} to: {why(value)}"
        case TupleNode(items=items):
            return "tuple of: " + ", ".join(why(item) for item in items)
        case NamedTupleNode(cls=cls) | TypedDictNode(cls=cls):
            return f"the members of `{cls.__name__}`"
