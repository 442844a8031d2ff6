"""Plan -> text of `rebuild`: expressions compose from the inside."""

import re

import attrs

from tensorpack._nodes import (
    Adapted,
    Choice,
    ClassPlan,
    Entries,
    FieldPlan,
    Fixed,
    Items,
    Kept,
    Leaf,
    Nested,
    Node,
    Opaque,
    Record,
    Reset,
    Shadowed,
    Typed,
    Walked,
    travels,
)
from tensorpack._words import WIDTH, Names, guarded, indented, is_arm, quoted, title

__all__ = ["rebuild_text"]


@attrs.frozen
class _Expression:
    """An expression that can be broken: its brackets, and the pieces between them."""

    open: str
    pieces: tuple[str, ...] = ()
    close: str = ""
    comma: bool = False

    def __str__(self) -> str:
        inside = (", " if self.comma else " ").join(self.pieces)
        lonely = "," * (self.comma and len(self.pieces) == 1)
        return f"{self.open}{inside}{lonely}{self.close}"


def rebuild_text(plan: ClassPlan, cls: str, names: Names) -> str:
    """Write the function that makes a twin from new leaves."""
    body = [
        title("Make the twin of a", plan.cls.__qualname__, "from its new leaves."),
        "take = build.take",
        f"new = object.__new__({cls})",
    ]
    for field in plan.fields:
        lines = _field_lines(field, plan, names)
        if field.may_lack and lines:
            lines = guarded(f"if hasattr(self, {quoted(field.name)}):", lines)
        body += lines
    return "\n".join(["def rebuild(self, build):", *indented(body), "    return new\n"])


def _field_lines(field: FieldPlan, plan: ClassPlan, names: Names) -> list[str]:
    """Write the lines of `rebuild` for one field."""
    before, after = f"new.{field.name} = ", ""
    if not plan.assigns:
        before, after = f"object.__setattr__(new, {quoted(field.name)}, ", ")"
    read = f"self.{field.name}"
    match field.node:
        case Shadowed():
            return []
        case Reset():
            default = names.of(field.default, f"default_{field.name}")
            return [f"{before}{default}(new){after}"]
        case Choice(arms=arms) if travels(field.node):
            lines = [f"x = {read}"]
            for test, arm in _told_apart(arms, "x", names):
                word = "elif" if len(lines) > 1 else "if"
                twin = _set(before, _there(arm, "x", names), after)
                lines += guarded(f"{word} {test}:", twin)
            return [*lines, f"else: {before}x{after}"]
        case node if travels(node):
            start = f"{before}None if {read} is None else "
            return _set(start, _there(node, read, names), after)
        case _:
            return [f"{before}{read}{after}"]


def _set(before: str, value: _Expression, after: str) -> list[str]:
    """Write the statement that sets a field, over several lines if it is long."""
    line = f"{before}{value}{after}"
    if len(line) <= WIDTH or not value.pieces:
        return [line]
    pieces = [f"{piece}{',' * value.comma}" for piece in value.pieces]
    return [f"{before}{value.open}", *indented(pieces), f"{value.close}{after}"]


def _told_apart(arms: tuple[Node, ...], x: str, names: Names) -> list[tuple[str, Node]]:
    """List the arms of a union that travel, each after the test that tells it."""
    found: dict[str, Node] = {}
    for arm in arms:
        if not isinstance(arm, Kept):
            found.setdefault(is_arm(arm, x, names), arm)
    return list(found.items())


def _twin(node: Node, x: str, names: Names) -> str:
    """Write the expression for the twin of a value that may be None."""
    if not travels(node):
        return x
    if isinstance(node, Choice):
        tests = [
            f"{_there(arm, x, names)} if {test} else"
            for test, arm in _told_apart(node.arms, x, names)
        ]
        return " ".join([*tests, x])
    return f"None if {x} is None else {_there(node, x, names)}"


def _there(node: Node, x: str, names: Names) -> _Expression:
    """Write the expression for the twin of a value that is there."""
    inner = f"x{_depth(x) + 1}"
    match node:
        case _ if not travels(node):
            return _Expression(x)
        case Leaf() | Opaque():
            return _Expression("take()")
        case Nested():
            return _Expression(f"build.nested({x})")
        case Adapted():
            return _Expression(f"build.adapted({x})")
        case Walked():
            return _Expression(f"build.dynamic({x})")
        case Items(kind=kind, item=item):
            brackets = {"list": ("[", "]"), "tuple": ("tuple([", "])")}
            before, after = brackets.get(kind, (f"like({x}, [", "])"))
            pieces = (_twin(item, inner, names), f"for {inner} in {x}")
            return _Expression(before, pieces, after)
        case Entries(value=value):
            twin = f"k: {_twin(value, inner, names)}"
            pieces = (twin, f"for k, {inner} in {x}.items()")
            return _Expression(f"like({x}, {{", pieces, "})")
        case Fixed(items=items):
            twins = tuple(_twin(t, f"{x}[{n}]", names) for n, t in enumerate(items))
            return _Expression("(", twins, ")", comma=True)
        case Record(items=named):
            twins = tuple(
                f"{n}={_twin(t, f'{x}.{n}', names)}" for n, t in named if travels(t)
            )
            return _Expression(f"{x}._replace(", twins, ")", comma=True)
        case Typed(items=named):
            twins = tuple(_member(n, t, x, names) for n, t in named if travels(t))
            return _Expression("{", (f"**{x}", *twins), "}", comma=True)
        case Choice() | Kept() | Reset() | Shadowed():
            return _Expression(_twin(node, x, names))


def _member(name: str, node: Node, x: str, names: Names) -> str:
    """Write the new entry of a typed dictionary, which may lack it."""
    entry = f"{x}[{quoted(name)}]"
    twin = f"{{{quoted(name)}: {_there(node, entry, names)}}}"
    return f"**({twin} if {x}.get({quoted(name)}) is not None else {{}})"


def _depth(x: str) -> int:
    """Tell how deep the loop variable in an expression is."""
    found = re.match(r"x(\d+)", x)
    return int(found[1]) if found else 0
