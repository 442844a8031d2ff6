"""The queue of copies to one device: packs, staged leaves, and what DMA still reads."""

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensorpack._move import moved
from tensorpack._opened import owned_tensors
from tensorpack._pack import Packer
from tensorpack._staging import Stager
from tensorpack._streams import Streams
from tensorpack.errors import CaptureError

__all__ = ["CopyQueue", "Queued", "copied"]


class Queued(NamedTuple):
    """What one call has queued.

    Attributes:
        leaves: the new leaves, in the order of the old ones.
        buffers: the packed buffers, each to be recorded on a consumer.
        alone: the new leaves that are in no buffer, each to be recorded as well.
        ready: recorded on the copy stream after the last copy.
        resident: how many leaves were on the device already.
    """

    leaves: list[Any]
    buffers: list[Tensor]
    alone: list[Any]
    ready: torch.Event
    resident: int


class CopyQueue:
    """Queues copies on one stream, and keeps what they read until they are done.

    # Note [retention]
    Packs and staged leaves are read from pinned memory of torch's own allocator or of
    the ring, which are given out again only after the copy. Kept here is only what DMA
    reads in the caller's memory: leaves that were pinned already, pinned copies of odd
    leaves, and what is on another device or moves itself.
    """

    def __init__(
        self,
        streams: Streams,
        device: torch.device,
        stream: torch.Stream,
        packer: Packer,
        stager: Stager,
    ) -> None:
        self.stream = stream
        self.packer = packer
        self.stager = stager
        self._streams = streams
        self._device = device
        self._retained: deque[tuple[torch.Event, list[Any]]] = deque()
        # Held while copies are queued, so that two threads' payloads do not interleave
        # in the ring; bookkeeping has its own locks.
        self._lock = threading.Lock()

    def put(
        self,
        leaves: Sequence[Any],
        key_of: Callable[[object], str],
        after: torch.Stream | None,
    ) -> Queued:
        """Queue the copies of leaves, each object given once.

        Args:
            leaves: the leaves.
            key_of: finds the key of a leaf, for an error.
            after: the stream that writes what is read on the device; left out, it is
                the current stream of the calling thread.

        Raises:
            CaptureError: the copy stream is capturing; nothing was queued then.
            LeafError: no stream could be recorded on a leaf; the same.
        """
        alone: list[Any] = []
        sources: list[Any] = []
        resident = 0
        streams = self._streams
        entry = self.packer.find(leaves)
        if entry.move is None or entry.alone:
            _check_openable(leaves, key_of)
            if after is None and _reads_device(leaves, self._device):
                after = streams.current()
        with self._lock, streams.entered(self.stream):
            if streams.capturing():
                raise CaptureError(call="start", stream="copy")
            try:
                new, buffers, indexes = self.packer.pack(
                    entry, leaves, self._device, streams.pinned
                )
                if indexes:
                    rest = [(index, leaves[index]) for index in indexes]
                    resident = self._put_alone(rest, after, new, sources)
                    alone = [new[index] for index in indexes]
            finally:
                # Also after an error: what was queued until then still reads.
                ready = streams.record(self.stream)
                if sources:
                    self._retained.append((ready, sources))
        return Queued(new, buffers, alone, ready, resident)

    def _put_alone(
        self,
        rest: Sequence[tuple[int, Any]],
        after: torch.Stream | None,
        new: list[Any],
        sources: list[Any],
    ) -> int:
        """Queue each leaf that is in no pack; count those that are there already."""
        resident = 0
        waited = False
        for index, leaf in rest:
            where = _device_of(leaf)
            if where == self._device:
                new[index] = leaf
                resident += 1
            elif isinstance(leaf, Tensor) and leaf.device.type == "cpu":
                new[index], source = self.stager.move(leaf, self.stream)
                if source is not None:
                    sources.append(source)
            else:
                if after is not None and not waited:
                    self._streams.record(after).wait(self.stream)
                    waited = True
                sources.append(leaf)
                (new[index],) = moved([leaf], self._device, non_blocking=True)
        return resident

    def reap(self) -> None:
        """Let go of what copies have read that are done."""
        retained = self._retained
        while retained and retained[0][0].query():
            retained.popleft()

    def drain(self) -> None:
        """Block the host until every copy is done, and let everything go."""
        while self._retained:
            self._retained.popleft()[0].synchronize()

    @property
    def retained(self) -> int:
        """Count the transfers whose sources are kept."""
        return len(self._retained)


def _check_openable(leaves: Sequence[Any], key_of: Callable[[object], str]) -> None:
    """Raise for a leaf that a consumer could not be recorded on."""
    for leaf in leaves:
        if leaf.__class__ is not Tensor and isinstance(leaf, Tensor):
            owned_tensors(key_of(leaf), leaf)


def _reads_device(leaves: Sequence[Any], device: torch.device) -> bool:
    """Tell whether the copies themselves read device memory."""
    for leaf in leaves:
        if leaf.__class__ is not Tensor or not leaf.is_cpu:
            where = _device_of(leaf)
            if where != device and (where is None or where.type != "cpu"):
                return True
    return False


def _device_of(leaf: Any) -> torch.device | None:
    """Ask a leaf where it is; one that is no tensor may not know."""
    device = getattr(leaf, "device", None)
    return None if device is None else torch.device(device)


def copied(leaves: Sequence[Any], device: torch.device) -> list[Any]:
    """Copy at once, also to where a leaf is, so that sources may be overwritten."""
    olds = set(map(id, leaves))
    new = moved(leaves, device, non_blocking=False)
    twins = {id(leaf): _copy_of(leaf) for leaf in new if id(leaf) in olds}
    return [twins.get(id(leaf), leaf) for leaf in new]


def _copy_of(leaf: Any) -> Any:
    """Copy one leaf."""
    return leaf.clone() if hasattr(leaf, "clone") else copy.deepcopy(leaf)
