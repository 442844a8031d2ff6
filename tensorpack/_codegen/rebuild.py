"""Plan -> text of `rebuild`: expressions compose from the inside."""

import re

import attrs

from tensorpack._codegen.writing import (
    TAB,
    WIDTH,
    Names,
    function,
    guarded,
    indented,
    is_arm,
    quoted,
    title,
)
from tensorpack._plan.msgspec_structs import is_struct, setter_of, struct_base
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
    travels,
)

__all__ = ["rebuild_text"]

_ROOM = WIDTH - len(TAB)


@attrs.frozen
class _Expression:
    """An expression that can be broken: its brackets, and the pieces between them."""

    open: str
    pieces: tuple["_Expression", ...] = ()
    close: str = ""
    comma: bool = False
    is_tuple: bool = False

    def within(self, before: str, after: str = "") -> "_Expression":
        """Put text around the expression."""
        return attrs.evolve(
            self,
            open=f"{before}{self.open}",
            close=f"{self.close}{after}",
        )

    def __str__(self) -> str:
        inside = (", " if self.comma else " ").join(map(str, self.pieces))
        lonely = "," * (self.is_tuple and len(self.pieces) == 1)
        return f"{self.open}{inside}{lonely}{self.close}"

    def lines(self, width: int) -> list[str]:
        """Write the expression, over several lines if it is too long for one."""
        line = str(self)
        if len(line) <= width or not self.pieces:
            return [line]
        inside: list[str] = []
        for piece in self.pieces:
            inside += piece.lines(width - len(TAB))
            inside[-1] += "," * self.comma
        return [self.open, *indented(inside), self.close]


def rebuild_text(plan: ClassPlan, cls: str, names: Names) -> str:
    """Write the function that makes a twin from new leaves."""
    name = plan.cls.__qualname__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    body = [
        title(f"Make the twin of {article}", name, "from its new leaves."),
        "take = build.take",
        f"new = {_start(plan, cls, names)}",
    ]
    for field in plan.fields:
        lines = _field_lines(field, plan, names)
        if field.may_lack and lines:
            lines = guarded(f"if hasattr(self, {quoted(field.name)}):", lines)
        body += lines
    return function("def rebuild(self, build):", [*body, "return new"])


def _start(plan: ClassPlan, cls: str, names: Names) -> str:
    """Write the expression for a twin whose fields are not set yet."""
    struct = struct_base(plan.cls)
    if struct is None:
        return f"object.__new__({cls})"
    return f"{names.of(struct, 'Struct')}.__copy__(self)"


def _field_lines(field: FieldPlan, plan: ClassPlan, names: Names) -> list[str]:
    """Write the lines of `rebuild` for one field."""
    before, after = f"new.{field.name} = ", ""
    if is_struct(plan.cls):
        setter = names.of(setter_of(plan.cls), "force_setattr")
        before, after = f"{setter}(new, {quoted(field.name)}, ", ")"
    elif not plan.assigns:
        before, after = f"object.__setattr__(new, {quoted(field.name)}, ", ")"
    read = f"self.{field.name}"
    match field.node:
        case PropertyNode() | CachedNode():
            return []
        case HostNode() | HostOnlyNode() | BorrowedNode() if is_struct(plan.cls):
            return []  # copied
        case DerivedNode():
            default = names.of(field.default, f"default_{field.name}")
            return [f"{before}{default}(new){after}"]
        case UnionNode(arms=arms) if travels(field.node):
            lines = [f"x = {read}"]
            for test, arm in _told_apart(arms, "x", names):
                word = "elif" if len(lines) > 1 else "if"
                twin = _there(arm, "x", names).within(before, after)
                lines += guarded(f"{word} {test}:", twin.lines(_ROOM - len(TAB)))
            return [*lines, *guarded("else:", [f"{before}x{after}"])]
        case node:
            return _twin(node, read, names).within(before, after).lines(_ROOM)


def _told_apart(arms: tuple[Node, ...], x: str, names: Names) -> list[tuple[str, Node]]:
    """List the arms of a union that travel, each after the test that tells it."""
    found: dict[str, Node] = {}
    for arm in arms:
        if not isinstance(arm, (HostNode, HostOnlyNode, BorrowedNode)):
            found.setdefault(is_arm(arm, x, names), arm)
    return list(found.items())


def _twin(node: Node, x: str, names: Names) -> _Expression:
    """Write the expression for the twin of a value that may be None."""
    if not travels(node):
        return _Expression(x)
    if isinstance(node, UnionNode):
        tests = [
            f"{_there(arm, x, names)} if {test} else"
            for test, arm in _told_apart(node.arms, x, names)
        ]
        return _Expression(" ".join([*tests, x]))
    return _there(node, x, names).within(f"None if {x} is None else ")


def _there(node: Node, x: str, names: Names) -> _Expression:
    """Write the expression for the twin of a value that is there."""
    inner = f"x{_depth(x) + 1}"
    match node:
        case _ if not travels(node):
            return _Expression(x)
        case TensorNode() | SelfMovingNode():
            return _Expression("take()")
        case PayloadNode():
            return _Expression(f"build.nested({x})")
        case AdapterNode():
            return _Expression(f"build.adapted({x})")
        case DynamicNode():
            return _Expression(f"build.dynamic({x})")
        case SequenceNode(kind=kind, item=item):
            brackets = {"list": ("[", "]"), "tuple": ("tuple([", "])")}
            before, after = brackets.get(kind, (f"like({x}, [", "])"))
            loop = _Expression(f"for {inner} in {x}")
            return _Expression(before, (_twin(item, inner, names), loop), after)
        case MappingNode(value=value):
            twin = _twin(value, inner, names).within("k: ")
            loop = _Expression(f"for k, {inner} in {x}.items()")
            return _Expression(f"like({x}, {{", (twin, loop), "})")
        case TupleNode(items=items):
            twins = tuple(_twin(t, f"{x}[{n}]", names) for n, t in enumerate(items))
            return _Expression("(", twins, ")", comma=True, is_tuple=True)
        case NamedTupleNode(items=named):
            twins = tuple(
                _twin(t, f"{x}.{n}", names).within(f"{n}=")
                for n, t in named
                if travels(t)
            )
            return _Expression(f"{x}._replace(", twins, ")", comma=True)
        case TypedDictNode(items=named):
            twins = tuple(_member(n, t, x, names) for n, t in named if travels(t))
            return _Expression("{", (_Expression(f"**{x}"), *twins), "}", comma=True)
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
            return _twin(node, x, names)


def _member(name: str, node: Node, x: str, names: Names) -> _Expression:
    """Write the new entry of a typed dictionary, which may lack it."""
    entry, key = f"{x}[{quoted(name)}]", quoted(name)
    there = f"}} if {x}.get({key}) is not None else {{}})"
    return _there(node, entry, names).within(f"**({{{key}: ", there)


def _depth(x: str) -> int:
    """Tell how deep the loop variable in an expression is."""
    found = re.match(r"x(\d+)", x)
    return int(found[1]) if found else 0
