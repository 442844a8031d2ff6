"""Host time of transfers while the copy stream sleeps, and of waits that sleep.

    python tests/bench/bench_asleep.py

The copy stream is held for 200 ms by a kernel that only waits; then `start` and `wait`
of three pageable leaves of 16 MB are timed, with the staging memory of a new
`CopyStream` and once more. The host should not wait: 60 ms are for fresh pinned memory,
5 for copying. Then the same for a small payload. Last, what a sleeping wait of the host
costs: `result()` of a fetch behind kernels of some length, against
`torch.cuda.synchronize`.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from tensorpack import CopyStream

CYCLES_PER_MS = 2_000_000
DEVICE = torch.device("cuda", 0)
FIRST_MS, SECOND_MS = 60, 5


def hold(stream: torch.Stream, ms: float) -> None:
    """Keep a stream busy for some milliseconds."""
    with stream:
        torch.cuda._sleep(int(ms * CYCLES_PER_MS))


def ms(call: Callable[[], Any]) -> float:
    """Return the host time of a call in milliseconds."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def asleep(copies: CopyStream, source: Any, forward: torch.Stream) -> float:
    """Time one transfer behind a copy stream that sleeps."""
    torch.cuda.synchronize()
    assert copies.stream is not None
    hold(copies.stream, 200)
    spent = ms(lambda: copies.start(source).take(forward))
    torch.cuda.synchronize()
    return spent


def waits(
    copies: CopyStream, length: float, forward: torch.Stream
) -> tuple[float, ...]:
    """Return milliseconds of `result` and of torch's wait, and of CPU for each."""
    there = torch.ones(64, device=DEVICE)
    found: list[list[float]] = [[], [], [], []]
    for _ in range(20):
        for number, wait in enumerate((copies.fetch, None)):
            torch.cuda.synchronize()
            hold(forward, length)
            fetched = copies.fetch(there, after=forward)
            used = resource.getrusage(resource.RUSAGE_THREAD).ru_utime
            spent = ms(fetched.result if wait else torch.cuda.synchronize)
            used = resource.getrusage(resource.RUSAGE_THREAD).ru_utime - used
            found[number].append(spent)
            found[2 + number].append(used * 1e3)
    return tuple(map(statistics.median, found))


def main() -> None:
    """Print the figures; the exit code says whether they are as they should be."""
    forward = torch.Stream(DEVICE)
    hold(forward, 1)  # loads the kernel
    large = [torch.ones(4 << 20) for _ in range(3)]
    small = [torch.ones(64) for _ in range(24)]
    copies = CopyStream(DEVICE)
    print(copies)
    first = asleep(copies, large, forward)
    later = [asleep(copies, large, forward) for _ in range(5)]
    print(f"3 x 16 MB: first {first:.1f} ms, then {later[0]:.1f}; median of five")
    print(f"{statistics.median(later):.1f} ms; {copies.counters}")
    copies.start(small).take(forward)
    short = statistics.median(asleep(copies, small, forward) for _ in range(5))
    print(f"24 small leaves: {short:.2f} ms")
    for length in (0.05, 0.5, 5.0, 50.0):
        ours, theirs, used, spun = waits(copies, length, forward)
        print(
            f"host waits for {length} ms: result {ours:.3f} ms, {used:.3f} of them on "
            f"the CPU; torch's own {theirs:.3f}, {spun:.3f}"
        )
    sys.exit(int(first >= FIRST_MS or later[0] >= SECOND_MS))


if __name__ == "__main__":
    main()
