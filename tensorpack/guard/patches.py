"""What is replaced while a guard watches: what torch has no callback for."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tensorpack.guard import queries
from tensorpack.guard.dispatch import Dispatch
from tensorpack.guard.names import Names
from tensorpack.guard.places import here
from tensorpack.guard.watch import CUDA, Watch, touch_of

__all__ = ["patched"]

_READS = ("tolist", "numpy", "__array__")
"""Methods of tensors that read host memory without an operator."""


@contextmanager
def patched(watch: Watch, names: Names, mode: Callable[[], Dispatch]) -> Iterator[None]:
    """Let the watch see queries, graphs, new streams, new threads and host reads.

    Args:
        watch: is told.
        names: is told where streams are made.
        mode: makes the mode that a new thread enters.
    """

    def done(event: object) -> None:
        watch.event_synchronized(watch.driver.event_number(event))

    with ExitStack() as stack:
        for target, name, value in (
            (torch.cuda.Event, "query", _query_event(done)),
            (torch.cuda.Stream, "query", _query_stream(watch)),
            (torch.cuda.Stream, "__new__", staticmethod(_new_stream(watch, names))),
            (torch.cuda.CUDAGraph, "capture_begin", _capture_begin(watch)),
            (torch.cuda.CUDAGraph, "capture_end", _capture_end(watch)),
            (torch.cuda.CUDAGraph, "replay", _replay(watch)),
            (threading.Thread, "start", _start(mode)),
            *((Tensor, name, _read(watch, name)) for name in _READS),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        queries.listeners.append(done)
        stack.callback(queries.listeners.remove, done)
        yield


def _query_event(done: Callable[[object], None]) -> Callable[..., bool]:
    original: Any = torch.cuda.Event.query

    @functools.wraps(original)
    def query(self: Any) -> bool:
        found = bool(original(self))
        if found:
            done(self)
        return found

    return query


def _query_stream(watch: Watch) -> Callable[..., bool]:
    original: Any = torch.cuda.Stream.query

    @functools.wraps(original)
    def query(self: Any) -> bool:
        # What is queued by other threads while it asks is not part of the answer.
        key = (CUDA, self.device_index, self.cuda_stream)
        before = watch.model.order.mark(key)
        found = bool(original(self))
        if found:
            watch.post(watch.model.order.finish, before)
        return found

    return query


def _new_stream(watch: Watch, names: Names) -> Callable[..., Any]:
    original: Any = torch.cuda.Stream.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        stream = original(cls, *args, **kwargs)
        if "stream_id" not in kwargs:
            key = (CUDA, stream.device_index, watch.driver.stream_number(stream))
            names.made(key, here())
        return stream

    return new


def _capture_begin(watch: Watch) -> Callable[..., None]:
    original = torch.cuda.CUDAGraph.capture_begin

    @functools.wraps(original)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch.capture_began()

    return capture_begin


def _capture_end(watch: Watch) -> Callable[..., None]:
    original = torch.cuda.CUDAGraph.capture_end

    @functools.wraps(original)
    def capture_end(self: Any) -> None:
        original(self)
        watch.capture_ended(id(self))

    return capture_end


def _replay(watch: Watch) -> Callable[..., None]:
    original = torch.cuda.CUDAGraph.replay

    @functools.wraps(original)
    def replay(self: Any) -> None:
        original(self)
        watch.replayed(id(self))

    return replay


def _start(mode: Callable[[], Dispatch]) -> Callable[[threading.Thread], None]:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_watched(thread: threading.Thread) -> None:
        run = thread.run

        def run_watched() -> None:
            with mode():
                run()

        thread.run = run_watched  # type: ignore[method-assign]  # of this thread only
        start(thread)

    return start_watched


def _read(watch: Watch, name: str) -> Callable[..., Any]:
    original = getattr(Tensor, name)

    @functools.wraps(original)
    def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if watch.has_copies and self.device.type == "cpu" and type(self) is Tensor:
            touch = touch_of(self, f"Tensor.{name}", here(), writes=False)
            watch.host_used([touch])
        return original(self, *args, **kwargs)

    return read
