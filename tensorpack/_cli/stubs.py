"""`python -m tensorpack stubs pkg.mod -o DIR`: write the stubs of payload classes.

They are for type checkers without a plugin, and for classes that one cannot edit: each
payload shows its methods and a written-out `__init__`. mypy's own generator writes the
rest of a module.
"""

import argparse
import ast
import importlib
import importlib.util
import inspect
import operator
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import attrs

from tensorpack._cli.modules import contents, is_payload
from tensorpack._payload import Payload

__all__ = ["add_arguments", "run"]

_METHODS = (
    "to_device",
    "record_stream",
    "payload_keys",
    "host_keys",
    "to",
    "pin_memory",
)
_IMPORTS = """\
from typing import Any as _Any, Self as _Self
import torch as _torch
"""
_PRIVATE = {"torch": "_torch", "Self": "_Self"}
_KNOWN = (
    "tensorpack",
    "tensorpack._payload",
    "tensorpack._rules.markers",
    "tensorpack._leaves.adapters",
)


class TargetError(Exception):
    """A module on the command line cannot be stubbed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("modules", nargs="+", metavar="pkg.mod", help="a module")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where to write"
    )


def run(args: argparse.Namespace) -> int:
    """Write a stub for each module, or say why it cannot be.

    Returns:
        The exit code: 2 if a module is missing or holds no payload.
    """
    try:
        modules = [_import(name) for name in args.modules]
        texts = _generated(args.modules)
    except TargetError as error:
        print(error, file=sys.stderr)
        return 2
    for module in modules:
        path = _path(args.output, module)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rewrite(texts[module.__name__], module))
        print(path)
    return 0


def _import(name: str) -> ModuleType:
    """Import a module that holds payloads."""
    sys.path.insert(0, "")  # as `python -m` does for its own module
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        msg = (
            f"`{name}`: there is no module `{error.name}`. Check the spelling, and run "
            "from the folder that holds it or install its package."
        )
        raise TargetError(msg) from None
    finally:
        sys.path.remove("")
    if not any(is_payload(value) for value in contents(module).values()):
        msg = f"`{name}`: holds no payload. Name a module that does."
        raise TargetError(msg)
    return module


def _path(root: Path, module: ModuleType) -> Path:
    """Give the place of a module's stub below a folder of stubs."""
    below = root.joinpath(*module.__name__.split("."))
    return (
        below / "__init__.pyi"
        if hasattr(module, "__path__")
        else below.with_suffix(".pyi")
    )


def _generated(names: list[str]) -> Mapping[str, str]:
    """Have mypy's generator write the stubs of some modules.

    It follows no import, so tensorpack is generated with them: or it would take
    `@payload` for a decorator of no meaning, and leave it out.
    """
    if importlib.util.find_spec("mypy") is None:
        msg = "`stubs` needs mypy, whose generator it completes. `pip install mypy`."
        raise TargetError(msg)
    from mypy import stubgen  # noqa: PLC0415  # mypy is no dependency

    with tempfile.TemporaryDirectory() as folder:
        wanted = [f"--module={name}" for name in (*_KNOWN, *names)]
        options = stubgen.parse_options(
            ["--quiet", "--include-private", f"--output={folder}", *wanted]
        )
        stubgen.generate_stubs(options)
        paths = {name: Path(folder, *name.split(".")) for name in names}
        return {
            name: next(
                place.read_text()
                for place in (path.with_suffix(".pyi"), path / "__init__.pyi")
                if place.is_file()
            )
            for name, path in paths.items()
        }


def rewrite(text: str, module: ModuleType) -> str:
    """Complete a generated stub.

    Args:
        text: the stub as mypy's generator wrote it.
        module: the module, imported.
    """
    tree = ast.parse(text)
    classes = dict(_classes(tree.body, ""))
    for name, node in classes.items():
        cls = operator.attrgetter(name)(module)
        if is_payload(cls):
            own = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            kept = [part for part in node.body if not _is_ellipsis(part)]
            made = [] if "__init__" in own else [_init(cls, classes)]
            shown = [method for method in _methods(cls) if method.name not in own]
            node.body = [*kept, *_match_args(cls), *made, *shown]
    tree.body[:0] = ast.parse(_IMPORTS).body
    written = ast.unparse(ast.fix_missing_locations(tree))
    return re.sub(r":\n\s+\.\.\.(?=\n|$)", ": ...", written) + "\n"


def _classes(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Iterate the classes of a stub with their qualified names, nested ones too."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield f"{prefix}{node.name}", node
            yield from _classes(node.body, f"{prefix}{node.name}.")


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _match_args(cls: type) -> Iterator[ast.stmt]:
    """Write out what a `case` matches by position, if the class has it."""
    names = vars(cls).get("__match_args__")
    if names is not None:
        yield from ast.parse(f"__match_args__ = {names!r}").body


def _methods(cls: type) -> Iterator[ast.FunctionDef]:
    """Iterate the methods that `@payload` has installed and no base shows."""
    if issubclass(cls, Payload):
        return
    source = ast.parse(textwrap.dedent(inspect.getsource(Payload)))
    (base,) = source.body
    if not isinstance(base, ast.ClassDef):
        return
    for part in base.body:
        if isinstance(part, ast.FunctionDef) and _is_installed(cls, part.name):
            part.body = [ast.Expr(ast.Constant(...))]
            _make_private(part)
            yield part


def _is_installed(cls: type, name: str) -> bool:
    return name in _METHODS and vars(cls).get(name) is vars(Payload)[name]


def _make_private(part: ast.FunctionDef) -> None:
    """Give the names in a signature the private names that the stub imports."""
    for node in ast.walk(part):
        if isinstance(node, ast.Name):
            node.id = _PRIVATE.get(node.id, node.id)


def _init(cls: type, classes: Mapping[str, ast.ClassDef]) -> ast.FunctionDef:
    """Write out the `__init__` that attrs or `dataclasses` has generated."""
    init = inspect.getattr_static(cls, "__init__")
    parameters = list(inspect.signature(init).parameters.values())[1:]
    written = {p.name: _annotation(cls, p.name, classes) for p in parameters}
    placed = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    some: ast.expr = ast.Constant(...)
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg("self"), *(ast.arg(p.name, written[p.name]) for p in placed)],
        kwonlyargs=[ast.arg(p.name, written[p.name]) for p in keyword],
        kw_defaults=[None if p.default is p.empty else some for p in keyword],
        defaults=[some for p in placed if p.default is not p.empty],
    )
    body: list[ast.stmt] = [ast.Expr(some)]
    return ast.FunctionDef("__init__", arguments, body, [], ast.Constant(None))


def _annotation(
    cls: type, parameter: str, classes: Mapping[str, ast.ClassDef]
) -> ast.expr:
    """Find the type of a parameter: that of its field, as the stub has it."""
    name = parameter
    if attrs.has(cls):
        field = next(f for f in attrs.fields(cls) if f.alias == parameter)
        if field.converter is not None:  # takes what it likes
            return ast.Name("_Any")
        name = field.name
    for base in cls.__mro__:
        node = classes.get(base.__qualname__)
        if node is not None and base.__module__ == cls.__module__:
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and _names(part, name):
                    return part.annotation
    return ast.Name("_Any")


def _names(part: ast.AnnAssign, name: str) -> bool:
    return isinstance(part.target, ast.Name) and part.target.id == name
