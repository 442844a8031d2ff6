"""Two checkouts measured in one run: a process for each, their rounds interleaved."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import tensorpack
from tensorpack._cli.bench.payloads import Shape
from tensorpack._cli.tables import print_table

__all__ = ["check_checkout", "compare"]

_BURST = 5
_MANY = 100
"""Leaves from which a quarter of the rounds has to do."""


def check_checkout(folder: Path) -> None:
    """Raise for a folder that is not a checkout of tensorpack.

    Raises:
        ValueError: there is no package in it.
    """
    if not (folder / "tensorpack" / "__init__.py").is_file():
        msg = f"--against {folder}: there is no `tensorpack/__init__.py` in it"
        raise ValueError(msg)


class _Checkout:
    """The process that measures one checkout."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        script = Path(__file__).with_name("lives.py")
        # Not the folder of the script, where other modules have common names.
        code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
        self.process = subprocess.Popen(  # noqa: S603  # this Python, our own script
            [sys.executable, "-c", code, str(device)],
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, task: Mapping[str, Any]) -> list[float]:
        """Return the microseconds of some lives."""
        assert self.process.stdin is not None  # noqa: S101  # both are pipes
        assert self.process.stdout is not None  # noqa: S101
        print(json.dumps(task), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            msg = "a measuring process has ended; what it said stands above"
            raise RuntimeError(msg)
        found: list[float] = json.loads(answer)
        return found


def compare(
    folder: Path,
    shapes: Mapping[str, Sequence[Shape]],
    modes: Sequence[tuple[bool, str]],
    device: torch.device,
    rounds: int,
) -> dict[str, dict[str, float]]:
    """Measure this checkout and another one, and print both.

    Args:
        folder: the other checkout.
        shapes: the payloads.
        modes: whether the source is pinned, and the state, of each column.
        device: where to.
        rounds: how many lives of each are counted.
    """
    here = Path(tensorpack.__file__).parent.parent
    found: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        pair = {}
        for name, place in {"this": here, "other": folder.resolve()}.items():
            pair[name] = _Checkout(place, device)
            stack.enter_context(pair[name].process)
            assert pair[name].process.stdin is not None  # noqa: S101  # a pipe
        for name, rows in shapes.items():
            count = max(rounds // (4 if len(rows) >= _MANY else 1), 1)
            for pinned, mode in modes:
                title = f"{name}, {'pinned' if pinned else 'pageable'}, {mode}"
                found[title] = _medians(pair, _task(rows, mode, pinned=pinned), count)
    _print(here, folder, found)
    return found


def _task(rows: Sequence[Shape], mode: str, *, pinned: bool) -> dict[str, Any]:
    shapes = [(shape, str(dtype).removeprefix("torch.")) for shape, dtype in rows]
    return {"shapes": shapes, "pinned": pinned, "mode": mode, "rounds": _BURST}


def _medians(
    pair: Mapping[str, _Checkout], task: Mapping[str, Any], rounds: int
) -> dict[str, float]:
    """Let both measure in turns, each first as often as the other."""
    times: dict[str, list[float]] = {name: [] for name in pair}
    for number in range(-(-rounds // _BURST)):
        for name in _in_turn(list(pair), number):
            times[name] += pair[name].measure(task)
    return {name: statistics.median(spent) for name, spent in times.items()}


def _in_turn(names: list[str], number: int) -> Iterator[str]:
    yield from names if number % 2 else reversed(names)


def _print(here: Path, other: Path, found: Mapping[str, Mapping[str, float]]) -> None:
    rows = [
        (
            title,
            f"{us['this']:.1f}",
            f"{us['other']:.1f}",
            f"{us['this'] / us['other']:.2f}",
        )
        for title, us in found.items()
    ]
    print(f"this: {here}\nother: {other}\n")
    columns = ("start and take, us, median", "this", "other", "ratio")
    print_table("Two checkouts, rounds interleaved", columns, rows)
