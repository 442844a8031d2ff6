"""A step into static memory, through a fresh pack, and by a loop of `copy_`.

    python tests/bench/bench_static.py

The life of 24 small leaves (start, wait, and what the next start waits for), in
microseconds of the host, and as parts of the two others. Needs an accelerator. The
ways take turns; batches have 96 to 128 rows, and the bucket 128.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor

from tensorpack import Axis, CopyStream, payload
from tensorpack.axes import empty_like

DEVICE = torch.device("cuda", 0)
DTYPES = (torch.int64, torch.int32, torch.float32)
LEAVES = 24
BUCKET = 128
NAMES = [f"f{i}" for i in range(LEAVES)]


def made_class() -> Any:
    """Make a class of 24 leaves along one axis."""
    fields = {name: Annotated[Tensor, Axis("requests", pad=0)] for name in NAMES}
    return payload(type("Step", (), {"__annotations__": fields}))


Step = made_class()


def batch(count: int) -> Any:
    """Make a batch on the host."""
    rows = [torch.arange(count).to(DTYPES[i % 3]) for i in range(LEAVES)]
    return Step(*rows)


def by_hand(step: Any, static: Any, pinned: Any) -> None:
    """Pad each field in pinned memory, and copy it."""
    for name in NAMES:
        leaf, row = getattr(step, name), getattr(pinned, name)
        count = len(leaf)
        row[:count].copy_(leaf)
        row[count:BUCKET].fill_(0)
        getattr(static, name)[:BUCKET].copy_(row[:BUCKET], non_blocking=True)


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    args = parser.parse_args()
    batches = [batch(96 + i % 33) for i in range(33)]
    copies, fresh = CopyStream(DEVICE), CopyStream(DEVICE)
    static = empty_like(batches[0], device=DEVICE, requests=256)
    other = empty_like(batches[0], device=DEVICE, requests=256)
    pinned = empty_like(batches[0], device="cpu", pinned=True, requests=256)
    consumer, side = torch.Stream(DEVICE), torch.cuda.Stream(DEVICE)

    def into(step: Any) -> None:
        sizes = {"requests": BUCKET}
        copies.start(step, into=static, sizes=sizes).take(consumer)

    def pack(step: Any) -> None:
        fresh.start(step).take(consumer)

    def loop(step: Any) -> None:
        # The pinned rows are filled again only after the copies that read them; the
        # host waits for that outside of the measured time.
        with torch.cuda.stream(side):
            by_hand(step, other, pinned)
        event = torch.cuda.Event()
        event.record(side)
        event.wait(consumer)

    ways: dict[str, Callable[[Any], None]] = {"into": into, "pack": pack, "loop": loop}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(args.rounds):
        for name, way in ways.items():
            step = batches[number % len(batches)]
            torch.cuda.synchronize()
            start = time.perf_counter()
            way(step)
            found[name].append((time.perf_counter() - start) * 1e6)
    medians = {n: statistics.median(t[args.rounds // 4 :]) for n, t in found.items()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__},")
    print(f"Python {platform.python_version()}, {args.rounds} rounds; medians")
    for name, median in medians.items():
        print(f"{name:>5} {median:8.1f} us")
    print(f"into / pack {medians['into'] / medians['pack']:.2f} (at most 0.80)")
    print(f"into / loop {medians['into'] / medians['loop']:.2f} (at most 0.30)")


if __name__ == "__main__":
    main()
