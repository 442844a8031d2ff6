"""torch's callbacks for allocations, events and synchronizations.

# Note [callbacks]
A callback cannot be taken back, and an exception in one is logged and swallowed. So
there is one registration for the whole process, which hands over to the watch that
listens at the moment, if one does; nothing here raises.
"""

import threading
from typing import Protocol

import torch
from torch.cuda import _gpu_trace as trace

__all__ = ["Driver", "Receiver", "listen"]


class Receiver(Protocol):
    """What is told; events and streams come as the numbers that CUDA has for them."""

    def event_deleted(self, event: int) -> None:
        """Take that an event is gone."""

    def event_recorded(self, event: int, stream: int) -> None:
        """Take that an event is recorded on a stream."""

    def event_awaited(self, event: int, stream: int) -> None:
        """Take that a stream waits for an event."""

    def event_synchronized(self, event: int) -> None:
        """Take that the host waits for an event."""

    def stream_synchronized(self, stream: int) -> None:
        """Take that the host waits for a stream."""

    def device_synchronized(self) -> None:
        """Take that the host waits for the current device."""

    def allocated(self, address: int) -> None:
        """Take that a block is got at an address."""

    def freed(self, address: int) -> None:
        """Take that a block is given back."""


class Driver:
    """What is asked of CUDA; a test can stand in for it."""

    def device(self) -> int:
        """Return the current device of the calling thread."""
        return torch._C._cuda_getDevice()

    def current_stream(self, device: int) -> int:
        """Return the number of the calling thread's current stream on a device."""
        return torch._C._cuda_getCurrentRawStream(device)

    def stream_number(self, stream: torch.Stream) -> int:
        """Return CUDA's number for a stream."""
        if isinstance(stream, torch.cuda.Stream):
            return stream.cuda_stream
        made: torch.cuda.Stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]  # torch's
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
        return made.cuda_stream

    def event_number(self, event: object) -> int:
        """Return CUDA's number for an event; 0 if it was never recorded."""
        found = getattr(event, "cuda_event", None)
        if found is None:
            found = getattr(event, "event_id", 0)
        return int(found or 0)


_lock = threading.Lock()
_registered = False
_receiver: Receiver | None = None


def listen(receiver: Receiver | None) -> None:
    """Let a receiver be told from now on; None for nobody."""
    global _receiver, _registered  # noqa: PLW0603  # there is one registration
    with _lock:
        if not _registered:
            if hasattr(torch._C, "_cuda_getDevice"):
                torch._C._activate_gpu_trace()
            _register()
            _registered = True
        _receiver = receiver


def _register() -> None:
    """Register with torch, once."""
    trace.register_callback_for_event_deletion(_event_deleted)
    trace.register_callback_for_event_record(_event_recorded)
    trace.register_callback_for_event_wait(_event_awaited)
    trace.register_callback_for_event_synchronization(_event_synchronized)
    trace.register_callback_for_stream_synchronization(_stream_synchronized)
    trace.register_callback_for_device_synchronization(_device_synchronized)
    trace.register_callback_for_memory_allocation(_allocated)
    trace.register_callback_for_memory_deallocation(_freed)


def _event_deleted(event: int) -> None:
    if _receiver is not None:
        _receiver.event_deleted(event)


def _event_recorded(event: int, stream: int) -> None:
    if _receiver is not None:
        _receiver.event_recorded(event, stream)


def _event_awaited(event: int, stream: int) -> None:
    if _receiver is not None:
        _receiver.event_awaited(event, stream)


def _event_synchronized(event: int) -> None:
    if _receiver is not None:
        _receiver.event_synchronized(event)


def _stream_synchronized(stream: int) -> None:
    if _receiver is not None:
        _receiver.stream_synchronized(stream)


def _device_synchronized() -> None:
    if _receiver is not None:
        _receiver.device_synchronized()


def _allocated(address: int) -> None:
    if _receiver is not None:
        _receiver.allocated(address)


def _freed(address: int) -> None:
    if _receiver is not None:
        _receiver.freed(address)
