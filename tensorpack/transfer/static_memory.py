"""Static memory: who writes it, who reads it, and what was written to it last.

# Note [write after read]
Static memory is written again and again, so three things are kept for each block: the
copy stream that writes it, the streams that `wait` has named since it was written,
behind whose queued work the next copies go, and a number that tells an old handoff that
its rows are gone. They belong to the block, whatever objects lead to it.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tensorpack._leaves.streams import StreamId, Streams, stream_id
from tensorpack.errors import HandoffError

__all__ = ["StaticMemory", "memory_of"]


@attrs.define(eq=False)
class _Block:
    """One block of static memory.

    Attributes:
        owner: gives the copy stream that writes it, as long as that lives.
        written: how often it was written.
        readers: the streams that read what was written last.
        recorded: the streams that are recorded on it; once is enough until it is freed.
    """

    owner: "weakref.ref[Any] | None" = None
    written: int = 0
    readers: dict[StreamId, torch.Stream] = attrs.field(factory=dict)
    recorded: set[StreamId] = attrs.field(factory=set)


@attrs.frozen(eq=False)
class StaticMemory:
    """The blocks that the leaves of a static payload lie in, each with one leaf."""

    blocks: tuple[tuple[_Block, Tensor], ...]

    def claim(self, owner: Any, call: str) -> None:
        """Let a copy stream write, if no other one does.

        Raises:
            HandoffError: another one does, and is not closed.
        """
        for block, _ in self.blocks:
            known = block.owner() if block.owner is not None else None
            if known is not None and known is not owner and not known._closed:
                raise HandoffError(
                    call=call,
                    problem="another copy stream writes this static memory, and this "
                    "one would not wait for its readers",
                    remedy="Close the other one first, or use it for both.",
                )
        for block, _ in self.blocks:
            block.owner = weakref.ref(owner)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nobody else write, or be handed what was written."""
        with _lock:
            yield

    def is_new(self) -> bool:
        """Return whether a part of it was never written."""
        return any(block.written == 0 for block, _ in self.blocks)

    def begin(
        self, stream: torch.Stream | None, streams: Streams | None
    ) -> tuple[int, ...]:
        """Queue waits for all readers on the stream that writes; number what it does.

        What earlier calls have written counts as gone from here on. Without streams
        there is nobody to wait for.
        """
        readers: dict[StreamId, torch.Stream] = {}
        with _lock:
            for block, _ in self.blocks:
                block.written += 1
                readers |= block.readers
                block.readers = {}
        if stream is not None and streams is not None:
            for reader in readers.values():
                streams.record(reader).wait(stream)
            self._record(stream, stream_id(stream))
        return self.numbers()

    def numbers(self) -> tuple[int, ...]:
        """Return how often each block was written."""
        return tuple([block.written for block, _ in self.blocks])

    def check(self, numbers: tuple[int, ...], call: str) -> None:
        """Raise for rows that were overwritten.

        Raises:
            HandoffError: the memory was written since.
        """
        if numbers != self.numbers():
            raise HandoffError(
                call=call,
                problem="its static memory was written again by a later call",
                remedy="Wait for each before the next one is started.",
            )

    def read_by(self, stream: torch.Stream) -> None:
        """Note a stream that reads what was written last."""
        key = stream_id(stream)
        for block, _ in self.blocks:
            block.readers[key] = stream
        self._record(stream, key)

    def _record(self, stream: torch.Stream, key: StreamId) -> None:
        """Record a stream on every block, once."""
        for block, leaf in self.blocks:
            if key not in block.recorded:
                block.recorded.add(key)
                if not leaf.is_cpu:
                    leaf.record_stream(stream)


_blocks: dict[int, tuple[StorageWeakRef, _Block]] = {}
_lock = threading.RLock()


def memory_of(leaves: Sequence[Tensor]) -> StaticMemory:
    """Return the memory that static leaves lie in."""
    by_storage = {leaf.untyped_storage()._cdata: leaf for leaf in leaves}
    with _lock:
        _forget(n for n, (held, _) in list(_blocks.items()) if _is_freed(held))
        for number, leaf in by_storage.items():
            if number not in _blocks:
                # Held weakly; its number comes to no other as long as this is there.
                held = StorageWeakRef(leaf.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
                _blocks[number] = held, _Block()
        found = tuple((_blocks[n][1], leaf) for n, leaf in by_storage.items())
    return StaticMemory(found)


def _is_freed(held: StorageWeakRef) -> bool:
    """Return whether a block is freed."""
    return bool(held.expired())  # type: ignore[no-untyped-call]  # torch's


def _forget(numbers: Iterable[int]) -> None:
    """Forget blocks."""
    for number in numbers:
        del _blocks[number]
