"""Plan nodes -> what an operation does to each part of one or several objects.

# Note [one order]
The generated traversals reach leaves alone; lists and host integers have axes too. So
the operations go through the same plan, node by node, and meet the leaves in the order
of `leaves`. `Survey` holds that against a walk of the object each time.
"""

from collections.abc import Callable, Sequence
from typing import Any, Never, Protocol

import attrs
from torch import Tensor

from tensorpack._leaves.adapters import adapter_of
from tensorpack._plan.makers import setter_of
from tensorpack._plan.plan import FieldPlan
from tensorpack._rules.axes import AxisMark
from tensorpack._rules.containers import classes_of, like
from tensorpack._rules.marks import axes_of, marks_in
from tensorpack._rules.nodes import (
    AdapterNode,
    BorrowedNode,
    CachedNode,
    DerivedNode,
    DynamicNode,
    HostNode,
    HostOnlyNode,
    MappingNode,
    NamedTupleNode,
    Node,
    PayloadNode,
    PropertyNode,
    ResidentNode,
    SelfMovingNode,
    SequenceNode,
    TensorNode,
    TupleNode,
    TypedDictNode,
    UnionNode,
)
from tensorpack._walk.build import rebuild
from tensorpack._walk.values import Kind, a_class, kind_of, payload_plan
from tensorpack._walk.walk import walk
from tensorpack.errors import AxisError, LeafError

__all__ = ["Place", "Visitor", "visited"]

Values = tuple[Any, ...]
"""One value for each of the objects that are gone through together."""

_MISSING = object()
_KEPT_FIELDS = (PropertyNode, DerivedNode, CachedNode)


@attrs.frozen
class Place:
    """Where an operation is.

    Attributes:
        cls: name of the class of the whole.
        key: address of the part.
        owners: the payloads that have the field.
        axes: the marks on the part.
    """

    cls: str
    key: str = ""
    owners: Values = ()
    axes: tuple[AxisMark, ...] = ()

    def inside(self, mark: str) -> "Place":
        """Return the place of a part of this one."""
        return attrs.evolve(self, key=f"{self.key}{mark}", axes=())

    def fail(self, problem: str, remedy: str) -> Never:
        """Raise for what is here."""
        raise AxisError(cls=self.cls, key=self.key, problem=problem, remedy=remedy)


class Visitor(Protocol):
    """What an operation does to the parts of objects.

    Attributes:
        hooked: whether new payloads are asked for their `__payload_resized__`.
        reads: whether nothing new is made.
    """

    hooked: bool
    reads: bool

    def leaf(self, place: Place, leaves: Values) -> Any:
        """Return the new leaf; some leaves may be None, not all."""

    def items(self, place: Place, lists: Values) -> Sequence[Any] | None:
        """Return the new items of lists along an axis; None to go through each item."""

    def host(self, place: Place, values: Values) -> Any:
        """Return the new host value."""

    def other(self, place: Place, values: Values) -> Any:
        """Return a new value for a whole field; `NotImplemented` to go inside."""


def visited(values: Values, visitor: Visitor) -> Any:
    """Go through objects of one class together, and return the new object.

    A part in which nothing is new stays the same object.

    Raises:
        AxisError: the objects do not have the same form.
    """
    whole = _Visit(visitor)
    place = Place(type(values[0]).__qualname__)
    if kind_of(values[0]) is Kind.PAYLOAD:
        return whole.payload(place, values, root=True)
    return whole.dynamic(place, values)


@attrs.frozen
class _Visit:
    """Goes through the nodes of plans."""

    visitor: Visitor

    def payload(self, place: Place, values: Values, *, root: bool = False) -> Any:
        """Go through the fields of payloads."""
        first = _first(values)
        cls = _same_class(place, values)
        plan = payload_plan(cls)
        changes: dict[str, Any] = {}
        for field in plan.fields:
            if isinstance(field.node, _KEPT_FIELDS):
                continue
            olds = tuple(None if v is None else _read(v, field) for v in values)
            if any(old is _MISSING for old in olds):
                continue  # an instance may be without it; the copy is too
            name = f"{place.key}.{field.name}" if place.key else field.name
            at = Place(place.cls, name, values)
            new = self.visitor.other(at, olds)
            if new is NotImplemented:
                new = self.value(field.node, at, olds)
            changes[field.name] = new
        if self.visitor.reads:
            return first
        if not root and all(getattr(first, n) is new for n, new in changes.items()):
            return first
        return self._made(place, first, changes)

    def _made(self, place: Place, old: Any, changes: dict[str, Any]) -> Any:
        """Make the new payload, and ask it for what depends on values."""
        cls = type(old)
        new = rebuild(old, walk(old).leaves)
        put = setter_of(cls)
        for name, value in changes.items():
            put(new, name, value)
        if not self.visitor.hooked or not hasattr(cls, "__payload_resized__"):
            return new
        found = new.__payload_resized__()
        if type(found) is not cls:
            raise LeafError(
                cls=place.cls,
                key=f"{place.key}.__payload_resized__()".lstrip("."),
                found="`None`" if found is None else a_class(type(found)),
                problem=f"was returned, and only {a_class(cls)} fits here",
                remedy="Return `self`, or a changed copy made by `tensorpack.evolve`.",
            )
        return found

    def value(self, node: Node, place: Place, values: Values) -> Any:
        """Go through values of a node."""
        if all(value is None for value in values):
            return None
        place = attrs.evolve(place, axes=axes_of(node))
        match node:
            case UnionNode():
                return self.value(_arm(node, place, values), place, values)
            case TensorNode() | SelfMovingNode():
                return self.visitor.leaf(place, values)
            case PayloadNode():
                return self.payload(place, values)
            case AdapterNode():
                return self.adapted(place, values)
            case DynamicNode():
                return self.dynamic(place, values)
            case HostNode(inside=SequenceNode() as inside) if any(marks_in(inside)):
                return self.sequence(inside, place, values)
            case HostNode(inside=inside) if inside and any(marks_in(inside)):
                return self.value(inside, place, values)
            case HostNode() | HostOnlyNode() | BorrowedNode() | ResidentNode():
                return self.visitor.host(place, values)
            case SequenceNode():
                return self.sequence(node, place, values)
            case MappingNode(value=item):
                return self.entries(place, values, lambda _: item)
            case TypedDictNode(items=named):
                nodes = dict(named)
                return self.entries(place, values, nodes.__getitem__)
            case TupleNode(items=items):
                marks = [f"[{n}]" for n in range(len(items))]
                return self.parts(items, marks, place, values)
            case NamedTupleNode(items=named):
                marks = [f".{name}" for name, _ in named]
                return self.parts([n for _, n in named], marks, place, values)
            case DerivedNode() | CachedNode() | PropertyNode():
                return _first(values)  # the caller has passed over them

    def sequence(self, node: SequenceNode[type], place: Place, lists: Values) -> Any:
        """Go through sequences of any length."""
        first = _first(lists)
        if place.axes:
            items = self.visitor.items(place, lists)
            if items is not None:
                lists = (first if items is first else like(first, list(items)),)
                if len(lists) < len(place.owners):
                    return lists[0]
        return self._each(lambda _: node.item, attrs.evolve(place, axes=()), lists)

    def _each(self, node_at: Callable[[int], Node], place: Place, lists: Values) -> Any:
        """Go through lists of one length, item by item."""
        first = _first(lists)
        if any(part is not None and len(part) != len(first) for part in lists):
            lengths = " and ".join(str(len(p)) for p in lists if p is not None)
            place.fail(
                f"has lists of {lengths} items, and no axis runs along them",
                "Put an axis on the list, or pass `combine=` for it.",
            )
        new = [
            self.value(
                node_at(i),
                place.inside(f"[{i}]"),
                tuple(None if part is None else part[i] for part in lists),
            )
            for i in range(len(first))
        ]
        unchanged = all(a is b for a, b in zip(new, first, strict=True))
        return first if unchanged else like(first, new)

    def parts(
        self, nodes: Sequence[Node], marks: Sequence[str], place: Place, values: Values
    ) -> Any:
        """Go through the parts of tuples of fixed length."""
        first = _first(values)
        new = [
            self.value(
                node,
                place.inside(mark),
                tuple(None if v is None else v[i] for v in values),
            )
            for i, (node, mark) in enumerate(zip(nodes, marks, strict=True))
        ]
        unchanged = all(a is b for a, b in zip(new, first, strict=True))
        return first if unchanged else like(first, new)

    def entries(
        self, place: Place, values: Values, node_at: Callable[[Any], Node]
    ) -> Any:
        """Go through the entries of mappings."""
        first = _first(values)
        if any(v is not None and v.keys() != first.keys() for v in values):
            place.fail(
                "has mappings of different keys",
                "Give all of them the same keys, or pass `combine=` for it.",
            )
        new = {
            name: self.value(
                node_at(name),
                place.inside(f"[{name!r}]"),
                tuple(None if v is None else v[name] for v in values),
            )
            for name in first
        }
        return first if all(new[n] is first[n] for n in first) else like(first, new)

    def adapted(self, place: Place, values: Values) -> Any:
        """Go through the leaves of values that have an adapter; they have no axes."""
        first = _first(values)
        adapter = adapter_of(_same_class(place, values))
        if adapter is None:  # the walk has found one
            raise LookupError(type(first))
        rows = [() if v is None else tuple(adapter.leaves(v)) for v in values]
        old = next((row for row in rows if row), ())
        if any(row and len(row) != len(old) for row in rows):
            place.fail(
                "has different numbers of tensors inside",
                "Pass `combine=` for it.",
            )
        new = [
            self.visitor.leaf(
                place.inside(f"[{i}]"), tuple(row[i] if row else None for row in rows)
            )
            for i in range(len(old))
        ]
        unchanged = all(a is b for a, b in zip(new, old, strict=True))
        return first if unchanged else adapter.rebuild(first, new)

    def dynamic(self, place: Place, values: Values) -> Any:
        """Go through values by the types that are found in them."""
        first = _first(values)
        if all(value is None for value in values):
            return None
        match kind_of(first):
            case Kind.LEAF:
                return self.visitor.leaf(place, values)
            case Kind.PAYLOAD:
                return self.payload(place, values)
            case Kind.ADAPTED:
                return self.adapted(place, values)
            case Kind.CONTAINER:
                _same_class(place, values)
                if isinstance(first, dict):
                    return self.entries(place, values, lambda _: DynamicNode())
                return self._each(lambda _: DynamicNode(), place, values)
            case Kind.HOST | Kind.UNKNOWN:
                return self.visitor.host(place, values)


def _first(values: Values) -> Any:
    """Return the first value that is there."""
    return next((value for value in values if value is not None), None)


def _read(value: Any, field: FieldPlan) -> Any:
    """Return the value of a field, or a stand-in for one that is not there."""
    if field.may_lack:
        return getattr(value, field.name, _MISSING)
    return getattr(value, field.name)


def _same_class(place: Place, values: Values) -> type:
    """Return the class of all values that are there.

    Raises:
        AxisError: they have several.
    """
    first = _first(values)
    for value in values:
        if value is not None and type(value) is not type(first):
            place.fail(
                f"has {a_class(type(first))} and {a_class(type(value))}",
                "Put together only objects of one class.",
            )
    return type(first)


def _arm(union: UnionNode[type], place: Place, values: Values) -> Node:
    """Return the arm of a union that all values belong to.

    Raises:
        AxisError: they belong to several.
    """
    found = {_arm_of(union, value) for value in values if value is not None}
    if len(found) > 1:
        kinds = dict.fromkeys(a_class(type(v)) for v in values if v is not None)
        place.fail(
            f"has {' and '.join(kinds)}", "Pass `combine=` for it, or give both one."
        )
    return found.pop()


def _arm_of(union: UnionNode[type], value: Any) -> Node:
    """Return the arm of a union that a value belongs to, as generated code does."""
    for arm in union.arms:
        match arm:
            case TensorNode():
                belongs = isinstance(value, Tensor)
            case PayloadNode():
                belongs = kind_of(value) is Kind.PAYLOAD
            case AdapterNode(cls=cls) | SelfMovingNode(cls=cls):
                belongs = isinstance(value, cls)
            case SequenceNode(kind=kind) | MappingNode(kind=kind):
                belongs = type(value) in classes_of(kind)
            case NamedTupleNode(cls=cls):
                belongs = type(value) is cls
            case TupleNode():
                belongs = type(value) is tuple
            case TypedDictNode():
                belongs = type(value) is dict
            case _:
                belongs = False
        if belongs:
            return arm
    kept = (HostNode, HostOnlyNode, BorrowedNode)
    return next((arm for arm in union.arms if isinstance(arm, kept)), HostNode())
