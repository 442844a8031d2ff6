from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from lmdeploy.pytorch.multimodal.data_type import MultiModalInputs
from torch import Tensor

@dataclass
class DPMeta:
    tp_sizes: list[int] | None = None
    moe_tp_sizes: list[int] | None = None
    dp_is_decoding: bool = False
    dp_batches: list[int] | None = None
    dp_draft_num_tokens: list[int] | None = None

@dataclass
class VisionModelInputs:
    history_lengths: Tensor | None = None
    input_embeddings: list[list[Tensor]] | None = None
    input_embedding_ranges: list[Tensor] | None = None
    input_embedding_indexing: Tensor | None = None
    input_multimodals: list[MultiModalInputs] | None = None

    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self: ...
    def record_stream(self, stream: torch.Stream) -> None: ...

@dataclass
class ModelInputsDelta:
    indices: Tensor | None
    block_offsets: Tensor
    indice_cpu: np.ndarray[Any, np.dtype[Any]]
    max_q_seqlen: int
    max_kv_seqlen: int
    sum_kv_seqlen: int
    is_decoding: bool = True
    num_ignored_history: Tensor | None = None

    @property
    def seq_length(self) -> Tensor: ...
    def fill_tensors(self) -> None: ...
    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self: ...
    def record_stream(self, stream: torch.Stream) -> None: ...

@dataclass
class ModelInputs:
    input_ids: Tensor
    seq_length: Tensor
    history_lengths: Tensor
    block_offsets: Tensor
    is_decoding: bool
    num_ignored_history: Tensor
    max_q_seqlen: int
    max_kv_seqlen: int
    sum_kv_seqlen: int
    local_adapter_ids: Tensor | None = None
    vision_inputs: VisionModelInputs | None = None
    model_metas: list[dict[str, Any]] | None = None
    dp_meta: DPMeta | None = None
    enable_microbatch: bool = False
    is_dummy: bool = False
    state_offsets: Tensor | None = None
    target_hidden_states: Tensor | None = None
    target_position_ids: Tensor | None = None
    target_inputs_embeds: Tensor | None = None
    logits_indices: Tensor | None = None
    seq_logit_length: Tensor | None = None
    is_chunk: bool = False
    is_first_chunk: bool = False
    is_last_chunk: bool = False
    is_chunk_multimodal: bool = False
    mrope_pos_ids: Tensor | None = None

    def step(self, input_ids: Tensor, step_seqlens: Tensor | None = None) -> Self: ...
    def clone(self, **kwargs: object) -> Self: ...
    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self: ...
    def record_stream(self, stream: torch.Stream) -> None: ...
