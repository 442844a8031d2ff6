"""One file, summarized: its imports, classes, functions and constants."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tensorpack._audit.classes import ClassDef, class_of
from tensorpack._audit.comments import Silence, silences_of
from tensorpack._audit.functions import Function, function_of

__all__ = ["Module", "summarize"]

_INTEREST = re.compile(
    r"\b(class|record_stream|non_blocking|wait_event|wait_stream|replace)\b"
)


@dataclass(slots=True, eq=False)
class Module:
    """What one file defines.

    Attributes:
        path: where it is.
        name: its dotted name from the folder that was named, `pkg.mod`.
        package: the dotted name that its relative imports start from.
        imports: local name -> (module, name in it or None for the module itself).
        stars: modules of `from x import *`.
        classes: by qualified name.
        functions: of the module, by name.
        aliases: names that a type or another name is assigned to, as text.
        constants: names of tuples, lists and sets of strings, and these.
        silences: comments that silence reports.
    """

    path: str
    name: str
    package: str
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    classes: dict[str, ClassDef] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    constants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    silences: list[Silence] = field(default_factory=list)


def summarize(path: str, root: str, text: str, tree: ast.Module) -> Module:
    """Summarize a parsed file.

    Args:
        path: where it is.
        root: the folder that its dotted name starts from.
        text: its text.
        tree: its syntax tree.
    """
    parts = list(Path(path).relative_to(root).with_suffix("").parts)
    top = Path(root).resolve()
    while (top / "__init__.py").exists() and top != top.parent:
        parts.insert(0, top.name)
        top = top.parent
    is_package = parts[-1] == "__init__"
    if is_package:
        parts.pop()
    name = ".".join(parts)
    package = name if is_package else name.rpartition(".")[0]
    module = Module(path, name, package)
    lines = text.split("\n")
    if "tensorpack: keep[" in text:
        module.silences = silences_of(lines)
    interesting = _INTEREST.search(text) is not None
    for node in _statements(tree.body):
        _add(node, module, lines, interesting=interesting)
    return module


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, those inside of `if`, `try` and `with` too."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements(node.body)
            yield from _statements(node.orelse)
        elif isinstance(node, ast.Try):
            yield from _statements(node.body)
            for handler in node.handlers:
                yield from _statements(handler.body)
            yield from _statements(node.orelse)
            yield from _statements(node.finalbody)
        elif isinstance(node, ast.With):
            yield from _statements(node.body)


def _add(
    node: ast.stmt, module: Module, lines: list[str], *, interesting: bool
) -> None:
    match node:
        case ast.Import():
            for alias in node.names:
                if alias.asname:
                    module.imports.setdefault(alias.asname, (alias.name, None))
                else:
                    top = alias.name.partition(".")[0]
                    module.imports.setdefault(top, (top, None))
        case ast.ImportFrom():
            origin = _origin(node, module.package)
            for alias in node.names:
                if alias.name == "*":
                    module.stars.append(origin)
                else:
                    own = alias.asname or alias.name
                    module.imports.setdefault(own, (origin, alias.name))
        case ast.ClassDef():
            _add_class(node, "", module, lines)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if interesting and node.name not in module.functions:
                module.functions[node.name] = function_of(node, lines, module.path)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            _add_assignment(name, value, module)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            _add_assignment(name, value, module)
        case _ if type(node).__name__ == "TypeAlias":
            target, text = getattr(node, "name", None), getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(text, ast.expr):
                _add_assignment(target.id, text, module)


def _origin(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    base = parts[: len(parts) + 1 - node.level]
    return ".".join([*base, *filter(None, [node.module])])


def _add_assignment(name: str, value: ast.expr, module: Module) -> None:
    match value:
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.BinOp():
            module.aliases.setdefault(name, ast.unparse(value))
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            texts = [item.value for item in items if isinstance(item, ast.Constant)]
            if items and len(texts) == len(items):
                named = tuple(text for text in texts if isinstance(text, str))
                if len(named) == len(items):
                    module.constants[name] = named
        case ast.Call(func=ast.Name(id="TypeVar" | "NewType")):
            module.aliases.setdefault(name, "Any")
        case _:
            pass


def _add_class(
    node: ast.ClassDef, outer: str, module: Module, lines: list[str]
) -> None:
    name = f"{outer}{node.name}"
    if name in module.classes:
        return
    module.classes[name] = class_of(node, name, module.name, module.path, lines)
    for inside in node.body:
        if isinstance(inside, ast.ClassDef):
            _add_class(inside, f"{name}.", module, lines)
