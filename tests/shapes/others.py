"""Other shapes: aliases of anything, shared defaults, properties over their storage."""

import abc
import dataclasses
import enum
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from shapes.tools import DATACLASS, Shape, Tool
from torch import Tensor

from tensorpack import Borrowed, Dynamic, HostOnly, payload

T_DOF = torch.Tensor
MyTensor = Union[torch.Tensor, List[Any]]


class LogprobsTensors(NamedTuple):
    logprob_token_ids: torch.Tensor
    logprobs: torch.Tensor
    selected_token_ranks: torch.Tensor
    cu_num_generated_tokens: list[int] | None = None
    cu_num_generated_tokens_tensor: torch.Tensor | None = None

    def filter(self, mask: Tensor) -> "LogprobsTensors":
        return LogprobsTensors(*(part[mask] for part in self[:3]))


def logprobs_tensors(t: Tool) -> type:
    @t.decorate()
    class Holder:
        logprobs: LogprobsTensors
        per_request: dict[str, LogprobsTensors | None]
        logprob_token_ids: torch.Tensor
        cu_num_generated_tokens: list[int] | None = None

    return Holder


LOGPROBS_TENSORS = Shape(
    logprobs_tensors,
    values={
        "logprobs": lambda leaf: LogprobsTensors(leaf(), leaf(), leaf(), [1], None),
        "per_request": lambda leaf: {
            "a": LogprobsTensors(leaf(), leaf(), leaf(), None, leaf()),
            "b": None,
        },
    },
)


@payload
@dataclasses.dataclass
class MultimodalInput:
    multimodal_hashes: List[List[int]]
    multimodal_positions: List[int]


@payload
@dataclasses.dataclass
class MultimodalRuntimeData:
    past_seen_token_num: int
    mm_token_lengths: List[int]
    embed_mask: Optional[torch.Tensor] = None


def multimodal_params(t: Tool) -> type:
    @t.decorate()
    class MultimodalParams:
        multimodal_input: Optional["MultimodalInput"] = None
        multimodal_data: Optional[Dict[str, Any]] = t.field(factory=dict)
        multimodal_runtime: Optional["MultimodalRuntimeData"] = None
        input_ids_start_offset: int = 0
        mm_item_order: Optional[List[Dict[str, Union[str, int]]]] = None
        encoder_event: Optional[torch.cuda.Event] = t.field(
            default=None, repr=False, compare=False
        )

        def __post_init__(self) -> None:
            if self.multimodal_data is None:
                self.multimodal_data = {}

    return MultimodalParams


MULTIMODAL_PARAMS = Shape(
    multimodal_params,
    refused={"multimodal_data": "Any", "encoder_event": "Event"},
    remedies={
        "multimodal_data": Dynamic[Optional[Dict[str, Any]]],
        "encoder_event": Borrowed[Optional[torch.cuda.Event]],
    },
)


@dataclasses.dataclass
class DeviceCfg:
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # cannot be changed
    dtype: torch.dtype = torch.float32


class ControlSpace(enum.Enum):
    POSITION = 0


class State(abc.ABC):  # noqa: B024  # as it stands
    def blend(self) -> None:
        raise NotImplementedError


SHARED_CFG = DeviceCfg()


def joint_state(t: Tool) -> type:
    @t.decorate()
    class JointState(State):
        position: Union[List[float], T_DOF]
        velocity: Union[List[float], T_DOF, None] = None
        acceleration: Union[List[float], T_DOF, None] = None
        joint_names: Optional[List[str]] = None
        jerk: Union[List[float], T_DOF, None] = None
        device_cfg: DeviceCfg = t.field(factory=lambda: SHARED_CFG)
        dt: Optional[torch.Tensor] = None
        aux_data: dict = t.field(factory=dict)
        knot: Optional[torch.Tensor] = None
        knot_dt: Optional[torch.Tensor] = None
        control_space: Optional[ControlSpace] = None

        def __post_init__(self) -> None:
            if isinstance(self.position, Tensor):
                self.device_cfg = DeviceCfg(self.position.device)

    return JointState


JOINT_STATE = Shape(
    joint_state,
    refused={"aux_data": "dict"},
    remedies={"aux_data": Dynamic[dict]},
    values={"position": lambda leaf: leaf(), "velocity": lambda _: [0.5, 1.0]},
)


def batched_find_target(t: Tool) -> type:
    @t.decorate()
    class BatchedFindTarget:
        num_boxes: MyTensor
        num_boxes__type = torch.long
        boxes: MyTensor
        boxes__type = torch.float
        boxes_padded: MyTensor
        boxes_padded__type = torch.float
        repeated_boxes: MyTensor
        repeated_boxes__type = torch.float
        segments: Optional[MyTensor]
        segments__type = torch.bool
        semantic_segments: Optional[MyTensor]
        semantic_segments__type = torch.bool
        is_valid_segment: Optional[MyTensor]
        is_valid_segment__type = torch.bool
        is_exhaustive: MyTensor
        is_exhaustive__type = torch.bool
        object_ids: MyTensor
        object_ids__type = torch.long
        object_ids_padded: MyTensor
        object_ids_padded__type = torch.long

    return BatchedFindTarget


_TARGETS = (
    "num_boxes boxes boxes_padded repeated_boxes segments semantic_segments "
    "is_valid_segment is_exhaustive object_ids object_ids_padded"
)
BATCHED_FIND_TARGET = Shape(
    batched_find_target,
    refused=dict.fromkeys(_TARGETS.split(), "Any"),
    remedies=dict.fromkeys(_TARGETS.split(), Union[Tensor, List[Tensor], None]),
    values={"boxes": lambda leaf: [leaf(), leaf()]},
)


@payload
@dataclasses.dataclass
class SampledSubgraph:
    node_pairs: Dict[str, Tuple[Tensor, Tensor]]
    original_row_node_ids: Optional[Tensor] = None


def mini_batch(t: Tool) -> type:
    @t.decorate()
    class MiniBatch:
        labels: Union[torch.Tensor, Dict[str, torch.Tensor]] = None
        seeds: Union[torch.Tensor, Dict[str, torch.Tensor]] = None
        indexes: Union[torch.Tensor, Dict[str, torch.Tensor]] = None
        sampled_subgraphs: List[SampledSubgraph] = None
        input_nodes: Union[torch.Tensor, Dict[str, torch.Tensor]] = None
        node_features: Union[
            Dict[str, torch.Tensor], Dict[Tuple[str, str], torch.Tensor]
        ] = None
        edge_features: List[
            Union[Dict[str, torch.Tensor], Dict[Tuple[str, str], torch.Tensor]]
        ] = None
        compacted_seeds: Union[torch.Tensor, Dict[str, torch.Tensor]] = None
        _blocks: list = None

    return MiniBatch


MINI_BATCH = Shape(
    mini_batch,
    refused={"_blocks": "list"},
    remedies={"_blocks": HostOnly[Optional[list]]},
    values={
        "labels": lambda leaf: {"user": leaf(), "item": leaf()},
        "edge_features": lambda leaf: [{"a": leaf()}, {("a", "b"): leaf()}],
    },
)


class KVCacheManager:
    """Owns the cache of the keys and values, on the device."""


class Mapping:
    """Says which rank computes what."""


@dataclasses.dataclass
class KVCacheParams:
    use_cache: bool
    num_cached_tokens_per_seq: Optional[List[int]] = None


@dataclasses.dataclass
class AttentionRuntimeFeatures:
    chunked_prefill: bool = False


def attention_metadata(t: Tool) -> type:
    @t.decorate(kw_only=True)
    class AttentionMetadata:
        max_num_requests: int
        max_num_tokens: int
        max_num_sequences: Optional[int] = None
        kv_cache_manager: "KVCacheManager"
        mapping: Optional["Mapping"] = None
        enable_flash_mla: bool = False
        enable_paged_context_mla: bool = False
        is_cuda_graph: bool = t.field(default=False, repr=False)
        seq_lens: Optional[torch.Tensor]
        num_contexts: int
        position_ids: Optional[torch.Tensor] = None
        _num_contexts: int = t.field(default=0, init=False, repr=False)
        kv_cache_params: Optional["KVCacheParams"] = None
        seq_lens_kv: Optional[torch.Tensor]
        _seq_lens: Optional[torch.Tensor] = t.field(
            default=None, init=False, repr=False
        )
        _seq_lens_kv: Optional[torch.Tensor] = t.field(
            default=None, init=False, repr=False
        )
        _seq_lens_cuda: Optional[torch.Tensor] = t.field(
            default=None, init=False, repr=False
        )
        _seq_lens_kv_cuda: Optional[torch.Tensor] = t.field(
            default=None, init=False, repr=False
        )
        cross: Optional["AttentionMetadata"] = None
        request_ids: Optional[List[int]] = None
        prompt_lens: Optional[List[int]] = None
        runtime_features: AttentionRuntimeFeatures = t.field(
            factory=AttentionRuntimeFeatures
        )
        _all_rank_num_tokens: Optional[List[int]] = t.field(
            default=None, init=False, repr=False
        )
        all_rank_num_tokens: Optional[List[int]]
        all_rank_max_num_tokens: Optional[int] = None
        _num_generations: int = t.field(default=0, init=False, repr=False)
        _num_ctx_tokens: int = t.field(default=0, init=False, repr=False)
        _num_tokens: int = t.field(default=0, init=False, repr=False)

        if t is DATACLASS:  # attrs makes a slot or a plain value of such a field

            @property
            def seq_lens(self) -> Optional[torch.Tensor]:
                return self._seq_lens

            @seq_lens.setter
            def seq_lens(self, value: Optional[torch.Tensor]) -> None:
                self._seq_lens = None if isinstance(value, property) else value

            @property
            def seq_lens_kv(self) -> Optional[torch.Tensor]:
                return self._seq_lens_kv

            @seq_lens_kv.setter
            def seq_lens_kv(self, value: Optional[torch.Tensor]) -> None:
                self._seq_lens_kv = None if isinstance(value, property) else value

            @property
            def num_contexts(self) -> int:
                return self._num_contexts

            @num_contexts.setter
            def num_contexts(self, value: int) -> None:
                self._num_contexts = 0 if isinstance(value, property) else value

            @property
            def all_rank_num_tokens(self) -> Optional[List[int]]:
                return self._all_rank_num_tokens

            @all_rank_num_tokens.setter
            def all_rank_num_tokens(self, value: Optional[List[int]]) -> None:
                self._all_rank_num_tokens = (
                    None if isinstance(value, property) else value
                )

    return AttentionMetadata


ATTENTION_METADATA = Shape(
    attention_metadata,
    refused={"kv_cache_manager": "KVCacheManager", "mapping": "Mapping"},
    remedies={
        "kv_cache_manager": Borrowed[KVCacheManager],
        "mapping": HostOnly[Optional[Mapping]],
    },
    values={"cross": lambda _: None},
    stored=frozenset({"_seq_lens", "_seq_lens_kv", "_num_contexts"}),
)
