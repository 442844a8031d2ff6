"""`python -m tensorpack bench`: what moving and recording costs the host, per step."""

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch

from tensorpack import CopyStream
from tensorpack._cli.arguments import open_device, positive
from tensorpack._cli.bench.against import check_checkout, compare
from tensorpack._cli.bench.payloads import SHAPES, Shape, make_case
from tensorpack._cli.bench.summary import Measured, draw, print_summary
from tensorpack._cli.bench.timing import measure
from tensorpack._cli.bench.ways import HAND_WRITTEN, Way, ways_of
from tensorpack._cli.bench.work import WORK
from tensorpack._cli.tables import print_table
from tensorpack.transfer.native import status

__all__ = ["add_arguments", "run"]

_GROWTH = (8, 16, 24, 48, 96, 192)
_MANY = 100
"""Leaves from which a quarter of the rounds has to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bench`."""
    parser.add_argument(
        "--rounds", type=positive, default=1000, help="rounds of each way"
    )
    parser.add_argument("--device", help="where to (default: the accelerator)")
    parser.add_argument("--quick", action="store_true", help="the first payload only")
    parser.add_argument(
        "--details", action="store_true", help="print every way, in microseconds"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help="measure `start` of this checkout and of another one, and nothing else",
    )
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--plot", type=Path, help="draw the summary into a PNG file")


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, and write what was asked for."""
    try:
        device = _device(args.device)
        if args.against is not None:
            check_checkout(args.against)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(_machine(device), status(), sep="\n", end="\n\n")
    shapes = dict(list(SHAPES.items())[: 1 if args.quick else None])
    modes = list(_modes(device))
    if args.against is not None:
        both = compare(args.against, shapes, modes, device, args.rounds)
        _write(args.json, {"against": both})
        return 0
    measured: list[Measured] = []
    lives: dict[str, dict[str, float]] = {}
    # More than a burst: how long the device copies is not what the host pays.
    with CopyStream(device, max_in_flight=64) as copies:
        copies.warm(64 << 20)
        hosted = device.type in ("cpu", "meta")
        consumer = None if hosted else torch.Stream(device)
        bench = _Bench(device, copies, consumer, args.rounds)
        tables = [
            table
            for name, rows in shapes.items()
            for pinned, mode in modes
            for table in bench.tables(name, rows, pinned=pinned, mode=mode)
        ]
        growth = {} if args.quick else bench.growth()
    for table in tables:
        lives[table.title] = table.figures
        if table.measured is not None:
            measured.append(table.measured)
    print_summary(measured)
    if args.details:
        for table in tables:
            _print(table)
    if growth:
        _print_growth(growth)
    _write(args.json, {"lives": lives, "growth": growth})
    if args.plot is not None:
        draw(measured, growth, args.plot)
    return 0


def _write(path: Path | None, figures: object) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=1))


def _device(name: str | None) -> torch.device:
    """Choose the accelerator; without one, moving to `meta` shows the host's part."""
    if name is not None:
        return open_device(name) if name != "meta" else torch.device(name)
    found = torch.accelerator.current_accelerator()
    if found is None or found.type == "mps" or not torch.accelerator.is_available():
        return torch.device("meta")
    return torch.device(found.type, 0)


def _machine(device: torch.device) -> str:
    """Name the device and the versions; say what means nothing without a device."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}; {versions}"
    if device.type not in ("cpu", "meta"):
        return f"{device}; {versions}"
    return (
        f"no accelerator: host-side costs only, moving to `{device}`; {versions}\n"
        "Nothing is packed, queued or recorded here, so the ratios of `start` and of "
        "the floor mean nothing;\nthose of `to_device` (--details) show what the "
        "traversal costs."
    )


def _modes(device: torch.device) -> Iterator[tuple[bool, str]]:
    """List the sources and states that are measured."""
    if device.type in ("cpu", "meta"):
        yield False, "warm"
        return
    for pinned in (False, True):
        for mode in WORK:
            yield pinned, mode


@attrs.frozen
class _Table:
    """The figures of the ways that were measured side by side."""

    title: str
    figures: dict[str, float]
    missing: list[str]
    measured: Measured | None


@attrs.frozen
class _Bench:
    """One run: the device, its copy stream, and how often each way is measured."""

    device: torch.device
    copies: CopyStream
    consumer: torch.Stream | None
    rounds: int

    def tables(
        self, name: str, rows: list[Shape], *, pinned: bool, mode: str
    ) -> Iterator[_Table]:
        """Measure every way for one payload, source and state."""
        source = "pinned" if pinned else "pageable"
        title = f"{name}, {source}, {mode}"
        beside, alone = self._ways(name, rows, pinned=pinned)
        figures = self._measure(beside, len(rows), mode)
        measured = Measured(name, source, mode, figures)
        yield _Table(title, figures, _missing(beside), measured)
        figures = self._measure(alone, len(rows), mode)
        title = (
            f"{title}, in rounds without the other ways, whose caches they would fill"
        )
        yield _Table(title, figures, _missing(alone), None)

    def _ways(
        self, name: str, rows: list[Shape], *, pinned: bool
    ) -> tuple[list[Way], list[Way]]:
        case = make_case(name, rows, pinned=pinned)
        return ways_of(case, self.device, self.consumer, self.copies)

    def _measure(self, ways: list[Way], leaves: int, mode: str) -> dict[str, float]:
        rounds = max(self.rounds // (4 if leaves >= _MANY else 1), 1)
        before = WORK[mode](self.device, self.consumer)
        return measure(ways, self.device, rounds, before=before)

    def growth(self) -> dict[str, dict[str, float]]:
        """Measure how the cost grows with the number of leaves of 1 KB."""
        found = {}
        for count in _GROWTH:
            rows: list[Shape] = [((256,), torch.float32)] * count
            ways, _ = self._ways(str(count), rows, pinned=False)
            found[str(count)] = self._measure(ways, _MANY, "warm")
        return found


def _missing(ways: list[Way]) -> list[str]:
    return [way.name for way in ways if way.life is None]


def _print(table: _Table) -> None:
    """Print one table: medians, and ratios against the hand-written loop."""
    base = table.figures[HAND_WRITTEN]
    rows = [(n, f"{us:.1f}", f"{us / base:.2f}") for n, us in table.figures.items()]
    rows += [(name, "not installed", "") for name in table.missing]
    print_table(table.title, ("way", "us, median", "ratio"), rows)


def _slope(growth: dict[str, dict[str, float]], name: str) -> float:
    """Return the cost of one leaf more, between the smallest and the largest count."""
    first, last = str(_GROWTH[0]), str(_GROWTH[-1])
    return (growth[last][name] - growth[first][name]) / (_GROWTH[-1] - _GROWTH[0])


def _print_growth(growth: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(growth.values())))
    rows = [
        (
            name,
            *(f"{growth[count][name]:.0f}" for count in growth),
            f"{_slope(growth, name):.2f}",
        )
        for name in names
    ]
    columns = ("us for leaves of 1 KB:", *growth, "each more")
    print_table("Growth with the number of leaves", columns, rows)
