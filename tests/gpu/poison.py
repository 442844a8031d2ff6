"""The poison trial: is a block handed out while another stream still has to read it?

A payload is moved on one stream and read on another, which is held by a sleep. Then it
is dropped, and the first stream takes blocks of the same sizes and fills them with
another value. If nothing has recorded the reading stream, it reads that value.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack import record_stream, tensors
from tensorpack._leaves.storage import owned_tensors

DEVICE = "cuda"
HELD_CYCLES = 10_000_000  # about 5 ms: longer than the host needs to take the blocks
POISON = 171
COPIES = 4

Record = Callable[[Any, torch.Stream], None]


def with_ours(value: Any, stream: torch.Stream) -> None:
    """Record the stream on every leaf, by the method under test."""
    record_stream(value, stream)


def with_nothing(value: Any, stream: torch.Stream) -> None:
    """Record nothing: the control, which must come out corrupted."""


@attrs.define
class Trial:
    """One way to make a payload on a device, tried many times.

    Attributes:
        make: makes the payload on the current stream, on the device.
        copies: the stream on which it is made.
        reader: the stream on which it is read.
    """

    make: Callable[[], Any]
    copies: torch.cuda.Stream = attrs.field(factory=torch.cuda.Stream)
    reader: torch.cuda.Stream = attrs.field(factory=torch.cuda.Stream)

    def expected(self) -> list[Tensor]:
        """Make the payload with nothing in its way, and give its bytes."""
        with torch.cuda.stream(self.copies):
            value = self.make()
        torch.cuda.synchronize()
        return [_bytes(tensor) for tensor in device_tensors(value)]

    def corrupted(self, times: int, record: Record) -> int:
        """Count the trials in which the reader saw another value."""
        expected = self.expected()
        return sum(self._is_corrupted(expected, record) for _ in range(times))

    def _is_corrupted(self, expected: Sequence[Tensor], record: Record) -> bool:
        with torch.cuda.stream(self.copies):
            value = self.make()
            ready = torch.cuda.Event()
            ready.record(self.copies)
        self.reader.wait_event(ready)
        record(value, self.reader)
        with torch.cuda.stream(self.reader), torch.no_grad():
            torch.cuda._sleep(HELD_CYCLES)
            owned = device_tensors(value)
            sizes = [tensor.untyped_storage().nbytes() for tensor in owned]
            read = [tensor.clone() for tensor in owned]
        del value, owned
        taken = self._poison(sizes)
        torch.cuda.synchronize()
        del taken
        found = [_bytes(tensor) for tensor in read]
        return not all(map(torch.equal, expected, found))

    def _poison(self, sizes: Iterable[int]) -> list[Tensor]:
        """Take blocks of the payload's sizes, as the next transfer would."""
        with torch.cuda.stream(self.copies):
            blocks = [
                torch.empty(size, dtype=torch.uint8, device=DEVICE)
                for size in sizes
                for _ in range(COPIES)
            ]
            for block in blocks:
                block.fill_(POISON)
        return blocks


def device_tensors(value: Any) -> list[Tensor]:
    """List the plain tensors on the device that a payload's leaves own."""
    return [owned for key, leaf in tensors(value) for owned in owned_tensors(key, leaf)]


def _bytes(tensor: Tensor) -> Tensor:
    """Give the bytes of a tensor, on the host."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    return plain.reshape(-1).view(torch.uint8)
