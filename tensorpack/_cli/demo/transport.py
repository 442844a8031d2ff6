"""The way of a step to the device, and of its outcome back.

# Note [who keeps what alive]
To the device: the block is allocated on the copy stream, so the forward stream waits
for the ready event (order) and is then recorded on every leaf (device lifetime). The
host sources stay with the transport until the copy is done (host lifetime).
Back: the fetch stream waits for the forward and is recorded on what it reads. The
tokens land in pinned memory, which is not looked at before its event is done.
"""

from collections.abc import Generator
from typing import Protocol

import attrs
import torch
from torch import Tensor

import tensorpack
from tensorpack._cli.demo.inputs import TRAVELLING_KEYS, StepInputs, StepOutputs

__all__ = ["Counts", "Fetch", "Handoff", "Transport", "has_streams", "open_transport"]


@attrs.define
class Counts:
    """What has travelled to the device so far.

    Attributes:
        payloads: values under the travelling keys.
        leaves: their tensors.
        nbytes: bytes of these.
        records: leaves on which the forward stream was recorded.
    """

    payloads: int = 0
    leaves: int = 0
    nbytes: int = 0
    records: int = 0

    def add(self, step: StepInputs) -> int:
        """Count a step that starts to travel, and give the number of its leaves."""
        payloads = step["inputs"], step["stopping_criteria"]
        leaves = [leaf for p in payloads for _, leaf in tensorpack.tensors(p)]
        self.payloads += len(payloads)
        self.leaves += len(leaves)
        self.nbytes += sum(leaf.nbytes for leaf in leaves)
        return len(leaves)


class Handoff(Protocol):
    """A step on its way to the device."""

    def wait(self, stream: torch.Stream | None) -> StepInputs:
        """Give the step to `stream`, which waits for it; the host does not."""


class Fetch:
    """The outcome of a step on its way to the host; await it.

    Args:
        outputs: on the host, perhaps still being written.
        done: the event after which they may be read, or None if they may be now.
    """

    def __init__(self, outputs: StepOutputs, done: torch.Event | None = None) -> None:
        self._outputs = outputs
        self._done = done

    def __await__(self) -> Generator[None, None, StepOutputs]:
        """Let other tasks run until the outcome may be read; no thread blocks."""
        while self._done is not None and not self._done.query():
            yield
        return self._outputs


class Transport(Protocol):
    """Moves steps to a device and fetches their outcome."""

    counts: Counts

    def start(self, step: StepInputs) -> Handoff:
        """Send a step on its way; the host does not block."""

    def fetch(self, outputs: StepOutputs, *, after: torch.Stream | None) -> Fetch:
        """Send an outcome back as soon as the work queued on `after` is done."""


def has_streams(device: torch.device) -> bool:
    """Tell whether work on a device is queued on streams that one can choose."""
    return device.type not in {"cpu", "mps"}


def open_transport(device: torch.device) -> Transport:
    """Give the transport that fits the device; the only place that decides it."""
    return StreamTransport(device) if has_streams(device) else PlainTransport(device)


class PlainTransport:
    """Moves where there are no streams: everything is done when the call returns."""

    def __init__(self, device: torch.device) -> None:
        self.counts = Counts()
        self._device = device

    def start(self, step: StepInputs) -> "_PlainHandoff":
        """Move a step."""
        self.counts.add(step)
        moved = tensorpack.to_device(step, self._device, keys=TRAVELLING_KEYS)
        return _PlainHandoff(moved)

    def fetch(self, outputs: StepOutputs, *, after: torch.Stream | None) -> Fetch:
        """Move an outcome to the host."""
        del after
        return Fetch(outputs.to_device("cpu"))


@attrs.frozen
class _PlainHandoff:
    step: StepInputs

    def wait(self, stream: torch.Stream | None) -> StepInputs:
        """Give the step, which has arrived."""
        del stream
        return self.step


class StreamTransport:
    """Moves on a copy stream and fetches on another; see Note [who keeps what alive].

    Both streams live as long as the transport: a stream has a memory pool of its own,
    so one for each step would strand memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.counts = Counts()
        self._device = device
        self._copies = torch.Stream(device)
        self._fetches = torch.Stream(device)
        self._in_flight: list[tuple[torch.Event, StepInputs]] = []

    def start(self, step: StepInputs) -> "_StreamHandoff":
        """Queue the copies of a step on the copy stream.

        Streams:
            The host does not block. The sources are kept until the copies are done.
        """
        self._in_flight = [(e, s) for e, s in self._in_flight if not e.query()]
        leaves = self.counts.add(step)
        with self._copies:
            moved = tensorpack.to_device(
                step, self._device, keys=TRAVELLING_KEYS, non_blocking=True
            )
        ready = self._event(after=self._copies)
        self._in_flight.append((ready, step))
        return _StreamHandoff(moved, ready, leaves, self.counts)

    def fetch(self, outputs: StepOutputs, *, after: torch.Stream | None) -> Fetch:
        """Queue the copies of an outcome on the fetch stream.

        Streams:
            The fetch stream waits for what is queued on `after` now. The host does not
            block. The outputs may be dropped at once: the fetch stream is recorded.
        """
        if after is not None:
            self._event(after=after).wait(self._fetches)
        with self._fetches:
            host = {key: _to_pinned(leaf) for key, leaf in tensorpack.tensors(outputs)}
        outputs.record_stream(self._fetches)
        fetched = tensorpack.evolve(outputs, **host)
        return Fetch(fetched, self._event(after=self._fetches))

    def _event(self, *, after: torch.Stream) -> torch.Event:
        event = torch.Event(self._device, enable_timing=False)
        event.record(after)
        return event


@attrs.frozen
class _StreamHandoff:
    step: StepInputs
    ready: torch.Event
    leaves: int
    counts: Counts

    def wait(self, stream: torch.Stream | None) -> StepInputs:
        """Make `stream` wait for the copies, then record it on every leaf."""
        if stream is None:
            stream = torch.accelerator.current_stream()
        self.ready.wait(stream)
        tensorpack.record_stream(self.step, stream, keys=TRAVELLING_KEYS)
        self.counts.records += self.leaves
        return self.step


def _to_pinned(leaf: Tensor) -> Tensor:
    """Queue a copy into pinned memory, the only kind that a device fills by itself."""
    host = torch.empty_like(leaf, device="cpu", pin_memory=True)
    return host.copy_(leaf, non_blocking=True)
