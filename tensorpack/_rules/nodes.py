"""The frozen tree that describes what an annotation means.

`Node` is a closed union, matched exhaustively wherever it is read. A node names a class
by a handle: the class itself at run time, its full name in the mypy plugin.
"""

import dataclasses
from collections.abc import Iterator
from typing import Generic, TypeVar, Union

from tensorpack._rules.axes import AxisMark

__all__ = [
    "NONE",
    "AdapterNode",
    "BorrowedNode",
    "CachedNode",
    "ContainerNode",
    "DerivedNode",
    "DynamicNode",
    "HostNode",
    "HostOnlyNode",
    "MappingNode",
    "NamedTupleNode",
    "Node",
    "NodeOf",
    "PayloadNode",
    "PropertyNode",
    "ResidentNode",
    "SelfMovingNode",
    "SequenceNode",
    "StayingNode",
    "TensorNode",
    "TupleNode",
    "TypedDictNode",
    "UnionNode",
    "UnseenNode",
    "children",
    "role",
    "travels",
    "why",
]

C = TypeVar("C")
"""What names a class: `type` at run time, `str` in the plugin."""


@dataclasses.dataclass(frozen=True)
class TensorNode:
    """A tensor.

    Attributes:
        axes: what its annotation says of the batch.
    """

    axes: tuple[AxisMark, ...] = ()


@dataclasses.dataclass(frozen=True)
class SelfMovingNode(Generic[C]):
    """A type that moves and records itself."""

    cls: C


@dataclasses.dataclass(frozen=True)
class PayloadNode(Generic[C]):
    """Another payload; which one is asked of the value."""

    cls: C


@dataclasses.dataclass(frozen=True)
class AdapterNode(Generic[C]):
    """A type with an adapter."""

    cls: C


@dataclasses.dataclass(frozen=True)
class DynamicNode:
    """Walked at run time by the types of its values."""


@dataclasses.dataclass(frozen=True)
class UnseenNode(DynamicNode):
    """A type that the plugin cannot see, so that it says nothing about it."""


@dataclasses.dataclass(frozen=True)
class HostNode(Generic[C]):
    """A host type, kept by reference.

    Attributes:
        types: the classes that a value may have.
        inside: the form of a container that has nothing inside to look at.
        axes: what its annotation says of the batch.
    """

    types: tuple[C | type, ...] = ()
    inside: "ContainerNode[C] | None" = None
    axes: tuple[AxisMark, ...] = ()


@dataclasses.dataclass(frozen=True)
class HostOnlyNode:
    """Marked `HostOnly`: kept by reference; a device tensor raises."""

    axes: tuple[AxisMark, ...] = ()


@dataclasses.dataclass(frozen=True)
class BorrowedNode:
    """Marked `Borrowed`: kept by reference, whatever it is."""

    axes: tuple[AxisMark, ...] = ()


@dataclasses.dataclass(frozen=True)
class SequenceNode(Generic[C]):
    """A sequence of any length: `list`, `tuple`, `deque` or `Sequence`.

    Attributes:
        kind: the name of its row in `containers`.
        item: what each item is.
        written: its parameters as written, for the remedy of a union.
        axes: what its annotation says of the batch.
    """

    kind: str
    item: "NodeOf[C]"
    written: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)
    axes: tuple[AxisMark, ...] = ()


@dataclasses.dataclass(frozen=True)
class TupleNode(Generic[C]):
    """A tuple of fixed length."""

    items: tuple["NodeOf[C]", ...]
    written: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class MappingNode(Generic[C]):
    """A mapping: `dict`, `OrderedDict`, `defaultdict` or `Mapping`."""

    kind: str
    value: "NodeOf[C]"
    written: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class NamedTupleNode(Generic[C]):
    """A named tuple."""

    cls: C
    items: tuple[tuple[str, "NodeOf[C]"], ...]


@dataclasses.dataclass(frozen=True)
class TypedDictNode(Generic[C]):
    """A dictionary whose keys are declared, each with its type."""

    cls: C
    items: tuple[tuple[str, "NodeOf[C]"], ...]


@dataclasses.dataclass(frozen=True)
class UnionNode(Generic[C]):
    """A union: the value decides."""

    arms: tuple["NodeOf[C]", ...]


@dataclasses.dataclass(frozen=True)
class DerivedNode(Generic[C]):
    """Recorded, never moved; a new object gets the field's default instead."""

    inner: "NodeOf[C]"


@dataclasses.dataclass(frozen=True)
class ResidentNode(Generic[C]):
    """Recorded, never moved; a new object keeps the same object."""

    inner: "NodeOf[C]"


@dataclasses.dataclass(frozen=True)
class CachedNode(Generic[C]):
    """What a cached property keeps: recorded, never moved, and no field.

    Attributes:
        inner: what its return annotation says.
        slot: the slot that keeps it; None if the instance `__dict__` does.
    """

    inner: "NodeOf[C]"
    slot: object = None


@dataclasses.dataclass(frozen=True)
class PropertyNode:
    """A field whose name is a property: it has no storage of its own."""


StayingNode = Union[HostNode[C], HostOnlyNode, BorrowedNode]  # noqa: UP007  # generic
"""What is kept by reference."""

ContainerNode = Union[  # noqa: UP007  # generic
    SequenceNode[C], TupleNode[C], MappingNode[C], NamedTupleNode[C], TypedDictNode[C]
]
"""What has parts of its own."""

NodeOf = Union[  # noqa: UP007  # generic
    TensorNode,
    SelfMovingNode[C],
    PayloadNode[C],
    AdapterNode[C],
    DynamicNode,
    HostNode[C],
    HostOnlyNode,
    BorrowedNode,
    SequenceNode[C],
    TupleNode[C],
    MappingNode[C],
    NamedTupleNode[C],
    TypedDictNode[C],
    UnionNode[C],
    DerivedNode[C],
    ResidentNode[C],
    CachedNode[C],
    PropertyNode,
]
"""A node of either reader."""

Node = NodeOf[type]
"""A node of the run time."""

NONE: HostNode[type] = HostNode((type(None),))
"""None, which is accepted everywhere."""


def children(node: NodeOf[C]) -> Iterator[NodeOf[C]]:
    """Yield the nodes directly below a node."""
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
        case DerivedNode(inner=inner) | ResidentNode(inner=inner):
            yield inner
        case CachedNode(inner=inner):
            yield inner
        case (
            TensorNode()
            | SelfMovingNode()
            | PayloadNode()
            | AdapterNode()
            | DynamicNode()
            | HostNode()
            | HostOnlyNode()
            | BorrowedNode()
            | PropertyNode()
        ):
            return


def travels(node: NodeOf[C]) -> bool:
    """Return whether values of a node can hold leaves that move."""
    if isinstance(
        node, (TensorNode, SelfMovingNode, PayloadNode, AdapterNode, DynamicNode)
    ):
        return True
    if isinstance(node, (DerivedNode, ResidentNode, CachedNode)):
        return False
    return any(travels(child) for child in children(node))


def role(node: Node) -> str:
    """Return what happens to a field, in one or two words."""
    match node:
        case HostNode():
            return "host"
        case HostOnlyNode():
            return "host only"
        case BorrowedNode():
            return "borrowed"
        case DerivedNode():
            return "derived"
        case ResidentNode():
            return "resident"
        case CachedNode(inner=HostNode() | HostOnlyNode() | BorrowedNode() as inner):
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
    """Return why a field has its role, as a clause."""
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
        case HostNode():
            return "a host type"
        case HostOnlyNode():
            return "marked `HostOnly`"
        case BorrowedNode():
            return "marked `Borrowed`"
        case DerivedNode(inner=inner):
            return f"marked `Derived`: {why(inner)}"
        case ResidentNode(inner=inner):
            return f"marked `Resident`: {why(inner)}"
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
