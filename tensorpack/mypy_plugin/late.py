"""Names in an annotation that nobody knows yet when the class is made.

A type checker reads the whole module before it looks at a class, the run time does not:
an import under `TYPE_CHECKING` never happens, and a class further down is not there.
"""

from collections.abc import Iterator

from mypy.nodes import (
    ImportFrom,
    MypyFile,
    TypeAlias,
    TypeInfo,
    Var,
)
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
    if node.fullname != f"{scene.module.fullname}.{name}":
        return _is_only_checked(name, scene.module)
    if scene.is_local or not isinstance(node, (TypeInfo, TypeAlias, Var)):
        return False
    around = scene.info.fullname.startswith(f"{node.fullname}.")
    return around or node.line > scene.cls.line


def _is_only_checked(name: str, module: MypyFile) -> bool:
    """Tell whether every import that brings a name stands under `TYPE_CHECKING`.

    An `else` branch is unreachable for mypy, but an import in it happens.
    """
    found = [only for imported, only in _imported(module) if imported == name]
    return bool(found) and all(found)


def _imported(module: MypyFile) -> Iterator[tuple[str, bool]]:
    """Iterate the names that a module imports, and whether only mypy does."""
    for statement in module.imports:
        only = statement.is_mypy_only and not statement.is_unreachable
        names: list[tuple[str, str | None]] = getattr(statement, "names", None) or (
            getattr(statement, "ids", [])
        )
        for name, alias in names:
            whole = isinstance(statement, ImportFrom)
            yield alias or (name if whole else name.partition(".")[0]), only
