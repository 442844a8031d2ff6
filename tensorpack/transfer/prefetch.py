"""Batches on the device ahead of the loop that consumes them."""

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from tensorpack._leaves.streams import with_index
from tensorpack.transfer.copy_stream import CopyStream, Handoff

__all__ = ["prefetch"]

T = TypeVar("T")


def prefetch(
    batches: Iterable[T],
    device: torch.device | str | int | CopyStream,
    *,
    depth: int = 2,
    keys: Iterable[str] | None = None,
) -> Iterator[T]:
    """Iterate batches on the device, with the next ones already on their way.

    Args:
        batches: a `DataLoader` or any iterable of payloads, tensors or containers.
        device: where to. All loaders and epochs of a device share one copy stream;
            pass a `CopyStream` to use another.
        depth: how many batches are on their way at most.
        keys: names of the entries or fields of a batch that travel.

    Raises:
        ValueError: `depth` is less than 1, or not below `max_in_flight`.

    Streams:
        Copies are queued on the copy stream. Each batch is yielded after the current
        stream of the consuming thread waits for it and is recorded on it. The host does
        not block.

    >>> [int(batch.sum()) for batch in prefetch([torch.ones(2), torch.ones(3)], "cpu")]
    [2, 3]
    """
    copies = (
        device
        if isinstance(device, CopyStream)
        else shared(with_index(torch.device(device)))
    )
    if depth < 1 or depth >= copies.max_in_flight:
        msg = (
            f"`depth` is {depth}. Choose at least 1 and less than `max_in_flight`, "
            f"which is {copies.max_in_flight}."
        )
        raise ValueError(msg)
    if keys is not None and not isinstance(keys, str):
        keys = tuple(keys)  # asked for each batch
    return _prefetched(iter(batches), copies, depth, keys)


def _prefetched(
    batches: Iterator[T], copies: CopyStream, depth: int, keys: Iterable[str] | None
) -> Iterator[T]:
    """Keep `depth` batches on their way; give the started ones before an error."""
    started: deque[Handoff[T]] = deque()
    failure: BaseException | None = None
    more = True
    while more or started:
        # Another loader of the device may have filled the copy stream: then what this
        # one has started goes first.
        while more and len(started) < depth and not (started and copies.full()):
            try:
                batch = next(batches)
            except StopIteration:
                more = False
                break
            except Exception as error:  # noqa: BLE001  # raised below, in its turn
                more, failure = False, error
                break
            try:
                started.append(copies.start(batch, keys=keys))
            except StopIteration as error:
                # Left alone it would end the loop as if the data were at their end.
                more, failure = False, RuntimeError("a batch raised StopIteration")
                failure.__cause__ = error
            except Exception as error:  # noqa: BLE001  # the same
                more, failure = False, error
        if started:
            yield started.popleft().take()
    if failure is not None:
        raise failure


@functools.lru_cache(maxsize=64)
def shared(device: torch.device) -> CopyStream:
    """Return the copy stream that all loaders of a device share."""
    return CopyStream(device)
