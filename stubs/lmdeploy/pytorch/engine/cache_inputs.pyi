from dataclasses import dataclass
from typing import Self, TypeAlias

import torch
from torch import Tensor

StateCacheCopyPlan: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

@dataclass(frozen=True)
class CacheCheckpointInputs:
    kv_restore_plan: Tensor | None = None
    kv_save_plan: Tensor | None = None
    state_restore_plan: StateCacheCopyPlan | None = None
    state_save_plan: StateCacheCopyPlan | None = None

    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self: ...
    def record_stream(self, stream: torch.Stream) -> None: ...
