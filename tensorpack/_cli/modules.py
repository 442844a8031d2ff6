"""A module as its import has left it, whatever its author has put there.

Nothing here runs code of what it looks at: a lazy object may load a whole library when
it is asked for its class, or raise, and so may a metaclass when it is asked for a name.
"""

import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from tensorpack._rules.markers import PLAN

__all__ = [
    "contents",
    "is_class",
    "is_payload",
    "module_of",
    "modules_inside",
    "mro_of",
    "payloads_inside",
    "plan_of",
    "qualname_of",
    "root",
]

_STATIC: dict[str, Any] = dict(vars(type))


def contents(module: object) -> dict[str, object]:
    """Copy the names of a module, or of what has taken its place."""
    try:
        return dict(object.__getattribute__(module, "__dict__"))
    except AttributeError:
        return {}


def is_class(value: object) -> TypeGuard[type]:
    """Tell whether a value is a class, and not whether it says so."""
    return issubclass(type(value), type)


def is_payload(value: object) -> TypeGuard[type]:
    """Tell whether a value is a payload class."""
    return is_class(value) and PLAN in _names_of(value)


def plan_of(cls: type) -> Any:
    """Give the plan of a payload class."""
    return _names_of(cls)[PLAN]


def module_of(cls: type) -> str:
    """Name the module of a class; "" if somebody has taken the name away."""
    name = _names_of(cls).get("__module__")
    return name if type(name) is str else ""


def mro_of(cls: type) -> tuple[type, ...]:
    """Give a class and its bases in their order."""
    found: tuple[type, ...] = _STATIC["__mro__"].__get__(cls)
    return found


def payloads_inside(cls: type) -> Iterator[type]:
    """Iterate a class, if it is a payload, and the payloads defined in its body."""
    if is_payload(cls):
        yield cls
    for name, value in _names_of(cls).items():
        if is_class(value) and qualname_of(value) == f"{qualname_of(cls)}.{name}":
            yield from payloads_inside(value)


def _names_of(cls: type) -> dict[str, object]:
    return dict(_STATIC["__dict__"].__get__(cls))


def qualname_of(cls: type) -> str:
    """Name a class as its definition does."""
    return str(_STATIC["__qualname__"].__get__(cls))


def modules_inside(module: object) -> Iterator[str]:
    """Iterate the names of the modules in a package, in their order.

    A folder without an `__init__` is a package too, if a module is inside. A
    `__main__` is left out: it is a program, and its import would run it.
    """
    paths: Any = contents(module).get("__path__")
    if type(paths) is str or not hasattr(type(paths), "__iter__"):
        return
    found = list(map(str, paths))
    names = {inside.name for inside in pkgutil.iter_modules(found)}
    for folder in (folder for path in found for folder in _folders(path)):
        if _leads_back(folder):
            names.discard(folder.name)
        elif _holds_some(folder):
            names.add(folder.name)
    yield from sorted(names - {"__main__"})


def _folders(path: str) -> list[Path]:
    """List the folders in a folder whose names an import can say."""
    try:
        inside = [found for found in Path(path).iterdir() if found.is_dir()]
    except OSError:
        return []  # no folder but an archive, or closed to us
    return [folder for folder in inside if folder.name.isidentifier()]


def _leads_back(folder: Path) -> bool:
    """Tell whether a folder is a link to one that it is in, so that it has no end."""
    return os.path.realpath(folder) in map(os.path.realpath, folder.parents)


def _holds_some(folder: Path) -> bool:
    """Tell whether a module is in a folder, or further inside."""
    if next(pkgutil.iter_modules([str(folder)]), None) is not None:
        return True
    inside = _folders(str(folder))
    return any(_holds_some(each) for each in inside if not _leads_back(each))


def root(module_name: str) -> str:
    """Name the outermost package of a module."""
    return module_name.partition(".")[0]
