"""The order of what streams do: who is certainly behind whom, and what is done.

# Note [clocks]
Each stream has a clock: for every stream, the last entry of the log that it is behind.
Queueing an entry moves the stream's own hand; an event keeps a copy of the clock, and
a stream that waits for the event takes the later hand of each. The host has a clock
too: what it queues is behind everything that it has synchronized with. A second one
says what the host knows to be done because it asked. That counts where the host itself
reads; elsewhere it proves nothing, since recorded streams are done as soon as anybody
asks, and real ones may not be.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from tensorpack._leaves.streams import StreamId

__all__ = ["Clock", "Mark", "Order"]

Clock = dict[StreamId, int]

_PATIENCE = 10.0
"""Seconds that the host blocks for a held stream before that counts as for ever."""


@attrs.define(eq=False)
class _Gate:
    """Holds up what is behind it until it is open."""

    open: bool = False


@attrs.frozen
class Mark:
    """A point in the work of a stream: what it is behind, and what holds it up."""

    clock: Clock
    gates: frozenset[_Gate]

    @property
    def done(self) -> bool:
        """Tell whether nothing holds it up any more."""
        return all(gate.open for gate in self.gates)


class Order:
    """The clocks of all streams, and of the host."""

    def __init__(self) -> None:
        self.changed: threading.Condition = threading.Condition(threading.RLock())
        self._clocks: dict[StreamId, Clock] = {}
        self._gates: dict[StreamId, frozenset[_Gate]] = {}
        self._host: Clock = {}
        self._asked: Clock = {}

    def tick(self, stream: StreamId, index: int) -> Clock:
        """Queue an entry; give what it is behind."""
        clock = self._clocks.setdefault(stream, {})
        _join(clock, self._host)
        clock[stream] = index
        return dict(clock)

    def streams_of(self, index: int) -> list[StreamId]:
        """List the streams of a device that were given anything."""
        return [stream for stream in self._clocks if stream[1] == index]

    def asked(self) -> Clock:
        """Give what the host knows to be done."""
        return dict(self._asked)

    def is_done(self, mark: Mark) -> bool:
        """Tell the host whether a mark is reached."""
        if mark.done:
            _join(self._asked, mark.clock)
        return mark.done

    def mark(self, stream: StreamId) -> Mark:
        """Give the point that a stream's queued work ends at."""
        clock = dict(self._clocks.get(stream, {}))
        return Mark(clock, self._gates.get(stream, frozenset()))

    def follow(self, stream: StreamId, mark: Mark) -> None:
        """Let a stream wait for a mark."""
        _join(self._clocks.setdefault(stream, {}), mark.clock)
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
            _join(self._host, mark.clock)

    @contextmanager
    def held(self, stream: StreamId) -> Iterator[None]:
        """Hold up what a stream is given from now on."""
        gate = _Gate()
        with self.changed:
            self._gates[stream] = self._gates.get(stream, frozenset()) | {gate}
        try:
            yield
        finally:
            with self.changed:
                gate.open = True
                self.changed.notify_all()


def _join(clock: Clock, other: Clock) -> None:
    """Move each hand of a clock to the later of two."""
    for stream, index in other.items():
        clock[stream] = max(index, clock.get(stream, -1))
