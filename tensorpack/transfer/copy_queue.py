"""The queue of copies to one device: packs, staged leaves, and what DMA still reads."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensorpack._leaves.operations import as_leaf, each_once, has_repeats, moved
from tensorpack._leaves.storage import owned_tensors
from tensorpack._leaves.streams import Streams
from tensorpack._walk.values import a_class
from tensorpack.errors import CaptureError, LeafError
from tensorpack.guard.queries import is_done
from tensorpack.transfer.native import LEFT_TO_PYTHON, Core, Native
from tensorpack.transfer.packing import Entry, Packer
from tensorpack.transfer.staging import PinnedPool, Stager

__all__ = ["CopyQueue", "Queued", "check_leaves", "copied"]


class Queued(NamedTuple):
    """What one call has queued.

    Attributes:
        leaves: the new leaves, in the order of the old ones.
        buffers: new blocks of device memory, packs and plain leaves, each to be
            recorded on a consumer.
        alone: the other new leaves, which may have any number of blocks.
        resident: leaves that were on the device already, to be recorded too.
        ready: recorded on the copy stream after the last copy.
    """

    leaves: list[Any]
    buffers: list[Tensor]
    alone: Sequence[Any]
    resident: Sequence[Any]
    ready: torch.Event


class _Rest(NamedTuple):
    """The leaves that go one by one, and where to put what comes of it.

    Attributes:
        leaves: all leaves.
        indexes: which of them.
        new: takes the new leaves.
        buffers: takes those that are one block each.
        sources: takes what DMA reads.
    """

    leaves: Sequence[Any]
    indexes: Sequence[int]
    new: list[Any]
    buffers: list[Tensor]
    sources: list[Any]


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
        *,
        native: Native | None,
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
        self.core: Core | None = None
        if native is not None:
            self.core = native.Core(
                device,
                packer.below,
                packer.together,
                stream.stream_id,
                self._staging.take_bytes,
                torch.Event,
                streams.capturing,
            )

    def put(
        self,
        leaves: list[Any],
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
        if self.core is not None:
            found = self.core.look(leaves)
            if not found & LEFT_TO_PYTHON:
                if found:
                    after = self._check(leaves, key_of, after)
                with self._lock:
                    return self._put_natively(self.core, leaves, after)
        if has_repeats(leaves):
            return self._put_each_once(leaves, key_of, after)
        entry = self.packer.find(leaves)
        if entry.move is None:
            after = self._check(leaves, key_of, after)
        elif entry.alone:  # the key says that the others are plain
            after = self._check([leaves[i] for i in entry.alone], key_of, after)
        with self._lock, self._entered(self.stream):
            return self._put(entry, leaves, after)

    def _put_each_once(
        self,
        leaves: list[Any],
        key_of: Callable[[object], str],
        after: torch.Stream | None,
    ) -> Queued:
        """Queue the copies of leaves of which some stand twice."""
        queued: list[Queued] = []

        def put(found: Sequence[Any]) -> list[Any]:
            queued.append(self.put(list(found), key_of, after))
            return queued[0].leaves

        new = each_once(leaves, put)
        return queued[0]._replace(leaves=new)

    def _check(
        self,
        leaves: Sequence[Any],
        key_of: Callable[[object], str],
        after: torch.Stream | None,
    ) -> torch.Stream | None:
        """Check leaves of any kind; return the stream whose work they wait for."""
        check_leaves(leaves, key_of)
        if after is None and _reads_device(leaves, self._device):
            return self._streams.current()
        return after

    def _put_natively(
        self, core: Core, leaves: list[Any], after: torch.Stream | None
    ) -> Queued:
        """Let the compiled core queue what it can, and queue the rest."""
        alone: Sequence[Any] = ()
        resident: Sequence[Any] = ()
        rows: Sequence[Tensor] = ()
        sources: list[Any] = []
        ready: torch.Event | None = None
        try:
            moved = core.move(leaves, sources)
            if moved is None:
                raise CaptureError(call="start", stream="copy")
            new, rows, buffers, rest, ready = moved
            if rest:
                ready = None
                with self._entered(self.stream):
                    left = _Rest(leaves, rest, new, buffers, sources)
                    alone, resident = self._put_rest(left, after)
        finally:
            ready = self._keep(rows, sources, ready)
        return Queued(new, buffers, alone, resident, ready)

    def _put(
        self, entry: Entry, leaves: Sequence[Any], after: torch.Stream | None
    ) -> Queued:
        """Queue the copies of leaves of which none stands twice; on the copy stream."""
        alone: Sequence[Any] = ()
        resident: Sequence[Any] = ()
        rows: Sequence[Tensor] = ()
        sources: list[Any] = []
        if self._streams.capturing():
            raise CaptureError(call="start", stream="copy")
        try:
            new, rows, buffers, rest = self.packer.pack(
                entry, leaves, self._device, self._staging.take
            )
            if rest:
                left = _Rest(leaves, rest, new, buffers, sources)
                alone, resident = self._put_rest(left, after)
        finally:
            ready = self._keep(rows, sources, None)
        return Queued(new, buffers, alone, resident, ready)

    def _keep(
        self, rows: Sequence[Tensor], sources: list[Any], ready: torch.Event | None
    ) -> torch.Event:
        """Keep what the copies read; also after an error, which ends none of them."""
        if ready is None:
            ready = self._streams.record(self.stream)
        self._last = ready
        self._staging.give_back(rows, ready)
        if sources:
            with self._keeping:
                self.retained.append((ready, sources))
        return ready

    def _put_rest(
        self, rest: _Rest, after: torch.Stream | None
    ) -> tuple[list[Any], list[Any]]:
        """Queue each leaf that is in no pack; return the odd ones and those there."""
        # A leaf that moves itself may start another transfer meanwhile.
        before, self._entered = self._entered, self._streams.entered_again
        try:
            return self._put_each(rest, after)
        finally:
            self._entered = before

    def _put_each(
        self, rest: _Rest, after: torch.Stream | None
    ) -> tuple[list[Any], list[Any]]:
        leaves, indexes, new, buffers, sources = rest
        alone: list[Any] = []
        resident: list[Any] = []
        waited = False
        for index in indexes:
            leaf = leaves[index]
            if _is_on_host(leaf):
                new[index], source, plain = self.stager.move(leaf, self.stream)
                if source is not None:
                    sources.append(source)
                (buffers if plain else alone).append(new[index])
                continue
            if _device_of(leaf) == self._device:
                new[index] = leaf
                resident.append(leaf)
                continue
            if after is not None and not waited:
                self._streams.record(after).wait(self.stream)
                waited = True
            (new[index],) = moved([leaf], self._device, non_blocking=True)
            sources.append(leaf)
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
            while self.retained and is_done(self.retained[0][0]):
                done.append(self.retained.popleft())
        # Only now they die: what a finalizer calls must not find the lock held.
        done.clear()

    def drain(self) -> None:
        """Block the host until every copy is done, and let everything go."""
        if self._last is not None:
            self._last.synchronize()
        self.reap()


def check_leaves(leaves: Sequence[Any], key_of: Callable[[object], str]) -> None:
    """Raise for a leaf that cannot be copied, or on which no stream can be recorded.

    Raises:
        LeafError: a leaf has no data, or it cannot be known what memory it owns, or
            it does not say on which device it is.
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
        if leaf.is_cpu and not _has_memory(leaf):
            raise LeafError(
                key=key_of(leaf),
                found="a tensor whose memory was freed",
                problem="has no data to copy",
                remedy="Fill it first, or leave it out of what travels.",
            )
        odd = type(leaf) is not Tensor
        if odd or (not leaf.is_nested and leaf.layout is not torch.strided):
            owned_tensors(key_of(leaf), leaf)


def _has_memory(leaf: Tensor) -> bool:
    """Return whether a strided tensor's items lie inside of its storage."""
    if type(leaf) is not Tensor or leaf.layout is not torch.strided:
        return True
    try:
        nbytes = leaf.untyped_storage().nbytes()
        first = leaf.storage_offset()
        if leaf.is_contiguous():
            last = first + leaf.numel() - 1
        else:
            steps = zip(leaf.shape, leaf.stride(), strict=True)
            last = first + sum((n - 1) * step for n, step in steps)
    except RuntimeError:  # of a nested tensor, or one inside of a transform
        return True
    fits = (last + 1) * leaf.itemsize <= nbytes
    return fits or leaf.numel() == 0 or leaf._is_zerotensor()


def _check_device(leaf: object, key_of: Callable[[object], str]) -> None:
    """Raise for a leaf that is not a tensor and whose device is not a device."""
    try:
        _device_of(leaf)
    except Exception as error:
        name = type(leaf).__name__
        raise LeafError(
            key=key_of(leaf),
            found=a_class(type(leaf)),
            problem="has a `device` that is not a device",
            remedy=f"Let `{name}.device` be a `torch.device` or its name.",
        ) from error


def _is_on_host(leaf: Any) -> bool:
    """Return whether a leaf is a tensor on the host."""
    if type(leaf) is Tensor:
        return leaf.is_cpu
    return isinstance(leaf, Tensor) and leaf.device.type == "cpu"


def _reads_device(leaves: Sequence[Any], device: torch.device) -> bool:
    """Return whether the copies themselves read device memory."""
    for leaf in leaves:
        if leaf.__class__ is not Tensor or not leaf.is_cpu:
            where = _device_of(leaf)
            if where != device and (where is None or where.type != "cpu"):
                return True
    return False


def _device_of(leaf: Any) -> torch.device | None:
    """Ask a leaf where it is; one that is not a tensor may not know."""
    device = getattr(leaf, "device", None)
    return None if device is None else torch.device(device)


def copied(leaves: Sequence[Any], device: torch.device) -> list[Any]:
    """Copy at once, also to where a leaf is, so that sources may be overwritten."""

    def copy_each(found: Sequence[Any]) -> list[Any]:
        # One that is not a tensor may give a new object around the old memory.
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
