"""The context in which streams are recorded: torch's names stand for recorded ones."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tensorpack._leaves.streams import stream_id
from tensorpack.testing._devices import CUDA, indexed
from tensorpack.testing._driver import Patch, driver
from tensorpack.testing._log import Log
from tensorpack.testing._recorded_streams import (
    RecordedCudaEvent,
    RecordedEvent,
    RecordedExternalStream,
    RecordedStream,
    stream_of,
)
from tensorpack.testing._world import World, activated, active
from tensorpack.transfer import prefetch as _prefetch

__all__ = ["recorded_streams", "recorded_world"]


@contextmanager
def recorded_streams(*, real: bool = False) -> Iterator[Log]:
    """Record what happens to device memory, on a machine that needs no device.

    In the block, `"cuda"` is a device whose tensors lie in host memory and whose
    streams and events enter what they do into the log: torch's own (`torch.Stream`,
    `torch.cuda.Stream`, `tensor.record_stream`, `tensor.to("cuda")`, ...) and so those
    of `CopyStream`. Values are right; only time is missing, so every copy is done at
    once unless the log holds its stream. Gradients are stripped. Threads that are
    started in the block are recorded too. A block inside another gives the same log.
    What a module has imported by name (`from torch.cuda import Stream`) stays torch's.

    Args:
        real: watch the machine's own accelerator instead of standing in for one.

    Yields:
        The log.

    >>> from tensorpack import CopyStream
    >>> with recorded_streams() as log:
    ...     copies, forward = CopyStream("cuda"), torch.Stream("cuda")
    ...     ids = copies.start(torch.ones(2)).wait(forward)
    ...     [entry.call for entry in log.life(ids)[""]], log.missing(ids, forward)
    (['copy', 'event', 'wait', 'record'], [])
    """
    with recorded_world(real=real) as world:
        yield world.log


@contextmanager
def recorded_world(*, real: bool = False) -> Iterator[World]:
    """Return the world that records already, or let a new one record."""
    world = active()
    if world is not None:
        yield world
        return
    if real and not torch.accelerator.is_available():
        msg = (
            "`recorded_streams(real=True)`: there is no accelerator here. Leave "
            "`real=True` out, or skip the test."
        )
        raise RuntimeError(msg)
    with ExitStack() as stack:
        world = stack.enter_context(activated(World(real=real)))
        for target, name, value in (*_shared(world), *_names(world)):
            # torch built without CUDA lacks names that its own code asks for.
            stack.enter_context(mock.patch.object(target, name, value, create=True))
        if not real:
            # Kernels that only devices have would be chosen for device tensors.
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(
            torch.__future__.set_overwrite_module_params_on_conversion, overwrite
        )
        # A parameter whose `data` is exchanged would forget that it is recorded.
        torch.__future__.set_overwrite_module_params_on_conversion(not real)
        stack.enter_context(world.inside())
        yield world


def _shared(world: World) -> Iterator[Patch]:
    """Iterate what is replaced in any case."""
    yield torch, "Stream", RecordedStream
    yield torch, "Event", RecordedEvent
    yield torch.cuda, "Stream", RecordedStream
    yield torch.cuda, "Event", RecordedCudaEvent
    yield threading.Thread, "start", _starter(world)
    # Copy streams of this world must not outlive it, nor those before be lost.
    yield _prefetch, "shared", functools.cache(_prefetch.shared.__wrapped__)

    def current_stream(device: Any = None) -> RecordedStream:
        return stream_of(world.current(_read(device)))

    def synchronize(device: Any = None) -> None:
        for found in world.log.order.streams_of(_read(device).index or 0):
            world.log.add_synchronize(found)
        if world.real:
            real_synchronize(device)

    real_synchronize = torch.cuda.synchronize
    for module in (torch.cuda, torch.accelerator):
        yield module, "current_stream", current_stream
        yield module, "synchronize", synchronize


def _names(world: World) -> Iterator[Patch]:
    """Iterate what is replaced where the device does not exist."""
    if world.real:
        return

    def set_stream(stream: torch.Stream) -> None:
        world.set_current(stream_id(stream))

    def entered(stream: torch.Stream | None) -> AbstractContextManager[object]:
        return nullcontext() if stream is None else stream_of(stream_id(stream))

    def default_stream(device: Any = None) -> RecordedStream:
        return stream_of((CUDA, _read(device).index or 0, 0))

    def capturing() -> bool:
        return world.current() in world.capturing

    def external(pointer: int, device: Any = None) -> RecordedExternalStream:
        return RecordedExternalStream(pointer, device)

    for module in (torch.cuda, torch.accelerator):
        yield module, "set_stream", set_stream
    yield torch.cuda, "stream", entered
    yield torch.cuda, "default_stream", default_stream
    yield torch.cuda, "is_current_stream_capturing", capturing
    yield torch.cuda, "ExternalStream", RecordedExternalStream
    if hasattr(torch.cuda, "get_stream_from_external"):
        yield torch.cuda, "get_stream_from_external", external
    yield from driver(world)


def _read(device: Any) -> torch.device:
    found: Any = indexed("cuda" if device is None else device)
    return torch.device(found)


def _starter(world: World) -> Callable[[threading.Thread], None]:
    """Return a `Thread.start` that records the thread."""
    start = threading.Thread.start

    def start_recorded(thread: threading.Thread) -> None:
        run = thread.run

        def run_recorded() -> None:
            with world.inside():
                run()

        thread.run = run_recorded  # type: ignore[method-assign]  # of this thread only
        start(thread)

    return start_recorded
