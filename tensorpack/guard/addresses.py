"""Memory by its addresses: which block is at one, and what was there before."""

import bisect
from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

__all__ = ["Addresses", "Region"]

T = TypeVar("T")


@attrs.define(eq=False)
class Region(Generic[T]):
    """A range of addresses.

    Attributes:
        start: its first address.
        stop: the one behind its last; None while the size is not known.
        value: what is there.
    """

    start: int
    stop: int | None
    value: T


class Addresses(Generic[T]):
    """Regions that do not overlap, in the order of their addresses."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: dict[int, Region[T]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, stop: int | None, value: T) -> Region[T]:
        """Add a region, in place of one that starts at the same address."""
        if start not in self._regions:
            bisect.insort(self._starts, start)
        region = self._regions[start] = Region(start, stop, value)
        return region

    def pop(self, start: int) -> Region[T] | None:
        """Take away the region that starts at an address."""
        region = self._regions.pop(start, None)
        if region is not None:
            del self._starts[bisect.bisect_left(self._starts, start)]
        return region

    def at(self, address: int) -> Region[T] | None:
        """Return the region that has an address; one of unknown size has its first."""
        exact = self._regions.get(address)
        if exact is not None:
            return exact
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        region = self._regions[self._starts[index]]
        return region if region.stop is not None and address < region.stop else None

    def overlapping(self, start: int, stop: int) -> Iterator[Region[T]]:
        """Iterate the regions that have an address of a range."""
        first = self.at(start)
        if first is not None:
            yield first
        low = bisect.bisect_right(self._starts, start)
        high = bisect.bisect_left(self._starts, stop)
        for found in self._starts[low:high]:
            yield self._regions[found]

    def oldest(self, count: int) -> list[int]:
        """List the starts of the regions that were added first."""
        return [start for start, _ in zip(self._regions, range(count), strict=False)]
