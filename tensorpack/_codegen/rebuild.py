"""Plan -> text of `rebuild`: expressions compose from the inside."""

import attrs

from tensorpack._codegen.writing import (
    Expression,
    Line,
    Names,
    function,
    guarded,
    is_arm,
    quoted,
    title,
    variable,
)
from tensorpack._plan.makers import copied_by, setter_of
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


def rebuild_text(plan: ClassPlan, cls: str, names: Names) -> str:
    """Write the function that makes a copy from new leaves."""
    name = plan.cls.__qualname__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    body: list[Line] = [
        title(f"Make a copy of {article}", name, "from new leaves."),
        "take = build.take",
        f"new = {_start(plan, cls, names)}",
    ]
    writer = _Rebuild(plan, names)
    for field in plan.fields:
        lines = writer.field(field)
        if field.may_lack and lines:
            lines = [guarded(f"if hasattr(self, {quoted(field.name)}):", *lines)]
        body += lines
    return function("def rebuild(self, build):", [*body, "return new"])


def _start(plan: ClassPlan, cls: str, names: Names) -> str:
    """Write the expression for a new object whose fields are not set yet."""
    struct = copied_by(plan.cls)
    if struct is None:
        return f"object.__new__({cls})"
    return f"{names.of(struct, 'Struct')}.__copy__(self)"


@attrs.frozen
class _Rebuild:
    """Writes the lines that fill a new object.

    `x` is the expression that reads a value of the old object, and `depth` the number
    of loops around it, which gives the variables of the next loop their name.
    """

    plan: ClassPlan
    names: Names

    def field(self, field: FieldPlan) -> list[Line]:
        """Write the lines for one field."""
        before, after = self._assignment(field.name)
        read, copied = f"self.{field.name}", copied_by(self.plan.cls) is not None
        match field.node:
            case PropertyNode() | CachedNode():
                return []
            case HostNode() | HostOnlyNode() | BorrowedNode() if copied:
                return []  # copied
            case DerivedNode():
                default = self.names.of(field.default, f"default_{field.name}")
                return [f"{before}{default}(new){after}"]
            case UnionNode(arms=arms) if travels(field.node):
                lines: list[Line] = [f"x = {read}"]
                for test, arm in self._told_apart(arms, "x"):
                    word = "elif" if len(lines) > 1 else "if"
                    new = self._present(arm, "x", 0).within(before, after)
                    lines.append(guarded(f"{word} {test}:", new))
                return [*lines, guarded("else:", f"{before}x{after}")]
            case node:
                return [self._copy(node, read, 0).within(before, after)]

    def _assignment(self, name: str) -> tuple[str, str]:
        """Write what is around the new value of a field."""
        cls = self.plan.cls
        if copied_by(cls) is not None:
            setter = self.names.of(setter_of(cls), "force_setattr")
            return f"{setter}(new, {quoted(name)}, ", ")"
        if not self.plan.assigns:
            return f"object.__setattr__(new, {quoted(name)}, ", ")"
        return f"new.{name} = ", ""

    def _told_apart(self, arms: tuple[Node, ...], x: str) -> list[tuple[str, Node]]:
        """List the arms of a union that travel, each after the test that tells it."""
        found: dict[str, Node] = {}
        for arm in arms:
            if not isinstance(arm, (HostNode, HostOnlyNode, BorrowedNode)):
                found.setdefault(is_arm(arm, x, self.names), arm)
        return list(found.items())

    def _copy(self, node: Node, x: str, depth: int) -> Expression:
        """Write the expression for the copy of a value that may be None."""
        if not travels(node):
            return Expression(x)
        if isinstance(node, UnionNode):
            tests = [
                f"{self._present(arm, x, depth)} if {test} else"
                for test, arm in self._told_apart(node.arms, x)
            ]
            return Expression(" ".join([*tests, x]))
        return self._present(node, x, depth).within(f"None if {x} is None else ")

    def _present(self, node: Node, x: str, depth: int) -> Expression:
        """Write the expression for the copy of a value that is not None."""
        item_depth = depth + 1
        x_item = variable(item_depth)
        match node:
            case _ if not travels(node):
                return Expression(x)
            case TensorNode() | SelfMovingNode():
                return Expression("take()")
            case PayloadNode():
                return Expression(f"build.nested({x})")
            case AdapterNode():
                return Expression(f"build.adapted({x})")
            case DynamicNode():
                return Expression(f"build.dynamic({x})")
            case SequenceNode(kind=kind, item=item):
                brackets = {"list": ("[", "]"), "tuple": ("tuple([", "])")}
                before, after = brackets.get(kind, (f"like({x}, [", "])"))
                loop = Expression(f"for {x_item} in {x}")
                new = self._copy(item, x_item, item_depth)
                return Expression(before, (new, loop), after)
            case MappingNode(value=value):
                loop = Expression(f"for k, {x_item} in {x}.items()")
                new = self._copy(value, x_item, item_depth).within("k: ")
                return Expression(f"like({x}, {{", (new, loop), "})")
            case TupleNode(items=items):
                new_items = tuple(
                    self._copy(item, f"{x}[{n}]", depth) for n, item in enumerate(items)
                )
                return Expression("(", new_items, ")", comma=True, is_tuple=True)
            case NamedTupleNode(items=named):
                new_items = tuple(
                    self._copy(item, f"{x}.{name}", depth).within(f"{name}=")
                    for name, item in named
                    if travels(item)
                )
                return Expression(f"{x}._replace(", new_items, ")", comma=True)
            case TypedDictNode(items=named):
                new_items = tuple(
                    self._entry(name, item, x, depth)
                    for name, item in named
                    if travels(item)
                )
                old = Expression(f"**{x}")
                return Expression("{", (old, *new_items), "}", comma=True)
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
                return self._copy(node, x, depth)

    def _entry(self, name: str, node: Node, x: str, depth: int) -> Expression:
        """Write the new entry of a typed dictionary, which may lack it."""
        entry, key = f"{x}[{quoted(name)}]", quoted(name)
        there = f"}} if {x}.get({key}) is not None else {{}})"
        return self._present(node, entry, depth).within(f"**({{{key}: ", there)
