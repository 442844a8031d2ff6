"""Batches of two LLM servers: text annotations, foreign state, caches to reset."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

import numpy as np
import torch
from shapes.tools import Shape, Tool
from torch import Tensor

from tensorpack import Borrowed, Derived, Dynamic, HostOnly, payload

if TYPE_CHECKING:
    import penaltylib
    from grammar import BaseGrammarObject
    from metrics import HostAuxiliaryOutput

Leaf = Callable[[], Tensor]


def common_attention_metadata(t: Tool) -> type:
    @t.decorate()
    class CommonAttentionMetadata:
        query_start_loc: torch.Tensor
        query_start_loc_cpu: torch.Tensor
        seq_lens: torch.Tensor
        num_reqs: int
        num_actual_tokens: int
        max_query_len: int
        max_seq_len: int
        block_table_tensor: torch.Tensor
        slot_mapping: torch.Tensor
        causal: bool | torch.Tensor = True
        logits_indices_padded: torch.Tensor | None = None
        num_logits_indices: int | None = None
        max_logits_per_req: int | None = None
        encoder_seq_lens: torch.Tensor | None = None
        encoder_seq_lens_cpu: np.ndarray | None = None
        dcp_local_seq_lens: torch.Tensor | None = None
        dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = None
        positions: torch.Tensor | None = None
        is_prefilling: torch.Tensor | None = None
        seq_lens_cpu_upper_bound: torch.Tensor | None = None
        req_idx: np.ndarray | None = None
        mm_req_doc_ranges: dict[int, list[tuple[int, int]]] | None = None
        rswa_prefix_lens: torch.Tensor | None = None
        replayssm_decode_base_cpu: torch.Tensor | None = None
        _num_computed_tokens_cache: torch.Tensor | None = None
        _token_to_req_indices_cache: torch.Tensor | None = None

    return CommonAttentionMetadata


COMMON_ATTENTION_METADATA = Shape(
    common_attention_metadata,
    remedies={
        "query_start_loc_cpu": HostOnly[Tensor],
        "seq_lens_cpu_upper_bound": HostOnly[Tensor | None],
        "replayssm_decode_base_cpu": HostOnly[Tensor | None],
        "_num_computed_tokens_cache": Derived[Tensor | None],
        "_token_to_req_indices_cache": Derived[Tensor | None],
    },
    values={"causal": lambda leaf: leaf()},
    asides=frozenset({"_num_computed_tokens_cache", "_token_to_req_indices_cache"}),
)


class LogitsProcessors:
    """Holds processors, each with state on the device that it looks after."""


class ThinkingBudgetStateHolder:
    """Holds the state of every request, on the host."""


def sampling_metadata(t: Tool) -> type:
    @t.decorate()
    class SamplingMetadata:
        temperature: torch.Tensor | None
        all_greedy: bool
        all_random: bool
        top_p: torch.Tensor | None
        top_k: torch.Tensor | None
        generators: dict[int, torch.Generator]
        max_num_logprobs: int | None
        no_penalties: bool
        prompt_token_ids: torch.Tensor | None
        frequency_penalties: torch.Tensor
        presence_penalties: torch.Tensor
        repetition_penalties: torch.Tensor
        output_token_ids: list[list[int]]
        allowed_token_ids_mask: torch.Tensor | None
        bad_words_token_ids: dict[int, list[list[int]]]
        logitsprocs: LogitsProcessors
        logprob_token_ids: dict[int, list[int]] | None = None
        spec_token_ids: list[list[int]] | None = None
        thinking_budget_state_holder: ThinkingBudgetStateHolder | None = None

    return SamplingMetadata


SAMPLING_METADATA = Shape(
    sampling_metadata,
    refused={
        "generators": "Generator",
        "logitsprocs": "LogitsProcessors",
        "thinking_budget_state_holder": "ThinkingBudgetStateHolder",
    },
    remedies={
        "generators": Borrowed[dict[int, torch.Generator]],
        "logitsprocs": Borrowed[LogitsProcessors],
        "thinking_budget_state_holder": HostOnly[ThinkingBudgetStateHolder | None],
    },
)


@payload
@dataclasses.dataclass
class LogitsProcessorOutput:
    next_token_logits: Optional[torch.Tensor]
    hidden_states: Optional[torch.Tensor] = None
    next_token_top_logprobs_val: Optional[List[List[float]]] = None
    input_token_logprobs: Optional[torch.Tensor] = None


class PPProxyTensors:
    """Wraps a dictionary of tensors."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors


@payload
@dataclasses.dataclass
class ProxyTensors:
    """The same as a payload."""

    tensors_by_name: Dict[str, torch.Tensor]


class HostCopyDone:
    """Stands for an event where the copy is the host's."""


@payload
@dataclasses.dataclass
class SpecInput(abc.ABC):  # noqa: B024  # as it stands
    @classmethod
    def sample(cls, leaf: Leaf) -> SpecInput:
        return EagleDraftInput(leaf(), leaf())


@payload
@dataclasses.dataclass
class EagleDraftInput(SpecInput):
    topk_p: torch.Tensor
    topk_index: torch.Tensor
    capture_hidden_mode: int = 0


@payload
@dataclasses.dataclass
class KVLocPlan:
    cols: torch.Tensor
    lens: Optional[torch.Tensor] = None


@dataclasses.dataclass
class TopkCaptureOutput:
    """Not decorated: it holds tensors."""

    topk: torch.Tensor


@dataclasses.dataclass
class FpmTiming:
    started: float
    ended: Optional[float] = None


@dataclasses.dataclass
class ScheduledRequestMetrics:
    counts: Dict[str, int]


class ExpertDistributionMetrics:
    """Counts of a layer, in a tensor of its own."""


def generation_batch_result(t: Tool) -> type:
    @t.decorate()
    class GenerationBatchResult:
        logits_output: Optional[LogitsProcessorOutput] = None
        pp_hidden_states_proxy_tensors: Optional[PPProxyTensors] = None
        next_token_ids: Optional[
            Union[torch.Tensor, List[torch.Tensor], List[List[int]]]
        ] = None
        num_correct_drafts: int = 0
        num_correct_drafts_per_req_cpu: Optional[List[int]] = None
        num_block_accept_tokens: int = 0
        num_cap_tokens: int = 0
        accept_length_per_req_cpu: Optional[List[int]] = None
        dllm_algo_state: Optional[List[Any]] = None
        can_run_cuda_graph: bool = False
        skipped_output_comm: bool = False
        extend_input_len_per_req: Optional[List[int]] = None
        extend_logprob_start_len_per_req: Optional[List[int]] = None
        copy_done: Optional[Union[torch.cuda.Event, HostCopyDone]] = None
        delay_sample_func: Optional[callable] = None
        future_indices: Optional[torch.Tensor] = None
        speculative_num_draft_tokens: Optional[int] = None
        speculative_output_stride: Optional[int] = None
        num_non_draft_tokens_per_req: int = 1
        grammar_advanced: bool = False
        grammar_retained_tokens: Optional[list] = None
        accept_lens: Optional[torch.Tensor] = None
        block_accept_lens: Optional[torch.Tensor] = None
        cap_lens: Optional[torch.Tensor] = None
        new_seq_lens: Optional[torch.Tensor] = None
        next_draft_input: Optional[SpecInput] = None
        next_verify_chain: Optional[torch.Tensor] = None
        next_verify_parent_list: Optional[torch.Tensor] = None
        next_verify_top_scores_index: Optional[torch.Tensor] = None
        spec_verify_out_cache_loc: Optional[torch.Tensor] = None
        kv_loc_plan: Optional[KVLocPlan] = None
        accept_index: Optional[torch.Tensor] = None
        prepared_draft_extend_inputs: Optional[
            tuple[torch.Tensor, torch.Tensor, torch.Tensor]
        ] = None
        extra_keep_alive_refs: Optional[List[Any]] = None
        routed_experts_output: Optional[TopkCaptureOutput] = None
        indexer_topk_output: Optional[TopkCaptureOutput] = None
        expert_distribution_metrics: Optional[ExpertDistributionMetrics] = None
        fpm_timing: Optional[FpmTiming] = None
        fpm_scheduled_requests: Optional[ScheduledRequestMetrics] = None
        auxiliary_host_output: Optional[HostAuxiliaryOutput] = None

    return GenerationBatchResult


GENERATION_BATCH_RESULT = Shape(
    generation_batch_result,
    refused={
        "pp_hidden_states_proxy_tensors": "PPProxyTensors",
        "next_token_ids": "Tensor | list[Tensor] | list[list[int]] | None",
        "dllm_algo_state": "Any",
        "copy_done": "Event",
        "delay_sample_func": "callable",
        "grammar_retained_tokens": "list",
        "extra_keep_alive_refs": "Any",
        "routed_experts_output": "TopkCaptureOutput",
        "indexer_topk_output": "TopkCaptureOutput",
        "expert_distribution_metrics": "ExpertDistributionMetrics",
        "auxiliary_host_output": "HostAuxiliaryOutput",
    },
    remedies={
        "pp_hidden_states_proxy_tensors": ProxyTensors | None,
        "next_token_ids": torch.Tensor | List[torch.Tensor | List[int]] | None,
        "dllm_algo_state": Dynamic[Optional[List[Any]]],
        "copy_done": Borrowed[object],
        "delay_sample_func": HostOnly[object],
        "grammar_retained_tokens": HostOnly[Optional[list]],
        "extra_keep_alive_refs": Borrowed[Optional[List[Any]]],
        "routed_experts_output": Dynamic[object],
        "indexer_topk_output": HostOnly[object],
        "expert_distribution_metrics": HostOnly[object],
        "auxiliary_host_output": HostOnly[object],
    },
)


class ForwardMode(enum.IntEnum):
    EXTEND = 1


class SpeculativeAlgorithm(enum.Enum):
    NONE = 0


@dataclasses.dataclass
class Cols:
    start: int
    end: int


@payload
@dataclasses.dataclass
class DSV4OutCacheLoc:
    swa: torch.Tensor
    c4: torch.Tensor


class ResidualStream:
    """Keeps buffers of its own on the device."""


@payload
@dataclasses.dataclass
class MultimodalInputs:
    features: List[torch.Tensor]
    pad_values: List[int]


@dataclasses.dataclass
class ProcessorEntry:
    """A processor with the mask of its requests: not decorated."""

    mask: torch.Tensor


@payload
@dataclasses.dataclass
class DecoratedEntry:
    """The same, decorated."""

    mask: torch.Tensor


class GrammarMask:
    """A mask on the host, filled by another thread."""


def sampling_batch_info(t: Tool) -> type:
    @t.decorate()
    class SamplingBatchInfo:
        temperatures: torch.Tensor
        top_ps: torch.Tensor
        top_ks: torch.Tensor
        min_ps: torch.Tensor
        is_all_greedy: bool
        is_any_greedy: bool
        need_top_p_sampling: bool
        need_top_k_sampling: bool
        need_min_p_sampling: bool
        vocab_size: int
        grammars: Optional[List[Optional[BaseGrammarObject]]] = None
        rids_int: Optional[torch.Tensor] = None
        bootstrap_room_ids_int: Optional[torch.Tensor] = None
        grammar_mask: Optional[GrammarMask] = None
        penalizer_orchestrator: Optional[penaltylib.BatchedPenalizerOrchestrator] = None
        acc_additive_penalties: Optional[torch.Tensor] = None
        acc_scaling_penalties: Optional[torch.Tensor] = None
        has_custom_logit_processor: bool = False
        custom_params: Optional[List[Optional[Dict[str, Any]]]] = None
        custom_logit_processor: Optional[Dict[int, ProcessorEntry]] = None
        sampling_seed: Optional[torch.Tensor] = None
        return_sampling_masks: Optional[List[bool]] = None
        return_sampling_support_logprobs: Optional[List[bool]] = None
        sampling_mask_batch_indices: Optional[torch.Tensor] = None
        sampling_support_logprobs_capture_indices: Optional[torch.Tensor] = None
        sampling_mask_top_ks: Optional[List[int]] = None
        watermark_keys: Optional[torch.Tensor] = None
        watermark_context_windows: Optional[torch.Tensor] = None
        watermark_enabled: Optional[torch.Tensor] = None
        watermark_candidates_host: Optional[List[bool]] = None
        has_watermark_candidates: bool = False
        device: str = "cuda"
        logit_bias: Optional[torch.Tensor] = None
        npu_top_k_top_p_eligible: bool = False
        max_top_k: Optional[int] = None

        def __len__(self) -> int:
            return len(self.temperatures)

    return SamplingBatchInfo


SAMPLING_BATCH_INFO = Shape(
    sampling_batch_info,
    refused={
        "grammars": "BaseGrammarObject",
        "grammar_mask": "GrammarMask",
        "penalizer_orchestrator": "penaltylib.BatchedPenalizerOrchestrator",
        "custom_params": "Any",
        "custom_logit_processor": "ProcessorEntry",
    },
    remedies={
        "grammars": HostOnly[object],
        "grammar_mask": HostOnly[object],
        "penalizer_orchestrator": Borrowed[object],
        "custom_params": Dynamic[object],
        "custom_logit_processor": Optional[Dict[int, DecoratedEntry]],
    },
)


@payload
@dataclasses.dataclass
class DecoratedSamplingInfo:
    temperatures: torch.Tensor
    device: str = "cuda"


def forward_batch(t: Tool) -> type:
    @t.decorate()
    class ForwardBatchDeepSeekMHAMixin:
        attn_attend_prefix_cache: Optional[bool] = t.field(default=None, init=False)
        prefix_chunk_idx: Optional[int] = t.field(default=None, init=False)
        prefix_chunk_seq_lens: Optional[torch.Tensor] = t.field(
            default=None, init=False
        )
        prefix_chunk_kv_indices: Optional[List[torch.Tensor]] = t.field(
            default=None, init=False
        )

    @t.decorate()
    class ForwardBatch(ForwardBatchDeepSeekMHAMixin):
        forward_mode: ForwardMode
        batch_size: int
        input_ids: torch.Tensor
        req_pool_indices: torch.Tensor
        seq_lens: torch.Tensor
        out_cache_loc: torch.Tensor
        seq_lens_sum: int
        origin_out_cache_loc: Optional[torch.Tensor] = None
        orig_seq_lens: Optional[torch.Tensor] = None
        kv_loc_plan: Optional[KVLocPlan] = None
        kv_loc_cols: Optional[Cols] = None
        out_cache_loc_virtual: Optional[torch.Tensor] = None
        out_cache_loc_dsv4: Optional[DSV4OutCacheLoc] = None
        out_cache_loc_is_physical: bool = False
        mamba_track_indices: Optional[torch.Tensor] = None
        mamba_track_mask: Optional[torch.Tensor] = None
        mamba_track_seqlens: Optional[torch.Tensor] = None
        mamba_prefill_track_mask_cpu: Optional[List[bool]] = None
        mamba_track_seqlens_cpu: Optional[List[int]] = None
        mamba_cow_src_indices: Optional[torch.Tensor] = None
        mamba_cow_dst_indices: Optional[torch.Tensor] = None
        mamba_clear_indices: Optional[torch.Tensor] = None
        input_embeds: Optional[torch.Tensor] = None
        dllm_input_preparation_state: Optional[torch.Tensor] = None
        replace_embeds: Optional[torch.Tensor] = None
        replace_positions: Optional[torch.Tensor] = None
        token_type_ids: Optional[torch.Tensor] = None
        encoder_lens: Optional[torch.Tensor] = None
        encoder_out_cache_loc: Optional[torch.Tensor] = None
        return_logprob: bool = False
        is_prefill_only: bool = False
        spec_algorithm: SpeculativeAlgorithm = None
        dimensions: Optional[list[int]] = None
        return_pooled_hidden_states: bool = False
        is_extend_in_batch: bool = False
        dp_spec_prefill_coordination_applied: bool = False
        can_run_decode_cuda_graph: bool = False
        can_run_dp_draft_cuda_graph: bool = False
        can_run_dp_prefill_cuda_graph: bool = False
        dp_prefill_cuda_graph_max_prefix_len: int = 0
        global_forward_mode: Optional[ForwardMode] = None
        residual_stream: Optional[ResidualStream] = None
        tbo_split_seq_index: Optional[int] = None
        tbo_children: Optional[List[ForwardBatch]] = None
        seq_lens_cpu: Optional[torch.Tensor] = None
        req_pool_indices_cpu: Optional[torch.Tensor] = None
        top_logprobs_nums: Optional[List[int]] = None
        token_ids_logprobs: Optional[List[List[int]]] = None
        mm_inputs: Optional[List[MultimodalInputs]] = None
        mm_token_modalities: Optional[torch.Tensor] = None
        multi_gate_indices: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
        encoder_cached: Optional[List[bool]] = None
        encoder_lens_cpu: Optional[List[int]] = None
        multi_item_delimiter_indices: Optional[List[torch.Tensor]] = None
        token_indices_to_pool: Optional[List[torch.Tensor]] = None
        decision_layouts: Optional[List[Optional[List[int]]]] = None
        extra_args: Optional[Dict[str, any]] = None
        finished_ids: Optional[set[int]] = None
        sampling_info: DecoratedSamplingInfo = None
        spec_info: Optional[SpecInput] = None
        contains_last_prefill_chunk: bool = False
        lora_ids: Optional[List[str]] = None
        rids: Optional[List[str]] = None

    return ForwardBatch


FORWARD_BATCH = Shape(
    forward_batch,
    refused={"residual_stream": "ResidualStream", "extra_args": "any"},
    remedies={
        "residual_stream": Borrowed[object],
        "extra_args": Dynamic[object],
        "seq_lens_cpu": HostOnly[Tensor | None],
        "req_pool_indices_cpu": HostOnly[Tensor | None],
    },
    values={"tbo_children": lambda _: None},
)


@payload
@dataclasses.dataclass
class DSV4AttnMetadata:
    page_table: torch.Tensor
    seq_lens: torch.Tensor


@payload
@dataclasses.dataclass
class PagedIndexerMetadata:
    page_table: torch.Tensor
    deep: Dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)


@payload
@dataclasses.dataclass
class FusedCompressMetadata:
    plan: torch.Tensor


@payload
@dataclasses.dataclass
class CandidateMetadata:
    blocks: Optional[torch.Tensor] = None


@payload
@dataclasses.dataclass
class SparsePrefillChunkCache:
    chunks: List[torch.Tensor]


@payload
@dataclasses.dataclass
class LateLayerTail:
    start: int
    ids: torch.Tensor


def dsv4_metadata(t: Tool) -> type:
    @t.decorate()
    class DSV4Metadata:
        core_attn_metadata: DSV4AttnMetadata
        indexer_metadata: Optional[PagedIndexerMetadata]
        c1_indexer_metadata: Optional[PagedIndexerMetadata] = None
        c2_indexer_metadata: Optional[PagedIndexerMetadata] = None
        c4_compress_metadata: Optional[FusedCompressMetadata] = None
        c128_compress_metadata: Optional[FusedCompressMetadata] = None
        low_ratio_req_indices: Optional[torch.Tensor] = None
        low_ratio_pos_i64: Optional[torch.Tensor] = None
        low_ratio_extend_offsets: Optional[torch.Tensor] = None
        low_ratio_k_slots: Optional[Dict[int, torch.Tensor]] = None
        low_ratio_index_plans: Optional[Dict[int, object]] = None
        q_pad_buffer: Optional[torch.Tensor] = None
        q_pad_captured: bool = False
        candidate_metadata: Optional[CandidateMetadata] = None
        sparse_prefill_cache: Optional[SparsePrefillChunkCache] = None
        late_layer_tail: Optional[LateLayerTail] = None
        prefill_graph_tail: bool = False

        def copy_(self, other: DSV4Metadata) -> None:
            raise NotImplementedError

    return DSV4Metadata


DSV4_METADATA = Shape(
    dsv4_metadata,
    refused={"low_ratio_index_plans": "object"},
    remedies={
        "low_ratio_index_plans": Dynamic[object],
        "q_pad_buffer": Derived[Tensor | None],
    },
    asides=frozenset({"q_pad_buffer"}),
)
