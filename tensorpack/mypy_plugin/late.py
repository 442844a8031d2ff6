"""The names in an annotation: which nobody knows yet, and which are aliases.

A type checker reads the whole module before it looks at a class, the run time does not:
an import under `TYPE_CHECKING` never happens, and a class further down is not there.
"""

from collections.abc import Iterable

from mypy.nodes import TypeAlias, TypeInfo, Var
from mypy.types import Type, TypeList, UnboundType, UnionType, UnpackType

from tensorpack.mypy_plugin.markers import marker_among
from tensorpack.mypy_plugin.names import ALIASES, Marker
from tensorpack.mypy_plugin.scene import Scene

__all__ = ["late_name"]

_FREE = {a for a, marker in ALIASES.items() if marker is not Marker.DERIVED}
_ANNOTATED = ("typing.Annotated", "typing_extensions.Annotated")
_LITERAL = ("typing.Literal", "typing_extensions.Literal")


def late_name(written: Type, scene: Scene, aliases: list[TypeAlias]) -> str | None:
    """Give the first name in an annotation that the run time cannot resolve.

    What stands inside a marker does not matter there, except inside `Derived`.

    Args:
        written: the annotation.
        scene: where it stands.
        aliases: takes the aliases that the annotation names, markers left out.
    """
    if isinstance(written, UnboundType):
        if written.name in scene.plain:
            return _first(written.args, scene, aliases)
        return _late_in(written, scene, aliases)
    if isinstance(written, (UnionType, TypeList)):
        return _first(written.items, scene, aliases)
    if isinstance(written, UnpackType):
        return late_name(written.type, scene, aliases)
    return None


def _first(types: Iterable[Type], scene: Scene, aliases: list[TypeAlias]) -> str | None:
    """Give the first late name in some annotations."""
    for tp in types:
        name = late_name(tp, scene, aliases)
        if name is not None:
            return name
    return None


def _late_in(
    written: UnboundType, scene: Scene, aliases: list[TypeAlias]
) -> str | None:
    """Give the first late name in `X` or `X[...]`."""
    name, args = written.name, written.args
    symbol = scene.api.lookup_qualified(name, written, suppress_errors=True)
    node = symbol.node if symbol else None
    fullname = node.fullname if node else ""
    if _is_late(name.partition(".")[0], scene):
        return name
    if fullname in _FREE or fullname in _LITERAL:
        return None
    if fullname in _ANNOTATED and args:
        marker = marker_among(args[1:], scene.api)
        free = marker not in (None, Marker.DERIVED)
        return None if free else late_name(args[0], scene, aliases)
    if isinstance(node, TypeAlias) and fullname not in ALIASES:
        aliases.append(node)
    elif isinstance(node, TypeInfo):
        scene.plain.add(name)
    return _first(args, scene, aliases)


def _is_late(name: str, scene: Scene) -> bool:
    """Tell whether a module-level name is not there when the class is made."""
    symbol = scene.module.names.get(name)
    if symbol is None or symbol.node is None or name in scene.info.names:
        return False
    node = symbol.node
    if name in scene.imported_names:
        return not scene.imported_names[name]
    here = node.fullname == f"{scene.module.fullname}.{name}"
    if scene.is_local or not here or not isinstance(node, (TypeInfo, TypeAlias, Var)):
        return False
    around = scene.info.fullname.startswith(f"{node.fullname}.")
    return around or node.line > scene.cls.line
