"""Which bytes of a block a tensor covers: two views of one block may not meet."""

import math
from collections.abc import Sequence

import attrs

__all__ = ["Extent"]


@attrs.frozen
class Extent:
    """The bytes that a strided tensor covers, counted from where its block starts.

    It is a row of equal windows: columns of one matrix do not meet, although the bytes
    from the first to the last of each overlap.

    Attributes:
        start: the first byte.
        stop: the one behind the last byte.
        pitch: bytes from one window to the next; 0 if there is one window.
        width: bytes of a window.
    """

    start: int
    stop: int
    pitch: int = 0
    width: int = 0

    @classmethod
    def of(
        cls, offset: int, sizes: Sequence[int], strides: Sequence[int], itemsize: int
    ) -> "Extent":
        """Return the bytes of a tensor; offset and strides count its items."""
        start = offset * itemsize
        if 0 in sizes:
            return cls(start, start)
        dims = sorted(
            (abs(stride), size)
            for size, stride in zip(sizes, strides, strict=True)
            if size > 1 and stride
        )
        stop = start + (1 + sum(d * (n - 1) for d, n in dims)) * itemsize
        if len(dims) < 1:
            return cls(start, stop)
        pitch = dims[-1][0] * itemsize
        width = (1 + sum(d * (n - 1) for d, n in dims[:-1])) * itemsize
        return cls(start, stop) if width >= pitch else cls(start, stop, pitch, width)

    def meets(self, other: "Extent") -> bool:
        """Return whether the two may have a byte in common."""
        if self.stop <= other.start or other.stop <= self.start:
            return False
        if not self.pitch or not other.pitch:
            return True
        # Windows of both come back at the same places after this many bytes.
        period = math.gcd(self.pitch, other.pitch)
        ahead = (other.start - self.start) % period
        return not (ahead >= self.width and period - ahead >= other.width)

    def covers(self, other: "Extent") -> bool:
        """Return whether it certainly has every byte of the other."""
        if self.pitch and self != other:
            return False
        return self.start <= other.start and other.stop <= self.stop
