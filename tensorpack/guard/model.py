"""The model: what streams do with blocks of memory, and which of it is a hazard.

It is told what happens, in order, and knows nothing of torch. The run-time guard tells
it what torch's callbacks say; the test kit tells it what recorded streams do.

# Note [pending]
Memory that is freed while a stream may still use it is in danger only when somebody
else can get it: the allocator hands a block out to the stream that it was allocated on.
If that stream comes to wait for the use before it allocates anything, all is well. So
a free that nothing protects is *pending*, and a hazard at the next allocation there.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

import attrs

from tensorpack.guard.blocks import Access, Block
from tensorpack.guard.extents import Extent
from tensorpack.guard.hazards import Hazard, Step
from tensorpack.guard.order import Clock, Order, StreamKey
from tensorpack.guard.places import NOWHERE, Place

__all__ = ["Model", "Pending", "Use"]

_MANY = 256
"""Pending frees after which those that are over are looked for."""


@attrs.frozen
class Use:
    """What an operator does with memory, as the model is told.

    Attributes:
        writes: whether it changes the memory.
        operation: the name of the operator.
        what: the tensor, as it is described.
        place: where the program asked for it.
        extent: the bytes of the block; None for all.
        by_host: whether the host reads by it: then what it knows to be done counts.
    """

    writes: bool
    operation: str = ""
    what: object = ""
    place: Place = NOWHERE
    extent: Extent | None = None
    by_host: bool = False


@attrs.frozen(eq=False)
class Pending:
    """A free that nothing protects, so far."""

    block: Block
    use: Access
    freed: Place


class Model:
    """Blocks, streams and their order; hands each hazard to who asked for them.

    Attributes:
        order: which work is behind which.
        blocks: the blocks that live, by their keys.
    """

    def __init__(
        self,
        found: Callable[[Hazard], None],
        name: Callable[[StreamKey], str],
        order: Order | None = None,
        later: Order | None = None,
    ) -> None:
        """Make a model in which nothing has happened.

        Args:
            found: is given each hazard.
            name: names a stream in a sentence.
            order: which work is behind which.
            later: the same, as it decides about memory that is freed already.
        """
        self.order: Order = Order() if order is None else order
        self.blocks: dict[Hashable, Block] = {}
        self._later = self.order if later is None else later
        self._found = found
        self._name = name
        self._work = 0
        self._events: dict[Hashable, Clock] = {}
        self._pending: dict[StreamKey, list[Pending]] = {}
        self._host: dict[Hashable, list[Access]] = {}

    # Streams and events.

    def tick(self, stream: StreamKey) -> int:
        """Number the next piece of work of a stream."""
        self._work += 1
        self.order.tick(stream, self._work)
        return self._work

    def record_event(self, event: Hashable, stream: StreamKey) -> None:
        """Take that an event is recorded: it marks what the stream has got so far."""
        self._events[event] = self.order.mark(stream)

    def wait_event(self, event: Hashable, stream: StreamKey) -> None:
        """Take that a stream waits for an event; one never recorded orders nothing."""
        self.order.follow(stream, self._events.get(event, {}))

    def finish_event(self, event: Hashable) -> None:
        """Take that the host has waited for an event, or was told that it is done."""
        self.order.finish(self._events.get(event, {}))

    def drop_event(self, event: Hashable) -> None:
        """Take that an event is gone: another one may get its number."""
        self._events.pop(event, None)

    def finish_stream(self, stream: StreamKey) -> None:
        """Take that the host has waited for a stream."""
        self.order.finish(self.order.mark(stream))

    def finish_device(self, index: int) -> None:
        """Take that the host has waited for all streams of a device."""
        for stream in self.order.streams_of(index):
            self.finish_stream(stream)

    # Device memory.

    def allocate(
        self,
        key: Hashable,
        home: StreamKey | None,
        place: Place = NOWHERE,
        born: Iterable[Access] = (),
    ) -> Block:
        """Take that a stream gets a block; report what it may have got too early."""
        if home is not None:
            self._hand_out(home, place)
        block = Block(key, home, tuple(born), place)
        self.blocks[key] = block
        return block

    def use(
        self, key: Hashable, stream: StreamKey, use: Use, number: int | None = None
    ) -> None:
        """Take that a stream reads or writes a block; report what it is not behind.

        Args:
            key: the block.
            stream: who uses it.
            use: what is done.
            number: which work of the stream it is; without it, the next.
        """
        block = self.blocks.get(key)
        if block is None:
            block = self.allocate(key, None)
        number = self.tick(stream) if number is None else number
        access = _access(use, stream, number)
        for other in block.before(access):
            known = use.by_host and self.order.is_done(other.stream, other.number)
            if not known and not self.order.is_behind(
                stream, other.stream, other.number
            ):
                self._found(self._race(block, access, other))
        block.add(access)

    def record(self, key: Hashable, stream: StreamKey, place: Place = NOWHERE) -> None:
        """Take that a stream is recorded on a block."""
        block = self.blocks.get(key)
        if block is None:
            block = self.allocate(key, None)
        block.recorded[stream] = place

    def free(
        self,
        key: Hashable,
        place: Place = NOWHERE,
        known: Mapping[StreamKey, int] | None = None,
    ) -> Block | None:
        """Take that the last reference to a block is gone.

        Args:
            key: the block.
            place: where the program dropped it.
            known: what the program knows to be done there, besides what the host does.

        Returns:
            The block; None if it was never seen.
        """
        block = self.blocks.pop(key, None)
        if block is None or block.home is None:
            return block
        for use in block.last.values():
            asked = (known or {}).get(use.stream, -1) >= use.number
            if not asked and not self._is_kept(block, use):
                self._add_pending(block.home, Pending(block, use, place))
        return block

    def _add_pending(self, home: StreamKey, pending: Pending) -> None:
        """Keep a pending free; forget those that are over before they become many."""
        kept = self._pending.setdefault(home, [])
        kept.append(pending)
        if len(kept) % _MANY == 0:
            kept[:] = [one for one in kept if not self._is_over(one)]

    def _is_kept(self, block: Block, use: Access) -> bool:
        """Return whether the allocator waits for a use: by record, or by order."""
        # The allocator waits for all that recorded streams have got before the free.
        told = [block.home, *block.recorded]
        return any(
            stream is not None and self.order.is_behind(stream, use.stream, use.number)
            for stream in told
        )

    def _is_over(self, pending: Pending) -> bool:
        home, use = pending.block.home, pending.use
        return home is None or self._later.is_behind(home, use.stream, use.number)

    def forgive(self, by: Callable[[Place], bool]) -> None:
        """Take that the host has waited: frees at some places are no hazard then."""
        for home, pending in list(self._pending.items()):
            self._pending[home] = [
                one
                for one in pending
                if not by(one.freed)
                or not self.order.is_done(one.use.stream, one.use.number)
            ]

    def _hand_out(self, home: StreamKey, place: Place) -> None:
        """Report the pending frees of a stream that allocates now. Note [pending]."""
        for pending in self._pending.pop(home, ()):
            if not self._is_over(pending):
                self._found(self._lifetime(pending, place))

    def pending(self) -> Iterator[Hazard]:
        """Iterate what would be a hazard if each stream allocated something now."""
        for all_of_one in list(self._pending.values()):
            for pending in all_of_one:
                if not self._is_over(pending):
                    yield self._lifetime(pending, None)

    # Host memory that copies go to or come from.

    def host_copy(
        self, key: Hashable, stream: StreamKey, use: Use, number: int | None = None
    ) -> None:
        """Take that a stream copies from host memory, or to it (a use that writes)."""
        number = self.tick(stream) if number is None else number
        access = _access(use, stream, number)
        kept = []
        for other in self._host.get(key, ()):
            if self.order.is_done(other.stream, other.number):
                continue
            kept.append(other)
            behind = self.order.is_behind(stream, other.stream, other.number)
            if not behind and other.meets(access):
                self._found(self._race(Block(key, None), access, other))
        self._host[key] = [*kept, access]

    @property
    def has_copies(self) -> bool:
        """Return whether copies to or from host memory may still be under way."""
        return bool(self._host)

    @property
    def host_keys(self) -> list[Hashable]:
        """List the keys of host memory that copies may still be under way for."""
        return list(self._host)

    def host_use(self, key: Hashable, use: Use) -> None:
        """Take that the host itself reads or writes memory; report what is not done."""
        access = _access(use, HOST, 0)
        flights = self._in_flight(key)
        for other in flights:
            if other.meets(access):
                self._found(self._host_hazard(key, access, other))
        if not flights:
            self._host.pop(key, None)

    def host_free(
        self, key: Hashable, place: Place = NOWHERE, *, owned: bool = True
    ) -> None:
        """Take that host memory is given back: who owns it waits for the copies."""
        flights = self._in_flight(key)
        self._host.pop(key, None)
        for other in () if owned else flights:
            gone = Access("frees", HOST, 0, writes=True, place=place)
            self._found(self._host_hazard(key, gone, other))

    def _in_flight(self, key: Hashable) -> list[Access]:
        found = self._host.get(key, ())
        return [x for x in found if not self.order.is_done(x.stream, x.number)]

    # Reports.

    def _race(self, block: Block, access: Access, other: Access) -> Hazard:
        """Describe a use that does not wait for one that it must be behind."""
        mine, theirs = self._name(access.stream), self._name(other.stream)
        problem = f"{mine} {access.did} what {theirs} {other.did}, and does not wait"
        later = f"Let {mine} wait, before {access.place}, for an event recorded on "
        return Hazard(
            kind="order",
            block=block.key,
            what=str(access.what or other.what),
            problem=f"{problem} for it",
            remedy=f"{later}{theirs} after {other.place}.",
            steps=(self._step(other), self._step(access)),
            use=access,
        )

    def _lifetime(self, pending: Pending, taken: Place | None) -> Hazard:
        """Describe memory that is handed out while a stream may still use it."""
        block, use = pending.block, pending.use
        home = "an unknown stream" if block.home is None else self._name(block.home)
        reader = self._name(use.stream)
        steps = [Step(f"allocated on {home}", block.allocated), self._step(use)]
        steps += [
            Step(f"recorded on {self._name(stream)}", place)
            for stream, place in block.recorded.items()
        ]
        steps.append(Step("freed", pending.freed))
        if taken is not None:
            steps.append(Step(f"{home} allocates again", taken))
        return Hazard(
            kind="lifetime",
            block=block.key,
            what=str(use.what),
            problem=f"freed while {reader} may still use it",
            remedy=(
                f"Record {reader} on it (`record_stream`) after {use.place}, or let "
                f"{home} wait for {reader} before it is freed."
            ),
            steps=tuple(steps),
            use=use,
        )

    def _host_hazard(self, key: Hashable, access: Access, other: Access) -> Hazard:
        """Describe what the host does before a copy is done."""
        stream = self._name(other.stream)
        way = "to" if other.writes else "from"
        kind = "host free" if access.did == "frees" else f"host {access.did[:-1]}"
        return Hazard(
            kind=kind,
            block=key,
            what=str(access.what or other.what),
            problem=(
                f"the host {access.did} memory that {stream} copies {way}, before the "
                "copy is done"
            ),
            remedy=(
                f"Synchronize, before {access.place}, with an event recorded on "
                f"{stream} after {other.place}."
            ),
            steps=(self._step(other), self._step(access)),
            use=access if access.operation else other,
        )

    def _step(self, access: Access) -> Step:
        """Describe an access as a step of a story."""
        who = "the host" if access.stream == HOST else self._name(access.stream)
        by = f" by {access.operation}" if access.operation else ""
        what = f": {access.what}" if access.what else ""
        return Step(f"{who} {access.did}{by}{what}", access.place)


HOST: StreamKey = (0, 0, 0)
"""Stands for the host among the streams."""


def _access(use: Use, stream: StreamKey, number: int) -> Access:
    return Access(
        "writes" if use.writes else "reads",
        stream,
        number,
        writes=use.writes,
        operation=use.operation,
        what=use.what,
        place=use.place,
        extent=use.extent,
    )
