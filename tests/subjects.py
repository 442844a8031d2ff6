"""Classes that the tests of several modules put into fields."""

from typing import Any

import torch


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
