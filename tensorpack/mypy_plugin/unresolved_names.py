"""The names in an annotation: which cannot be resolved yet, and which are aliases.

A type checker reads the whole module before it looks at a class, the run time does not:
an import under `TYPE_CHECKING` never happens, and a class further down is not there.
"""

from collections.abc import Iterable

from mypy.nodes import TypeAlias, TypeInfo, Var
from mypy.types import Type, TypeList, UnboundType, UnionType, UnpackType

from tensorpack._rules.markers import Marker
from tensorpack.mypy_plugin.checked_class import CheckedClass
from tensorpack.mypy_plugin.markers import markers_among
from tensorpack.mypy_plugin.names import ALIASES

__all__ = ["unresolved_name"]

_FREE = {a for a, marker in ALIASES.items() if marker is not Marker.DERIVED}
_ANNOTATED = ("typing.Annotated", "typing_extensions.Annotated")
_LITERAL = ("typing.Literal", "typing_extensions.Literal")


def unresolved_name(
    written: Type, checked: CheckedClass, aliases: list[TypeAlias]
) -> str | None:
    """Give the first name in an annotation that the run time cannot resolve.

    What is inside a marker is not resolved there, except inside `Derived`.

    Args:
        written: the annotation.
        checked: the class that it belongs to.
        aliases: takes the aliases that the annotation names, markers left out.
    """
    if isinstance(written, UnboundType):
        if written.name in checked.known:
            return _first(written.args, checked, aliases)
        return _unresolved_in(written, checked, aliases)
    if isinstance(written, (UnionType, TypeList)):
        return _first(written.items, checked, aliases)
    if isinstance(written, UnpackType):
        return unresolved_name(written.type, checked, aliases)
    return None


def _first(
    types: Iterable[Type], checked: CheckedClass, aliases: list[TypeAlias]
) -> str | None:
    """Give the first unresolved name in some annotations."""
    for tp in types:
        name = unresolved_name(tp, checked, aliases)
        if name is not None:
            return name
    return None


def _unresolved_in(
    written: UnboundType, checked: CheckedClass, aliases: list[TypeAlias]
) -> str | None:
    """Give the first unresolved name in `X` or `X[...]`."""
    name, args = written.name, written.args
    symbol = checked.api.lookup_qualified(name, written, suppress_errors=True)
    node = symbol.node if symbol else None
    fullname = node.fullname if node else ""
    if _is_unresolved(name.partition(".")[0], checked):
        return name
    if fullname in _FREE or fullname in _LITERAL:
        return None
    if fullname in _ANNOTATED and args:
        markers = markers_among(args[1:], checked.api)
        free = any(marker is not Marker.DERIVED for marker in markers)
        return None if free else unresolved_name(args[0], checked, aliases)
    if isinstance(node, TypeAlias) and fullname not in ALIASES:
        aliases.append(node)
    elif isinstance(node, TypeInfo):
        checked.known.add(name)
    return _first(args, checked, aliases)


def _is_unresolved(name: str, checked: CheckedClass) -> bool:
    """Tell whether a module-level name is not there when the class is made."""
    symbol = checked.module.names.get(name)
    if symbol is None or symbol.node is None or name in checked.info.names:
        return False
    node = symbol.node
    if name in checked.imported_names:
        return not checked.imported_names[name]
    here = node.fullname == f"{checked.module.fullname}.{name}"
    if checked.is_local or not here or not isinstance(node, (TypeInfo, TypeAlias, Var)):
        return False
    around = checked.info.fullname.startswith(f"{node.fullname}.")
    return around or node.line > checked.cls.line
