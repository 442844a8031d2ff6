"""Inputs and outputs of an LLM engine: lists of lists, lying defaults, host twins."""

import abc
import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from shapes.tools import DATACLASS, Shape, Tool, filled

from tensorpack import Borrowed, Dynamic, HostOnly, payload

NestedTensor = torch.Tensor | list[torch.Tensor]
StateCacheCopyPlan = tuple[tuple[int, ...], tuple[int, ...]]
LogitsProcessor = Callable[[torch.Tensor], torch.Tensor]


class Modality(enum.Enum):
    IMAGE = "image"


@dataclasses.dataclass
class DPMeta:
    tp_sizes: list[int]
    moe_tp_sizes: list[int]


def multi_modal_data(t: Tool) -> type:
    @t.decorate()
    class MultiModalData:
        data: NestedTensor
        start: int
        end: int | None = None
        meta: dict[str, Any] | None = None
        modality: Modality = Modality.IMAGE
        mrope_pos_ids: np.ndarray | None = None
        content_hash: str | None = None

    return MultiModalData


MULTI_MODAL_DATA = Shape(
    multi_modal_data,
    refused={"meta": "Any"},
    remedies={"meta": Dynamic[dict[str, Any] | None]},
)
MultiModalData = payload(multi_modal_data(DATACLASS), fields=MULTI_MODAL_DATA.remedies)
MultiModalData.sample = lambda leaf: MultiModalData(
    [leaf(), leaf()], 0, meta={"grid": leaf(), "n": 3, "deep": [{"x": leaf()}]}
)


def vision_model_inputs(t: Tool) -> type:
    @t.decorate()
    class VisionModelInputs:
        history_lengths: torch.LongTensor = None
        input_embeddings: list[list[torch.Tensor]] = None
        input_embedding_ranges: list[torch.LongTensor] = None
        input_embedding_indexing: torch.BoolTensor = None
        input_multimodals: list[MultiModalData] = None

    return VisionModelInputs


VISION_MODEL_INPUTS = Shape(
    vision_model_inputs,
    remedies={"input_multimodals": list[dict[str, list[MultiModalData]]]},
)
VisionModelInputs = payload(
    vision_model_inputs(DATACLASS), fields=VISION_MODEL_INPUTS.remedies
)
VisionModelInputs.sample = lambda leaf: filled(
    VisionModelInputs, leaf, VISION_MODEL_INPUTS
)


def model_inputs(t: Tool) -> type:
    @t.decorate()
    class ModelInputs:
        input_ids: torch.Tensor
        seq_length: torch.Tensor
        history_lengths: torch.Tensor
        block_offsets: torch.Tensor
        is_decoding: bool
        num_ignored_history: torch.Tensor
        max_q_seqlen: int
        max_kv_seqlen: int
        sum_kv_seqlen: int
        local_adapter_ids: torch.Tensor | None = None
        vision_inputs: VisionModelInputs | None = None
        model_metas: list[dict[str, Any]] | None = None
        dp_meta: DPMeta | None = None
        enable_microbatch: bool = False
        is_dummy: bool = False
        state_offsets: torch.Tensor | None = None
        target_hidden_states: torch.Tensor | None = None
        target_position_ids: torch.Tensor | None = None
        target_inputs_embeds: torch.Tensor | None = None
        is_chunk: bool = False
        is_first_chunk: bool = False
        is_last_chunk: bool = False
        is_chunk_multimodal: bool = False
        mrope_pos_ids: torch.Tensor | None = None

    return ModelInputs


MODEL_INPUTS = Shape(
    model_inputs,
    refused={"model_metas": "Any"},
    remedies={"model_metas": Borrowed[list[dict[str, Any]] | None]},
)


def model_inputs_delta(t: Tool) -> type:
    @t.decorate()
    class ModelInputsDelta:
        indices: torch.Tensor | None
        block_offsets: torch.Tensor
        indice_cpu: np.ndarray
        max_q_seqlen: int
        max_kv_seqlen: int
        sum_kv_seqlen: int
        is_decoding: bool = True
        num_ignored_history: torch.Tensor | None = None

    return ModelInputsDelta


MODEL_INPUTS_DELTA = Shape(model_inputs_delta)


def sampling_inputs(t: Tool) -> type:
    @t.decorate()
    class SamplingInputs:
        temperature: torch.Tensor = None
        bad_words: torch.LongTensor = None
        bad_mask: torch.BoolTensor = None
        stop_words: torch.LongTensor = None
        stop_mask: torch.BoolTensor = None
        repetition_penalty: torch.Tensor = None
        top_k: torch.LongTensor = None
        top_p: torch.Tensor = None
        min_p: torch.Tensor = None
        random_seeds: torch.Tensor = None
        random_offsets: torch.Tensor = None
        max_top_k: int = 1
        min_top_p: float = 1.0
        response_formats: list[str, ...] = ()
        logits_processors: list[list[LogitsProcessor]] = None
        max_num_logprobs: None | int = None  # noqa: RUF036  # as it stands
        all_ids: None | torch.Tensor = None  # noqa: RUF036  # as it stands
        num_ignore_eos: torch.Tensor = None
        batch_size: int = 1
        session_ctx: None | list[dict[str, Any]] = None  # noqa: RUF036  # as it stands
        session_to_cleanup: None | list[int] = None  # noqa: RUF036  # as it stands
        generated_ids: torch.Tensor | None = None
        generated_ids_cpu: np.ndarray | None = None
        repetition_ngram_size: torch.Tensor | None = None
        repetition_ngram_threshold: torch.Tensor | None = None
        max_repetition_ngram_size: int = 0

    return SamplingInputs


SAMPLING_INPUTS = Shape(
    sampling_inputs,
    refused={
        "response_formats": "list[str, ...]",
        "logits_processors": "Callable[[Tensor], Tensor]",
        "session_ctx": "Any",
    },
    remedies={
        "response_formats": tuple[str, ...],
        "logits_processors": HostOnly[list[list[Any]] | None],
        "session_ctx": HostOnly[list[dict[str, Any]] | None],
    },
)


def cache_checkpoint_inputs(t: Tool) -> type:
    @t.decorate(frozen=True)
    class CacheCheckpointInputs:
        kv_restore_plan: torch.Tensor | None = None
        kv_save_plan: torch.Tensor | None = None
        state_restore_plan: StateCacheCopyPlan | None = None
        state_save_plan: StateCacheCopyPlan | None = None

    return CacheCheckpointInputs


CACHE_CHECKPOINT_INPUTS = Shape(cache_checkpoint_inputs)


@dataclasses.dataclass
class BatchedLogProbs:
    vals: torch.Tensor
    indices: torch.Tensor


@payload
@dataclasses.dataclass
class ExtraOutputs(abc.ABC):  # noqa: B024  # as it stands
    """An abstract base of outputs, one class for each strategy."""

    @classmethod
    def sample(cls, leaf: Callable[[], torch.Tensor]) -> "ExtraOutputs":
        return ARSpecExtraOutputs(leaf(), [leaf()])


@payload
@dataclasses.dataclass
class ARSpecExtraOutputs(ExtraOutputs):
    target_logits: torch.Tensor
    draft_token_ids: list[torch.Tensor]


DecoratedLogProbs = payload(
    dataclasses.make_dataclass(
        "BatchedLogProbs", [("vals", torch.Tensor), ("indices", torch.Tensor)]
    )
)


def batched_outputs(t: Tool) -> type:
    @t.decorate()
    class BatchedOutputs:
        next_token_ids: torch.Tensor
        stopped: torch.Tensor
        stop_pos: torch.Tensor | None = None
        logits: torch.Tensor | None = None
        model_metas: list[dict[str, Any]] = None
        logprobs: BatchedLogProbs | None = None
        new_token_timestamp: int = 0
        extra_outputs: ExtraOutputs | None = None
        all_routed_experts: torch.Tensor | None = None
        ce_loss: torch.Tensor | None = None

    return BatchedOutputs


BATCHED_OUTPUTS = Shape(
    batched_outputs,
    refused={"model_metas": "Any", "logprobs": "BatchedLogProbs"},
    remedies={
        "model_metas": Borrowed[list[dict[str, Any]] | None],
        "logprobs": DecoratedLogProbs | None,
    },
)
