from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

LogitsProcessor: TypeAlias = Callable[[Tensor, Tensor], Tensor]

@dataclass
class SamplingInputs:
    temperature: Tensor | None = None
    bad_words: Tensor | None = None
    bad_mask: Tensor | None = None
    stop_words: Tensor | None = None
    stop_mask: Tensor | None = None
    repetition_penalty: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    random_seeds: Tensor | None = None
    random_offsets: Tensor | None = None
    max_top_k: int = 1
    has_greedy: bool = False
    min_top_p: float = 1.0
    response_formats: list[str] | tuple[str, ...] = ...
    logits_processors: list[list[LogitsProcessor]] | None = None
    max_num_logprobs: int | None = None
    all_ids: Tensor | None = None
    num_ignore_eos: Tensor | None = None
    batch_size: int = 0
    session_ctx: list[dict[str, Any]] | None = None
    session_to_cleanup: list[int] | None = None
    generated_ids: Tensor | None = None
    generated_ids_cpu: np.ndarray[Any, np.dtype[Any]] | None = None
    repetition_ngram_size: Tensor | None = None
    repetition_ngram_threshold: Tensor | None = None
    max_repetition_ngram_size: int = 0

    def select_sampling_rows(self, rows: slice) -> SamplingInputs: ...
    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self: ...
    def record_stream(self, stream: torch.Stream) -> None: ...
