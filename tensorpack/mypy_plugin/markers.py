"""Markers: `HostOnly[T]`, `Annotated[T, host_only]`, and aliases of either.

# Note [where mypy forgets a marker]

mypy keeps an alias by name, so `HostOnly[T]` is seen wherever it stands. Of
`Annotated[T, ...]` it keeps `T` alone. In an annotation the plugin reads it first and
puts `HostOnly[T]` in its place. In the definition of an alias mypy lets nobody look:
there the plugin reads the alias's line in the source file, and has mypy analyze the
annotation again.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from mypy.nodes import MypyFile, TypeAlias
from mypy.plugin import AnalyzeTypeContext
from mypy.semanal import SemanticAnalyzer
from mypy.typeanal import TypeAnalyser
from mypy.types import (
    AnyType,
    Type,
    TypeAliasType,
    TypeOfAny,
    UnboundType,
)

from tensorpack.mypy_plugin.names import ALIASES, MARKERS, Marker

__all__ = ["marker_among", "marker_of", "read_alias", "read_annotated"]


def marker_among(
    notes: tuple[Type, ...], api: SemanticAnalyzer | TypeAnalyser
) -> Marker | None:
    """Give the marker among the notes of an `Annotated[...]`, if there is one."""
    for note in notes:
        if isinstance(note, UnboundType):
            symbol = api.lookup_qualified(note.name, note, suppress_errors=True)
            if symbol and symbol.node and symbol.node.fullname in MARKERS:
                return MARKERS[symbol.node.fullname]
    return None


def read_annotated(ctx: AnalyzeTypeContext) -> Type:
    """Read `Annotated[T, host_only]` in an annotation as `HostOnly[T]`."""
    written, analyser = ctx.type, ctx.api
    if not isinstance(analyser, TypeAnalyser):
        return analyser.analyze_type(written.args[0] if written.args else written)
    marker = marker_among(written.args[1:], analyser)
    if marker is not None:
        marked = _marked(marker, analyser.analyze_type(written.args[0]), analyser)
        if marked is not None:
            return marked
    special = analyser.try_analyze_special_unbound_type(written, "typing.Annotated")
    return special or AnyType(TypeOfAny.from_error)


def read_alias(ctx: AnalyzeTypeContext, marker: Marker) -> Type:
    """Read an alias that was found to stand for `Annotated[T, host_only]`."""
    anything = AnyType(TypeOfAny.special_form)
    if isinstance(ctx.api, TypeAnalyser):
        return _marked(marker, anything, ctx.api) or anything
    return anything


def _marked(marker: Marker, inner: Type, analyser: TypeAnalyser) -> Type | None:
    """Write `HostOnly[inner]`."""
    name = next(alias for alias, known in ALIASES.items() if known is marker)
    symbol = analyser.api.lookup_fully_qualified_or_none(name)
    if symbol is None or not isinstance(symbol.node, TypeAlias):
        return None
    return TypeAliasType(symbol.node, [inner])


def marker_of(alias: TypeAlias, modules: Mapping[str, MypyFile]) -> Marker | None:
    """Give the marker in the definition of an alias, read from its source."""
    module = modules.get(alias.fullname.rpartition(".")[0])
    if module is None or not any(_markers_named(module)):
        return None
    try:
        tree = ast.parse(Path(module.path).read_text("utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    for statement in ast.walk(tree):  # mypy's cache has forgotten the line
        value = _definition(statement, alias.name)
        if value is not None:
            return _marker_in(value, module)
    return None


def _markers_named(module: MypyFile) -> Iterator[str]:
    """Iterate the names of a module behind which a marker may stand."""
    for name, symbol in module.names.items():
        fullname = symbol.node.fullname if symbol.node else ""
        if fullname in MARKERS or fullname in (
            "tensorpack",
            "tensorpack._rules.markers",
        ):
            yield name


def _definition(statement: ast.AST, name: str) -> ast.expr | None:
    """Give what a statement defines a name as."""
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    elif type(statement).__name__ == "TypeAlias":  # `type X = ...`, since 3.12
        target = getattr(statement, "name", None)
    if not isinstance(target, ast.Name) or target.id != name:
        return None
    value: ast.expr | None = getattr(statement, "value", None)
    return value


def _marker_in(value: ast.expr, module: MypyFile) -> Marker | None:
    """Give the marker of `Annotated[T, marker]`."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Tuple):
        return None
    if not ast.unparse(value.value).endswith("Annotated"):
        return None
    for note in value.slice.elts[1:]:
        head, _, rest = ast.unparse(note).partition(".")
        symbol = module.names.get(head)
        if symbol is not None and symbol.node is not None:
            fullname = ".".join(filter(None, (symbol.node.fullname, rest)))
            spelled = fullname.replace("tensorpack.", "tensorpack._rules.markers.", 1)
            marker = MARKERS.get(fullname) or MARKERS.get(spelled)
            if marker is not None:
                return marker
    return None
