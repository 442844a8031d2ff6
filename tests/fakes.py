"""Device tensors and streams for machines without an accelerator."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

Recorded = list[tuple[Tensor, int]]
"""Each tensor that a stream was recorded on, with the stream's id."""


def stream(stream_id: int = 7) -> torch.Stream:
    """Make a stream of a CUDA device that need not exist."""
    return torch.Stream(stream_id=stream_id, device_index=0, device_type=1)


def on_device(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Make a tensor that says it is on a CUDA device and has no memory."""
    with FakeTensorMode():
        return torch.empty(shape or (2,), device="cuda", dtype=dtype)


class _Recording(TorchDispatchMode):
    """Sees every record of a stream before any kernel does."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self.recorded = recorded

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.record_stream.default:
            tensor, recorded_stream = args
            self.recorded.append((tensor, recorded_stream.stream_id))
            return None
        return func(*args, **(kwargs or {}))


@contextmanager
def recording() -> Iterator[Recorded]:
    """Collect every record of a stream that the body causes."""
    recorded: Recorded = []
    with _Recording(recorded):
        yield recorded


class Opaque:
    """A value that is no tensor, but moves and records itself."""

    device: torch.device

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.records: list[object] = []

    def to_device(self, device: Any, non_blocking: bool = False) -> "Opaque":
        return Opaque(str(device))

    def record_stream(self, recorded_stream: object) -> None:
        self.records.append(recorded_stream)

    def clone(self) -> "Opaque":
        return Opaque(str(self.device))
