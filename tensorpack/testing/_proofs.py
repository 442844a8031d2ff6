"""What a log proves: that a leaf was handed over rightly."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tensorpack._leaves.streams import StreamId

__all__ = ["USES", "WRITES", "not_handed_over"]

WRITES = ("copy", "write")
"""The calls that change memory."""
USES = ("copy", "fetch", "read", "write")
"""The calls that use memory."""


class _Entry(Protocol):
    """What is asked of an entry."""

    @property
    def call(self) -> str: ...
    @property
    def stream(self) -> StreamId: ...
    @property
    def storage(self) -> int | None: ...


class _Log(Protocol):
    """What is asked of a log."""

    @property
    def raw(self) -> Sequence[_Entry]: ...
    @property
    def allocated(self) -> Mapping[int, StreamId]: ...
    def is_behind(self, later: int, earlier: int) -> bool: ...


def not_handed_over(log: _Log, storage: int, consumer: StreamId) -> str:
    """Say what a consumer has left out for a block, as a clause; "" if nothing."""
    entries = [(i, e) for i, e in enumerate(log.raw) if e.storage == storage]
    mine = [(i, e.call) for i, e in entries if e.stream == consumer]
    records = [i for i, call in mine if call == "record"]
    uses = [i for i, call in mine if call in USES]
    copies = [i for i, e in entries if e.call in WRITES and e.stream != consumer]
    if log.allocated.get(storage) == consumer:
        # The consumer's own memory: only the order is owed.
        early = any(not log.is_behind(u, i) for i in copies for u in uses if u > i)
        late = any(not _followed(log, consumer, i) for i in copies)
        return "is used before the stream waits for its copy" if early or late else ""
    if not records:
        return "is not recorded on the stream"
    if not all(log.is_behind(records[0], i) for i in copies if i < records[0]):
        return "is recorded before the stream waits for its copy"
    if uses and uses[0] < records[0]:
        return "is used before the stream is recorded on it"
    if not all(_followed(log, consumer, i) for i in copies):
        return "is written by another stream after it was handed over"
    return ""


def _followed(log: _Log, consumer: StreamId, index: int) -> bool:
    """Return whether a consumer's next use of a block, or its last work, is behind."""
    later = [i for i, e in enumerate(log.raw) if i > index and e.stream == consumer]
    return any(log.is_behind(i, index) for i in later)
