"""Blocks of memory, and what was done to them as far as it can still matter."""

from collections.abc import Hashable, Iterator

import attrs

from tensorpack.guard.extents import Extent
from tensorpack.guard.order import StreamKey
from tensorpack.guard.places import NOWHERE, Place

__all__ = ["Access", "Block", "Shaped"]

_MOST = 64
"""Accesses that are kept for one block; the oldest are forgotten first."""


@attrs.frozen
class Shaped:
    """What a tensor is like; written out only if it comes into a report."""

    dtype: object
    sizes: tuple[int, ...]
    device: object

    def __str__(self) -> str:
        """Write dtype, shape and device."""
        return f"{str(self.dtype).removeprefix('torch.')} {self.sizes} on {self.device}"


@attrs.frozen(eq=False)
class Access:
    """One thing that a stream does with memory.

    Attributes:
        did: what it does, as a verb: `"reads"`, `"writes"` or `"allocated"`.
        stream: who does it.
        number: which of the stream's work it is, in the order that knows all work.
        writes: whether it changes the memory.
        operation: the name of the operator.
        what: the tensor, as it is described.
        place: where the program asked for it.
        extent: the bytes of the block; None for all.
    """

    did: str
    stream: StreamKey
    number: int
    writes: bool = False
    operation: str = ""
    what: object = ""
    place: Place = NOWHERE
    extent: Extent | None = None

    def meets(self, other: "Access") -> bool:
        """Return whether the two may touch a common byte, and one changes it."""
        if not (self.writes or other.writes):
            return False
        if self.extent is None or other.extent is None:
            return True
        return self.extent.meets(other.extent)

    def replaces(self, other: "Access") -> bool:
        """Return whether who is behind this one need not be asked for the other."""
        if self.extent is not None and (
            other.extent is None or not self.extent.covers(other.extent)
        ):
            return False
        return self.writes or (self.stream == other.stream and not other.writes)


@attrs.define(eq=False)
class Block:
    """One block of memory between its allocation and its free.

    Attributes:
        key: what tells it from others.
        home: the stream it was allocated on; None where that is not known.
        born: what later work must be behind because of the memory's life before, and
            the allocation itself.
        allocated: where.
        last: the last access of each stream.
        recorded: where each stream was recorded on it.
        uses: the accesses that later ones must be behind.
    """

    key: Hashable
    home: StreamKey | None
    born: tuple[Access, ...] = ()
    allocated: Place = NOWHERE
    last: dict[StreamKey, Access] = attrs.field(factory=dict)
    recorded: dict[StreamKey, Place] = attrs.field(factory=dict)
    uses: list[Access] = attrs.field(factory=list)

    def before(self, access: Access) -> Iterator[Access]:
        """Iterate the accesses of other streams that an access must be behind."""
        for other in self.born if access.writes else ():
            if other.stream != access.stream and other.stream not in self.last:
                yield other  # what that stream did since stands in for it
        for other in self.uses:
            if other.stream != access.stream and other.meets(access):
                yield other

    def add(self, access: Access) -> None:
        """Keep an access, and forget those that it replaces."""
        kept = [other for other in self.uses if not access.replaces(other)]
        self.uses = [*kept[-_MOST:], access]
        self.last[access.stream] = access
