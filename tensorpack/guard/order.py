"""The order of what streams do: which work is certainly behind which.

# Note [clocks]
Each stream has a clock: for every stream, the number of the last piece of its work that
it is behind. Queueing work moves the stream's own hand; an event keeps a copy of the
clock as it is when the event is recorded, and a stream that waits for the event takes
the later hand of each. The host has a clock too: what it queues is behind everything
that it has synchronized with. A second one says what the host knows to be done because
it asked. On a device that proves as much as a synchronization, and the guard counts it
as one. Recorded streams are done as soon as anybody asks, so there it counts only where
the host itself reads, and where the code that asked gives memory back.
"""

from collections.abc import Mapping

__all__ = ["Clock", "Order", "StreamKey", "join"]

StreamKey = tuple[int, int, int]
"""Device type, device index, and what tells the streams of one device apart."""

Clock = dict[StreamKey, int]


class Order:
    """The clocks of all streams, and of the host."""

    def __init__(self) -> None:
        self._clocks: dict[StreamKey, Clock] = {}
        self._host: Clock = {}
        self._asked: Clock = {}

    def tick(self, stream: StreamKey, number: int) -> Clock:
        """Queue work, numbered from below; return what the stream is now behind."""
        clock = self._clocks.setdefault(stream, {})
        join(clock, self._host)
        clock[stream] = number
        return clock

    def streams_of(self, index: int) -> list[StreamKey]:
        """List the streams of a device that were given anything."""
        return [stream for stream in self._clocks if stream[1] == index]

    def last(self, stream: StreamKey) -> int:
        """Return the number of the last work of a stream; -1 if there is none."""
        return self._clocks.get(stream, {}).get(stream, -1)

    def mark(self, stream: StreamKey) -> Clock:
        """Copy the clock of a stream: the point that its queued work ends at."""
        clock = dict(self._clocks.get(stream, {}))
        join(clock, self._host)
        return clock

    def follow(self, stream: StreamKey, clock: Mapping[StreamKey, int]) -> None:
        """Let a stream wait for a point."""
        join(self._clocks.setdefault(stream, {}), clock)

    def finish(self, clock: Mapping[StreamKey, int]) -> None:
        """Let the host have waited for a point: all that it queues is behind it."""
        join(self._host, clock)

    def ask(self, clock: Mapping[StreamKey, int]) -> None:
        """Let the host know that a point is reached."""
        join(self._asked, clock)

    def asked(self) -> Clock:
        """Copy what the host knows to be done because it asked."""
        return dict(self._asked)

    def is_behind(self, stream: StreamKey, other: StreamKey, number: int) -> bool:
        """Return whether what a stream does next is behind a piece of other work."""
        if stream == other or self._host.get(other, -1) >= number:
            return True
        return self._clocks.get(stream, {}).get(other, -1) >= number

    def is_done(self, stream: StreamKey, number: int) -> bool:
        """Return whether the host knows that a piece of work is done."""
        known = max(self._host.get(stream, -1), self._asked.get(stream, -1))
        return known >= number


def join(clock: Clock, other: Mapping[StreamKey, int]) -> None:
    """Move each hand of a clock to the later of two."""
    for stream, number in other.items():
        if clock.get(stream, -1) < number:
            clock[stream] = number
