"""Batches of recommender systems: foreign jagged tensors, contexts, diamonds."""

import abc
import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Dict, List, Optional, Tuple

import torch
from shapes.tools import DATACLASS, Shape, Tool
from torch import Tensor

from tensorpack import Borrowed, HostOnly, LifetimeAdapter, payload

Leaf = Callable[[], Tensor]


class Multistreamable(abc.ABC):
    @abc.abstractmethod
    def record_stream(self, stream: Any) -> None: ...


class Pipelineable(Multistreamable):
    @abc.abstractmethod
    def to(self, device: torch.device, non_blocking: bool) -> Any: ...


class _Jagged:
    """What torchrec's jagged tensors keep."""

    __module__ = "torchrec.sparse.jagged_tensor"

    def __init__(self, values: Tensor, lengths: Tensor | None) -> None:
        self._values, self._lengths = values, lengths
        self._weights = self._offsets = None

    @classmethod
    def sample(cls, leaf: Leaf) -> Any:
        return cls(leaf(), leaf())


class JaggedTensor(_Jagged):
    __module__ = "torchrec.sparse.jagged_tensor"


class KeyedJaggedTensor(_Jagged):
    __module__ = "torchrec.sparse.jagged_tensor"

    def __init__(self, values: Tensor, lengths: Tensor, inverse: Tensor) -> None:
        super().__init__(values, lengths)
        self._keys = ["a"]
        self._inverse_indices = (["a"], inverse)
        self._jt_dict = None

    @classmethod
    def sample(cls, leaf: Leaf) -> Any:
        return cls(leaf(), leaf(), leaf())


class KeyedTensor:
    __module__ = "torchrec.sparse.jagged_tensor"

    def __init__(self, values: Tensor) -> None:
        self._values = values

    @classmethod
    def sample(cls, leaf: Leaf) -> Any:
        return cls(leaf())


class KJTList:
    """A container class of torchrec's own."""

    def __init__(self, features: list[KeyedJaggedTensor]) -> None:
        self.features = features

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        return iter(self.features)

    @classmethod
    def sample(cls, leaf: Leaf) -> Any:
        return cls([KeyedJaggedTensor.sample(leaf), KeyedJaggedTensor.sample(leaf)])


@payload
@dataclasses.dataclass
class SequenceShardingContext(Multistreamable):
    features: KeyedJaggedTensor | None = None
    lengths_after_input_dist: Tensor | None = None


@payload
@dataclasses.dataclass
class SequenceVBEContext(Multistreamable):
    recat: Tensor
    unpadded_lengths: Tensor
    reindexed_lengths: Tensor
    splits: List[int]


def embedding_collection_context(t: Tool) -> type:
    @t.decorate()
    class EmbeddingCollectionContext(Multistreamable):
        sharding_contexts: List[SequenceShardingContext] = t.field(factory=list)
        input_features: List[KeyedJaggedTensor] = t.field(factory=list)
        reverse_indices: List[torch.Tensor] = t.field(factory=list)
        seq_vbe_ctx: List[SequenceVBEContext] = t.field(factory=list)
        table_name_to_unpruned_hash_sizes: Dict[str, int] = t.field(factory=dict)
        early_releasable_inputs: list[KeyedJaggedTensor] = t.field(factory=list)

    return EmbeddingCollectionContext


EMBEDDING_COLLECTION_CONTEXT = Shape(
    embedding_collection_context,
    remedies={"early_releasable_inputs": Borrowed[list[KeyedJaggedTensor]]},
)


def object_pool_rw_sharding_context(t: Tool) -> type:
    @t.decorate()
    class ObjectPoolShardingContext(Multistreamable):
        ids_before_input_dist: Optional[Tensor] = None
        num_ids_each_rank_to_receive: Optional[Tensor] = None

    @t.decorate()
    class RwShardingContext(Multistreamable):
        unbucketize_permute: Optional[Tensor] = None
        block_sizes: Optional[List[int]] = None

    @t.decorate()
    class ObjectPoolRwShardingContext(ObjectPoolShardingContext, RwShardingContext):
        pass

    return ObjectPoolRwShardingContext


OBJECT_POOL_RW_SHARDING_CONTEXT = Shape(object_pool_rw_sharding_context)


def infer_sequence_sharding_context(t: Tool) -> type:
    @t.decorate()
    class InferSequenceShardingContext(Multistreamable):
        features: KJTList
        features_before_input_dist: Optional[KeyedJaggedTensor] = None
        unbucketize_permute_tensor: Optional[torch.Tensor] = None
        bucket_mapping_tensor: Optional[torch.Tensor] = None
        bucketized_length: Optional[torch.Tensor] = None
        embedding_names_per_rank: Optional[List[List[str]]] = None

    return InferSequenceShardingContext


class AdaptedKJTList(KJTList):
    """The same container, once it has an adapter."""


class KJTListAdapter(LifetimeAdapter[AdaptedKJTList]):
    """The remedy that the refusal names."""

    def leaves(self, value: AdaptedKJTList) -> Sequence[Tensor]:
        return [
            leaf
            for kjt in value
            for leaf in (kjt._values, kjt._lengths, kjt._inverse_indices[1])
        ]

    def rebuild(
        self, value: AdaptedKJTList, leaves: Sequence[Tensor]
    ) -> AdaptedKJTList:
        new = iter(leaves)
        return AdaptedKJTList(
            [KeyedJaggedTensor(next(new), next(new), next(new)) for _ in value]
        )


INFER_SEQUENCE_SHARDING_CONTEXT = Shape(
    infer_sequence_sharding_context,
    refused={"features": "KJTList"},
    remedies={"features": AdaptedKJTList},
)


class RecordBatchTensor:
    """Shares an Arrow buffer between processes: bytes on the host."""

    def __init__(self) -> None:
        self._buf = None


def batch(t: Tool) -> type:
    @t.decorate()
    class Batch(Pipelineable):
        dense_features: Dict[str, KeyedTensor] = t.field(factory=dict)
        sparse_features: Dict[str, KeyedJaggedTensor] = t.field(factory=dict)
        sequence_mulval_lengths: Dict[str, KeyedJaggedTensor] = t.field(factory=dict)
        sequence_dense_features: Dict[str, JaggedTensor] = t.field(factory=dict)
        labels: Dict[str, torch.Tensor] = t.field(factory=dict)
        jagged_labels: Dict[str, JaggedTensor] = t.field(factory=dict)
        reserves: RecordBatchTensor = t.field(factory=RecordBatchTensor)
        tile_size: int = t.field(default=-1)
        sample_weights: Dict[str, torch.Tensor] = t.field(factory=dict)
        additional_infos: Dict[str, torch.Tensor] = t.field(factory=dict)
        dummy: bool = t.field(default=False)
        checkpoint_info: Optional[Dict[str, int]] = t.field(default=None)
        data_timestamp: float = t.field(default=-1.0)

    return Batch


BATCH = Shape(
    batch,
    refused={"reserves": "RecordBatchTensor"},
    remedies={"reserves": HostOnly[RecordBatchTensor]},
)


def hstu_batch(t: Tool) -> type:
    @t.decorate()
    class BaseBatch:
        features: KeyedJaggedTensor
        batch_size: int
        feature_to_max_seqlen: Dict[str, int]
        contextual_feature_names: List[str]
        labels: Optional[torch.Tensor] = None

        def __post_init__(self) -> None:
            self.actual_batch_size = self.batch_size

        actual_batch_size: int = t.field(init=False, default=0)

        def to(self, device: torch.device, non_blocking: bool = False) -> Any:
            raise NotImplementedError  # the hand-written twin that is taken over

        def record_stream(self, stream: Any) -> None:
            raise NotImplementedError

    @t.decorate()
    class HSTUBatch(BaseBatch):
        item_feature_name: str = "item"
        action_feature_name: Optional[str] = None
        max_num_candidates: int = 0
        num_candidates: Optional[torch.Tensor] = None

        def __post_init__(self) -> None:
            super().__post_init__()
            self.max_num_candidates = 7

    return HSTUBatch


HSTU_BATCH = Shape(hstu_batch)

IdListFeature = Dict[str, Tuple[Tensor, Tensor]]
IdScoreListFeature = Dict[str, Tuple[Tensor, Tensor, Tensor]]


def _forwarding(t: Tool) -> type:
    @t.decorate()
    class TensorDataClass:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or not hasattr(Tensor, name):
                raise AttributeError(name)
            return types.MethodType(getattr(Tensor, name), self)

    return TensorDataClass


@payload
@dataclasses.dataclass
class DocList(_forwarding(DATACLASS)):
    float_features: torch.Tensor
    mask: torch.Tensor
    value: torch.Tensor


def feature_data(t: Tool) -> type:
    @t.decorate()
    class FeatureData(_forwarding(t)):
        float_features: torch.Tensor
        id_list_features: Optional[KeyedJaggedTensor] = None
        id_score_list_features: Optional[KeyedJaggedTensor] = None
        id_list_features_raw: IdListFeature = t.field(factory=dict)
        id_score_list_features_raw: IdScoreListFeature = t.field(factory=dict)
        stacked_float_features: Optional[torch.Tensor] = None
        candidate_docs: Optional[DocList] = None
        time_since_first: Optional[torch.Tensor] = None

        def __post_init__(self) -> None:
            if self.stacked_float_features is None:
                self.stacked_float_features = self.float_features

    return FeatureData


FEATURE_DATA = Shape(feature_data)
