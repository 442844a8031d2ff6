"""Host time of each way, all ways in one run, their rounds interleaved."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from tensorpack._cli.bench.ways import Way

__all__ = ["measure"]

_BURST = 8
_SETTLE = 3


def measure(
    ways: Sequence[Way],
    device: torch.device,
    rounds: int,
    *,
    before: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Return each way's median host time in microseconds: move, record and free.

    In each round every way, in random order, lives a burst of lives of which the first
    are not counted: the allocator frees recorded blocks when it is asked for the next
    one, so they pay for the way before.

    Args:
        ways: the ways; those without a life are left out.
        device: synchronized between bursts, outside the measured time.
        rounds: how many lives of each way are counted, at least.
        before: done before each life, outside the measured time.
    """
    lives = {way.name: way.life for way in ways if way.life is not None}
    times: dict[str, list[float]] = {name: [] for name in lives}
    order = list(lives)
    shuffle = random.Random(0).shuffle  # noqa: S311  # the order of rounds is no secret
    collected = gc.isenabled()
    gc.disable()
    for _ in range(-(-rounds // (_BURST - _SETTLE))):
        shuffle(order)
        for name in order:
            _synchronize(device)
            for number in range(_BURST):
                if before is not None:
                    before()
                start = time.perf_counter_ns()
                value = lives[name]()
                del value
                spent = (time.perf_counter_ns() - start) / 1000
                if number >= _SETTLE:
                    times[name].append(spent)
        gc.collect(0)
    if collected:
        gc.enable()
    _synchronize(device)
    return {name: statistics.median(found) for name, found in times.items()}


def _synchronize(device: torch.device) -> None:
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)
