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
from tensorpack._cli.bench.payloads import SHAPES, Shape, make_case
from tensorpack._cli.bench.timing import measure
from tensorpack._cli.bench.ways import HAND_WRITTEN, Way, ways_of
from tensorpack._cli.bench.work import WORK
from tensorpack._cli.tables import print_table

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
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--plot", type=Path, help="draw the growth into a PNG file")


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, and write what was asked for."""
    try:
        device = _device(args.device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(_machine(device), end="\n\n")
    shapes = dict(list(SHAPES.items())[: 1 if args.quick else None])
    lives: dict[str, dict[str, float]] = {}
    # More than a burst: how long the device copies is not what the host pays.
    with CopyStream(device, max_in_flight=64) as copies:
        copies.warm(64 << 20)
        hosted = device.type in ("cpu", "meta")
        consumer = None if hosted else torch.Stream(device)
        bench = _Bench(device, copies, consumer, args.rounds)
        for name, rows in shapes.items():
            for pinned, mode in _modes(device):
                lives |= bench.table(name, rows, pinned=pinned, mode=mode)
        growth = {} if args.quick else bench.growth()
    if growth:
        _print_growth(growth)
    if args.json is not None:
        args.json.write_text(json.dumps({"lives": lives, "growth": growth}, indent=1))
    if args.plot is not None and growth:
        _plot(growth, args.plot)
    return 0


def _device(name: str | None) -> torch.device:
    """Choose the accelerator; without one, moving to `meta` shows the host's part."""
    if name is not None:
        return open_device(name) if name != "meta" else torch.device(name)
    found = torch.accelerator.current_accelerator()
    if found is None or found.type == "mps" or not torch.accelerator.is_available():
        return torch.device("meta")
    return torch.device(found.type, 0)


def _machine(device: torch.device) -> str:
    """Name the device and the versions."""
    name = "no accelerator: host-side costs only, moving to `meta`"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return f"{name}; torch {torch.__version__}, Python {platform.python_version()}"


def _modes(device: torch.device) -> Iterator[tuple[bool, str]]:
    """List the sources and states that are measured."""
    if device.type in ("cpu", "meta"):
        yield False, "warm"
        return
    for pinned in (False, True):
        for mode in WORK:
            yield pinned, mode


@attrs.frozen
class _Bench:
    """One run: the device, its copy stream, and how often each way is measured."""

    device: torch.device
    copies: CopyStream
    consumer: torch.Stream | None
    rounds: int

    def table(
        self, name: str, rows: list[Shape], *, pinned: bool, mode: str
    ) -> dict[str, dict[str, float]]:
        """Measure and print every way for one payload, source and state."""
        found: dict[str, dict[str, float]] = {}
        source = "pinned" if pinned else "pageable"
        for ways, apart in zip(
            self._ways(name, rows, pinned=pinned), ("", ", apart"), strict=True
        ):
            title = f"{name}, {source}, {mode}{apart}"
            found[title] = self._measure(ways, len(rows), mode)
            missing = [way.name for way in ways if way.life is None]
            _print(title, found[title], missing)
        return found

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


def _print(title: str, figures: dict[str, float], missing: list[str]) -> None:
    """Print one table: medians, and ratios against the hand-written loop."""
    base = figures[HAND_WRITTEN]
    rows = [(n, f"{us:.1f}", f"{us / base:.2f}") for n, us in figures.items()]
    rows += [(name, "not installed", "") for name in missing]
    print_table(title, ("way", "us, median", "ratio"), rows)


def _slope(growth: dict[str, dict[str, float]], name: str) -> float:
    """Give the cost of one leaf more, between the smallest and the largest count."""
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


def _plot(growth: dict[str, dict[str, float]], path: Path) -> None:
    """Draw the growth, where matplotlib is there."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # optional
    except ImportError:
        print("matplotlib is not installed, so nothing was drawn.")
        return
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="leaves of 1 KB", ylabel="host time, us")
    for name in next(iter(growth.values())):
        axes.plot(
            [int(count) for count in growth],
            [growth[count][name] for count in growth],
            marker="o",
            label=name,
        )
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    print(f"The growth is drawn in {path}.")
