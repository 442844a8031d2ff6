"""Markers: `HostOnly[T]` and `Annotated[T, host_only]`.

# Note [where mypy forgets a marker]

mypy keeps an alias by name, so `HostOnly[T]` is seen wherever it is written. Of
`Annotated[T, ...]` it keeps `T` alone. In an annotation the plugin reads it first and
puts `HostOnly[T]` in its place. In the definition of an alias a plugin is not asked: so
there the author has to write `HostOnly[T]`, and a refusal says so.
"""

from collections.abc import Iterable, Mapping

from mypy.nodes import MypyFile, TypeAlias
from mypy.plugin import AnalyzeTypeContext
from mypy.semanal import SemanticAnalyzer
from mypy.typeanal import TypeAnalyser
from mypy.types import AnyType, Type, TypeAliasType, TypeOfAny, UnboundType

from tensorpack._rules.markers import Marker
from tensorpack.mypy_plugin.names import ALIASES, MARKERS

__all__ = ["markers_among", "may_be_marked", "read_annotated"]


def markers_among(
    notes: Iterable[Type], api: SemanticAnalyzer | TypeAnalyser
) -> list[Marker]:
    """Return the markers among the notes of an `Annotated[...]`."""
    found = []
    for note in notes:
        if isinstance(note, UnboundType):
            symbol = api.lookup_qualified(note.name, note, suppress_errors=True)
            if symbol and symbol.node and symbol.node.fullname in MARKERS:
                found.append(MARKERS[symbol.node.fullname])
    return found


def read_annotated(ctx: AnalyzeTypeContext) -> Type:
    """Read `Annotated[T, host_only]` in an annotation as `HostOnly[T]`."""
    written, analyser = ctx.type, ctx.api
    if not isinstance(analyser, TypeAnalyser):
        return analyser.analyze_type(written.args[0] if written.args else written)
    markers = markers_among(written.args[1:], analyser)
    if markers:
        return _marked(markers, analyser.analyze_type(written.args[0]), analyser)
    special = analyser.try_analyze_special_unbound_type(written, "typing.Annotated")
    return special or AnyType(TypeOfAny.from_error)


def _marked(markers: Iterable[Marker], tp: Type, analyser: TypeAnalyser) -> Type:
    """Write `HostOnly[tp]`, with each marker around the ones before it."""
    names = {marker: name for name, marker in ALIASES.items()}
    for marker in markers:
        symbol = analyser.api.lookup_fully_qualified_or_none(names[marker])
        if symbol is not None and isinstance(symbol.node, TypeAlias):
            tp = TypeAliasType(symbol.node, [tp])
    return tp


def may_be_marked(alias: TypeAlias, modules: Mapping[str, MypyFile]) -> bool:
    """Return whether the module of an alias imports what could mark it.

    mypy has forgotten the definition, so this is all that can be known.
    """
    module = modules.get(alias.fullname.rpartition(".")[0])
    if module is None or alias.fullname in ALIASES:
        return False
    named = (symbol.node.fullname for symbol in module.names.values() if symbol.node)
    return any(name in MARKERS or name == "tensorpack" for name in named)
