"""What a log proves: that a leaf was handed over rightly, that no use is a hazard."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from tensorpack._leaves.streams import StreamId

__all__ = ["Hazard", "hazards", "not_handed_over"]

_WRITES = ("copy", "write")
_USES = ("copy", "fetch", "read", "write")


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
    def keys_of(self, storage: int) -> str: ...


def not_handed_over(log: _Log, storage: int, consumer: StreamId) -> str:
    """Say what a consumer has left out for a block, as a clause; "" if nothing."""
    entries = [(i, e) for i, e in enumerate(log.raw) if e.storage == storage]
    mine = [(i, e.call) for i, e in entries if e.stream == consumer]
    records = [i for i, call in mine if call == "record"]
    uses = [i for i, call in mine if call in _USES]
    copies = [i for i, e in entries if e.call in _WRITES and e.stream != consumer]
    if log.allocated.get(storage) == consumer and not copies:
        return ""
    if not records:
        return "is not recorded on the stream"
    if not all(log.is_behind(records[0], i) for i in copies if i < records[0]):
        return "is recorded before the stream waits for its copy"
    if uses and uses[0] < records[0]:
        return "is used before the stream is recorded on it"
    if not all(log.is_behind(records[0], i) for i in copies):
        return "is written by another stream after it was handed over"
    return ""


@attrs.frozen
class Hazard:
    """A use of a block that nothing protects."""

    where: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Compose the sentence."""
        return f"{self.where}: {self.problem}. {self.remedy}"


def hazards(log: _Log) -> Iterator[Hazard]:
    """Iterate the hazards of a log, each once."""
    histories: dict[int, _History] = {}
    known: set[Hazard] = set()
    for index, entry in enumerate(log.raw):
        if entry.storage is None:
            continue
        history = histories.setdefault(entry.storage, _History(log, entry.storage))
        for hazard in history.add(index, entry):
            if hazard not in known:
                known.add(hazard)
                yield hazard


class _History:
    """What was done to one block so far, as far as it can still matter."""

    def __init__(self, log: _Log, storage: int) -> None:
        self._log = log
        keys = log.keys_of(storage)
        self._where = f"storage {storage}" + (f" ({keys})" if keys else "")
        self._home = log.allocated.get(storage)
        self._written: list[int] = []
        self._read: list[int] = []
        self._last: dict[StreamId, int] = {}
        self._recorded: set[StreamId] = set()

    def add(self, index: int, entry: _Entry) -> Iterator[Hazard]:
        """Take the next entry; iterate the hazards that it brings."""
        if entry.call == "record":
            self._recorded.add(entry.stream)
        elif entry.call == "free":
            yield from self._free(index)
        elif entry.call in _USES:
            writes = entry.call in _WRITES
            before = [*self._written, *self._read] if writes else self._written
            yield from self._use(index, entry, before)
            self._last[entry.stream] = index
            if writes:
                self._written, self._read = [index], []
            else:
                self._read.append(index)

    def _use(
        self, index: int, entry: _Entry, before: Collection[int]
    ) -> Iterator[Hazard]:
        """Check that a use is behind those that it must be behind."""
        does = "writes" if entry.call in _WRITES else "reads"
        for earlier in before:
            if not self._log.is_behind(index, earlier):
                other = self._log.raw[earlier]
                did = "writes" if other.call in _WRITES else "reads"
                mine, theirs = _name(entry.stream), _name(other.stream)
                yield Hazard(
                    self._where,
                    f"{mine} {does} what {theirs} {did}, and does not wait for it",
                    f"Let {mine} wait for an event recorded on {theirs}.",
                )

    def _free(self, index: int) -> Iterator[Hazard]:
        """Check that nobody uses the block any more, or the allocator is told."""
        for stream, last in self._last.items():
            told = stream == self._home or stream in self._recorded
            if not told and not self._log.is_behind(index, last):
                name = _name(stream)
                yield Hazard(
                    self._where,
                    f"freed while {name} may still use it",
                    f"Record {name} on it.",
                )


def _name(stream: StreamId) -> str:
    return f"stream {stream[2]}"
