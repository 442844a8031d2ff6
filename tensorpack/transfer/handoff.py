"""A payload on its way, and the counters of what has gone that way."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Never, TypeVar

import attrs
import torch
from torch import Tensor

from tensorpack._leaves.record import record
from tensorpack.errors import HandoffError
from tensorpack.transfer.copy_queue import Queued
from tensorpack.transfer.in_flight import Flight
from tensorpack.transfer.polling import Poller
from tensorpack.transfer.staging import Stager

__all__ = ["Counters", "Handoff", "record_handoff"]

T = TypeVar("T")


@attrs.define
class Counters:
    """What a copy stream has done so far.

    Attributes:
        payloads: how many transfers were started.
        leaves: how many leaves they had.
        bytes: bytes of device memory that were filled, padding included.
        copies: how many copies were queued.
        records: how often a stream was recorded on a block.
        blocked: how often `start` blocked the host at `max_in_flight`.
        staging_growths: how often large pageable leaves took more pinned memory, each
            time 4 MiB.
        staging_waits: how often they had to wait for some, at `staging_limit`.
    """

    payloads: int = 0
    leaves: int = 0
    bytes: int = 0
    copies: int = 0
    records: int = 0
    blocked: int = 0
    staging_growths: int = 0
    staging_waits: int = 0

    def add(
        self, leaves: Sequence[Any], buffers: Sequence[Tensor], alone: Sequence[Any]
    ) -> None:
        """Count a transfer that has been queued: its leaves, and their new blocks."""
        self.payloads += 1
        self.leaves += len(leaves)
        self.copies += len(buffers) + len(alone)
        for buffer in buffers:
            self.bytes += buffer.nbytes
        for leaf in alone:
            self.bytes += _bytes_of(leaf)

    def add_staging(self, stager: Stager) -> None:
        """Take over what a stager has counted."""
        self.staging_growths = stager.growths
        self.staging_waits = stager.waits


def _bytes_of(leaf: Any) -> int:
    """Count the bytes of a leaf's numbers; 0 where it does not say."""
    try:
        nbytes = leaf.nbytes
    except (AttributeError, RuntimeError):  # a sparse tensor has none
        return 0
    return nbytes if isinstance(nbytes, int) else 0


class Handoff(Generic[T]):
    """A payload on its way: what `start` gives and `wait` resolves.

    Attributes:
        value: the payload on the device; read it through `wait`.
        queued: the blocks that are recorded on each consumer.
        events: what each consumer waits for.
        flight: its place among the payloads in flight.
    """

    __slots__ = (
        "__weakref__",
        "_hand_out",
        "_polls",
        "_taken",
        "events",
        "flight",
        "queued",
        "value",
    )

    def __init__(
        self,
        value: T,
        polls: Poller,
        hand_out: Callable[["Handoff[Any]", torch.Stream | None], None] | None = None,
        queued: Queued | None = None,
        flight: Flight | None = None,
    ) -> None:
        self.value: T = value
        self._polls = polls
        self._hand_out = hand_out
        self._taken = False
        self.queued = queued
        self.events: list[torch.Event] = [] if queued is None else [queued.ready]
        self.flight: Flight | None = flight

    def __repr__(self) -> str:
        """Show the class of what travels; its numbers may not be there yet."""
        what = "taken" if self._taken else type(self.value).__qualname__
        return f"Handoff({what})"

    def __getattr__(self, name: str) -> Never:
        """Raise for the use of the handoff as the payload."""
        msg = f"a handoff has no `{name}`: `wait(stream)` gives the payload"
        if self._taken:
            msg = f"a handoff has no `{name}`, and its payload was taken"
        raise AttributeError(msg, name=name, obj=self)

    def __getitem__(self, key: object) -> Never:
        """Raise in the same way where the payload is a container."""
        msg = f"a handoff has no items ({key!r}): `wait(stream)` gives the payload"
        raise TypeError(msg)

    def wait(self, stream: torch.Stream | None = None) -> T:
        """Make the consumer stream wait for the copies, and give the payload.

        Several consumers may wait; each is recorded on every leaf.

        Args:
            stream: the consumer. Left out, it is the current stream of the payload's
                device on the calling thread.

        Returns:
            The payload on the device.

        Raises:
            StreamError: the consumer is of another device, or it was left out and the
                current stream is the copy stream.
            CaptureError: the consumer is capturing a graph.
            HandoffError: the payload was taken before.

        Streams:
            Queues a wait on the consumer, then records the consumer on every leaf:
            order and device lifetime. The host does not block.
        """
        if self._taken:
            raise HandoffError(
                call="wait",
                problem="the payload was taken before",
                remedy="Call `wait`, not `take`, where several consumers read it.",
            )
        if self._hand_out is not None:
            self._hand_out(self, stream)
        return self.value

    def take(self, stream: torch.Stream | None = None) -> T:
        """Do what `wait` does, and forget the payload: only the caller holds it."""
        value = self.wait(stream)
        self._taken = True
        del self.value
        self.queued = None
        return value

    def done(self) -> bool:
        """Return whether the copies are done; not while polling is paused."""
        return self._polls.all_done(self.events)

    def synchronize(self) -> None:
        """Block the host until the copies are done."""
        self._polls.synchronize(self.events)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until the copies are done, without blocking the running loop.

        Gives None: for the payload a consumer has to `wait`.
        """
        return self._polls.until(self.events).__await__()


def record_handoff(handoff: Handoff[Any], consumer: torch.Stream, *, own: bool) -> int:
    """Record a consumer on each block of a handoff, each once.

    Args:
        handoff: what is handed out.
        consumer: who reads it.
        own: whether the consumer is the stream that the new blocks belong to.
    """
    queued = handoff.queued
    if queued is None:
        return 0
    count = 0
    if not own:
        for buffer in queued.buffers:
            buffer.record_stream(consumer)
        count = len(queued.buffers)
        if queued.alone:
            count += record(queued.alone, consumer)
    return count + record(queued.resident, consumer) if queued.resident else count
