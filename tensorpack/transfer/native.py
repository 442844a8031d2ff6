"""The compiled core of a transfer: built on request, loaded where it is there and fits.

# Note [the compiled core]
It does what `packing` does for plain leaves, without a layout that has to be known
before. It is one C++ file without CUDA code. Only `python -m tensorpack native` builds
it, into a cache whose names tell the versions it was built for; a `CopyStream` takes it
from there, or goes on in Python without a word. Nothing is right only with it.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

__all__ = [
    "NAME",
    "SWITCH",
    "BuildError",
    "Core",
    "Native",
    "build",
    "load",
    "location",
    "status",
]

NAME = "tensorpack_native"
SWITCH = "TENSORPACK_NATIVE"
"""The environment variable that switches the compiled core off, with the value 0."""
SOURCE = Path(__file__).parent / "_native" / "core.cpp"

ODD, TWICE, UNSEEN = 1, 2, 4
"""What is among leaves: one that is not plain host memory; an object that stands twice;
or not known, since a mode is active that wants to see each operation."""
LEFT_TO_PYTHON = TWICE | UNSEEN

Moved = tuple[list[Any], list[Tensor], list[Tensor], list[int], torch.Event | None]


class Core(Protocol):
    """What the compiled core offers for one copy stream."""

    def look(self, leaves: list[Any], /) -> int:
        """Return what is among leaves: the flags above, or 0."""

    def move(self, leaves: list[Any], sources: list[Any], /) -> Moved | None:
        """Queue the copies of plain leaves on the copy stream, and an event behind.

        Args:
            leaves: leaves of any kind, none of them twice.
            sources: takes what the device reads where it is.

        Returns:
            The new leaves (None where a leaf is left), the pinned rows, the new blocks
            of device memory, the indexes of the leaves that are left, and the event.
            None if the copy stream captures a graph; nothing was queued then.
        """


class Native(Protocol):
    """The compiled module."""

    def Core(  # noqa: N802, PLR0917  # a class, and C takes all by position
        self,
        device: torch.device,
        below: int,
        pack: bool,
        stream: int,
        take: Callable[[int], Tensor],
        event: type[torch.Event] | None,
        capturing: Callable[[], bool] | None,
        /,
    ) -> Core:
        """Make the core of one copy stream."""


class BuildError(RuntimeError):
    """The core cannot be built; the message is one line."""


def location() -> Path:
    """Return the file of the core that fits this Python, this torch and this source."""
    parts = (
        torch.__version__,
        sys.implementation.cache_tag,
        platform.machine(),
        sysconfig.get_config_var("EXT_SUFFIX"),
        hashlib.sha256(SOURCE.read_bytes()).hexdigest(),
    )
    key = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{key}"
    return Path(cache) / "tensorpack" / name / f"{NAME}.so"


def _is_switched_off() -> bool:
    return os.environ.get(SWITCH) == "0"


def status() -> str:
    """Return one sentence: which core is used, and why."""
    if _is_switched_off():
        return f"Plain Python: {SWITCH}=0 switches the compiled core off."
    if load() is not None:
        return f"The compiled core: {location()}"
    if location().exists():
        return f"Plain Python: {location()} could not be loaded."
    return "Plain Python: the core is not built. Run `python -m tensorpack native`."


def load() -> Native | None:
    """Return the compiled core, or None where it is not there or switched off.

    A file that is there and cannot be loaded is warned of, once.
    """
    return None if _is_switched_off() else _load(location())


@functools.lru_cache(maxsize=8)
def _load(path: Path) -> Native | None:
    """Load the core from a file."""
    # Its memory is guarded by the GIL, which its import would switch on for all.
    if not path.is_file() or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        return _import(path)
    except (ImportError, OSError) as error:
        msg = (
            f"the compiled core was not loaded, plain Python does its work: {error}. "
            f"Delete {path}, or run `python -m tensorpack native` again."
        )
        warnings.warn(msg, RuntimeWarning, stacklevel=2)
        return None


def _import(path: Path) -> Native:
    """Import the core from a file, without a name in `sys.modules`."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None  # noqa: S101  # a loader was given
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return cast("Native", module)


def build(*, verbose: bool = False) -> Path:
    """Build the core, and return its file; half a minute.

    Raises:
        BuildError: something that it takes is missing, or the compiler has failed.
    """
    # Torch asks for `ninja` by name: one beside this Python may be in no path.
    scripts = sysconfig.get_path("scripts")
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), scripts])
    for problem in _missing():
        raise BuildError(problem)
    try:
        from torch.utils import cpp_extension  # noqa: PLC0415  # it takes a second
    except ImportError as error:
        msg = f"torch's builder cannot be imported: {error}. Install `setuptools`."
        raise BuildError(msg) from error

    path = location()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        try:
            cpp_extension.load(
                NAME,
                [str(SOURCE)],
                build_directory=folder,
                extra_cflags=["-O2"],
                with_cuda=False,
                verbose=verbose,
            )
        except (RuntimeError, OSError, ImportError) as error:
            raise BuildError(_first_error(error)) from error
        # At once, so that another process finds the whole file or none.
        (Path(folder) / f"{NAME}.so").replace(path)
    _load.cache_clear()
    return path


def _missing() -> Iterator[str]:
    """Yield what a build needs and this machine lacks, with the remedy."""
    if os.name != "posix":
        yield "The core is built on Linux and macOS only."
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        yield f"There is no C++ compiler `{compiler}`. Install g++, or set CXX."
    if shutil.which("ninja") is None:
        yield "There is no `ninja`. Run `pip install ninja`."
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.is_file():
        yield f"There is no {headers}. Install the headers of this Python."


def _first_error(error: BaseException) -> str:
    """Return the line of a failed build that says what went wrong."""
    lines = str(error).splitlines() or [type(error).__name__]
    found = next((line for line in lines if "error:" in line), lines[0])
    return f"The build failed: {found.strip()}"
