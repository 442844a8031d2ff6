"""`python -m tensorpack guard script.py args...`: run a program under the guard."""

import argparse
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tensorpack.errors import GuardError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="run a module by its name, as `python -m` does",
    )
    parser.add_argument("script", help="the program; its path, or its name with -m")
    parser.add_argument(
        "args", nargs=argparse.REMAINDER, help="what the program gets as its arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Run the program; return 1 if it has hazards, else its own exit code."""
    from tensorpack.guard import lifetime_guard  # noqa: PLC0415 - it imports torch

    if not args.module and not Path(args.script).is_file():
        sys.stderr.write(f"`{args.script}`: no such file. Name a script to run.\n")
        return 2
    try:
        with lifetime_guard(mode="collect") as report:
            code = _run(args.script, args.args, module=args.module)
    except GuardError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not len(report):
        return code
    found = len(report)
    sys.stderr.write(f"{report}\n\n{found} hazard{'s' if found > 1 else ''} found.\n")
    return 1


def _run(script: str, args: Sequence[str], *, module: bool) -> int:
    """Run a program as `python` would; return its exit code."""
    where = os.curdir if module else str(Path(script).parent)
    with _arguments([script, *args], where):
        try:
            if module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            return _code_of(stop)
    return 0


def _code_of(stop: SystemExit) -> int:
    """Return the exit code that a program has asked for; write what it said."""
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    sys.stderr.write(f"{stop.code}\n")
    return 1


@contextmanager
def _arguments(argv: Sequence[str], where: str) -> Iterator[None]:
    """Let the program find its arguments, and the modules beside it."""
    before, sys.argv = sys.argv, list(argv)
    sys.path.insert(0, where)
    try:
        yield
    finally:
        sys.argv = before
        if where in sys.path:
            sys.path.remove(where)
