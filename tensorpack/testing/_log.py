"""The log: what was queued on which stream, in order, and what that proves."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack._leaves.streams import StreamId, stream_id
from tensorpack._rules.markers import Marker
from tensorpack.guard.blocks import Access
from tensorpack.guard.hazards import Hazard
from tensorpack.guard.model import Model
from tensorpack.guard.places import Place, here
from tensorpack.testing._clocks import Clock, Mark, Order
from tensorpack.testing._host import HostMemory
from tensorpack.testing._oracle import Found, Search
from tensorpack.testing._proofs import USES, not_handed_over
from tensorpack.testing._uses import uses_of

__all__ = ["Entry", "Log", "is_under", "owed"]


@attrs.frozen
class Entry:
    """One thing that a stream was given to do, or that was done to its memory.

    Attributes:
        call: `"copy"` (host to device), `"fetch"` (device to host), `"read"`,
            `"write"`, `"event"` (an event is recorded), `"wait"` (the stream waits for
            one), `"record"` (the stream is recorded on memory), `"free"` (the last
            reference is gone; the stream is the one the memory was allocated on), or
            `"synchronize"` (the host blocks for the stream).
        stream: device type, device index and stream id.
        storage: the number of the block of device memory, counted from 0.
        event: the number of the event, counted from 0.
        key: the keys of the leaves in that block, as far as the log was told.
    """

    call: str
    stream: StreamId
    storage: int | None = None
    event: int | None = None
    key: str = ""

    def on(self, stream: torch.Stream) -> bool:
        """Tell whether it is an entry of a stream."""
        return self.stream == stream_id(stream)


class Log:
    """What streams were given to do, in order.

    Attributes:
        order: who is behind whom.
        model: what of it is a hazard.
        host: the host memory that copies go to or come from.
        capturing_ids: the streams that say they are capturing a graph.
        allocated: the stream on which each block was allocated, as far as it was seen.
    """

    def __init__(self, storages: Callable[[Tensor], list[int]]) -> None:
        self._storages = storages
        self._entries: list[Entry] = []
        self._clocks: list[Clock] = []
        self._asked: list[Clock] = []
        self._keys: dict[int, dict[str, None]] = {}
        self._events = 0
        self.order: Order = Order()
        self.capturing_ids: set[StreamId] = set()
        self.allocated: dict[int, StreamId] = {}
        self._hazards: list[Hazard] = []
        self._made: dict[StreamId, Place] = {}
        self.model: Model = Model(
            self._hazards.append,
            self.name_of,
            order=self.order.known,
            later=self.order.waited,
        )
        self.host: HostMemory = HostMemory(self.model, self.order)

    @property
    def raw(self) -> list[Entry]:
        """Everything so far, without keys."""
        return self._entries

    def keys_of(self, storage: int) -> str:
        """Name the leaves in a block, as far as the log was told."""
        return ", ".join(self._keys.get(storage, ()))

    @property
    def entries(self) -> list[Entry]:
        """Everything so far, the oldest first."""
        return [
            attrs.evolve(entry, key=self.keys_of(entry.storage))
            if entry.storage is not None
            else entry
            for entry in self._entries
        ]

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        call: str,
        stream: StreamId,
        storage: int | None = None,
        event: int | None = None,
        *,
        tensors: Sequence[Tensor] = (),
        operation: str = "",
    ) -> None:
        """Enter what a stream is given.

        Args:
            call: what it is; see `Entry`.
            stream: who is given it.
            storage: the block that it is about.
            event: the event that it is about.
            tensors: those in the block that an operator uses.
            operation: the operator.
        """
        with self.order.changed:
            index = len(self._entries)
            self._clocks.append(self.order.tick(stream, index))
            self._asked.append(self.order.asked() if call == "fetch" else {})
            self._entries.append(Entry(call, stream, storage, event))
            if storage is None:
                return
            place = here()
            if call == "record":
                self.model.record(storage, stream, place)
            elif call == "free":
                self.model.free(storage, place, self.order.known_at(place))
            elif call in USES:
                for use in uses_of(call, tensors, operation or call, place):
                    self.model.use(storage, stream, use, index)

    def allocate(self, storage: int, stream: StreamId, *, pooled: bool = False) -> None:
        """Note that a stream has got a block, perhaps of a graph's pool; no entry."""
        with self.order.changed:
            place, last = here(), self.order.known.last(stream)
            # The memory may have been used before, by work that is still queued.
            used = Access("allocated", stream, last, place=place)
            born = [used] if last >= 0 and not pooled else []
            self.allocated[storage] = stream
            # A graph keeps its pool to itself: no free gives it to other work.
            self.model.allocate(storage, None if pooled else stream, place, born)

    def name_stream(self, stream: StreamId) -> None:
        """Note where a stream is made: the program has a name for it there."""
        self._made[stream] = here()

    def name_of(self, stream: StreamId) -> str:
        """Name a stream in a sentence."""
        if not stream[2]:
            return "the default stream"
        name = self._made[stream].target() if stream in self._made else ""
        return f"stream {stream[2]}" + (f" `{name}`" if name else "")

    def add_event(self, stream: StreamId) -> tuple[int, Mark]:
        """Enter an event that is recorded on a stream."""
        with self.order.changed:
            number, self._events = self._events, self._events + 1
            self.add("event", stream, event=number)
            return number, self.order.mark(stream)

    def add_wait(self, stream: StreamId, event: int, mark: Mark) -> None:
        """Enter that a stream waits for an event."""
        with self.order.changed:
            self.order.follow(stream, mark)
            self.add("wait", stream, event=event)

    def add_synchronize(self, stream: StreamId, mark: Mark | None = None) -> None:
        """Enter that the host blocks for a stream, and block for it."""
        self.add("synchronize", stream)
        self.order.await_done(self.order.mark(stream) if mark is None else mark)
        with self.order.changed:
            codes = here().codes
            self.model.forgive(lambda freed: freed.is_below(codes))

    def is_behind(self, later: int, earlier: int) -> bool:
        """Tell whether one entry certainly comes after another on the device."""
        stream = self._entries[earlier].stream
        known = (self._clocks[later], self._asked[later])
        return any(clock.get(stream, -1) >= earlier for clock in known)

    # What a test asks.

    def missing(
        self, payload: object, stream: torch.Stream, *, ignore: Collection[str] = ()
    ) -> list[str]:
        """Name the device leaves of a payload that a stream is not recorded on.

        The leaves are found by the oracle, not by the payload's plan. Leaves under
        `Borrowed` fields are recorded elsewhere and left out.

        Args:
            payload: an object of any class.
            stream: the stream whose work reads the leaves.
            ignore: keys to leave out, with everything under them.
        """
        wanted = stream_id(stream)
        recorded = {
            e.storage
            for e in self._entries
            if e.call == "record" and e.stream == wanted
        }
        return [
            found.key
            for found, storages in self.owned(payload, ignore)
            if not recorded.issuperset(storages)
        ]

    def recorded(
        self, payload: object, stream: torch.Stream | None = None
    ) -> list[str]:
        """Name what streams are recorded on: a key for each record, in their order.

        So `log.recorded(batch) == ["ids", "mask"]` says that each leaf is recorded
        once, in this order, and nothing else is. A leaf in several places has the first
        of its keys; leaves that share a block are named together (`"ids, mask"`).
        Memory of no leaf that the payload owns is named by its number (`"storage 3"`).

        Args:
            payload: an object of any class.
            stream: the one whose records count; without it, those of all streams do.
        """
        names: dict[int, dict[int, str]] = {}
        for found, storages in self.owned(payload):
            for storage in storages:
                keys = names.setdefault(storage, {})
                keys.setdefault(id(found.tensor), found.key)
        return [
            ", ".join(names.get(number, {0: f"storage {number}"}).values())
            for number in (e.storage for e in self.of("record", stream=stream))
            if number is not None
        ]

    def owned(
        self, payload: object, ignore: Collection[str] = ()
    ) -> Iterator[tuple[Found, list[int]]]:
        """Iterate the device leaves that a payload owns, with their blocks."""
        for found in owed(payload, ignore):
            storages = self._storages(found.tensor)
            for storage in storages:
                self._keys.setdefault(storage, {})[found.key] = None
            if storages:
                yield found, storages

    def life(self, payload: object) -> dict[str, list[Entry]]:
        """Tell what happened to each device leaf of a payload, in order.

        Besides the entries of its memory, these are the event behind its last copy that
        another stream waits for, and the waits.
        """
        owned = list(self.owned(payload))
        entries = self.entries
        return {
            found.key: [entries[index] for index in self._life(storages)]
            for found, storages in owned
        }

    def _life(self, storages: Collection[int]) -> list[int]:
        """List the entries that tell the life of some blocks."""
        entries = self._entries
        own = [i for i, e in enumerate(entries) if e.storage in storages]
        copies = [i for i in own if entries[i].call == "copy"]
        if not copies:
            return own
        stream = entries[copies[-1]].stream
        events = {
            e.event: i
            for i, e in enumerate(entries)
            if e.call == "event" and e.stream == stream and i > copies[-1]
        }
        waits = [i for i, e in enumerate(entries) if e.call == "wait"]
        waits = [i for i in waits if entries[i].event in events]
        ready = [events[entries[waits[0]].event]] if waits else [*events.values()][:1]
        numbers = {entries[index].event for index in ready}
        return sorted(
            {*own, *ready, *(i for i in waits if entries[i].event in numbers)}
        )

    def assert_handed_over(
        self, payload: object, stream: torch.Stream, *, ignore: Collection[str] = ()
    ) -> None:
        """Fail unless a consumer has taken every device leaf of a payload rightly.

        The consumer waits for each leaf's copy, then it is recorded on the leaf's
        memory, then it reads. A leaf that was allocated on the consumer itself owes
        nothing; leaves under `Borrowed` fields are left out.

        Args:
            payload: an object of any class, as the consumer got it.
            stream: the consumer.
            ignore: keys to leave out, with everything under them.

        Raises:
            AssertionError: some leaf was not; the error names the key of each.
        """
        __tracebackhide__ = True
        wanted = stream_id(stream)
        bad, count = [], 0
        for found, storages in self.owned(payload, ignore):
            count += 1
            wrongs = (not_handed_over(self, number, wanted) for number in storages)
            bad += [f"`{found.key}` {wrong}." for wrong in wrongs if wrong]
        if not count:
            bad = ["The payload has no leaf on a device. Give what `wait` returned."]
        if bad:
            raise AssertionError("\n".join(bad))

    def hazards(self) -> list[str]:
        """Describe every use of memory that nothing protects, by any stream.

        - A stream reads or writes what another has written, or writes what another has
          read or allocated, without waiting for it.
        - Memory is freed while a stream that is not recorded on it may still use it,
          and the stream that it was allocated on does not wait for that one before it
          allocates again.
        - The host reads what is copied to it, or writes to pinned memory that is copied
          from, before it knows that the copy is done.

        Each report names the block, the streams by the names that the program gives
        them, where it allocates, uses and frees the memory, and what would mend it.

        Returns:
            A text for each, its first line whole in itself; frames are indented.
        """
        with self.order.changed:
            found = [*self._hazards, *self.model.pending()]
        return list(dict.fromkeys(map(self._describe, found)))

    def _describe(self, hazard: Hazard) -> str:
        """Write a hazard, with the keys that the log was told for its block."""
        if not isinstance(hazard.block, int):
            return hazard.describe()
        keys = self.keys_of(hazard.block)
        where = f"storage {hazard.block}"
        return hazard.describe(f"{where} ({keys})" if keys else where)

    def of(self, call: str, *, stream: torch.Stream | None = None) -> list[Entry]:
        """List the entries of one call, of one stream if it is given."""
        wanted = None if stream is None else stream_id(stream)
        return [
            e for e in self.entries if e.call == call and wanted in (None, e.stream)
        ]

    def held(self, stream: torch.Stream) -> AbstractContextManager[None]:
        """Hold up a stream: nothing it is given in the block is done before its end.

        Host code that synchronizes with such work from the same thread raises, since
        it would block for ever.
        """
        return self.order.held(stream_id(stream))

    @contextmanager
    def capturing(self, stream: torch.Stream) -> Iterator[None]:
        """Let a stream say, in the block, that it is capturing a graph."""
        found = stream_id(stream)
        self.capturing_ids.add(found)
        try:
            yield
        finally:
            self.capturing_ids.discard(found)

    def __str__(self) -> str:
        """Write one line for each entry."""
        return "\n".join(map(_line, self.entries))


def _line(entry: Entry) -> str:
    """Write one entry as a line of a table."""
    what = "" if entry.event is None else f"event {entry.event}"
    if entry.storage is not None:
        what = f"storage {entry.storage}" + (f" ({entry.key})" if entry.key else "")
    return f"{entry.call:<12}stream {entry.stream[2]:<4}{what}".rstrip()


def owed(payload: Any, ignore: Collection[str] = ()) -> list[Found]:
    """List the tensors for which a payload itself answers."""
    return [
        found
        for found in Search(payload).found
        if not found.marks.may(Marker.BORROWED) and not is_under(found.key, ignore)
    ]


def is_under(key: str, tops: Collection[str]) -> bool:
    """Tell whether a key is one of some keys, or below one of them."""
    return any(
        key == top or (key.startswith(top) and key[len(top)] in ".[") for top in tops
    )
