"""Streams and events of one device, behind one seam: the accelerator's, or none.

Two families of Python objects stand for the same streams (`torch.Stream` and
`torch.cuda.Stream`); they never compare equal, so streams are told apart by
(device type, device index, stream id) here.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from tensorpack.errors import StreamError

__all__ = [
    "StreamId",
    "Streams",
    "check_stream",
    "has_streams",
    "is_capturing",
    "outliving",
    "stream_id",
    "streams_of",
    "with_index",
]

StreamId = tuple[int, int, int]


class Streams(Protocol):
    """What a transfer asks of a device's streams."""

    def new(self, priority: int) -> torch.Stream:
        """Make a stream that lives as long as its owner."""

    def current(self) -> torch.Stream:
        """Give the current stream of the calling thread."""

    def record(self, stream: torch.Stream) -> torch.Event:
        """Record a fresh event on a stream."""

    def entered(self, stream: torch.Stream) -> AbstractContextManager[object]:
        """Make a stream the current one of the calling thread."""

    def entered_again(self, stream: torch.Stream) -> AbstractContextManager[object]:
        """Do what `entered` does, for a thread that is inside of it already."""

    @property
    def capturing(self) -> Callable[[], bool]:
        """Tells whether the current stream of the calling thread is capturing."""

    def is_capturing(self, stream: torch.Stream) -> bool:
        """Tell whether a stream is capturing."""

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Give a row of items in pinned host memory."""


def stream_id(stream: torch.Stream) -> StreamId:
    """Tell which stream an object stands for.

    Raises:
        StreamError: it is no stream of an accelerator.
    """
    try:
        return (stream.device_type, stream.device_index, stream.stream_id)
    except AttributeError:
        name = type(stream).__name__
        problem = f"an object of class `{name}` is no stream of an accelerator"
        raise StreamError(
            problem=problem, remedy="Pass a `torch.Stream` of the device."
        ) from None


def check_stream(stream: torch.Stream, device: torch.device) -> StreamId:
    """Tell which stream of a device an object stands for.

    Raises:
        StreamError: it is no stream of the device.
    """
    found = stream_id(stream)
    _, index, _ = found
    if index != device.index or stream.device.type != device.type:
        raise StreamError(
            problem=f"`{stream!r}` is no stream of `{device}`",
            remedy=f"Pass a stream of `{device}`.",
        )
    return found


class _Accelerator:
    """The streams of one device of the accelerator that torch was built for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own = threading.local()
        module = getattr(torch, device.type)
        self.capturing: Callable[[], bool] = getattr(
            module, "is_current_stream_capturing", lambda: False
        )

    def new(self, priority: int) -> torch.Stream:
        return torch.Stream(self.device, priority=priority)

    def current(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)

    def record(self, stream: torch.Stream) -> torch.Event:
        event = torch.Event(self.device)  # without timing, which is the default
        event.record(stream)
        return event

    def entered(self, stream: torch.Stream) -> AbstractContextManager[object]:
        """Enter a stream through an object of this thread's own.

        As a context manager a stream keeps the state in the object, so one object
        must never be entered by two threads, nor, with an older torch, twice by one.
        """
        own: dict[Any, torch.Stream] = self._own.__dict__  # numbers, no names
        found = own.get(number := stream.stream_id)
        if found is None:
            found = own[number] = self.entered_again(stream)
        return found

    def entered_again(self, stream: torch.Stream) -> torch.Stream:
        kind, index, number = stream_id(stream)
        return torch.Stream(stream_id=number, device_index=index, device_type=kind)

    def is_capturing(self, stream: torch.Stream) -> bool:
        with self.entered(stream):
            return self.capturing()

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        with outliving():
            return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)


@contextmanager
def outliving() -> Iterator[None]:
    """Let real memory be made that may be kept, whatever modes the caller is in."""
    key = torch._C._TorchDispatchModeKey.FAKE
    fake = torch._C._unset_dispatch_mode(key)
    try:
        with torch.inference_mode(mode=False):
            yield
    finally:
        if fake is not None:
            torch._C._set_dispatch_mode(fake)


def is_capturing() -> bool:
    """Tell whether the current CUDA stream of the calling thread is capturing."""
    return (
        _HAS_GRAPHS
        and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's
        and torch.cuda.is_current_stream_capturing()
    )


_HAS_GRAPHS = torch.version.cuda is not None or torch.version.hip is not None


def has_streams(device: torch.device) -> bool:
    """Tell whether work on a device is queued on streams."""
    accelerator = torch.accelerator.current_accelerator()
    # MPS is an accelerator to torch, but its streams are not open to users.
    return accelerator is not None and device.type == accelerator.type != "mps"


def streams_of(device: torch.device) -> Streams | None:
    """Give the streams of a device; None if it has none."""
    return _Accelerator(device) if has_streams(device) else None


def with_index(device: torch.device) -> torch.device:
    """Say which of the accelerator's devices a device without an index means.

    Raises:
        StreamError: torch was built without the accelerator, or it is not there.
    """
    if device.type in ("cpu", "meta", "mps"):
        return device
    if not has_streams(device) or not torch.accelerator.is_available():
        raise StreamError(
            problem=f"`{device}` is no device of this machine and this torch",
            remedy="Name one that is there, or test with "
            "`tensorpack.testing.recorded_streams()`.",
        )
    if ":" in str(device):
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())
