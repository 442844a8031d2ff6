"""Where in a program something was done: its own frames, and the names it gives.

Frames are kept as code objects and offsets: to find a line costs more than to keep a
frame, and few are ever looked at.
"""

import ast
import functools
import linecache
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import attrs

__all__ = ["NOWHERE", "Place", "here"]

_DEPTH = 4
"""Frames of the program that are kept."""
_SEARCHED = 60
"""Frames that are looked at: a recursion that is deep must not make each call slow."""
_LIBRARIES = frozenset(
    {
        "torch",
        "tensorpack",
        "attr",
        "attrs",
        "asyncio",
        "concurrent",
        "contextlib",
        "functools",
        "importlib",
        "multiprocessing",
        "threading",
        "runpy",
        "weakref",
        "unittest",
        "doctest",
        "pytest",
        "_pytest",
        "pluggy",
        "xdist",
        "execnet",
    }
)
"""Top-level packages whose frames are nobody's program."""


@attrs.frozen
class Place:
    """A point in a program: its frames, the innermost first."""

    frames: tuple[tuple[CodeType, int], ...] = ()

    @property
    def lines(self) -> list[tuple[str, int, str]]:
        """List file, line and function of each frame, the innermost first."""
        return [
            (code.co_filename, line_of(code, offset), code.co_name)
            for code, offset in self.frames
        ]

    def __str__(self) -> str:
        """Name file and line of the innermost frame."""
        if not self.frames:
            return "an unknown place"
        name, line, _ = self.lines[0]
        return f"{_short(name)}:{line}"

    @property
    def codes(self) -> frozenset[CodeType]:
        """Return the functions that were running."""
        return frozenset(code for code, _ in self.frames)

    def is_below(self, codes: frozenset[CodeType]) -> bool:
        """Return whether it is in one of some functions."""
        return bool(self.frames) and self.frames[0][0] in codes

    def describe(self) -> Iterator[str]:
        """Iterate the lines of text about it: place, function and source."""
        for name, line, function in self.lines:
            source = linecache.getline(name, line).strip()
            at = f"{_short(name)}:{line} in {function}"
            yield f"{at:<32}  {source}".rstrip()

    def target(self) -> str:
        """Return the name that the statement gives to what is made here; or ""."""
        if not self.frames:
            return ""
        code, offset = self.frames[0]
        return _target(code, offset)


NOWHERE = Place()


def here(depth: int = _DEPTH) -> Place:
    """Return the place that the calling thread is at: the program's own frames.

    Where no frame is the program's own, the innermost one outside torch stands for it.
    """
    frame: FrameType | None = sys._getframe(1)
    own: list[tuple[CodeType, int]] = []
    other: tuple[tuple[CodeType, int], ...] = ()
    for _ in range(_SEARCHED):
        if frame is None:
            break
        code = frame.f_code
        root = _roots.get(code)
        if root is None:
            root = _roots[code] = _root(frame)
        if root == _OWN:
            own.append((code, frame.f_lasti))
            if len(own) == depth:
                break
        elif root == _OURS and not other:
            other = ((code, frame.f_lasti),)
        frame = frame.f_back
    return Place(tuple(own) or other)


_OWN, _OURS, _THEIRS = range(3)

_roots: dict[CodeType, int] = {}
_HIDDEN = ("tensorpack.guard", "tensorpack.testing")
_PROGRAMS = ("tensorpack._cli.demo", "tensorpack._cli.bench")
"""What is a program of its own in this package."""


def _root(frame: FrameType) -> int:
    """Return to whom a frame belongs."""
    name = str(frame.f_globals.get("__name__", ""))
    if name.startswith(_HIDDEN) or frame.f_code.co_filename.startswith("<frozen"):
        return _THEIRS
    root = name.partition(".")[0]
    if name.startswith(_PROGRAMS):
        return _OWN
    if root == "tensorpack":
        return _OURS
    return _THEIRS if root in _LIBRARIES else _OWN


def line_of(code: CodeType, offset: int) -> int:
    """Return the line that an offset into a code object belongs to."""
    line: int | None = None
    for start, stop, number in code.co_lines():
        if start <= offset < stop:
            line = number
    return code.co_firstlineno if line is None else line


def _short(name: str) -> str:
    """Shorten the path of a file to what is below the working directory."""
    if name.startswith("<"):
        return name
    try:
        return str(Path(name).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return name


_parsing = threading.Lock()


def _target(code: CodeType, offset: int) -> str:
    """Return what the statement around an instruction assigns to, as it is written."""
    spans = list(code.co_positions())
    line, _, column, _ = spans[offset // 2] if offset >= 0 else (None,) * 4
    if line is None or column is None:
        return ""
    with _parsing:
        tree = _tree("".join(linecache.getlines(code.co_filename)))
    if tree is None:
        return ""
    found = ""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            end = node.end_lineno or node.lineno
            if node.lineno <= line <= end:
                targets = (
                    node.targets if isinstance(node, ast.Assign) else [node.target]
                )
                found = _of(targets[0], node.value, line, column) or found
    return found


@functools.lru_cache(32)
def _tree(text: str) -> ast.Module | None:
    """Parse a file; None where it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _of(target: ast.expr, value: ast.expr, line: int, column: int) -> str:
    """Return the name of the part of a target that gets what is called at a column."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return next(filter(None, (_of(t, v, line, column) for t, v in pairs)), "")
    named = isinstance(target, (ast.Name, ast.Attribute))
    at = (value.lineno, value.col_offset)
    if named and isinstance(value, ast.Call) and at == (line, column):
        return ast.unparse(target).removeprefix("self.")
    return ""
