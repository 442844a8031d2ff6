import enum
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

class Modality(enum.Enum):
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    TIME_SERIES = "time_series"

NestedTensor: TypeAlias = Tensor | list[Tensor]

@dataclass
class MultiModalData:
    data: NestedTensor
    start: int
    end: int | None = None
    meta: dict[str, Any] | None = None
    modality: Modality = ...
    mrope_pos_ids: np.ndarray[Any, np.dtype[Any]] | None = None
    content_hash: str | None = None

    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self: ...
    def record_stream(self, stream: torch.Stream) -> None: ...

MultiModalInputs: TypeAlias = dict[str, list[MultiModalData]]
