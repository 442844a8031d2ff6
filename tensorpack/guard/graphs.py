"""Graphs: work that is captured once, and given to a stream at each replay."""

from collections.abc import Iterable

from tensorpack.guard.model import Use
from tensorpack.guard.order import StreamKey

__all__ = ["Graphs"]


class Graphs:
    """The capture that runs, and what the captured graphs use.

    A stream that waits for an event of a capturing stream captures as well, so streams
    and events that belong to a capture are known without asking anybody.
    """

    def __init__(self) -> None:
        self._streams: set[StreamKey] = set()
        self._events: set[int] = set()
        self._captured: dict[int, Use] = {}
        self._graphs: dict[int, dict[int, Use]] = {}

    def is_capturing(self, stream: StreamKey) -> bool:
        """Return whether what a stream is given is captured."""
        return stream in self._streams

    def begin(self, stream: StreamKey) -> None:
        """Take that a stream begins to capture."""
        self._streams.add(stream)

    def record(self, event: int, stream: StreamKey) -> bool:
        """Take that an event is recorded; return whether that is captured."""
        if stream in self._streams:
            self._events.add(event)
            return True
        self._events.discard(event)
        return False

    def wait(self, event: int, stream: StreamKey) -> bool:
        """Take that a stream waits for an event; return whether that is captured."""
        if event in self._events and self._streams:
            self._streams.add(stream)
        return stream in self._streams

    def use(self, stream: StreamKey, key: int, use: Use) -> None:
        """Take that captured work uses a block."""
        del stream  # captures of several streams at once count as one
        known = self._captured.get(key)
        if known is None or (use.writes and not known.writes):
            self._captured[key] = use

    def forget(self, key: int) -> None:
        """Take that a block is gone."""
        self._captured.pop(key, None)
        for uses in self._graphs.values():
            uses.pop(key, None)

    def end(self, graph: int) -> None:
        """Take that the capture has ended."""
        self._graphs[graph] = self._captured
        self._captured = {}
        self._streams.clear()
        self._events.clear()

    def uses_of(self, graph: int) -> Iterable[tuple[int, Use]]:
        """Return the blocks that a graph uses."""
        return list(self._graphs.get(graph, {}).items())
