"""The input owners of an LLM inference engine, as payloads.

A model agent moves one dictionary of forward inputs per step. The entries under `KEYS`
travel; flags, sequence metadata and callbacks pass untouched. Each class here stands
for one that an engine writes by hand, with its `to_device` and `record_stream`.
"""

import abc
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from tensorpack import (
    Axis,
    Borrowed,
    Dynamic,
    HostOnly,
    Payload,
    Size,
    evolve,
    payload,
)

KEYS = (
    "inputs",
    "delta",
    "cache_inputs",
    "sampling_inputs",
    "stopping_criteria",
    "extra_inputs",
)
"""The entries of the forward inputs that travel."""


PerSequence = Annotated[Tensor, Axis("sequences", pad=0)]
Blocks = Annotated[Tensor, Axis("sequences", pad=0), Axis("blocks", dim=1, pad=0)]


class Modality(enum.Enum):
    """What kind of data a multimodal item holds."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass
class DPMeta:
    """What data-parallel ranks know of each other: lists of counts."""

    tp_sizes: list[int] = field(default_factory=list)
    moe_tp_sizes: list[int] = field(default_factory=list)


@payload
class MultiModalData(Payload):
    """One image, clip or sound, already encoded.

    Attributes:
        data: its tensors.
        meta: what the model needs to know of them; tensors in it travel.
        start: where its tokens begin, counted from 0.
        end: where they end.
        modality: what it is.
        mrope_pos_ids: its positions, kept on the host.
        content_hash: tells equal content.
    """

    data: Tensor | list[Tensor]
    start: int
    end: int | None = None
    meta: Dynamic[dict[str, Any] | None] = None
    modality: Modality = Modality.IMAGE
    mrope_pos_ids: np.ndarray | None = None
    content_hash: str | None = None


@payload
class VisionModelInputs(Payload):
    """What the vision part of a model reads."""

    history_lengths: Tensor | None = None
    input_embeddings: list[list[Tensor]] | None = None
    input_embedding_ranges: list[Tensor] | None = None
    input_embedding_indexing: Tensor | None = None
    input_multimodals: list[dict[str, list[MultiModalData]]] | None = None


@payload
class ModelInputs(Payload):
    """What the model reads in one forward step.

    `model_metas` may hold tensors that live on the device from step to step: they are
    owned and recorded by the model, so they are neither moved nor recorded here.
    """

    input_ids: Annotated[Tensor, Axis("tokens", dim=1, pad=0, lengths="seq_length")]
    seq_length: PerSequence
    history_lengths: PerSequence
    block_offsets: Blocks
    is_decoding: bool
    num_ignored_history: PerSequence
    max_q_seqlen: int
    max_kv_seqlen: int
    sum_kv_seqlen: int
    local_adapter_ids: PerSequence | None = None
    vision_inputs: VisionModelInputs | None = None
    model_metas: Annotated[
        Borrowed[list[dict[str, Any] | None] | None], Axis("sequences")
    ] = None
    state_offsets: PerSequence | None = None
    target_hidden_states: Annotated[Tensor | None, Axis("tokens", dim=1, pad=0)] = None
    target_position_ids: Annotated[Tensor | None, Axis("tokens", dim=1, pad=0)] = None
    target_inputs_embeds: Annotated[Tensor | None, Axis("tokens", dim=1, pad=0)] = None
    mrope_pos_ids: Annotated[Tensor | None, Axis("tokens", dim=1, pad=0)] = None
    dp_meta: DPMeta | None = None
    enable_microbatch: bool = False
    is_dummy: bool = False
    is_chunk: bool = False
    is_first_chunk: bool = False
    is_last_chunk: bool = False
    is_chunk_multimodal: bool = False


@payload
class ModelInputsDelta(Payload):
    """What changes from one decoding step to the next."""

    indices: PerSequence | None
    block_offsets: Blocks
    indice_cpu: Annotated[np.ndarray, Axis("sequences", pad=0)]
    max_q_seqlen: int
    max_kv_seqlen: int
    sum_kv_seqlen: int
    is_decoding: bool = True
    num_ignored_history: PerSequence | None = None

    def __payload_prepare__(self) -> "ModelInputsDelta":
        """Make the indices from their host twin, just before they travel."""
        if self.indices is not None:
            return self
        return evolve(self, indices=torch.from_numpy(self.indice_cpu))


@payload
class SamplingInputs(Payload):
    """How the next tokens are sampled."""

    temperature: PerSequence | None = None
    bad_words: Annotated[Tensor | None, Axis("sequences", pad=-1)] = None
    bad_mask: Annotated[Tensor | None, Axis("sequences", pad=False)] = None
    stop_words: Annotated[Tensor | None, Axis("sequences", pad=-1)] = None
    stop_mask: Annotated[Tensor | None, Axis("sequences", pad=False)] = None
    repetition_penalty: Annotated[Tensor | None, Axis("sequences", pad=1.0)] = None
    top_k: Annotated[Tensor | None, Axis("sequences", pad=1)] = None
    top_p: Annotated[Tensor | None, Axis("sequences", pad=1.0)] = None
    min_p: PerSequence | None = None
    random_seeds: PerSequence | None = None
    random_offsets: PerSequence | None = None
    max_top_k: int = 1
    min_top_p: float = 1.0
    response_formats: HostOnly[tuple[object, ...]] = ()
    logits_processors: HostOnly[list[object] | None] = None
    max_num_logprobs: int | None = None
    all_ids: PerSequence | None = None
    num_ignore_eos: PerSequence | None = None
    batch_size: Annotated[int, Size("sequences")] = 0
    session_ctx: Annotated[HostOnly[list[dict[str, Any]] | None], Axis("sequences")] = (
        None
    )
    session_to_cleanup: HostOnly[list[Any] | None] = None
    generated_ids: PerSequence | None = None
    generated_ids_cpu: Annotated[np.ndarray | None, Axis("sequences", pad=0)] = None
    max_repetition_ngram_size: int = 0
    repetition_ngram_size: PerSequence | None = None
    repetition_ngram_threshold: PerSequence | None = None

    def __payload_prepare__(self) -> "SamplingInputs":
        """Make the generated ids from their host twin, just before they travel."""
        if self.generated_ids is not None or self.generated_ids_cpu is None:
            return self
        return evolve(self, generated_ids=torch.from_numpy(self.generated_ids_cpu))


@payload(frozen=True)
class CacheCheckpointInputs(Payload):
    """Which blocks and states are saved and restored in this step.

    The state plans stay on the host: they are scheduled from there.
    """

    kv_restore_plan: Tensor
    kv_save_plan: Tensor
    state_restore_plan: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    state_save_plan: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@payload
class StoppingCriteria(Payload, abc.ABC):
    """Decides which sequences are finished; one subclass per strategy."""

    num_appendable_ids: Tensor

    @abc.abstractmethod
    def step(self, tokens: Tensor) -> Tensor:
        """Tell which sequences stop."""


@payload
class ExtraInputs(Payload, abc.ABC):
    """What a strategy reads besides; one subclass per strategy."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Name the strategy."""


@payload
class ARStoppingCriteria(StoppingCriteria):
    """Autoregressive decoding: a sequence stops when its budget is spent."""

    def step(self, tokens: Tensor) -> Tensor:
        """Tell which sequences stop."""
        return self.num_appendable_ids <= tokens.numel()


@payload
class ARExtraInputs(ExtraInputs):
    """Autoregressive decoding needs nothing besides."""

    def describe(self) -> str:
        """Name the strategy."""
        return "ar"


@payload
class DraftStoppingCriteria(StoppingCriteria):
    """Speculative decoding: drafts that were rejected do not count."""

    num_rejected: Tensor
    accepted: list[Tensor]

    def step(self, tokens: Tensor) -> Tensor:
        """Tell which sequences stop."""
        return self.num_appendable_ids + self.num_rejected <= tokens.numel()


@payload
class DraftExtraInputs(ExtraInputs):
    """Speculative decoding: what the target model hands to the draft model."""

    target_logits: Tensor | None = None
    target_hidden_states: Tensor | None = None
    draft_token_ids: Tensor | None = None
    block_masks: dict[str, Tensor] | None = None
    num_draft: int = 0

    def describe(self) -> str:
        """Name the strategy."""
        return "draft"
