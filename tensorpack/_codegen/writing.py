"""The writing of generated text: statements, expressions, names, quotes and keys."""

import builtins
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence

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
from tensorpack._walk.build import HELPERS

__all__ = [
    "Block",
    "Expression",
    "Key",
    "Line",
    "Names",
    "function",
    "guarded",
    "is_arm",
    "is_container",
    "quoted",
    "title",
    "variable",
]

_TAB = "    "
_WIDTH = 88
_SAFE = re.compile(r"[\w.\[\]' ]*")
_TITLE = re.compile(r"[\w.<>\[\], ]*")
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z_0-9]*")  # `__debug__` is a constant
_LOCALS = frozenset(
    {
        *("self", "walk", "at", "add", "build", "take", "new", "leaves", "rebuild"),
        *("x", "k", *(f"{letter}{depth}" for letter in "xi" for depth in range(100))),
    }
)
_TAKEN = frozenset({*_LOCALS, *HELPERS, *vars(builtins)})
"""The names that the text uses itself."""


@attrs.frozen
class Expression:
    """An expression that can be broken: its brackets, and the pieces between them."""

    open: str
    pieces: tuple["Expression", ...] = ()
    close: str = ""
    comma: bool = False
    is_tuple: bool = False

    def within(self, before: str, after: str = "") -> "Expression":
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

    def lines(self, width: int) -> Iterator[str]:
        """Write the expression, over several lines if it is too long for one."""
        line = str(self)
        if len(line) <= width or not self.pieces:
            yield line
            return
        yield self.open
        for piece in self.pieces:
            *before, last = piece.lines(width - len(_TAB))
            yield from (f"{_TAB}{line}" for line in before)
            yield f"{_TAB}{last}{',' * self.comma}"
        yield self.close


@attrs.frozen
class Block:
    """A compound statement: its head, and the statements that belong to it."""

    head: str
    body: Sequence["Line"]
    on_one_line: bool = False

    def fits(self, width: int) -> bool:
        """Return whether the statement may be written on one line, and has room."""
        return (
            self.on_one_line
            and len(self.body) == 1
            and not isinstance(self.body[0], Block)
            and len(f"{self.head} {self.body[0]}") <= width
        )


Line = str | Expression | Block
"""A statement of the text."""


def guarded(head: str, *body: Line) -> Block:
    """Write statements under a test, on one line if it is a single short one."""
    return Block(head, body, on_one_line=True)


def function(head: str, body: Iterable[Line]) -> str:
    """Write a function."""
    return "\n".join([head, *_laid_out(body, _TAB)]) + "\n"


def _laid_out(lines: Iterable[Line], indent: str) -> Iterator[str]:
    """Write statements at an indent, each on as few lines as it fits."""
    width = _WIDTH - len(indent)
    for line in lines:
        match line:
            case Block(head=head, body=body) if line.fits(width):
                yield f"{indent}{head} {body[0]}"
            case Block(head=head, body=body):
                yield f"{indent}{head}"
                yield from _laid_out(body, f"{indent}{_TAB}")
            case Expression():
                yield from (f"{indent}{part}" for part in line.lines(width))
            case str():
                yield f"{indent}{line}"


def variable(depth: int) -> str:
    """Return the name of the variable for a value inside `depth` containers."""
    return f"x{depth or ''}"


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


@attrs.define
class Names:
    """Gives each object in the text a readable global name."""

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

    def tuple(self, types: Iterable[type]) -> str:
        """Write a tuple of classes."""
        names = [self.of(tp, tp.__name__) for tp in types]
        return f"({', '.join(names)}{',' * (len(names) == 1)})"


@attrs.frozen
class Key:
    """The address of a value, as an expression in the generated text.

    Attributes:
        parts: pieces of one format string, or expressions to add up.
        is_one_string: whether they are the former.
    """

    parts: tuple[str, ...]
    is_one_string: bool = True

    def literal(self, text: str) -> "Key":
        """Add fixed text to the address."""
        if self.is_one_string and _SAFE.fullmatch(text):
            return Key((*self.parts, text))
        return Key((*self._terms(), quoted(text)), is_one_string=False)

    def index(self, name: str) -> "Key":
        """Add the value of a loop variable to the address."""
        if self.is_one_string:
            return Key((*self.parts, f"[{{{name}!r}}]"))
        return Key((*self.parts, f'f"[{{{name}!r}}]"'), is_one_string=False)

    def _terms(self) -> tuple[str, ...]:
        return (str(self),) if self.is_one_string else self.parts

    def __str__(self) -> str:
        if not self.is_one_string:
            return " + ".join(self.parts)
        text = "".join(self.parts)
        return f'at + "{text}"' if "{" not in text else f'f"{{at}}{text}"'


def is_container(node: Node, x: str, names: Names, *, negated: bool = False) -> str:
    """Write the test whether a value is a container of a node's class."""
    is_, in_ = ("is not", "not in") if negated else ("is", "in")
    match node:
        case SequenceNode(kind=kind) if CONTAINERS[kind].takes_in:
            return f"type({x}) {in_} sequence_types"
        case MappingNode(kind=kind) if CONTAINERS[kind].takes_in:
            return f"type({x}) {in_} mapping_types"
        case SequenceNode(kind=kind) | MappingNode(kind=kind):
            return f"type({x}) {is_} {kind}"
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
