"""Plan -> text of `leaves` and `rebuild`, the only traversals of a payload.

Pure: the same plan gives the same text. Only identifiers and `repr` of strings enter
it; every object enters by a global name, which `Source.globals` lists. The keys of
leaves are asked for rarely: `write_keyed` writes `leaves` once more, with them.
"""

import re

import attrs
from torch import Tensor

from tensorpack._codegen.rebuild import rebuild_text
from tensorpack._codegen.writing import (
    Key,
    Names,
    function,
    guarded,
    indented,
    is_arm,
    is_container,
    is_struct,
    quoted,
    title,
)
from tensorpack._leaves.host_types import STAYING
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
)

__all__ = ["Source", "write", "write_keyed"]


@attrs.frozen
class Source:
    """The text of a class's traversals, and the objects its names stand for."""

    text: str
    globals: dict[str, object]


def write(plan: ClassPlan) -> Source:
    """Write the source of a class's two traversals."""
    names = Names({"Tensor": Tensor})
    cls = names.of(plan.cls, plan.cls.__name__)
    leaves = _leaves(plan, names, keyed=False)
    return Source(f"{leaves}\n\n{rebuild_text(plan, cls, names)}", names.globals)


def write_keyed(plan: ClassPlan) -> Source:
    """Write the traversal that hands over each leaf with its key."""
    names = Names({"Tensor": Tensor})
    return Source(_leaves(plan, names, keyed=True), names.globals)


def _leaves(plan: ClassPlan, names: Names, *, keyed: bool) -> str:
    """Write the function that hands every leaf to the walk."""
    how = "with its key, in plan order." if keyed else "in plan order."
    body = [
        title("Hand every leaf of", plan.cls.__qualname__, f"to `walk`, {how}"),
        "add = walk.add",
    ]
    if plan.stores is not None:
        names.globals["stores"] = plan.stores
        test = "if has_extra(self, stores):"
        body += guarded(test, ["walk.extra(self, stores, at)"])
    for field in (*plan.fields, *plan.cached):
        lines = _field_lines(field, names, keyed=keyed)
        if field.may_lack and lines:
            lines = guarded(f"if hasattr(self, {quoted(field.name)}):", lines)
        body += lines
    return function("def leaves(self, walk, at):", body)


def _field_lines(field: FieldPlan, names: Names, *, keyed: bool) -> list[str]:
    """Write the lines of `leaves` for one field."""
    key = Key(()).literal(field.name)
    read = f"self.{field.name}"
    writer = _Leaves(names, "walk", keyed)
    match field.node:
        case DerivedNode(inner=inner) | ResidentNode(inner=inner):
            writer = _Leaves(names, "walk.aside", keyed)
            return writer.lines(inner, f"(x := {read})", "x", key)
        case (
            PropertyNode()
            | BorrowedNode()
            | CachedNode(inner=HostNode() | HostOnlyNode() | BorrowedNode())
        ):
            return []
        case CachedNode(inner=inner, slot=slot):
            writer = _Leaves(names, "walk.cached", keyed)
            stored = f"self.__dict__.get({quoted(field.name)})"
            if slot is not None:
                stored = f"kept({names.of(slot, f'slot_{field.name}')}, self)"
            return writer.lines(inner, f"(x := {stored})", "x", key)
        case HostNode() | HostOnlyNode():
            return writer.lines(field.node, read, read, key)
        case UnionNode() as node:
            return [f"x = {read}", *writer.lines(node, "x", "x", key)]
        case node:
            return writer.lines(node, f"(x := {read})", "x", key)


@attrs.frozen
class _Leaves:
    """Writes the lines that find the leaves in a value."""

    names: Names
    walk: str
    keyed: bool

    def lines(self, node: Node, read: str, x: str, key: Key) -> list[str]:
        """Write the lines for a value: `read` gives it, then `x` names it."""
        match node:
            case HostNode(types=types):
                # A class derived from a struct may have leaves of its own.
                call = "struct" if any(map(is_struct, types)) else "stays"
                known = "staying"
                if not STAYING.issuperset(types):
                    known = self.names.tuple((*types, type(None)))
                else:
                    self.names.globals[known] = STAYING
                test = f"if type({read}) not in {known}:"
                return guarded(test, [f"{self.walk}.{call}({x}, {key})"])
            case HostOnlyNode():
                test = f"if isinstance({read}, Tensor):"
                return guarded(test, [f"{self.walk}.host_only({x}, {key})"])
            case UnionNode(arms=arms):
                assign = [] if read == x else [read[1:-1].replace(" := ", " = ", 1)]
                return [*assign, *self._choice(arms, x, key)]
            case BorrowedNode() | DerivedNode() | ResidentNode():
                return []
            case CachedNode() | PropertyNode():
                return []
            case _:
                body = [*self._checks(node, x, key), *self._found(node, x, key)]
                return guarded(f"if {read} is not None:", body)

    def _checks(self, node: Node, x: str, key: Key) -> list[str]:
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
        return guarded(
            f"if {test}:", [f"{self.walk}.wrong({x}, {key}, {quoted(wanted)})"]
        )

    def _found(self, node: Node, x: str, key: Key) -> list[str]:
        """Write the lines for a value that is there, and of the right class."""
        inner = _next(x)
        i = f"i{inner[1:]}"
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
                body = self.lines(item, inner, inner, key.index(i))
                return _loop(i, f"{inner} in enumerate({x})", f"{inner} in {x}", body)
            case MappingNode(value=value):
                names = f"if not plain_names.issuperset(map(type, {x})):"
                check = guarded(names, [f"{self.walk}.names({x}, {key})"])
                body = self.lines(value, inner, inner, key.index(i))
                items, values = f"{inner} in {x}.items()", f"{inner} in {x}.values()"
                return [*check, *_loop(i, items, values, body)]
            case TupleNode(items=items):
                n = len(items)
                test = f"if len({x}) != {n}:"
                lines = guarded(test, [f"{self.walk}.length({x}, {key}, {n})"])
                for n, item in enumerate(items):
                    read = f"({inner} := {x}[{n}])"
                    lines += self.lines(item, read, inner, key.literal(f"[{n}]"))
                return lines
            case NamedTupleNode(items=named):
                lines = []
                for name, item in named:
                    read = f"({inner} := {x}.{name})"
                    lines += self.lines(item, read, inner, key.literal(f".{name}"))
                return lines
            case TypedDictNode(items=named):
                keys = self.names.of(frozenset(n for n, _ in named), "keys")
                test = f"if not {keys}.issuperset({x}):"
                lines = guarded(test, [f"{self.walk}.unknown({x}, {key}, {keys})"])
                for name, item in named:
                    read = f"({inner} := {x}.get({quoted(name)}))"
                    lines += self.lines(item, read, inner, key.literal(f"[{name!r}]"))
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

    def _choice(self, arms: tuple[Node, ...], x: str, key: Key) -> list[str]:
        """Write the tests that tell the arms of a union apart."""
        lines: list[str] = []
        tests: set[str] = set()
        for arm in arms:
            if isinstance(arm, HostOnlyNode):
                stays = f"{self.walk}.host_only({x}, {key})"
                return [*lines, *guarded("else:", [stays])]
            if isinstance(arm, (HostNode, BorrowedNode)):
                continue
            test = is_arm(arm, x, self.names)
            if test not in tests:  # any payload goes by its own class
                head = f"{'elif' if tests else 'if'} {test}:"
                lines += guarded(head, self._found(arm, x, key) or ["pass"])
                tests.add(test)
        types = next((a.types for a in arms if isinstance(a, HostNode)), ())
        known = self.names.tuple(types)
        keep = f"{self.walk}.keep({x}, {key}, {known})"
        return [*lines, *guarded(f"elif {x} is not None:", [keep])]


def _loop(counter: str, counted: str, plain: str, body: list[str]) -> list[str]:
    """Write a loop; its counter is left out where nothing in the body reads it."""
    reads = re.compile(rf"\b{counter}\b")
    head = f"{counter}, {counted}" if any(map(reads.search, body)) else plain
    return [f"for {head}:", *indented(body or ["pass"])]


def _next(x: str) -> str:
    """Name the variable one level further in."""
    return f"x{int(x[1:] or 0) + 1}"
