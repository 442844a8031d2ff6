"""Payload -> the first rows of static memory, and back: queued on one stream."""

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensorpack._leaves.streams import Streams
from tensorpack.errors import CaptureError
from tensorpack.transfer.static_memory import StaticMemory
from tensorpack.transfer.static_routes import Part, Route, Routes, Slot
from tensorpack.transfer.static_rows import filled

__all__ = ["Job", "StaticCopies", "Written"]


class Job(NamedTuple):
    """What is to be written.

    Attributes:
        static: what has the memory.
        value: the walked object.
        leaves: its leaves.
        sizes: how many items each axis has in the static.
        call: what the user has called, for an error.
    """

    static: Any
    value: Any
    leaves: Sequence[Tensor]
    sizes: Mapping[str, int]
    call: str


class Written(NamedTuple):
    """What one call has written.

    Attributes:
        value: the object whose leaves are the first rows of the static.
        memory: the memory that was written.
        numbers: how often each of its blocks was written by then.
        ready: recorded after the last copy; None without streams.
        sources: what the copies still read in the caller's memory.
        buffers: what was filled, each by one copy.
    """

    value: Any
    memory: StaticMemory
    numbers: tuple[int, ...]
    ready: torch.Event | None
    sources: list[Any]
    buffers: list[Tensor]

    def check(self, call: str) -> None:
        """Raise for rows that were overwritten since."""
        self.memory.check(self.numbers, call)


class StaticCopies:
    """Queues copies into static memory on one stream, from one side to the other."""

    def __init__(
        self,
        owner: Any,
        device: torch.device,
        target: torch.device,
        streams: Streams | None,
    ) -> None:
        """Make the copies of one direction.

        Args:
            owner: the copy stream; statics belong to one of them.
            device: where the slots are, and most sources.
            target: where the statics are.
            streams: the streams of the accelerator; None without.
        """
        # Weakly, since the owner holds this: it is to die at once.
        self._owner = weakref.ref(owner)
        self._device = device
        self._streams = streams
        pinned = streams is not None and target.type == "cpu"
        self._routes = Routes(self._new_slot, self._is_here, target, pinned=pinned)
        self._lock = threading.Lock()

    def _new_slot(self, nbytes: int) -> Tensor:
        """Make the memory of a slot: pinned on the host."""
        if self._device.type == "cpu" and self._streams is not None:
            return self._streams.pinned(nbytes, torch.uint8)
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def _is_here(self, leaf: Tensor) -> bool:
        """Return whether a leaf is on the side of the slots."""
        return leaf.device == self._device

    def put(self, job: Job) -> Written:
        """Write at once, where there are no streams.

        Raises:
            AxisError: the object does not fit; nothing was written then.
            HandoffError: another copy stream writes the static; the same.
        """
        with self._lock, torch.no_grad():
            route = self._routes.find(*job[:4])
            handed_out = route.handed_out(job.value)
            route.memory.claim(self._owner(), job.call)
            numbers = route.memory.begin(None, None)
            for found, leaf in zip(route.fits, job.leaves, strict=True):
                found.target[found.data].copy_(leaf)
                for place, filler in filled(found, found.target):
                    place.copy_(filler)
        buffers = [found.target for found in route.fits]
        return Written(handed_out, route.memory, numbers, None, [], buffers)

    def queue(
        self, job: Job, stream: torch.Stream, after: torch.Stream | None
    ) -> Written:
        """Queue the copies of a walked object.

        Args:
            job: what is to be written.
            stream: where the copies are queued.
            after: the stream that writes what is on the device already. Left out, it is
                the current stream of the calling thread.

        Raises:
            AxisError: the object does not fit; nothing was queued then.
            HandoffError: another copy stream writes the static; the same.
            CaptureError: the stream is capturing; the same.
        """
        streams = self._streams
        assert streams is not None  # noqa: S101  # `put` is for no streams
        with self._lock, torch.no_grad():
            route = self._routes.find(*job[:4])
            handed_out = route.handed_out(job.value)
            memory, leaves = route.memory, job.leaves
            memory.claim(self._owner(), job.call)
            producer = streams.current() if after is None else after
            # What has made the static, and filled it, is not known to be done.
            made_on = streams.record(producer) if memory.is_new() else None
            reads = any(not leaves[i].is_cpu for i in route.alone) or (
                self._device.type != "cpu"
            )
            written_on = streams.record(producer) if reads else None
            sources: list[Any] = []
            slots: list[tuple[Part, Slot]] = []
            buffers: list[Tensor] = []
            with streams.entered(stream):
                if streams.capturing():
                    raise CaptureError(call=job.call, stream="copy")
                numbers = memory.begin(stream, streams)
                for event in (made_on, written_on):
                    if event is not None:
                        event.wait(stream)
                try:
                    for part in route.parts:
                        slots.append((part, part.slots.take()))
                        buffers.append(self._gather(route, *slots[-1], leaves))
                    buffers += [
                        self._alone(route, index, leaves[index], sources)
                        for index in route.alone
                    ]
                finally:
                    # Also after an error: what was queued until then still reads.
                    ready = streams.record(stream)
                    for part, slot in slots:
                        part.slots.give_back(slot, ready)
        return Written(handed_out, memory, numbers, ready, sources, buffers)

    def _gather(
        self, route: Route, part: Part, slot: Slot, leaves: Sequence[Tensor]
    ) -> Tensor:
        """Write the leaves of a part into a slot, and queue its copy."""
        rows = route.rows(slot, part)
        rows.write(leaves)
        return rows.landing.copy_(rows.used, non_blocking=True)

    def _alone(
        self, route: Route, index: int, leaf: Tensor, sources: list[Any]
    ) -> Tensor:
        """Queue the copy of a leaf that is in no buffer."""
        found = route.fits[index]
        target = found.target
        if leaf.device == target.device or (not found.regions and _is_pinned(leaf)):
            rows = target[found.data]
            rows.copy_(leaf, non_blocking=True)
            for place, filler in filled(found, target):
                place.copy_(filler)
            sources.append(leaf)
            return rows
        rows = target[found.bucket]
        if not leaf.is_cpu:  # to the host: the bucket is what the leaf is
            rows.copy_(leaf, non_blocking=True)
            sources.append(leaf)
            return rows
        streams = self._streams
        assert streams is not None  # noqa: S101  # as above
        staged = streams.pinned(rows.numel(), rows.dtype).view(rows.shape)
        staged[found.data].copy_(leaf)
        for place, filler in filled(found, staged):
            place.copy_(filler)
        return rows.copy_(staged, non_blocking=True)


def _is_pinned(leaf: Tensor) -> bool:
    """Return whether DMA can read a leaf where it is."""
    return leaf.is_cpu and leaf.is_contiguous() and leaf.is_pinned()
