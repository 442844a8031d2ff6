"""Leaves that go alone: staged in pinned memory of ours, copied on the copy stream.

The host never waits for a copy of pageable memory: torch would, for the whole length
of the queue, so such leaves pass through pinned memory here.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack._leaves.streams import Streams
from tensorpack.transfer.layout import in_forward_mode, is_plain

__all__ = ["PinnedPool", "Stager"]

SLOT = 4 << 20
"""Bytes of one slot of the ring. A fresh pinned block of 67 MB costs 52 ms; slots are
made once."""
_LINE = 256
_RING_FROM = 1 << 20
"""Bytes from which a leaf goes through the ring; below, a fresh block is cheaper."""


_POOL = 32 << 20
"""Bytes of pinned memory that are kept for the next packs."""


class PinnedPool:
    """Pinned buffers of packs, used again as soon as their copy is done.

    A fresh one costs as much as the copy itself, even from torch's cache. Used by one
    thread at a time.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._free: dict[tuple[int, torch.dtype], deque[tuple[torch.Event, Tensor]]]
        self._free = {}
        self._nbytes = 0

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return a row of items that no copy reads any more."""
        kept = self._free.get((count, dtype))
        if kept and kept[0][0].query():
            memory = kept.popleft()[1]
            self._nbytes -= memory.nbytes
            return memory
        return self._streams.pinned(count, dtype)

    def take_bytes(self, nbytes: int) -> Tensor:
        """Return a row of bytes, for the compiled core."""
        return self.take(nbytes, torch.uint8)

    def give_back(self, rows: Iterable[Tensor], free_after: torch.Event) -> None:
        """Keep rows for later; torch takes those that are too much."""
        for row in rows:
            if self._nbytes + row.nbytes > _POOL:
                self._free.clear()
                self._nbytes = 0
            self._nbytes += row.nbytes
            key = (row.numel(), row.dtype)
            kept = self._free.get(key)
            if kept is None:
                kept = self._free[key] = deque()
            kept.append((free_after, row))


@attrs.define(eq=False)
class _Slot:
    """A piece of pinned memory, how much of it is used, and when it is free again."""

    memory: Tensor
    used: int = SLOT
    free_after: torch.Event | None = None


class Stager:
    """Moves single leaves to the device through pinned memory.

    Attributes:
        waits: how often the host had to wait for a slot of the ring.
        growths: how often there was none and one more was made.
    """

    def __init__(
        self,
        streams: Streams,
        device: torch.device,
        slots: int,
        limit: int,
        wait_for: Callable[[Iterable[torch.Event]], None],
    ) -> None:
        """Make a stager.

        Args:
            streams: the streams of the device.
            device: where leaves go.
            slots: how many slots the ring has from the start.
            limit: up to how many it grows before the host waits for one.
            wait_for: blocks the host until events are done.
        """
        self._streams = streams
        self._device = device
        self._limit = limit
        self._wait_for = wait_for
        self._ring: deque[_Slot] = deque()
        self._lock = threading.Lock()
        self.waits: int = 0
        self.growths: int = 0
        self._grow(slots)

    def warm(self, nbytes: int) -> None:
        """Have enough slots to stage `nbytes` without waiting for a copy."""
        wanted = -(-nbytes // SLOT)
        with self._lock:
            self._grow(wanted - len(self._ring))

    def _grow(self, slots: int) -> None:
        """Add slots, ready to be used first."""
        for _ in range(slots):
            self._ring.appendleft(self._fresh())

    def _fresh(self) -> _Slot:
        return _Slot(self._streams.pinned(SLOT, torch.uint8))

    def move(self, leaf: Tensor, stream: torch.Stream) -> tuple[Tensor, Any, bool]:
        """Move one host leaf; call it on the copy stream.

        Returns:
            The leaf on the device; what must stay alive until the copy is done (None if
            nothing); and whether the new leaf is one block of memory.
        """
        if not is_plain(leaf):
            return (*self._move_odd(leaf), False)
        dense = _is_dense(leaf)
        if dense and leaf.is_pinned():
            # DMA reads the caller's own memory: it must live until then.
            return leaf.to(self._device, non_blocking=True), leaf, True
        if leaf.numel() == 0:
            return leaf.to(self._device), None, True
        source = leaf if dense else leaf.resolve_conj().resolve_neg()
        source = source if dense or _is_dense(source) else source.clone()
        if source.nbytes >= _RING_FROM:
            new = torch.empty_like(source, device=self._device)
            self._through_ring(_row(source), _row(new), stream)
            return new, None, True
        staged = self._streams.pinned(source.numel(), source.dtype)
        staged.copy_(source.as_strided(staged.shape, (1,)))
        new = staged.to(self._device, non_blocking=True)
        # In place, as no view of another: see Note [packed leaves].
        return new.as_strided_(source.shape, source.stride()), None, True

    def _move_odd(self, leaf: Tensor) -> tuple[Tensor, Any]:
        """Move a leaf that only torch knows how to: sparse, a subclass, with grad."""
        in_transform = torch._C._functorch.is_functorch_wrapped_tensor(leaf)
        if in_transform or in_forward_mode():
            # `pin_memory` may know nothing of it. The host may block.
            return leaf.to(self._device, non_blocking=True), leaf
        if leaf.layout is torch.strided and leaf.is_pinned():
            return leaf.to(self._device, non_blocking=True), leaf
        pinned = leaf.pin_memory()
        return pinned.to(self._device, non_blocking=True), pinned

    def _through_ring(self, source: Tensor, new: Tensor, stream: torch.Stream) -> None:
        """Copy bytes in pieces: while one piece travels, the host fills the next."""
        with self._lock:
            start = 0
            while start < source.numel():
                slot = self._slot_with_room()
                end = min(start + SLOT - slot.used, source.numel())
                piece = slot.memory[slot.used : slot.used + end - start]
                piece.copy_(source[start:end])
                new[start:end].copy_(piece, non_blocking=True)
                slot.used += -(-(end - start) // _LINE) * _LINE
                slot.free_after = self._streams.record(stream)
                start = end

    def _slot_with_room(self) -> _Slot:
        """Return the slot being filled, or else a free one: an old or a new one.

        Only where there may be no more slots does the host wait for the oldest.
        """
        if self._ring[-1].used < SLOT:
            return self._ring[-1]
        slot = self._ring[0]
        busy_until = slot.free_after
        if busy_until is None or busy_until.query():
            self._ring.popleft()
        elif len(self._ring) < self._limit:
            self.growths += 1
            slot = self._fresh()
        else:
            self.waits += 1
            self._wait_for((busy_until,))
            self._ring.popleft()
        self._ring.append(slot)
        slot.used = 0
        return slot


def _is_dense(leaf: Tensor) -> bool:
    """Return whether a leaf's items lie side by side, and mean what they say."""
    if leaf.is_conj() or leaf.is_neg():
        return False
    return leaf.is_contiguous() or bool(
        torch.ops.aten.is_non_overlapping_and_dense(leaf)
    )


def _row(leaf: Tensor) -> Tensor:
    """View a dense leaf as a row of bytes."""
    return leaf.as_strided((leaf.numel(),), (1,)).view(torch.uint8)
