"""Names in an annotation that nobody knows yet when the class is made.

A type checker reads the whole module before it looks at a class, the run time does not:
an import under `TYPE_CHECKING` never happens, and a class further down is not there.
"""

from mypy.nodes import TypeAlias, TypeInfo, Var
from mypy.types import Type, TypeList, UnboundType, UnionType, UnpackType

from tensorpack.mypy_plugin.markers import marker_among
from tensorpack.mypy_plugin.names import ALIASES, Marker
from tensorpack.mypy_plugin.scene import Scene

__all__ = ["late_name"]

_FREE = {a for a, marker in ALIASES.items() if marker is not Marker.DERIVED}
_ANNOTATED = ("typing.Annotated", "typing_extensions.Annotated")
_LITERAL = ("typing.Literal", "typing_extensions.Literal")


def late_name(written: Type, scene: Scene) -> str | None:
    """Give the first name in an annotation that the run time cannot resolve.

    What stands inside a marker does not matter there, except inside `Derived`.
    """
    match written:
        case UnionType(items=items) | TypeList(items=items):
            return _first(items, scene)
        case UnpackType(type=inner):
            return late_name(inner, scene)
        case UnboundType(name=name, args=args):
            if name in scene.plain:
                return _first(args, scene) if args else None
            symbol = scene.api.lookup_qualified(name, written, suppress_errors=True)
            fullname = symbol.node.fullname if symbol and symbol.node else ""
            if _is_late(name.partition(".")[0], scene):
                return name
            if fullname in _FREE or fullname in _LITERAL:
                return None
            if fullname in _ANNOTATED and args:
                marker = marker_among(args[1:], scene.api)
                free = marker not in (None, Marker.DERIVED)
                return None if free else late_name(args[0], scene)
            if symbol and isinstance(symbol.node, TypeInfo):
                scene.plain.add(name)
            return _first(args, scene)
        case _:
            return None


def _first(types: "list[Type] | tuple[Type, ...]", scene: Scene) -> str | None:
    """Give the first late name in some annotations."""
    return next(filter(None, (late_name(tp, scene) for tp in types)), None)


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
