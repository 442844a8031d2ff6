import abc
from dataclasses import dataclass
from typing import Self

import torch
from lmdeploy.pytorch.model_inputs import ModelInputs, ModelInputsDelta
from torch import Tensor

@dataclass
class ExtraInputs(abc.ABC):
    def broadcast(self, src: int, group: object, async_op: bool = False) -> object: ...
    def merge(self, other: ExtraInputs) -> ExtraInputs: ...
    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self: ...
    def record_stream(self, stream: torch.Stream) -> None: ...

@dataclass
class StoppingCriteria(abc.ABC):
    @abc.abstractmethod
    def clone(self) -> StoppingCriteria: ...
    @abc.abstractmethod
    def merge(self, other: StoppingCriteria) -> StoppingCriteria: ...
    @abc.abstractmethod
    def update(self, delta: ModelInputsDelta) -> StoppingCriteria: ...
    @abc.abstractmethod
    def step(
        self,
        token_ids: Tensor,
        stop_words: Tensor,
        inputs: ModelInputs | None = None,
        extra_inputs: ExtraInputs | None = None,
    ) -> object: ...
    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self: ...
    def record_stream(self, stream: torch.Stream) -> None: ...
