"""A module as its import has left it, and the classes in it.

Nothing here runs code of what it looks at: a lazy object may load a whole library when
it is asked for its class, and a metaclass may raise when it is asked for a name.
"""

import importlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from tensorpack._rules.markers import PLAN
from tensorpack.errors import TensorpackError

__all__ = [
    "ImportFailure",
    "classes_in",
    "contents",
    "import_module",
    "is_class",
    "is_payload",
    "modules_inside",
    "names_of",
]


class ImportFailure(Exception):  # noqa: N818  # a result, which is told and not raised on
    """A module cannot be imported, and not because of a refusal."""


def import_module(name: str) -> object:
    """Import a module.

    Raises:
        TensorpackError: a refusal or a use of a payload stopped the import.
        ImportFailure: anything else did, `sys.exit` and syntax errors included.
    """
    try:
        module = importlib.import_module(name)
        getattr(module, "__dict__", None)  # one that loads lazily runs now
    except (TensorpackError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ImportFailure(_why_not(name, error)) from error
    return module


def _why_not(name: str, error: BaseException) -> str:
    """Return why a module cannot be imported, on one line."""
    text = " ".join(_text(error).split())
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or not text.startswith(f"No module named {missing!r}"):
        kind = type(error).__name__
        return f"{kind}: {text}" if text else kind
    if f"{name}.".startswith(f"{missing}."):
        return f"there is no module `{missing}`"
    return f"it needs `{missing}`, which cannot be found"


def _text(error: BaseException) -> str:
    """Return the text of any error; making it may raise, too."""
    try:
        return str(error)
    except Exception as cause:  # noqa: BLE001  # the text of an error is user code
        return f"its text cannot be made ({type(cause).__name__})"


def contents(module: object) -> dict[str, object]:
    """Return the names of a module, or of what has taken its place."""
    try:
        return dict(object.__getattribute__(module, "__dict__"))
    except AttributeError:
        return {}


def is_class(value: object) -> TypeGuard[type]:
    """Return whether a value is a class, whatever its `__class__` says."""
    return issubclass(type(value), type)


def names_of(cls: type) -> dict[str, Any]:
    """Return the names in the body of a class, past its metaclass."""
    return dict(type.__getattribute__(cls, "__dict__"))


def is_payload(value: object) -> TypeGuard[type]:
    """Return whether a value is a payload class."""
    return is_class(value) and PLAN in names_of(value)


def classes_in(name: str, module: object) -> Iterator[type]:
    """Yield the classes that a module defines, and the payloads it adopts.

    Args:
        name: the name that the module was imported by.
        module: the module.
    """
    values = contents(module)
    called = values.get("__name__")
    own = {name, called if type(called) is str else name}
    for value in values.values():
        if not is_class(value):
            continue
        home = names_of(value).get("__module__")
        if type(home) is not str or home in own:
            yield from _nested(value)
        elif is_payload(value) and home.partition(".")[0] != name.partition(".")[0]:
            yield value


def _nested(cls: type) -> Iterator[type]:
    """Yield a class and the classes in its body."""
    yield cls
    inside = f"{type.__getattribute__(cls, '__qualname__')}."
    for name, value in names_of(cls).items():
        if is_class(value):
            found = type.__getattribute__(value, "__qualname__")
            if found == f"{inside}{name}":
                yield from _nested(value)


def modules_inside(module: object) -> list[str]:
    """Return the names of all modules below a package, relative to it, sorted.

    A folder without an `__init__` counts as a package. A `__main__` is left out: it
    is a program, and its import would run it.
    """
    paths: Any = contents(module).get("__path__")
    if type(paths) is str or not hasattr(type(paths), "__iter__"):
        return []
    found: set[str] = set()
    for top in map(Path, map(str, paths)):
        for folder, inside, files in os.walk(top):
            inside[:] = filter(str.isidentifier, inside)
            parents = Path(folder).relative_to(top).parts
            for name in filter(None, map(inspect.getmodulename, files)):
                found.add(".".join((*parents, name)).removesuffix(".__init__"))
    return sorted(n for n in found - {"__init__"} if n.split(".")[-1] != "__main__")
