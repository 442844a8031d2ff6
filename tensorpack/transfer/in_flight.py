"""What is in flight: started payloads that no consumer is proven to be past.

# Note [in flight]
The caching allocator records its events only when a block is freed, so a host far
ahead of the device piles up memory that cannot be reused. Each `wait` therefore
records an event on the consumer before it hands a payload out; the event is behind all
work that was queued for the payload before. When it is done, that payload is past.
"""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Never

import torch

from tensorpack._leaves.streams import StreamId
from tensorpack.errors import HandoffError
from tensorpack.guard.queries import is_done
from tensorpack.transfer.polling import Poller

__all__ = ["NAP", "PATIENCE", "Flight", "Flights", "check_limit"]

PATIENCE = 10.0
"""Seconds to wait at the limit for another thread or task to take a handoff."""
NAP = 0.001
"""Seconds between the looks of a coroutine."""


def check_limit(limit: object) -> None:
    """Raise for a limit under which nothing could ever start."""
    if not isinstance(limit, int) or limit < 1:
        msg = f"`max_in_flight` is {limit!r}. Choose a whole number of at least 1."
        raise ValueError(msg)


def _starting() -> object:
    """Stand for the handoff of a payload that is being started."""
    return _starting


class Flight:
    """One started payload.

    Attributes:
        ready: recorded on the copy stream after the last copy; None until then.
        owner: gives the handoff, as long as it is held.
        readers: the consumers that have it and are not asked yet.
        events: recorded on each consumer behind its work for this payload.
    """

    __slots__ = ("events", "owner", "readers", "ready")

    def __init__(self) -> None:
        self.ready: torch.Event | None = None
        self.owner: Callable[[], object] = _starting
        self.readers: dict[StreamId, torch.Stream] = {}
        self.events: list[torch.Event] = []

    def set_off(
        self, ready: torch.Event, owner: object, dropped: Callable[[object], None]
    ) -> None:
        """Note that the copies are queued, who will hand them out, and whom to tell."""
        self.ready, self.owner = ready, weakref.ref(owner, dropped)

    def is_past(self) -> bool:
        """Return whether every consumer is proven past it, or none can get it."""
        if self.readers:
            return False
        if self.events:
            return all(is_done(event) for event in self.events)
        return self.ready is not None and self.owner() is None and is_done(self.ready)

    def proven_after(self, key: StreamId, event: torch.Event) -> None:
        """Note the event behind the work of one consumer."""
        if self.readers.pop(key, None) is not None:
            self.events.append(event)


class Flights:
    """The payloads in flight of one copy stream; bounded.

    Attributes:
        limit: how many there may be.
        blocked: how often the host had to wait for room.
        open: the payloads in flight, the oldest first.
    """

    def __init__(
        self,
        limit: int,
        record: Callable[[torch.Stream], torch.Event],
        polls: Poller,
    ) -> None:
        self.limit = limit
        self.blocked: int = 0
        self._record = record
        self._polls = polls
        self.open: list[Flight] = []
        self._reading: dict[StreamId, Flight] = {}
        self._lock = threading.RLock()  # a finalizer may come in between
        self._changed = threading.Condition(self._lock)
        self._waiting = 0

    def enter(self) -> Flight:
        """Enter a payload that is being started; block the host while it is full.

        Raises:
            HandoffError: everything in flight is still to be handed out, and is
                not.
        """
        flight = Flight()
        blocked = False
        while True:
            with self._lock:
                if len(self.open) >= self.limit:
                    self.open = [f for f in self.open if not f.is_past()]
                if len(self.open) < self.limit:
                    self.open.append(flight)
                    self.blocked += blocked
                    return flight
            blocked = True
            event = self.oldest()
            with self._polls.stepped_out("start"):
                if event is None:
                    self._await_taker()
                else:
                    self._polls.synchronize((event,))

    @contextmanager
    def entered(self) -> Iterator[Flight]:
        """Enter a payload that is being started; forget it after an error."""
        flight = self.enter()
        try:
            yield flight
        except BaseException:
            self.leave(flight)
            raise

    def leave(self, flight: Flight) -> None:
        """Forget a payload that could not be started."""
        with self._lock:
            self.open.remove(flight)

    def hand_out(self, flight: Flight, consumer: torch.Stream, key: StreamId) -> None:
        """Mark a payload as read by a consumer, and the one before it as past soon."""
        with self._lock:
            before = self._reading.get(key)
            if before is not None and before is not flight:
                before.proven_after(key, self._record(consumer))
            self._reading[key] = flight
            flight.readers[key] = consumer
            if self._waiting:
                self._changed.notify_all()

    def dropped(self, _: object) -> None:
        """Wake who waits: a handoff is gone that was perhaps never taken."""
        if self._waiting:
            with self._lock:
                self._changed.notify_all()

    def reap(self) -> None:
        """Forget the payloads that every consumer is past."""
        with self._lock:
            self.open = [f for f in self.open if not f.is_past()]

    def full(self) -> bool:
        """Return whether `start` would have to block."""
        if len(self.open) >= self.limit:
            self.reap()
        return len(self.open) >= self.limit

    def oldest(self) -> torch.Event | None:
        """Return the event after which the first one handed out is past."""
        with self._lock:
            for flight in self.open:
                for key, reader in list(flight.readers.items()):
                    # No later payload has proven it past, so ask its reader now.
                    flight.proven_after(key, self._record(reader))
                if flight.events:
                    undone = (e for e in flight.events if not is_done(e))
                    return next(undone, flight.events[-1])
                if flight.owner() is None:
                    return flight.ready
        return None

    async def room(self, full: Callable[[], bool]) -> None:
        """Wait until there is room, without blocking the running loop.

        Raises:
            HandoffError: no task takes what is in flight.
        """
        until = time.monotonic() + PATIENCE
        while full():
            paused = bool(self._polls.paused_by)
            event = None if paused else self.oldest()
            if event is not None or paused:
                until = time.monotonic() + PATIENCE
            elif time.monotonic() >= until:
                self.refuse("room")
            if event is None:
                await asyncio.sleep(NAP)
            else:
                await asyncio.sleep(0)
                await self._polls.until((event,))

    def _await_taker(self) -> None:
        """Wait until another thread takes or drops a handoff; if none does, raise."""
        with self._lock:
            self._waiting += 1
            try:
                taken = self._changed.wait_for(self._is_one_taken, PATIENCE)
            finally:
                self._waiting -= 1
        if not taken:
            self.refuse("start")

    def refuse(self, call: str) -> Never:
        """Raise: everything in flight is still to be handed out."""
        raise HandoffError(
            call=call,
            problem=f"{self.limit} handoffs were started and none was waited for",
            remedy="Call `wait` on the oldest one first, or raise `max_in_flight`.",
        )

    def _is_one_taken(self) -> bool:
        """Return whether a payload is past soon without another thread's doing."""
        return len(self.open) < self.limit or any(
            f.readers or f.events or f.owner() is None for f in self.open
        )
