"""A function or method, summarized; its syntax tree comes when it is asked for."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Function", "Parameter", "function_of"]

_CARRIED = re.compile(r"\b(\w+)\s*=\s*\(?\s*(\w+)\.\1\b")
_MADE = re.compile(
    r"\b([A-Z_]\w*|cls|replace|evolve)\(|\btype\(|__class__\(|_replace\("
)
_STREAMS = re.compile(r"\brecord_stream\b|\bnon_blocking\b|\bwait_event\b|\bEvent\(")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter.

    Attributes:
        name: its name.
        annotation: its annotation as text, or "".
        kind: "plain", "named" (keyword only), "args" or "kwargs".
        default: its default as text, or "" without one.
    """

    name: str
    annotation: str
    kind: str
    default: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method.

    Attributes:
        name: its name.
        path: file.
        line: of its `def`.
        first: of its first decorator, or of its `def`.
        last: its last line.
        parameters: in order.
        decorators: the last names of its decorators.
        rebuilds: whether it looks as if it made an object from the fields of another.
        streams: whether it names streams, events or asynchronous copies.
    """

    name: str
    path: str
    line: int
    first: int
    last: int
    parameters: tuple[Parameter, ...]
    decorators: tuple[str, ...]
    rebuilds: bool
    streams: bool


def last_name(node: ast.expr) -> str:
    """Return the last name of `a.b.c(...)`, or ""."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def function_of(
    node: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str], path: str
) -> Function:
    """Summarize a function."""
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    last = node.end_lineno or node.lineno
    text = "\n".join(lines[node.lineno - 1 : last])
    carried = sum(1 for _ in zip(_CARRIED.finditer(text), range(2), strict=False))
    return Function(
        node.name,
        path,
        node.lineno,
        first,
        last,
        _parameters(node.args),
        tuple(last_name(each) for each in node.decorator_list),
        rebuilds=carried > 1 and _MADE.search(text) is not None,
        streams=_STREAMS.search(text) is not None,
    )


def _parameters(args: ast.arguments) -> tuple[Parameter, ...]:
    plain = [*args.posonlyargs, *args.args]
    missing = len(plain) - len(args.defaults)
    defaults = [None] * missing + list(args.defaults)
    found = [
        _parameter(arg, "plain", default)
        for arg, default in zip(plain, defaults, strict=True)
    ]
    if args.vararg:
        found.append(_parameter(args.vararg, "args", None))
    found += [
        _parameter(arg, "named", default)
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        found.append(_parameter(args.kwarg, "kwargs", None))
    return tuple(found)


def _parameter(arg: ast.arg, kind: str, default: ast.expr | None) -> Parameter:
    annotation = ast.unparse(arg.annotation) if arg.annotation else ""
    text = ast.unparse(default) if default else ""
    return Parameter(arg.arg, annotation, kind, text)
