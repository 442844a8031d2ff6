"""The order of recorded streams, and what a test holds up. See Note [clocks]."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType

import attrs

from tensorpack._leaves.streams import StreamId
from tensorpack.guard import order
from tensorpack.guard.places import Place, here

__all__ = ["Clock", "Gate", "Mark", "Order"]

Clock = order.Clock

_PATIENCE = 10.0
"""Seconds that the host blocks for a held stream before that counts as for ever."""


@attrs.define(eq=False)
class Gate:
    """Holds up what is behind it until it is open."""

    open: bool = False


@attrs.frozen
class Mark:
    """A point in the work of a stream: what it is behind, and what holds it up."""

    clock: Clock
    gates: frozenset[Gate]
    waited: Clock

    @property
    def done(self) -> bool:
        """Return whether nothing holds it up any more."""
        return all(gate.open for gate in self.gates)


class Order:
    """The clocks of all streams and of the host, and the gates of held streams.

    # Note [late synchronization]
    # That the host synchronizes after a free and before the next allocation may be
    # luck: another task did, and might have come later. It counts where the code that
    # freed does it; what streams wait for always counts. So there are two orders.

    Attributes:
        changed: held while the order changes; told when a gate opens.
        known: the clocks.
        waited: the clocks without what the host has waited for.
        opened: called when a gate has opened.
    """

    def __init__(self) -> None:
        self.changed: threading.Condition = threading.Condition(threading.RLock())
        self.known: order.Order = order.Order()
        self.waited: order.Order = order.Order()
        self._askers: dict[frozenset[CodeType], Clock] = {}
        self.opened: list[Callable[[], None]] = []
        self._gates: dict[StreamId, frozenset[Gate]] = {}

    def tick(self, stream: StreamId, index: int) -> Clock:
        """Queue an entry; return what it is behind."""
        self.waited.tick(stream, index)
        return dict(self.known.tick(stream, index))

    def streams_of(self, index: int) -> list[StreamId]:
        """List the streams of a device that were given anything."""
        return self.known.streams_of(index)

    def asked(self) -> Clock:
        """Return what the host knows to be done."""
        return self.known.asked()

    def is_done(self, mark: Mark) -> bool:
        """Tell the host whether a mark is reached."""
        if mark.done:
            self.known.ask(mark.clock)
            asker = self._askers.setdefault(here().codes, {})
            order.join(asker, mark.clock)
        return mark.done

    def known_at(self, place: Place) -> Clock:
        """Return what the code at a place, or what it has called, has asked for.

        That some other task was told proves nothing for one that drops a reference:
        on a device the answer might still have been no.
        """
        known: Clock = {}
        for codes, clock in list(self._askers.items()):
            if place.is_below(codes):
                order.join(known, clock)
        return known

    def mark(self, stream: StreamId) -> Mark:
        """Return the point that a stream's queued work ends at."""
        gates = self._gates.get(stream, frozenset())
        return Mark(self.known.mark(stream), gates, self.waited.mark(stream))

    def gates(self, stream: StreamId) -> frozenset[Gate]:
        """Return what holds up the work that a stream is given now."""
        found = self._gates.get(stream, frozenset())
        return frozenset(gate for gate in found if not gate.open)

    def follow(self, stream: StreamId, mark: Mark) -> None:
        """Let a stream wait for a mark."""
        self.known.follow(stream, mark.clock)
        self.waited.follow(stream, mark.waited)
        waiting = self._gates.get(stream, frozenset()) | mark.gates
        self._gates[stream] = frozenset(gate for gate in waiting if not gate.open)

    def await_done(self, mark: Mark) -> None:
        """Block the host until a mark is reached.

        Raises:
            RuntimeError: nobody lets the held stream go on.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: mark.done, _PATIENCE):
                msg = (
                    "The host blocks for ever: it synchronizes with work of a stream "
                    "that the test holds. Leave the `held` block first, or find out "
                    "why the code synchronizes."
                )
                raise RuntimeError(msg)
            self.known.finish(mark.clock)

    @contextmanager
    def held(self, stream: StreamId) -> Iterator[None]:
        """Hold up what a stream is given from now on."""
        gate = Gate()
        with self.changed:
            self._gates[stream] = self._gates.get(stream, frozenset()) | {gate}
        try:
            yield
        finally:
            with self.changed:
                gate.open = True
                for opened in self.opened:
                    opened()
                self.changed.notify_all()
