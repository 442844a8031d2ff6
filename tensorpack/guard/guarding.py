"""The guard: watches a block of any PyTorch program."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch

from tensorpack.errors import GuardError, HazardError
from tensorpack.guard import trace
from tensorpack.guard.dispatch import Dispatch
from tensorpack.guard.patches import patched
from tensorpack.guard.report import Report
from tensorpack.guard.trace import Driver
from tensorpack.guard.watch import CUDA, Watch

__all__ = ["lifetime_guard"]

Mode = Literal["raise", "warn", "collect"]

_one = threading.Lock()


@contextmanager
def lifetime_guard(mode: Mode = "raise") -> Iterator[Report]:
    """Watch for device memory that is used without order or freed too early.

    It finds, with the lines of the program:

    - memory that the allocator hands out again while a stream may still use it: a
      `record_stream` that is missing, or that names the wrong stream;
    - a stream that reads or writes what another has written, or writes what another has
      read, without waiting for it;
    - a host read of what is copied from the device, before that copy is done;
    - pinned host memory that an operator overwrites while a copy from it is under way,
      or that is given back where torch does not own it (shared memory).

    Frees are judged by order, not by luck: a stream that is recorded, waits of the
    stream that the memory was allocated on, and what the host has waited for.

    What it cannot see:

    - kernels that no operator of torch launches, among them those of a region that
      `torch.compile` has compiled: tell them with `report.used`;
    - collectives, which run on streams of their own;
    - operators of threads that ran before the block (those that are started in it, and
      backward passes, are seen);
    - a true answer of `torch.Event.query` or `torch.Stream.query`: those of
      `torch.cuda` are seen, and those that tensorpack asks;
    - host memory that is read or written through a pointer, or an array made before;
    - what a graph does with memory of its own pool during one replay. Allocations of a
      `MemPool` count as if they could get any freed block.

    On a machine without a CUDA device there is nothing to watch, and the block runs as
    it is: `tensorpack.testing.recorded_streams` stands in for a device there.

    Args:
        mode: `"raise"` raises a `HazardError` behind the operator that a hazard was
            found at, or at the end of the block; `"warn"` warns there; `"collect"`
            only collects.

    Yields:
        The report: what was found so far.

    Raises:
        HazardError: a hazard was found, and the mode is `"raise"`.
        GuardError: another guard is watching, or the allocator cannot be watched
            (`cudaMallocAsync` tells nobody what it does).
        ValueError: there is no such mode.

    Streams:
        Queues nothing, and the host does not block.

    >>> from tensorpack.guard import lifetime_guard
    >>> with lifetime_guard(mode="collect") as report:
    ...     total = torch.ones(3).sum()
    >>> report.hazards
    []
    """
    _check_mode(mode)
    _check_allocator()
    if not _one.acquire(blocking=False):
        problem = "another guard is watching this process"
        raise GuardError(problem=problem, remedy="Use the report of that one.")
    try:
        yield from _watched(mode)
    finally:
        _one.release()


def _watched(mode: Mode) -> Iterator[Report]:
    """Watch until the block ends."""
    report = Report(Driver())
    deliver = _Deliverer(mode, report)

    def dispatch() -> Dispatch:
        return Dispatch(report.watch, deliver)

    with ExitStack() as stack:
        stack.enter_context(patched(report.watch, report.names, dispatch))
        trace.listen(report.watch)
        stack.callback(trace.listen, None)
        _tell_known(report.watch)
        stack.enter_context(dispatch())
        stack.callback(report.watch.close)
        yield report
    deliver()


def _check_mode(mode: str) -> None:
    if mode not in ("raise", "warn", "collect"):
        msg = f'`mode` is {mode!r}. Choose "raise", "warn" or "collect".'
        raise ValueError(msg)


def _check_allocator() -> None:
    """Refuse the allocator that has no callbacks."""
    if not torch.cuda.is_available():
        return
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise GuardError(
            problem=f"the allocator is `{backend}`, which tells nobody what it does",
            remedy="Leave `backend:` out of `PYTORCH_CUDA_ALLOC_CONF`.",
        )


class _Deliverer:
    """Raises or warns of what was found since it was last called."""

    def __init__(self, mode: Mode, report: Report) -> None:
        self._mode = mode
        self._report = report
        self._told = 0

    def __call__(self) -> None:
        """Deliver what is new."""
        if self._mode == "collect" or len(self._report) == self._told:
            return
        news = self._report.hazards[self._told :]
        self._told += len(news)
        if self._mode == "raise" and news:
            raise HazardError(hazards=list(map(str, news)))
        for hazard in news:
            warnings.warn(str(hazard), RuntimeWarning, stacklevel=2)


def _tell_known(watch: Watch) -> None:
    """Tell of the blocks that are there already."""
    cuda: Any = torch.cuda  # partly untyped
    if not cuda.is_available() or not cuda.is_initialized():
        return
    for segment in cuda.memory_snapshot():
        home = (CUDA, int(segment["device"]), int(segment["stream"]))
        private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        for block in segment["blocks"]:
            if str(block["state"]).startswith("active"):
                address, size = int(block["address"]), int(block["size"])
                watch.known(address, size, None if private else home)
