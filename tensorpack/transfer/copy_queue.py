"""The queue of copies to one device: packs, staged leaves, and what DMA still reads."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensorpack._leaves.once import each_once, stand_twice
from tensorpack._leaves.operations import as_leaf, moved
from tensorpack._leaves.storage import owned_tensors
from tensorpack._leaves.streams import Streams
from tensorpack._walk.values import a_class
from tensorpack.errors import CaptureError, LeafError
from tensorpack.transfer.packing import Packer
from tensorpack.transfer.staging import PinnedPool, Stager

__all__ = ["CopyQueue", "Queued", "check_leaves", "copied"]


class Queued(NamedTuple):
    """What one call has queued.

    Attributes:
        leaves: the new leaves, in the order of the old ones.
        buffers: the packed buffers, each to be recorded on a consumer.
        alone: the new leaves that are in no buffer, each to be recorded as well.
        resident: leaves that were on the device already, to be recorded too.
        ready: recorded on the copy stream after the last copy.
    """

    leaves: list[Any]
    buffers: list[Tensor]
    alone: Sequence[Any]
    resident: Sequence[Any]
    ready: torch.Event


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
        self._staging = PinnedPool(streams)
        self.retained: deque[tuple[torch.Event, list[Any]]] = deque()
        self._last: torch.Event | None = None
        # Held while copies are queued, so that two threads' payloads do not interleave
        # in the ring; what is kept has a lock of its own, held for moments only.
        self._lock = threading.RLock()
        self._entered = streams.entered
        self._keeping = threading.Lock()

    def put(
        self,
        leaves: Sequence[Any],
        key_of: Callable[[object], str],
        after: torch.Stream | None,
    ) -> Queued:
        """Queue the copies of leaves, each object once.

        Args:
            leaves: the leaves.
            key_of: finds the key of a leaf, for an error.
            after: the stream that writes what is read on the device; left out, it is
                the current stream of the calling thread.

        Raises:
            CaptureError: the copy stream is capturing; nothing was queued then.
            LeafError: no stream could be recorded on a leaf; the same.
        """
        if not stand_twice(leaves):
            return self._put(leaves, key_of, after)
        queued: list[Queued] = []

        def put(found: Sequence[Any]) -> list[Any]:
            queued.append(self._put(found, key_of, after))
            return queued[0].leaves

        new = each_once(leaves, put)
        return queued[0]._replace(leaves=new)

    def _put(
        self,
        leaves: Sequence[Any],
        key_of: Callable[[object], str],
        after: torch.Stream | None,
    ) -> Queued:
        """Queue the copies of leaves of which none stands twice."""
        alone: Sequence[Any] = ()
        resident: Sequence[Any] = ()
        hosts: Sequence[Tensor] = ()
        sources: list[Any] = []
        streams = self._streams
        entry = self.packer.find(leaves)
        if entry.move is None or entry.alone:
            check_leaves(leaves, key_of)
            if after is None and _reads_device(leaves, self._device):
                after = streams.current()
        with self._lock, self._entered(self.stream):
            if streams.capturing():
                raise CaptureError(call="start", stream="copy")
            # A leaf that moves itself may start another transfer meanwhile.
            before, self._entered = self._entered, streams.entered_again
            try:
                new, hosts, buffers, indexes = self.packer.pack(
                    entry, leaves, self._device, self._staging.take
                )
                if indexes:
                    alone, resident = self._put_alone(
                        [(i, leaves[i]) for i in indexes], after, new, sources
                    )
            finally:
                self._entered = before
                # Also after an error: what was queued until then still reads.
                ready = self._last = streams.record(self.stream)
                self._staging.give_back(hosts, ready)
                if sources:
                    with self._keeping:
                        self.retained.append((ready, sources))
        return Queued(new, buffers, alone, resident, ready)

    def _put_alone(
        self,
        rest: Sequence[tuple[int, Any]],
        after: torch.Stream | None,
        new: list[Any],
        sources: list[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Queue each leaf that is in no pack; give the new ones and those there."""
        alone: list[Any] = []
        resident: list[Any] = []
        waited = False
        for index, leaf in rest:
            if _is_on_host(leaf):
                new[index], source = self.stager.move(leaf, self.stream)
            elif _device_of(leaf) == self._device:
                new[index] = leaf
                resident.append(leaf)
                continue
            else:
                if after is not None and not waited:
                    self._streams.record(after).wait(self.stream)
                    waited = True
                source = leaf
                (new[index],) = moved([leaf], self._device, non_blocking=True)
            if source is not None:
                sources.append(source)
            alone.append(new[index])
        return alone, resident

    def keep(self, ready: torch.Event | None, sources: list[Any]) -> torch.Event:
        """Keep what copies made elsewhere read, until their event is done."""
        assert ready is not None  # noqa: S101  # there are streams
        self._last = ready
        if sources:
            with self._keeping:
                self.retained.append((ready, sources))
        return ready

    def reap(self) -> None:
        """Let go of what copies have read that are done."""
        done = []
        with self._keeping:
            while self.retained and self.retained[0][0].query():
                done.append(self.retained.popleft())
        # Only now they die: what a finalizer calls must not find the lock held.
        done.clear()

    def drain(self) -> None:
        """Block the host until every copy is done, and let everything go."""
        if self._last is not None:
            self._last.synchronize()
        self.reap()


def check_leaves(leaves: Sequence[Any], key_of: Callable[[object], str]) -> None:
    """Raise for a leaf that cannot be copied, or that nobody could be recorded on.

    Raises:
        LeafError: a leaf has no data, or nobody can tell what memory it owns, or it
            does not say on which device it is.
    """
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            _check_device(leaf, key_of)
            continue
        if leaf.is_meta:
            raise LeafError(
                key=key_of(leaf),
                found="a meta tensor",
                problem="has no data to copy",
                remedy="Fill it first, or leave it out of what travels.",
            )
        odd = type(leaf) is not Tensor
        if odd or (not leaf.is_nested and leaf.layout is not torch.strided):
            owned_tensors(key_of(leaf), leaf)


def _check_device(leaf: object, key_of: Callable[[object], str]) -> None:
    """Raise for a leaf that is no tensor and has no device's name as its device."""
    try:
        _device_of(leaf)
    except Exception as error:
        name = type(leaf).__name__
        raise LeafError(
            key=key_of(leaf),
            found=a_class(type(leaf)),
            problem="has a `device` that is none",
            remedy=f"Let `{name}.device` be a `torch.device` or its name.",
        ) from error


def _is_on_host(leaf: Any) -> bool:
    """Tell whether a leaf is a tensor on the host."""
    if type(leaf) is Tensor:
        return leaf.is_cpu
    return isinstance(leaf, Tensor) and leaf.device.type == "cpu"


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

    def copy_each(found: Sequence[Any]) -> list[Any]:
        # One that is no tensor may give a new object around the old memory.
        own = [x if isinstance(x, Tensor) else _copy_of(x) for x in found]
        new = moved(own, device, non_blocking=False)
        return [
            _copy_of(twin) if twin is source else twin
            for twin, source in zip(new, found, strict=True)
        ]

    return each_once(leaves, copy_each)


def _copy_of(leaf: Any) -> Any:
    """Copy one leaf."""
    if isinstance(leaf, Tensor):
        return leaf.clone()
    return as_leaf(leaf, leaf.clone() if hasattr(leaf, "clone") else deepcopy(leaf))
