"""The way from the host to the consumer stream: copied, ordered, recorded, kept alive.

# Note [four promises]
Order: the consumer runs after the copy (an event wait). Device lifetime: no block is
handed out while the consumer reads it (`record_stream`, once for each block). Host
lifetime: a source that DMA reads exists until the copy is done (a list of events and
sources). Host immutability: what `start` has returned from may be overwritten, since
the copies read pinned memory of ours. One exception: a leaf that is pinned already and
too large for a pack is read by DMA itself, so it must not be overwritten before the
handoff is done.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from tensorpack._leaves.streams import (
    StreamId,
    Streams,
    check_stream,
    stream_id,
    streams_of,
    with_index,
)
from tensorpack._walk.build import prepared, rebuild
from tensorpack._walk.walk import Walk, walk
from tensorpack.errors import CaptureError, HandoffError, StreamError
from tensorpack.transfer.copy_queue import CopyQueue, check_leaves, copied
from tensorpack.transfer.fetch import Fetch, Fetcher
from tensorpack.transfer.handoff import Counters, Handoff, record_handoff
from tensorpack.transfer.in_flight import Flights, check_limit
from tensorpack.transfer.native import load
from tensorpack.transfer.packing import PACK_BELOW, Packer
from tensorpack.transfer.parts import parted
from tensorpack.transfer.polling import Poller
from tensorpack.transfer.staging import SLOT, Stager
from tensorpack.transfer.static_transfers import StaticTransfers

__all__ = ["CopyStream", "Counters", "Fetch", "Handoff"]

T = TypeVar("T")


class CopyStream:
    """Copies payloads to one device on a stream of its own. One for each engine.

    Every new stream strands a memory pool, so make one and keep it.

    >>> copies = CopyStream("cpu")
    >>> source = torch.zeros(2)
    >>> handoff = copies.start({"ids": source, "step": 1})
    >>> _ = source.fill_(7)
    >>> handoff.wait()["ids"]
    tensor([0., 0.])
    """

    def __init__(
        self,
        device: torch.device | str | int,
        *,
        stream: torch.Stream | None = None,
        priority: int = 0,
        max_in_flight: int = 8,
        pack: bool = True,
        pack_below: int = PACK_BELOW,
        staging: int = 4 * SLOT,
        staging_limit: int = 256 << 20,
    ) -> None:
        """Make the copy stream of a device.

        Args:
            device: where payloads go. A device without streams gets plain copies.
            stream: a stream of the engine's own to copy on.
            priority: of the stream made here; a lower number goes first.
            max_in_flight: how many payloads may be started and not proven to be past
                their consumer; at this many, `start` blocks the host.
            pack: let small leaves travel in one buffer; else each has a copy and a
                block of its own.
            pack_below: bytes under which a leaf is small.
            staging: bytes of pinned memory for larger pageable leaves, made now.
            staging_limit: bytes up to which more of it is taken where it is too little
                for what is on its way; only there does the host wait (see `warm`).

        Raises:
            StreamError: `stream` is of another device, or `device` is not there.
            ValueError: `max_in_flight` is less than 1.
        """
        check_limit(max_in_flight)
        self.device: torch.device = with_index(torch.device(device))
        self.max_in_flight = max_in_flight
        self.counters: Counters = Counters()
        self.stream: torch.Stream | None = None
        self._polls = Poller()
        self._checked: set[StreamId] = set()
        self._closed = False
        self._streams: Streams | None = streams_of(self.device)
        self._static = StaticTransfers(self)
        if self._streams is None:
            return
        self.stream = self._streams.new(priority) if stream is None else stream
        self._id = check_stream(self.stream, self.device)
        self._queue = CopyQueue(
            self._streams,
            self.device,
            self.stream,
            Packer(pack_below, together=pack),
            self._stager(self._streams, staging, staging_limit),
            native=load(),
        )
        self._flights = Flights(max_in_flight, self._streams.record, self._polls)
        self._fetcher = Fetcher(self._streams, self.device, self._polls)

    def _stager(self, streams: Streams, nbytes: int, limit: int) -> Stager:
        """Make the stager of large leaves."""
        slots = max(1, -(-nbytes // SLOT))
        most = max(slots, limit // SLOT)
        return Stager(streams, self.device, slots, most, self._polls.synchronize)

    def start(
        self,
        value: T,
        *,
        keys: Iterable[str] | None = None,
        into: T | None = None,
        sizes: Mapping[str, int] | None = None,
        after: torch.Stream | None = None,
    ) -> Handoff[T]:
        """Queue the copies of a payload to the device.

        Args:
            value: a payload, a tensor, anything with lifetime support, a container of
                them, or with `keys` a mapping.
            keys: names of the entries of a mapping, or of the fields of a payload
                (`"sampling.top_k"`), that travel; others pass through.
            into: static memory on the device, as made by `axes.empty_like`. The payload
                handed out holds views of its first rows.
            sizes: with `into`, how many items each axis gets; the rows beyond those of
                the payload are filled with the `pad` of their `Axis`.
            after: the stream that writes the leaves that are on the device already.
                Left out, it is the current stream of the calling thread.

        Raises:
            LeafError: a value has no lifetime support; nothing was queued then.
            AxisError: the payload does not fit into the static memory; the same.
            CaptureError: the current or the copy stream is capturing a graph.
            HandoffError: the copy stream is closed, this thread has paused it, or the
                limit is reached and nothing in flight is taken.

        Streams:
            Copies are queued on the copy stream. The host does not block, except at
            `max_in_flight`, while another thread pauses, and where large pageable
            leaves on their way fill all pinned memory up to `staging_limit`. Keeps host
            lifetime and host immutability; `wait` keeps order and device lifetime.
            Copies into static memory go behind all work that the streams named to
            `wait` for it have queued by then.
        """
        self._check_open("start")
        if after is not None and self._streams is not None:
            check_stream(after, self.device)
        travels, put_back = parted(value, keys, prepares=True)
        self._polls.enter("start")
        try:
            if into is not None or sizes is not None:
                return self._static.start(
                    self, value, into=into, sizes=sizes, keys=keys, after=after
                )
            travels, found = prepared(travels)
            if self._streams is None:
                handoff = self._copied(travels, found)
            else:
                handoff = self._start_queued(travels, found, after, self._streams)
        finally:
            self._polls.leave()
        if put_back is not None:
            handoff.value = put_back(handoff.value)
        return handoff

    def _copied(self, value: Any, found: Walk) -> Handoff[Any]:
        """Copy at once, where there are no streams."""
        check_leaves(found.leaves, found.key_of)
        new = copied(found.leaves, self.device)
        self.counters.add(new, (), new)
        return Handoff(rebuild(value, new), self._polls)

    def _start_queued(
        self, value: Any, found: Walk, after: torch.Stream | None, streams: Streams
    ) -> Handoff[Any]:
        """Queue the copies, and enter the payload as in flight."""
        queue, flights, leaves = self._queue, self._flights, found.leaves
        if streams.capturing():
            raise CaptureError(call="start", stream="current")
        if queue.retained:
            queue.reap()
        flight = flights.enter()
        self.counters.blocked = flights.blocked
        try:
            queued = queue.put(leaves, found.key_of, after)
            twin = rebuild(value, queued.leaves)
            handoff = Handoff(twin, self._polls, self._hand_out, queued, flight)
            if queued.resident:
                # The consumer waits for what writes them; the copy stream need not.
                producer = streams.current() if after is None else after
                handoff.events.append(streams.record(producer))
        except BaseException:
            flights.leave(flight)
            raise
        flight.set_off(queued.ready, handoff, flights.dropped)
        self.counters.add(leaves, queued.buffers, queued.alone)
        self.counters.add_staging(queue.stager)
        return handoff

    def _hand_out(self, handoff: Handoff[Any], stream: torch.Stream | None) -> None:
        """Pay both debts to a consumer: order first, then device lifetime."""
        streams = self._streams
        assert streams is not None and self.stream is not None  # noqa: S101, PT018
        consumer = streams.current() if stream is None else stream
        key = stream_id(consumer)
        if key not in self._checked:
            self._checked.add(check_stream(consumer, self.device))
        if stream is None and key == self._id:
            raise StreamError(
                problem="the current stream is the copy stream, which consumes nothing",
                remedy="Leave `with copies.stream`, or pass the consumer stream.",
            )
        # A stream that captures is the current one, or has joined its capture. So the
        # consumer, which takes longer to ask, is asked only then.
        if streams.capturing() and streams.is_capturing(consumer):
            raise CaptureError(call="wait", stream="consumer")
        try:
            for event in handoff.events:
                event.wait(consumer)
        except RuntimeError:  # another thread captures it
            if streams.is_capturing(consumer):
                raise CaptureError(call="wait", stream="consumer") from None
            raise
        if handoff.flight is not None:
            self._flights.hand_out(handoff.flight, consumer, key)
        # A consumer that is the copy stream itself needs no record of its own blocks.
        self.counters.records += record_handoff(handoff, consumer, own=key == self._id)

    def fetch(
        self,
        value: T,
        *,
        keys: Iterable[str] | None = None,
        into: T | None = None,
        after: torch.Stream | None = None,
    ) -> Fetch[T]:
        """Queue the copies of a payload from the device to the host.

        Args:
            value: a payload, a tensor, a container of them, or with `keys` a mapping.
            keys: as for `start`.
            into: static memory on the host, as made by `axes.empty_like(pinned=True)`;
                read what was fetched before the next fetch into it is called.
            after: the stream that writes the leaves. Left out, it is the current
                stream of the calling thread.

        Returns:
            A handle; nothing can be read before its copies are done.

        Raises:
            LeafError: a value has no lifetime support.
            AxisError: the payload does not fit into the static memory.
            CaptureError: the current stream or `after` is capturing a graph.

        Streams:
            Copies are queued on a fetch stream, which waits for `after` and is
            recorded on every leaf. The host does not block, except for leaves that
            only torch knows how to copy (sparse, subclasses).
        """
        self._check_open("fetch")
        with self._polls.entered("fetch"):
            travels, put_back = parted(value, keys, prepares=False)
            found = walk(travels)
            if self._streams is None:
                if into is not None:
                    return self._static.fetch(self, value, into, keys, found)
                with torch.no_grad():
                    new = copied(found.leaves, self.device)
                return Fetch(travels, new, self._polls, put_back=put_back)
            if self._streams.capturing():
                raise CaptureError(call="fetch", stream="current")
            if after is None:
                after = self._streams.current()
            else:
                check_stream(after, self.device)
                if self._streams.is_capturing(after):
                    raise CaptureError(call="fetch", stream="producer")
            if into is not None:
                return self._static.fetch(self, value, into, keys, found, after=after)
            queued = self._fetcher.fetch(found, after)
            return Fetch(travels, *queued, put_back=put_back)

    def warm(self, nbytes: int) -> None:
        """Have pinned memory ready for leaves of `nbytes` in flight at once.

        A fresh pinned block costs the host about 0.8 milliseconds for each million
        bytes, so do it at start-up.
        """
        if self._streams is not None:
            self._queue.stager.warm(nbytes)

    def reap(self) -> None:
        """Let go of what finished copies have read, and of payloads that are past."""
        if self._streams is not None and not self._polls.paused_by:
            self._queue.reap()
            self._flights.reap()

    @property
    def in_flight(self) -> int:
        """How many payloads are started and not proven to be past their consumer."""
        return len(self._flights.open) if self._streams is not None else 0

    @property
    def native(self) -> bool:
        """Whether the compiled core does the work (`python -m tensorpack native`)."""
        return self._streams is not None and self._queue.core is not None

    @property
    def retained(self) -> int:
        """How many transfers still have sources that are kept for DMA."""
        return len(self._queue.retained) if self._streams is not None else 0

    def full(self) -> bool:
        """Return whether `start` would block at `max_in_flight`."""
        if self._streams is None:
            return False
        if self._polls.paused_by:
            return len(self._flights.open) >= self.max_in_flight
        return self._flights.full()

    async def room(self) -> None:
        """Wait until `start` would not block, without blocking the running loop.

        Raises:
            HandoffError: no task takes what is in flight.
        """
        if self._streams is not None:
            await self._flights.room(self.full)

    def pause(self) -> AbstractContextManager[None]:
        """Ask no event anything while another thread captures a graph.

        The pause begins when other threads have left `start` and `fetch`, where they
        ask; the next ones block until it ends.
        """
        return self._polls.pause()

    def close(self) -> None:
        """Block the host until the copies started here are done; start no more.

        Handoffs that were not waited for can still be.

        Raises:
            HandoffError: this thread has paused the copy stream.
        """
        if self._closed:
            return
        self._polls.await_running("close")
        self._closed = True
        if self._streams is not None:
            self._queue.drain()
            self._fetcher.drain()
        self._polls.close()

    def __repr__(self) -> str:
        """Show the device, how much is on its way, and whether the core is compiled."""
        state = f"in_flight={self.in_flight}{', native' * self.native}"
        state = "closed" if self._closed else state
        return f"CopyStream({str(self.device)!r}, {state})"

    def __enter__(self) -> Self:
        """Return the copy stream itself; leaving closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the copy stream."""
        self.close()

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise HandoffError(
                call=call,
                problem="the copy stream is closed",
                remedy="Make one that lives as long as the engine.",
            )
