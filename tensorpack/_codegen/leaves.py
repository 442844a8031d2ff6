"""Plan -> text of `leaves` and `rebuild`, the only traversals of a payload.

Pure: the same plan gives the same text. Only identifiers and `repr` of strings enter
it; every object enters by a global name, which `Source.globals` lists. The keys of
leaves are asked for rarely: `write_keyed` writes `leaves` once more, with them.
"""

import attrs

from tensorpack._codegen.rebuild import rebuild_text
from tensorpack._codegen.writing import (
    Block,
    Key,
    Line,
    Names,
    function,
    guarded,
    is_arm,
    is_container,
    quoted,
    title,
    variable,
)
from tensorpack._leaves.host_types import PLAIN, STAYING
from tensorpack._plan.makers import is_made
from tensorpack._plan.plan import ClassPlan, FieldPlan
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
    children,
)

__all__ = ["Source", "write", "write_keyed"]


@attrs.frozen
class Source:
    """The text of a class's traversals, and the objects its names refer to."""

    text: str
    globals: dict[str, object]


def write(plan: ClassPlan) -> Source:
    """Write the source of a class's two traversals."""
    names = Names()
    cls = names.of(plan.cls, plan.cls.__name__)
    leaves = _leaves(plan, names, keyed=False)
    return Source(f"{leaves}\n\n{rebuild_text(plan, cls, names)}", names.globals)


def write_keyed(plan: ClassPlan) -> Source:
    """Write the traversal that hands over each leaf with its key."""
    names = Names()
    return Source(_leaves(plan, names, keyed=True), names.globals)


def _leaves(plan: ClassPlan, names: Names, *, keyed: bool) -> str:
    """Write the function that hands every leaf to the walk."""
    how = "with its key, in plan order." if keyed else "in plan order."
    body: list[Line] = [
        title("Hand every leaf of", plan.cls.__qualname__, f"to `walk`, {how}"),
        "add = walk.add",
    ]
    if plan.stores is not None:
        known = names.of(plan.stores, "attribute_names")
        check = f"walk.check_no_extra(self, {known}, at)"
        body.append(guarded(f"if has_extra(self, {known}):", check))
    for field in (*plan.fields, *plan.cached):
        lines = _field_lines(field, names, keyed=keyed)
        if field.may_lack and lines:
            lines = [guarded(f"if hasattr(self, {quoted(field.name)}):", *lines)]
        body += lines
    return function("def leaves(self, walk, at):", body)


def _field_lines(field: FieldPlan, names: Names, *, keyed: bool) -> list[Line]:
    """Write the lines of `leaves` for one field."""
    key = Key(()).literal(field.name)
    value = _Value(f"self.{field.name}", "x", 0)
    match field.node:
        case DerivedNode(inner=inner) | ResidentNode(inner=inner):
            return _Leaves(names, "walk.record_only", keyed).lines(inner, value, key)
        case CachedNode(inner=inner, slot=slot):
            read = f"self.__dict__.get({quoted(field.name)})"
            if slot is not None:
                read = f"slot_value({names.of(slot, f'slot_{field.name}')}, self)"
            value = _Value(read, "x", 0)
            return _Leaves(names, "walk.record_only", keyed).lines(inner, value, key)
        case HostNode() | HostOnlyNode():
            value = _Value(value.read, value.read, 0)  # read twice, not named
        case _:
            pass
    return _Leaves(names, "walk", keyed).lines(field.node, value, key)


def _holds_borrowed(node: Node) -> bool:
    """Return whether items of a host container are owned and recorded elsewhere."""
    inside = [node.inside] if isinstance(node, HostNode) and node.inside else []
    return isinstance(node, BorrowedNode) or any(
        _holds_borrowed(child) for found in inside for child in children(found)
    )


@attrs.frozen
class _Value:
    """A value in the text.

    Attributes:
        read: the expression that reads it.
        name: what it is called from then on.
        depth: how many containers it is in.
    """

    read: str
    name: str
    depth: int

    @property
    def named(self) -> str:
        """The expression that reads the value and names it, as an argument."""
        return self.name if self.read == self.name else f"{self.name} := {self.read}"

    @property
    def is_present(self) -> str:
        """The test whether the value is not None, which names it."""
        named = self.named
        return f"{named if named == self.name else f'({named})'} is not None"

    def item(self, read: str = "") -> "_Value":
        """Return a value inside this one: what the loop is at, or what is read."""
        name = variable(self.depth + 1)
        return _Value(read or name, name, self.depth + 1)


@attrs.frozen
class _Leaves:
    """Writes the lines that find the leaves in a value."""

    names: Names
    walk: str
    keyed: bool

    def lines(self, node: Node, value: _Value, key: Key) -> list[Line]:
        """Write the lines for a value, which is read here for the first time."""
        match node:
            case HostNode():
                return [self._host(node, value, key)]
            case HostOnlyNode():
                check = f"{self.walk}.check_host_only({value.name}, {key})"
                return [guarded(f"if isinstance({value.named}, Tensor):", check)]
            case BorrowedNode() | DerivedNode() | ResidentNode():
                return []
            case CachedNode() | PropertyNode():
                return []
            case UnionNode(arms=arms):
                assigned = value.read != value.name
                assign = [f"{value.name} = {value.read}"] if assigned else []
                return [*assign, *self._union(arms, value, key)]
            case _:
                body = [*self._checks(node, value.name, key)]
                body += self._found(node, value, key)
                return [guarded(f"if {value.is_present}:", *body)]

    def _host(self, node: HostNode[type], value: _Value, key: Key) -> Line:
        """Write the line that checks a host value."""
        types = node.types
        # A class derived from a struct may have leaves of its own.
        struct = any(is_made(base) for tp in types for base in tp.__mro__)
        check = "check_host_struct" if struct else "check_host"
        if not STAYING.issuperset(types) or _holds_borrowed(node):
            known = self.names.tuple((*types, type(None)))
            test = f"type({value.named}) not in {known}"
        elif PLAIN.issuperset(types):
            test = f"type({value.named}) not in plain_types"
        else:
            test = f"type({value.named}) not in plain_types"
            test += f" and not starts_plain({value.name})"
        return guarded(f"if {test}:", f"{self.walk}.{check}({value.name}, {key})")

    def _checks(self, node: Node, x: str, key: Key) -> list[Line]:
        """Write the line that raises for a container of another class."""
        match node:
            case (
                TensorNode()
                | SelfMovingNode()
                | PayloadNode()
                | AdapterNode()
                | DynamicNode()
            ):
                return []
            case SequenceNode(kind=name) | MappingNode(kind=name):
                wanted = name
            case NamedTupleNode(cls=cls):
                wanted = cls.__name__
            case TupleNode():
                wanted = "tuple"
            case _:
                wanted = "dict"
        test = is_container(node, x, self.names, negated=True)
        check = f"{self.walk}.check_container({x}, {key}, {quoted(wanted)})"
        return [guarded(f"if {test}:", check)]

    def _found(self, node: Node, value: _Value, key: Key) -> list[Line]:
        """Write the lines for a value that is there, and of the right class."""
        x = value.name
        match node:
            case TensorNode() | SelfMovingNode():
                add = "add" if self.walk == "walk" else f"{self.walk}.add"
                return [f"{add}(({key}, {x}))" if self.keyed else f"{add}({x})"]
            case PayloadNode():
                return [f"{self.walk}.nested({x}, {key})"]
            case AdapterNode():
                return [f"{self.walk}.adapted({x}, {key})"]
            case DynamicNode():
                return [f"{self.walk}.dynamic({x}, {key})"]
            case SequenceNode(item=item):
                return [self._loop(item, value, key, x, f"enumerate({x})")]
            case MappingNode(value=item):
                loop = self._loop(item, value, key, f"{x}.values()", f"{x}.items()")
                test = f"if not plain_types.issuperset(map(type, {x})):"
                return [guarded(test, f"{self.walk}.check_keys({x}, {key})"), loop]
            case TupleNode(items=items):
                n = len(items)
                check = f"{self.walk}.check_length({x}, {key}, {n})"
                lines: list[Line] = [guarded(f"if len({x}) != {n}:", check)]
                for n, item in enumerate(items):
                    inner = value.item(f"{x}[{n}]")
                    lines += self.lines(item, inner, key.literal(f"[{n}]"))
                return lines
            case NamedTupleNode(items=named):
                lines = []
                for name, item in named:
                    inner = value.item(f"{x}.{name}")
                    lines += self.lines(item, inner, key.literal(f".{name}"))
                return lines
            case TypedDictNode(items=named):
                keys = self.names.of(frozenset(n for n, _ in named), "keys")
                check = f"{self.walk}.check_known_keys({x}, {key}, {keys})"
                lines = [guarded(f"if not {keys}.issuperset({x}):", check)]
                for name, item in named:
                    inner = value.item(f"{x}.get({quoted(name)})")
                    lines += self.lines(item, inner, key.literal(f"[{name!r}]"))
                return lines
            case (
                UnionNode()
                | HostNode()
                | HostOnlyNode()
                | BorrowedNode()
                | DerivedNode()
                | ResidentNode()
                | CachedNode()
                | PropertyNode()
            ):
                return []

    def _loop(
        self, node: Node, around: _Value, key: Key, items: str, counted: str
    ) -> Line:
        """Write a loop over items, which are counted where their key is needed."""
        item, counter = around.item(), f"i{around.depth + 1}"
        body = self.lines(node, item, key.index(counter))
        is_leaf = isinstance(node, (TensorNode, SelfMovingNode))
        if body and (self.keyed or not is_leaf):
            return Block(f"for {counter}, {item.name} in {counted}:", body)
        return Block(f"for {item.name} in {items}:", body or ["pass"])

    def _union(self, arms: tuple[Node, ...], value: _Value, key: Key) -> list[Line]:
        """Write the tests that tell the arms of a union apart."""
        x = value.name
        lines: list[Line] = []
        tests: set[str] = set()
        for arm in arms:
            if isinstance(arm, HostOnlyNode):
                check = f"{self.walk}.check_host_only({x}, {key})"
                return [*lines, guarded("else:", check)]
            if isinstance(arm, (HostNode, BorrowedNode)):
                continue
            test = is_arm(arm, x, self.names)
            if test not in tests:  # any payload goes by its own class
                head = f"{'elif' if tests else 'if'} {test}:"
                lines.append(guarded(head, *(self._found(arm, value, key) or ["pass"])))
                tests.add(test)
        types = next((a.types for a in arms if isinstance(a, HostNode)), ())
        known = self.names.tuple(types)
        check = f"{self.walk}.check_union({x}, {key}, {known})"
        return [*lines, guarded(f"elif {x} is not None:", check)]
