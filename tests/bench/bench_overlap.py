"""Throughput of a forward loop with transfers: protected, unprotected, blocking.

    python tests/bench/bench_overlap.py [--steps N] [--trace FILE]

Each step builds a decode payload of 24 small tensors on the host, sends it to the
device, and queues a forward of about one millisecond that reads it. The unprotected
loop is what corrupts: it copies on a copy stream and waits for an event, but records
nothing. Needs an accelerator. `--trace` writes what the device did in a few steps of
the protected loop, for `draw_timeline.py`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tensorpack import CopyStream
from tensorpack._cli.bench.payloads import SHAPES, Case, make_case

DEVICE = torch.device("cuda", 0)
ROUNDS = 5


class Forward:
    """A forward of about one millisecond that reads its inputs."""

    def __init__(self) -> None:
        self.stream = torch.Stream(DEVICE)
        self.weight = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
        self.hidden = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)

    def __call__(self, inputs: Any) -> None:
        with self.stream:
            self.hidden.add_(inputs.field_0.sum())
            for _ in range(5):
                torch.mm(self.hidden, self.weight)


def protected(case: Case, forward: Forward) -> Callable[[], None]:
    """Send with `CopyStream`."""
    copies = CopyStream(DEVICE)

    def step() -> None:
        forward(copies.start(case.payload).take(forward.stream))

    return step


def unprotected(case: Case, forward: Forward) -> Callable[[], None]:
    """Send on a copy stream and wait for an event, as engines did; record nothing."""
    copy_stream = torch.Stream(DEVICE)

    def step() -> None:
        with copy_stream:
            moved = case.by_hand.to_device(DEVICE, non_blocking=True)
            event = torch.Event(DEVICE)
            event.record(copy_stream)
        event.wait(forward.stream)
        forward(moved)

    return step


def blocking(case: Case, forward: Forward) -> Callable[[], None]:
    """Send with blocking copies on the forward stream."""

    def step() -> None:
        with forward.stream:
            moved = case.by_hand.to_device(DEVICE)
        forward(moved)

    return step


def steps_per_second(step: Callable[[], None], steps: int) -> float:
    """Run a loop of steps and synchronize at its end."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - begin)


def trace(step: Callable[[], None], path: Path) -> None:
    """Write the device's activities of a few steps: stream, name, start, duration."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415  # only here

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        steps_per_second(step, 12)
    found.export_chrome_trace(str(path) + ".full")
    events = json.loads(Path(str(path) + ".full").read_text())["traceEvents"]
    Path(str(path) + ".full").unlink()
    kinds = ("kernel", "gpu_memcpy")
    rows = [
        {
            "stream": event["args"]["stream"],
            "kind": event["cat"],
            "name": event["name"][:60],
            "start": event["ts"],
            "duration": event["dur"],
        }
        for event in events
        if event.get("cat") in kinds
    ]
    path.write_text(json.dumps(rows))


def main() -> None:
    """Measure the three loops, rounds interleaved, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--trace", type=Path)
    args = parser.parse_args()
    case = make_case("inputs", SHAPES["24 small decode tensors"], pinned=False)
    forward = Forward()
    loops = {f.__name__: f(case, forward) for f in (protected, unprotected, blocking)}
    for step in loops.values():
        steps_per_second(step, 20)
    found: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, step in loops.items():
            found[name].append(steps_per_second(step, args.steps))
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}")
    base = statistics.median(found["unprotected"])
    for name, rates in found.items():
        rate = statistics.median(rates)
        print(f"{name:12s} {rate:8.1f} steps/s   {rate / base:.3f} of unprotected")
    if args.trace is not None:
        trace(loops["protected"], args.trace)


if __name__ == "__main__":
    main()
