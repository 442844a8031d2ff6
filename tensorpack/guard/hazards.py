"""What is reported: a hazard with its story, and the line that would mend it."""

from collections.abc import Hashable, Iterator

import attrs

from tensorpack.guard.blocks import Access
from tensorpack.guard.places import Place

__all__ = ["Hazard", "Step"]


@attrs.frozen
class Step:
    """One thing that happened to the memory: what, by whom, where.

    Attributes:
        text: what was done, as a clause.
        place: where the program did it.
    """

    text: str
    place: Place

    def __str__(self) -> str:
        """Write the step and, below it, its frames."""
        lines = [f"  {self.text}"]
        lines += [f"      {line}" for line in self.place.describe()]
        return "\n".join(lines)


@attrs.frozen
class Hazard:
    """A use of memory that nothing protects.

    Attributes:
        kind: `"lifetime"` (memory is freed too early), `"order"` (a stream does not
            wait for another), `"host read"` (the host reads too early), `"host write"`
            (the host overwrites what is still to be copied) or `"host free"` (it gives
            that back).
        block: which block it is about.
        what: dtype, shape and device of the tensor.
        problem: what is wrong, as a clause.
        remedy: what would mend it, as sentences.
        steps: what happened to the memory, in order.
        use: the access that is in danger.
    """

    kind: str
    block: Hashable
    what: str
    problem: str
    remedy: str
    steps: tuple[Step, ...]
    use: Access

    @property
    def operation(self) -> str:
        """Name the operator whose use of the memory is in danger."""
        return self.use.operation

    @property
    def lines(self) -> list[str]:
        """Name file and line of each step, in order."""
        return [str(step.place) for step in self.steps]

    @property
    def signature(self) -> Hashable:
        """Return what the same mistake, made again, has in common with this."""
        places = tuple(step.place.frames[:1] for step in self.steps)
        return (self.kind, self.problem, places)

    def describe(self, where: str = "") -> str:
        """Write the whole report.

        Args:
            where: names the memory; without it, the tensor's dtype and shape do.
        """
        return "\n".join(self._lines(where or self.what or "memory"))

    def _lines(self, where: str) -> Iterator[str]:
        yield f"{where}: {self.problem}."
        yield from map(str, self.steps)
        yield f"  {self.remedy}"

    def __str__(self) -> str:
        """Write the whole report."""
        return self.describe()
