"""Plan -> text of `rebuild`: expressions compose from the inside."""

import re

from tensorpack._nodes import (
    Adapted,
    Choice,
    ClassPlan,
    Entries,
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
)
from tensorpack._words import Names, is_arm

__all__ = ["rebuild_text"]

_TAB = "    "


def rebuild_text(plan: ClassPlan, cls: str, names: Names) -> str:
    """Write the function that makes a twin from new leaves."""
    title = (
        f"Make the twin of a {plan.cls.__qualname__} from new leaves, in plan order."
    )
    lines = [
        "def rebuild(self, build):",
        f"{_TAB}{title!r}",
        f"{_TAB}take = build.take",
    ]
    lines.append(f"{_TAB}new = object.__new__({cls})")
    for field in plan.fields:
        if isinstance(field.node, Shadowed):
            continue
        value = _twin(field.node, f"self.{field.name}", names)
        if isinstance(field.node, Reset):
            default = names.of(field.default, f"default_{field.name}")
            value = f"{default}(new)"
        line = f"new.{field.name} = {value}"
        if not plan.assigns:
            line = f'object.__setattr__(new, "{field.name}", {value})'
        if field.may_lack:
            line = f'if hasattr(self, "{field.name}"): {line}'
        lines.append(f"{_TAB}{line}")
    return "\n".join([*lines, f"{_TAB}return new"]) + "\n"


def _twin(node: Node, x: str, names: Names) -> str:
    """Write the expression for the twin of a value."""
    match node:
        case Kept() | Reset() | Shadowed():
            return x
        case Choice(arms=arms):
            tests = [
                f"{_whole(arm, x, names)} if {is_arm(arm, x, names)} else"
                for arm in arms
                if not isinstance(arm, Kept)
            ]
            return " ".join([*tests, x])
        case _:
            return f"None if {x} is None else {_whole(node, x, names)}"


def _whole(node: Node, x: str, names: Names) -> str:
    """Write the expression for the twin of a value that is there."""
    inner = f"x{_depth(x) + 1}"
    match node:
        case Leaf() | Opaque():
            return "take()"
        case Nested():
            return f"build.nested({x})"
        case Adapted():
            return f"build.adapted({x})"
        case Walked():
            return f"build.dynamic({x})"
        case Items(kind=kind, item=item):
            twins = f"[{_twin(item, inner, names)} for {inner} in {x}]"
            shapes = {"list": "{}", "tuple": "tuple({})"}
            return shapes.get(kind, f"like({x}, {{}})").format(twins)
        case Entries(value=value):
            twins = f"k: {_twin(value, inner, names)} for k, {inner} in {x}.items()"
            return f"like({x}, {{{twins}}})"
        case Fixed(items=items):
            twins = "".join(
                f"{_twin(t, f'{x}[{n}]', names)}, " for n, t in enumerate(items)
            )
            return f"({twins.rstrip()})"
        case Record(cls=cls, items=named):
            twins = "".join(f"{_twin(t, f'{x}.{n}', names)}, " for n, t in named)
            return f"tuple.__new__({names.of(cls, cls.__name__)}, ({twins.rstrip()}))"
        case Typed(items=named):
            pairs = [(n, f"{n!r}: {_twin(t, f'{x}[{n!r}]', names)}") for n, t in named]
            twins = ", ".join(
                f"**({{{pair}}} if {n!r} in {x} else {{}})" for n, pair in pairs
            )
            return f"{{**{x}, {twins}}}"
        case _:
            return _twin(node, x, names)


def _depth(x: str) -> int:
    """Tell how deep the loop variable in an expression is."""
    found = re.match(r"x(\d+)", x)
    return int(found[1]) if found else 0
