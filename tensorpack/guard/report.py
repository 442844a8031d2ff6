"""What a guard has found."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tensorpack.guard.dispatch import plain_tensors
from tensorpack.guard.hazards import Hazard
from tensorpack.guard.names import Names
from tensorpack.guard.places import here
from tensorpack.guard.trace import Driver
from tensorpack.guard.watch import CUDA, Watch, touch_of

__all__ = ["Report"]


class Report:
    """The hazards that were found, each once however often the program repeats it.

    Attributes:
        hazards: what was found, the first first.
        counts: how often each was found, in the same order.
    """

    def __init__(self, driver: Driver) -> None:
        self.names: Names = Names()
        self.watch: Watch = Watch(self._add, self.names, driver)
        self._counts: dict[object, int] = {}
        self._hazards: dict[object, Hazard] = {}

    def _add(self, hazard: Hazard) -> None:
        signature = hazard.signature
        self._counts[signature] = self._counts.get(signature, 0) + 1
        self._hazards.setdefault(signature, hazard)

    @property
    def hazards(self) -> list[Hazard]:
        """List what was found, the first first."""
        return list(self._hazards.values())

    @property
    def counts(self) -> list[int]:
        """List how often each was found."""
        return list(self._counts.values())

    def __len__(self) -> int:
        return len(self._hazards)

    def __iter__(self) -> Iterator[Hazard]:
        return iter(self.hazards)

    def __str__(self) -> str:
        """Write all reports, with an empty line between two."""
        texts = [
            f"{hazard}\n  Found {count} times." if count > 1 else str(hazard)
            for hazard, count in zip(self.hazards, self.counts, strict=True)
        ]
        return "\n\n".join(texts)

    def used(
        self,
        tensor: Tensor,
        stream: torch.Stream | None = None,
        *,
        writes: bool = False,
    ) -> None:
        """Tell of work that no operator of torch does: a kernel of one's own.

        Args:
            tensor: what the kernel reads or writes.
            stream: the one it was launched on; without it, the current one.
            writes: whether it writes.

        Streams:
            Queues nothing. The guard takes it as work of that stream, queued now.
        """
        place = here()
        for part in plain_tensors(tensor):
            if not part.is_cuda:
                continue
            key = self.watch.current(part.device.index)
            if stream is not None:
                key = (
                    CUDA,
                    stream.device_index,
                    self.watch.driver.stream_number(stream),
                )
            self.watch.ran(key, [touch_of(part, "a kernel", place, writes=writes)])

    def name(self, stream: torch.Stream, name: str) -> None:
        """Give a stream the name that reports call it by."""
        number = self.watch.driver.stream_number(stream)
        self.names.give((CUDA, stream.device_index, number), name)
