import abc
from typing import Self

import torch

class Multistreamable(abc.ABC):
    @abc.abstractmethod
    def record_stream(self, stream: torch.Stream) -> None: ...

class Pipelineable(Multistreamable):
    @abc.abstractmethod
    def to(self, device: torch.device, non_blocking: bool = ...) -> Self: ...
