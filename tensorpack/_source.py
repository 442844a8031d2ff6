"""Plan -> text of `leaves` and `rebuild`, the only traversals of a payload.

Pure: the same plan gives the same text. Only identifiers and `repr` of strings enter
it; every object enters by a global name, which `Source.globals` lists.
"""

from collections.abc import Iterable

import attrs
from torch import Tensor

from tensorpack._nodes import (
    Adapted,
    Choice,
    ClassPlan,
    Entries,
    FieldPlan,
    Fixed,
    Guard,
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
from tensorpack._twins import rebuild_text
from tensorpack._words import Key, Names, is_arm, is_container

__all__ = ["Source", "write"]

_TAB = "    "


@attrs.frozen
class Source:
    """The text of a class's two traversals, and the objects its names stand for."""

    text: str
    globals: dict[str, object]


def write(plan: ClassPlan) -> Source:
    """Write the source of a class's traversals."""
    names = Names({"Tensor": Tensor})
    cls = names.of(plan.cls, plan.cls.__name__)
    return Source(
        f"{_leaves(plan, names)}\n\n{rebuild_text(plan, cls, names)}", names.globals
    )


def _leaves(plan: ClassPlan, names: Names) -> str:
    """Write the function that hands every leaf to the walk."""
    title = f"Hand every leaf of {plan.cls.__qualname__} to `walk`, in plan order."
    lines = ["def leaves(self, walk, at):", f"{_TAB}{title!r}", f"{_TAB}add = walk.add"]
    if plan.stores is not None:
        names.globals["stores"] = plan.stores
        lines.append(
            f"{_TAB}if not stores.issuperset(self.__dict__): "
            "walk.extra(self, stores, at)"
        )
    for field in plan.fields:
        block = _field_lines(field, names)
        if field.may_lack and block:
            block = [f'if hasattr(self, "{field.name}"):', *_indented(block)]
        lines.extend(_indented(block))
    return "\n".join(lines) + "\n"


def _field_lines(field: FieldPlan, names: Names) -> list[str]:
    """Write the lines of `leaves` for one field."""
    key = Key(()).literal(field.name)
    if isinstance(field.node, Reset):
        writer = _Leaves(names, "walk.aside")
        return writer.lines(field.node.inner, f"(x := self.{field.name})", "x", key)
    writer = _Leaves(names, "walk")
    match field.node:
        case Shadowed() | Kept(guard=Guard.NOTHING):
            return []
        case Kept():
            return writer.lines(
                field.node, f"self.{field.name}", f"self.{field.name}", key
            )
        case node:
            return writer.lines(node, f"(x := self.{field.name})", "x", key)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"{_TAB}{line}" for line in lines]


@attrs.frozen
class _Leaves:
    """Writes the lines that find the leaves in a value."""

    names: Names
    walk: str

    def lines(self, node: Node, read: str, x: str, key: Key) -> list[str]:
        """Write the lines for a value: `read` gives it, then `x` names it."""
        match node:
            case Leaf() | Opaque():
                return [f"if {read} is not None: {self._add}(({key}, {x}))"]
            case Nested():
                return [f"if {read} is not None: {self.walk}.nested({x}, {key})"]
            case Adapted():
                return [f"if {read} is not None: {self.walk}.adapted({x}, {key})"]
            case Walked():
                return [f"if {read} is not None: {self.walk}.dynamic({x}, {key})"]
            case Kept(guard=Guard.TENSOR):
                return [f"if isinstance({read}, Tensor): {self.walk}.stray({x}, {key})"]
            case Kept(guard=Guard.DEVICE_TENSOR):
                return [
                    f"if isinstance({read}, Tensor): {self.walk}.host_only({x}, {key})"
                ]
            case Choice(arms=arms):
                assign = [f"{x} = {read[1:-1].split(' := ')[1]}"] if read != x else []
                return [*assign, *self._choice(arms, x, key)]
            case Items() | Fixed() | Entries() | Record() | Typed():
                check = self._check(node, x, key)
                body = [*check, *self._inside(node, x, key)]
                return [f"if {read} is not None:", *_indented(body)]
            case Kept() | Reset() | Shadowed():
                return []

    @property
    def _add(self) -> str:
        return "add" if self.walk == "walk" else f"{self.walk}.add"

    def _check(self, node: Node, x: str, key: Key) -> list[str]:
        """Write the line that raises for a container of another class."""
        test = is_container(node, x, self.names, negated=True)
        match node:
            case Items(kind=name) | Entries(kind=name):
                wanted = name
            case Record(cls=cls):
                wanted = cls.__name__
            case Fixed():
                wanted = "tuple"
            case _:
                wanted = "dict"
        lines = [f"if {test}: {self.walk}.wrong({x}, {key}, {wanted!r})"]
        if isinstance(node, Fixed):
            n = len(node.items)
            lines.append(f"if len({x}) != {n}: {self.walk}.length({x}, {key}, {n})")
        return lines

    def _inside(self, node: Node, x: str, key: Key) -> list[str]:
        """Write the lines for the items of a container of the right class."""
        inner = _next(x)
        i = f"i{inner[1:]}"
        match node:
            case Items(item=item):
                body = self.lines(item, inner, inner, key.index(i))
                return [f"for {i}, {inner} in enumerate({x}):", *_indented(body)]
            case Entries(value=value):
                body = self.lines(value, inner, inner, key.index(i))
                return [f"for {i}, {inner} in {x}.items():", *_indented(body)]
            case Fixed(items=items):
                return [
                    line
                    for n, item in enumerate(items)
                    for line in self.lines(
                        item, f"({inner} := {x}[{n}])", inner, key.literal(f"[{n}]")
                    )
                ]
            case Record(items=named):
                return [
                    line
                    for name, item in named
                    for line in self.lines(
                        item, f"({inner} := {x}.{name})", inner, key.literal(f".{name}")
                    )
                ]
            case Typed(items=named):
                keys = self.names.of(frozenset(n for n, _ in named), "keys")
                unknown = f"{self.walk}.unknown({x}, {key}, {keys})"
                lines = [f"if not {keys}.issuperset({x}): {unknown}"]
                for name, item in named:
                    read = f"({inner} := {x}.get({name!r}))"
                    lines += self.lines(item, read, inner, key.literal(f"[{name!r}]"))
                return lines
            case _:
                return []

    def _choice(self, arms: tuple[Node, ...], x: str, key: Key) -> list[str]:
        """Write the tests that tell the arms of a union apart."""
        lines: list[str] = []
        for arm in arms:
            word = "elif" if lines else "if"
            match arm:
                case Kept(guard=Guard.DEVICE_TENSOR):
                    lines.append(f"else: {self.walk}.host_only({x}, {key})")
                    return lines
                case Kept(types=types):
                    continue
                case Leaf() | Opaque() | Nested() | Adapted():
                    test = is_arm(arm, x, self.names)
                    body = self.lines(arm, x, x, key)
                    lines += [f"{word} {test}:", *_indented(body)]
                case _:
                    test = is_arm(arm, x, self.names)
                    body = self._inside(arm, x, key)
                    if isinstance(arm, Fixed):
                        body = [*self._check(arm, x, key)[1:], *body]
                    lines += [f"{word} {test}:", *_indented(body or ["pass"])]
        types = next((a.types for a in arms if isinstance(a, Kept)), ())
        known = self.names.tuple(types)
        lines.append(f"elif {x} is not None: {self.walk}.keep({x}, {key}, {known})")
        return lines


def _next(x: str) -> str:
    """Name the variable one level further in."""
    return f"x{int(x[1:] or 0) + 1}"
