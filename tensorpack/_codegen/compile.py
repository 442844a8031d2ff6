"""Text -> functions, with a file name that tracebacks and `inspect` can read."""

import collections
import linecache
import threading
import types
import weakref
from collections.abc import Mapping

__all__ = ["compile_functions"]


def compile_functions(
    text: str,
    names: Mapping[str, object],
    module: str,
    qualname: str,
    title: str = "generated",
    *,
    owner: object = None,
) -> dict[str, types.FunctionType]:
    """Compile the functions of a source text.

    Args:
        text: the source.
        names: the objects its global names stand for.
        module: name of the module of the class it belongs to.
        qualname: the class's qualified name.
        title: what the text is, for the file name.
        owner: what the functions live as long as; None for as long as the process.

    Returns:
        The functions by name, each with the class's module and qualified name.
    """
    file = _file(text, f"tensorpack {title} {module}.{qualname}")
    if owner is not None:
        weakref.finalize(owner, _leave, file).atexit = False
    scope = dict(names)
    exec(compile(text, file, "exec"), scope)
    found = {n: f for n, f in scope.items() if isinstance(f, types.FunctionType)}
    own = {n: f for n, f in found.items() if f.__code__.co_filename == file}
    for name, function in own.items():
        function.__module__ = module
        function.__qualname__ = f"{qualname}.{name}"
    return own


_lock = threading.RLock()  # a class may be collected while another is compiled
_users: collections.Counter[str] = collections.Counter()


def _file(text: str, title: str) -> str:
    """Enter a text into the line cache: the same text under the same name."""
    lines = text.splitlines(keepends=True)
    title = title.encode("ascii", "backslashreplace").decode().replace("\0", r"\0")
    file, number = f"<{title}>", 1
    with _lock:
        while True:
            entry = (len(text), None, lines, file)
            if linecache.cache.setdefault(file, entry) == entry:
                _users[file] += 1
                return file
            number += 1
            file = f"<{title}-{number}>"


def _leave(file: str) -> None:
    """Take a text out of the line cache when the last class with it is gone."""
    with _lock:
        _users[file] -= 1
        if not _users[file]:
            del _users[file]
            linecache.cache.pop(file, None)
