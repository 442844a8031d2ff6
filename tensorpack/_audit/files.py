"""The files to audit: found, read, decoded and summarized, in processes."""

import ast
import gc
import io
import os
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from tensorpack._audit.modules import Module, summarize

__all__ = ["LARGEST", "Skipped", "find", "read", "read_all"]

LARGEST = 2_000_000
"""Bytes of a file beyond which it is not read: such files are generated."""

_PASSED_OVER = {
    "__pycache__",
    "node_modules",
    "site-packages",
    "build",
    "dist",
    "venv",
}

_FEW = 48
"""Files up to which starting processes costs more than it gives."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that could not be audited.

    Attributes:
        path: where it is.
        reason: why not, in one line.
    """

    path: str
    reason: str


def find(path: Path, skipped: list[Skipped]) -> Iterator[tuple[Path, Path]]:
    """Yield each Python file under a path with the folder that its names start from.

    A link to a folder is not followed, so links in a circle end nothing; hidden
    folders, virtual environments and build outputs are passed over.
    """
    if path.is_file():
        yield path, path.parent
        return

    def note(error: OSError) -> None:
        skipped.append(Skipped(str(error.filename), _reason(error)))

    for folder, inside, names in os.walk(path, onerror=note):
        inside[:] = sorted(
            name
            for name in inside
            if not name.startswith(".")
            and not (
                name in _PASSED_OVER and not Path(folder, name, "__init__.py").exists()
            )
            and not Path(folder, name, "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name), path


def read(path: str) -> str:
    """Return the text of a Python file, decoded as its first lines declare.

    Raises:
        OSError: the file cannot be read.
        SyntaxError: its declared encoding is unknown.
        UnicodeDecodeError: it is not text of its encoding.
    """
    data = Path(path).read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def _reason(error: BaseException) -> str:
    """Say in one line why a file could not be audited."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"not valid Python 3: line {error.lineno}: {error.msg}"
    if isinstance(error, SyntaxError) and "encoding declaration" in str(error):
        return "not utf-8 text, and no encoding is declared"
    if isinstance(error, UnicodeDecodeError):
        return f"not {error.encoding} text: byte {error.start}"
    if isinstance(error, RecursionError | MemoryError):
        return "nested too deeply to be parsed"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"cannot be parsed: {str(error).partition(chr(10))[0]}"


def summary_of(path: str, root: str) -> Module | Skipped:
    """Summarize one file, or say why that cannot be."""
    try:
        size = Path(path).stat().st_size
        if size > LARGEST:
            return Skipped(path, f"larger than {LARGEST:,} bytes: {size:,}")
        text = read(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        return summarize(path, root, text, tree)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Skipped(path, _reason(error))


def _without_collector() -> None:
    """Turn the garbage collector off: syntax trees have no cycles, and are many."""
    gc.disable()


def _summaries_of(batch: list[tuple[str, str]]) -> list[Module | Skipped]:
    return [summary_of(path, root) for path, root in batch]


def read_all(
    paths: Sequence[tuple[Path, Path]],
    *,
    processes: int,
    progress: Callable[[int], None],
) -> Iterator[Module | Skipped]:
    """Yield the summary of each file, in the order of the files.

    Args:
        paths: files, each with the folder that its names start from.
        processes: how many work side by side.
        progress: is told how many files are done.
    """
    work = [(str(path), str(root)) for path, root in paths]
    if processes < 2 or len(work) <= _FEW:  # noqa: PLR2004 - alone
        for done, (path, root) in enumerate(work):
            progress(done)
            yield summary_of(path, root)
        progress(len(work))
        return
    done = 0
    batches = [work[at : at + 32] for at in range(0, len(work), 32)]
    try:
        with ProcessPoolExecutor(processes, initializer=_without_collector) as pool:
            for batch in pool.map(_summaries_of, batches):
                yield from batch
                done += len(batch)
                progress(done)
    except (BrokenProcessPool, OSError):  # no processes here: go on alone
        for path, root in work[done:]:
            progress(done)
            yield summary_of(path, root)
            done += 1
