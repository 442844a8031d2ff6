"""Batches on the device ahead of the loop that consumes them."""

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from tensorpack.transfer import CopyStream, Handoff

__all__ = ["prefetch"]

T = TypeVar("T")


def prefetch(
    batches: Iterable[T],
    device: torch.device | str | int | CopyStream,
    *,
    depth: int = 2,
) -> Iterator[T]:
    """Iterate batches on the device, with the next ones already on their way.

    Args:
        batches: a `DataLoader` or any iterable of payloads, tensors or containers.
        device: where to. All loaders and epochs of a device share one copy stream;
            pass a `CopyStream` to use another.
        depth: how many batches are on their way at most.

    Raises:
        ValueError: `depth` is less than 1, or not below `max_in_flight`.

    Streams:
        Copies are queued on the copy stream. Each batch is yielded after the current
        stream of the consuming thread waits for it and is recorded on it. The host does
        not block.

    >>> [int(batch.sum()) for batch in prefetch([torch.ones(2), torch.ones(3)], "cpu")]
    [2, 3]
    """
    copies = device if isinstance(device, CopyStream) else shared(torch.device(device))
    if depth < 1 or depth >= copies.max_in_flight:
        msg = (
            f"`depth` is {depth}. Choose at least 1 and less than `max_in_flight`, "
            f"which is {copies.max_in_flight}."
        )
        raise ValueError(msg)
    return _prefetched(iter(batches), copies, depth)


def _prefetched(batches: Iterator[T], copies: CopyStream, depth: int) -> Iterator[T]:
    """Keep `depth` batches on their way; give the started ones before an error."""
    started: deque[Handoff[T]] = deque()
    failure: BaseException | None = None
    more = True
    while more or started:
        while more and len(started) < depth:
            try:
                started.append(copies.start(next(batches)))
            except StopIteration:
                more = False
            except Exception as error:  # noqa: BLE001  # raised below, in its turn
                more, failure = False, error
        if started:
            yield started.popleft().take()
    if failure is not None:
        raise failure


@functools.lru_cache(maxsize=64)
def shared(device: torch.device) -> CopyStream:
    """Give the copy stream that all loaders of a device share."""
    return CopyStream(device)
