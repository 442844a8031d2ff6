"""The words of generated text: names, quotes, keys, and tests of a value's class."""

import builtins
import keyword
import re
from collections.abc import Iterable

import attrs

from tensorpack._rules.containers import CONTAINERS
from tensorpack._rules.nodes import (
    AdapterNode,
    MappingNode,
    NamedTupleNode,
    Node,
    PayloadNode,
    SelfMovingNode,
    SequenceNode,
    TensorNode,
    TupleNode,
)

__all__ = [
    "TAB",
    "WIDTH",
    "Key",
    "Names",
    "function",
    "guarded",
    "indented",
    "is_arm",
    "is_container",
    "is_struct",
    "quoted",
    "title",
]

TAB = "    "
WIDTH = 88
_JOINT = "\0"  # where a line may be broken; no name or quoted string has it
_SAFE = re.compile(r"[\w.\[\]' ]*")
_TITLE = re.compile(r"[\w.<>\[\], ]*")
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z_0-9]*")  # `__debug__` is a constant
# Names that the text uses itself: locals, loop variables, helpers, builtins.
_TAKEN = frozenset(
    [
        "self",
        "walk",
        "at",
        "add",
        "build",
        "take",
        "new",
        "stores",
        "staying",
        "has_extra",
        "sequences",
        "mappings",
        "like",
        "kept",
        "is_payload",
        "plain_names",
        "leaves",
        "rebuild",
        "x",
        "k",
        "Tensor",
        "OrderedDict",
        "defaultdict",
        "deque",
        "isinstance",
        "map",
        "type",
        "hasattr",
        "len",
        "enumerate",
        "object",
        "tuple",
        "list",
        "dict",
    ]
) | {f"{v}{n}" for v in "xi" for n in range(100)}


def quoted(text: str) -> str:
    """Write a string as the formatter does: in double quotes where that is plain."""
    if '"' in text:
        return repr(text)
    # A single quote inside makes `repr` choose double ones outside.
    return repr(text + "'").removesuffix("'\"") + '"'


def title(before: str, qualname: str, after: str) -> str:
    """Write a docstring that names a class."""
    text = f"{before} {qualname} {after}"
    return f'"""{text}"""' if _TITLE.fullmatch(qualname) else quoted(text)


def indented(lines: Iterable[str]) -> list[str]:
    """Move lines one level in."""
    return [f"{TAB}{line}" for line in lines]


def is_struct(cls: type) -> bool:
    """Tell whether a class is a dataclass, an attrs class or a msgspec struct."""
    made_by = ("__attrs_attrs__", "__dataclass_fields__", "__struct_fields__")
    return any(hasattr(cls, name) for name in made_by)


def guarded(head: str, body: list[str]) -> list[str]:
    """Write a compound statement, on one line where its body is a simple one."""
    if len(body) == 1 and not body[0].startswith("if "):
        return [f"{head}{_JOINT}{body[0]}"]
    return [head, *indented(body)]


def function(head: str, body: Iterable[str]) -> str:
    """Write a function; compound statements that are too long get a second line."""
    lines = [head]
    for line in indented(body):
        start, joint, rest = line.partition(_JOINT)
        if joint and len(line) > WIDTH:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [start, f"{indent}{TAB}{rest}"]
        else:
            lines.append(line.replace(_JOINT, " "))
    return "\n".join(lines) + "\n"


@attrs.define
class Names:
    """Gives each object that the text speaks of a readable global name."""

    globals: dict[str, object] = attrs.field(factory=dict)

    def of(self, value: object, hint: str) -> str:
        """Name an object after `hint`, with a number where that is taken."""
        hint = hint if _NAME.fullmatch(hint) and not keyword.iskeyword(hint) else "cls"
        if hint in _TAKEN and getattr(builtins, hint, None) is not value:
            hint = f"{hint}_"
        name, number = hint, 2
        while self.globals.get(name, value) is not value:
            name, number = f"{hint}_{number}", number + 1
        self.globals[name] = value
        return name

    def kind(self, kind: str) -> str:
        """Name a container class."""
        self.globals[kind] = CONTAINERS[kind].cls
        return kind

    def tuple(self, types: Iterable[type]) -> str:
        """Write a tuple of classes."""
        names = [self.of(tp, tp.__name__) for tp in types]
        return f"({', '.join(names)}{',' * (len(names) == 1)})"


@attrs.frozen
class Key:
    """The address of a value, as an expression in the generated text."""

    parts: tuple[str, ...]
    plain: bool = True

    def literal(self, text: str) -> "Key":
        """Add fixed text to the address."""
        if self.plain and _SAFE.fullmatch(text):
            return Key((*self.parts, text))
        return Key((*self._apart(), quoted(text)), plain=False)

    def index(self, name: str) -> "Key":
        """Add the value of a loop variable to the address."""
        if self.plain:
            return Key((*self.parts, f"[{{{name}!r}}]"))
        return Key((*self.parts, f'f"[{{{name}!r}}]"'), plain=False)

    def _apart(self) -> tuple[str, ...]:
        return (str(self),) if self.plain else self.parts

    def __str__(self) -> str:
        if not self.plain:
            return " + ".join(self.parts)
        text = "".join(self.parts)
        return f'at + "{text}"' if "{" not in text else f'f"{{at}}{text}"'


def is_container(node: Node, x: str, names: Names, *, negated: bool = False) -> str:
    """Write the test whether a value is a container of a node's class."""
    is_, in_ = ("is not", "not in") if negated else ("is", "in")
    match node:
        case SequenceNode(kind=kind) if CONTAINERS[kind].takes_in:
            return f"type({x}) {in_} sequences"
        case MappingNode(kind=kind) if CONTAINERS[kind].takes_in:
            return f"type({x}) {in_} mappings"
        case SequenceNode(kind=kind) | MappingNode(kind=kind):
            return f"type({x}) {is_} {names.kind(kind)}"
        case NamedTupleNode(cls=cls):
            return f"type({x}) {is_} {names.of(cls, cls.__name__)}"
        case TupleNode():
            return f"type({x}) {is_} tuple"
        case _:
            return f"type({x}) {is_} dict"


def is_arm(arm: Node, x: str, names: Names) -> str:
    """Write the test whether a value belongs to an arm of a union."""
    match arm:
        case TensorNode():
            return f"isinstance({x}, Tensor)"
        case PayloadNode():
            return f"is_payload({x})"
        case AdapterNode(cls=cls) | SelfMovingNode(cls=cls):
            return f"isinstance({x}, {names.of(cls, cls.__name__)})"
        case _:
            return is_container(arm, x, names)
