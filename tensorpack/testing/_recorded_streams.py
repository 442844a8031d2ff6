"""Streams and events that enter what they do into the log."""

from typing import Any, Self

import torch

from tensorpack._leaves.streams import StreamId, stream_id
from tensorpack.testing._clocks import Mark
from tensorpack.testing._devices import CUDA
from tensorpack.testing._world import World, active

__all__ = [
    "RecordedCudaEvent",
    "RecordedEvent",
    "RecordedExternalStream",
    "RecordedStream",
    "stream_of",
]


def _world() -> World:
    world = active()
    if world is None:
        msg = "No streams are recorded. Make the stream inside `recorded_streams()`."
        raise RuntimeError(msg)
    return world


class RecordedStream(torch.Stream):
    """A stream of the recorded machine; takes the place of `torch.Stream` there."""

    _world: World
    _priority: int

    def __new__(
        cls,
        device: torch.device | str | int | None = None,
        priority: int = 0,
        **ids: Any,
    ) -> Self:
        """Create a stream, or an object for the one whose ids are given."""
        world = _world()
        if not ids and world.real:
            self = super().__new__(cls, _cuda(device), priority=priority)
        else:
            index = _cuda(device).index or 0
            new = {"device_index": index, "device_type": CUDA}
            new = ids or {"stream_id": world.new_stream_id(), **new}
            self = super().__new__(cls, **new)
        self._world = world
        self._priority = priority
        return self

    @property
    def cuda_stream(self) -> int:
        """The number of the stream, which `ExternalStream` takes."""
        return self.stream_id

    @property
    def priority(self) -> int:
        """The priority that it was created with; a lower number goes first."""
        return self._priority

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        """Return the least and the greatest priority."""
        return (0, -5)

    def record_event(self, event: Any = None) -> Any:
        """Record an event, a new one if none is given."""
        event = RecordedEvent() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Wait for an event; the host goes on."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Wait for all that another stream was given; the host goes on."""
        event = RecordedEvent()
        event.record(stream)
        event.wait(self)

    def query(self) -> bool:
        """Return whether all work is done."""
        order = self._world.log.order
        done = not self._world.real or super().query()
        return done and order.is_done(order.mark(stream_id(self)))

    def synchronize(self) -> None:
        """Block the host until all work is done."""
        self._world.log.add_synchronize(stream_id(self))
        if self._world.real:
            super().synchronize()

    def __enter__(self) -> Self:
        """Make it the current stream of the calling thread."""
        if self._world.real:
            super().__enter__()
        else:
            self._world.enter(stream_id(self))
        return self

    def __exit__(self, *details: object) -> None:
        """Make the one before current again."""
        if self._world.real:
            super().__exit__(*details)
        else:
            self._world.leave()


class RecordedExternalStream(RecordedStream):
    """The stream with a number; takes the place of `torch.cuda.ExternalStream`."""

    def __new__(cls, stream_ptr: int, device: Any = None, **_: Any) -> Self:
        """Return an object for the stream whose `cuda_stream` is given."""
        index = _cuda(device).index or 0
        return super().__new__(
            cls, device_type=CUDA, device_index=index, stream_id=stream_ptr
        )


class RecordedEvent(torch.Event):
    """An event of the recorded machine; takes the place of `torch.Event` there."""

    _world: World
    _stream: StreamId
    _number: int
    _mark: Mark | None

    def __new__(cls, device: Any = None, **options: Any) -> Self:
        """Create an event."""
        world = _world()
        if world.real:
            self = super().__new__(cls, _cuda(device), **options)
        else:
            self = super().__new__(cls, "cpu")
        self._world = world
        self._mark = None
        return self

    def record(self, stream: torch.Stream | None = None) -> None:
        """Mark the end of what a stream, or the current one, was given."""
        found = self._world.current() if stream is None else stream_id(stream)
        self._stream = found
        self._number, self._mark = self._world.log.add_event(found)
        if self._world.real:
            super().record(stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let a stream, or the current one, wait; the host goes on."""
        found = self._world.current() if stream is None else stream_id(stream)
        capturing = self._world.capturing
        if found in capturing and self._mark and self._stream not in capturing:
            msg = "CUDA error: dependency created on uncaptured work in another stream"
            raise RuntimeError(msg)
        if self._mark is not None:
            self._join_capture(found)
            self._world.log.add_wait(found, self._number, self._mark)
        if self._world.real:
            super().wait(stream)

    def _join_capture(self, stream: StreamId) -> None:
        """Let a stream that waits for a captured one be captured with it."""
        graphs = self._world.graphs
        if self._stream in graphs:
            graphs.setdefault(stream, graphs[self._stream])

    @property
    def cuda_event(self) -> int:
        """A number for the event."""
        return id(self)

    def query(self) -> bool:
        """Return whether what it marks is done."""
        done = not self._world.real or super().query()
        if self._mark is None:
            return done
        return done and self._world.log.order.is_done(self._mark)

    def synchronize(self) -> None:
        """Block the host until what it marks is done."""
        if self._mark is not None:
            self._world.log.add_synchronize(self._stream, self._mark)
        if self._world.real:
            super().synchronize()

    def elapsed_time(self, other: Any) -> float:
        """Return the milliseconds between two events; recorded ones take none."""
        return super().elapsed_time(other) if self._world.real else 0.0


class RecordedCudaEvent(RecordedEvent):
    """The same, with the arguments of `torch.cuda.Event`."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, **_: Any
    ) -> Self:
        """Create an event."""
        return super().__new__(cls, enable_timing=enable_timing, blocking=blocking)


def stream_of(ids: StreamId) -> RecordedStream:
    """Return an object for the stream with these ids."""
    kind, index, number = ids
    return RecordedStream(device_type=kind, device_index=index, stream_id=number)


def _cuda(device: Any) -> torch.device:
    """Read a device, the first one if none is named."""
    return torch.device("cuda", 0) if device is None else torch.device(device)
