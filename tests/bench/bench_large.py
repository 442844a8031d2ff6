"""Large pageable leaves: through the ring of slots, by `Tensor.to`, and pinned first.

    python tests/bench/bench_large.py

For each size two figures, in milliseconds: how long the host was busy, and how long it
took until the copy was done. Needs an accelerator. The ways take turns in their order.
A pinned block of a size is fresh in the first round only, so the median shows the cached
one, and `--cold` the fresh one.
"""

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable

import torch

from tensorpack import CopyStream

DEVICE = torch.device("cuda", 0)
MEGABYTES = (1, 4, 16, 64, 256, 1024)

Move = Callable[[torch.Tensor], object]


def times(move: Move, source: torch.Tensor) -> tuple[float, float]:
    """Give the milliseconds of the host, and those until the copy is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    kept = move(source)
    host = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    del kept
    return (host - start) * 1e3, (done - start) * 1e3


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cold", action="store_true", help="the first round only")
    args = parser.parse_args()
    consumer = torch.Stream(DEVICE)
    ring, warm = CopyStream(DEVICE), CopyStream(DEVICE)
    if not args.cold:
        warm.warm(MEGABYTES[-1] << 20)
    ways: dict[str, Move] = {
        "to": lambda x: x.to(DEVICE, non_blocking=True),
        "pin, to": lambda x: x.pin_memory().to(DEVICE, non_blocking=True),
        "start": lambda x: ring.start(x).take(consumer),
        "start, warm": lambda x: warm.start(x).take(consumer),
    }
    name = torch.cuda.get_device_name(DEVICE)
    print(f"{name}; torch {torch.__version__}, Python {platform.python_version()}")
    print(f"{'MB':>5}" + "".join(f"{way:>22}" for way in ways) + "   (host / done, ms)")
    for megabytes in MEGABYTES:
        source = torch.ones(megabytes << 18)
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        orders = itertools.cycle(itertools.permutations(ways))
        for _ in range(1 if args.cold else args.rounds):
            for way in next(orders):
                found[way].append(times(ways[way], source))
        medians = [
            tuple(statistics.median(column) for column in zip(*rows, strict=True))
            for rows in found.values()
        ]
        cells = "".join(f"{host:>13.2f} /{done:>7.2f}" for host, done in medians)
        print(f"{megabytes:>5}{cells}", flush=True)


if __name__ == "__main__":
    main()
