"""The device memory of the recorded machine, counted in bytes."""

import collections
import threading

__all__ = ["Memory"]


class Memory:
    """Counts the bytes of all blocks that are alive.

    Attributes:
        current: bytes in use.
        peak: the most that were in use since the last reset.
    """

    TOTAL = 80 << 30
    """Bytes that the recorded device has; more can be used."""

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self._lock = threading.RLock()  # a block may be freed while another is made

    def add(self, count: int) -> None:
        """Count the bytes of a block, or take them away again."""
        with self._lock:
            self.current += count
            self.peak = max(self.peak, self.current)

    def reset_peak(self) -> None:
        """Begin a new search for the peak."""
        self.peak = self.current

    def info(self) -> tuple[int, int]:
        """Return the bytes that are free, and all."""
        return max(self.TOTAL - self.current, 0), self.TOTAL

    def stats(self) -> collections.Counter[str]:
        """Return what torch's allocator would say; what is not counted is 0."""
        kinds = ("allocated", "active", "reserved", "requested")
        return collections.Counter(
            {
                f"{kind}_bytes.all.{name}": value
                for kind in kinds
                for name, value in (("current", self.current), ("peak", self.peak))
            }
        )
