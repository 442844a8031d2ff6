"""Class shapes as they stand in public projects: handled, or refused and then mended.

Field names, annotations and defaults are those of the projects; methods and values are
stand-ins. Each shape is made by `dataclasses` and by attrs, with the same verdicts.
"""

from typing import Any

import pytest
import torch
from shapes import lmdeploy, others, recsys, servers
from shapes.tools import ATTRS, DATACLASS, Shape, Tool, filled, leaves_by_hand
from torch import Tensor

from tensorpack import DefinitionError, LifetimeError, clone, payload, tensors
from tensorpack.testing import recorded_streams

SHAPES: dict[str, Shape] = {
    "VisionModelInputs": lmdeploy.VISION_MODEL_INPUTS,
    "MultiModalData": lmdeploy.MULTI_MODAL_DATA,
    "ModelInputs": lmdeploy.MODEL_INPUTS,
    "ModelInputsDelta": lmdeploy.MODEL_INPUTS_DELTA,
    "SamplingInputs": lmdeploy.SAMPLING_INPUTS,
    "CacheCheckpointInputs": lmdeploy.CACHE_CHECKPOINT_INPUTS,
    "BatchedOutputs": lmdeploy.BATCHED_OUTPUTS,
    "EmbeddingCollectionContext": recsys.EMBEDDING_COLLECTION_CONTEXT,
    "ObjectPoolRwShardingContext": recsys.OBJECT_POOL_RW_SHARDING_CONTEXT,
    "InferSequenceShardingContext": recsys.INFER_SEQUENCE_SHARDING_CONTEXT,
    "Batch": recsys.BATCH,
    "HSTUBatch": recsys.HSTU_BATCH,
    "FeatureData": recsys.FEATURE_DATA,
    "CommonAttentionMetadata": servers.COMMON_ATTENTION_METADATA,
    "LogprobsTensors": others.LOGPROBS_TENSORS,
    "SamplingMetadata": servers.SAMPLING_METADATA,
    "GenerationBatchResult": servers.GENERATION_BATCH_RESULT,
    "ForwardBatch": servers.FORWARD_BATCH,
    "SamplingBatchInfo": servers.SAMPLING_BATCH_INFO,
    "DSV4Metadata": servers.DSV4_METADATA,
    "AttentionMetadata": others.ATTENTION_METADATA,
    "MultimodalParams": others.MULTIMODAL_PARAMS,
    "JointState": others.JOINT_STATE,
    "BatchedFindTarget": others.BATCHED_FIND_TARGET,
    "MiniBatch": others.MINI_BATCH,
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
each_tool = pytest.mark.parametrize("tool", [DATACLASS, ATTRS], ids=lambda t: t.name)


def test_there_are_twenty_five() -> None:
    """Every shape of the collection is here."""
    assert 25 == len(SHAPES)


def host_leaf() -> Tensor:
    """Make a leaf on the host."""
    return torch.ones(2)


def ids(leaves: Any) -> list[int]:
    """Identify leaves, each once."""
    return sorted({id(leaf) for leaf in leaves})


@each_shape
@each_tool
def test_as_it_stands(shape: Shape, tool: Tool) -> None:
    """The class is refused for the right fields at once, or handled."""
    cls = shape.declare(tool)
    if not shape.refused:
        assert payload(cls) is cls
        return

    with pytest.raises(LifetimeError) as caught:
        payload(cls)

    assert dict(shape.refused) == {r.field: r.culprit for r in caught.value.refusals}
    assert all(r.remedies for r in caught.value.refusals)
    assert not hasattr(cls, "to_device") or "to_device" in vars(cls.__mro__[1])


@each_shape
@each_tool
def test_right_after_the_remedies(shape: Shape, tool: Tool) -> None:
    """Every leaf is listed, moved and cloned, and what stays is the same object."""
    cls = payload(shape.declare(tool), fields=shape.remedies)
    value = filled(cls, host_leaf, shape)
    expected = ids(leaves_by_hand(value, shape.asides))
    moved, copied = value.to_device("meta"), clone(value)
    listed = dict(tensors(value))

    assert expected
    assert expected == ids(listed.values())
    assert type(moved) is cls
    assert list(listed) == list(dict(tensors(moved))) == list(dict(tensors(copied)))
    assert all(leaf.is_meta for leaf in leaves_by_hand(moved, shape.asides))
    assert not any(leaf.is_meta for leaf in leaves_by_hand(value, frozenset()))
    assert set(expected).isdisjoint(ids(leaves_by_hand(copied, frozenset())))
    for name in cls.host_keys():
        assert getattr(moved, name) is getattr(value, name), name
    for name in shape.asides:
        assert getattr(moved, name) is None


@each_shape
@each_tool
def test_every_device_leaf_is_recorded(shape: Shape, tool: Tool) -> None:
    """A stream is recorded once on every leaf that the object holds."""
    cls = payload(shape.declare(tool), fields=shape.remedies)
    made: list[Tensor] = []

    def device_leaf() -> Tensor:
        made.append(torch.ones(2, device="cuda"))
        return made[-1]

    with recorded_streams() as log:
        value = filled(cls, device_leaf, shape)
        value.record_stream(torch.Stream("cuda"))
    held = set(ids(leaves_by_hand(value, frozenset())))
    leaves = [leaf for leaf in made if id(leaf) in held]

    assert held
    assert [f"[{n}]" for n in range(len(leaves))] == sorted(
        log.recorded(leaves), key=lambda key: int(key[1:-1])
    )


class TestPeculiarities:
    """What each of the odd ones is here for."""

    def test_post_init_does_not_run_again(self) -> None:
        """A field that a post-init fills keeps what it has since."""
        cls = payload(recsys.hstu_batch(DATACLASS))
        value = filled(cls, host_leaf, recsys.HSTU_BATCH)
        value.max_num_candidates = 99

        assert 99 == value.to_device("meta").max_num_candidates

    def test_inherited_hand_written_methods_are_taken_over(self) -> None:
        """The base's own movers would miss the child's fields."""
        cls = payload(recsys.hstu_batch(DATACLASS))
        value = filled(cls, host_leaf, recsys.HSTU_BATCH)

        assert value.to("meta").num_candidates.is_meta
        value.record_stream(None)

    def test_hand_written_twins_in_the_body_are_refused(self) -> None:
        """They are deleted when the class is taken over, or kept by name."""
        cls = lmdeploy.model_inputs_delta(DATACLASS)
        cls.to_device = lambda self, device: self
        cls.record_stream = lambda self, stream: None

        with pytest.raises(DefinitionError, match="`to_device`, `record_stream`"):
            payload(cls)

        del cls.to_device, cls.record_stream
        assert payload(cls).payload_keys()

    def test_named_tuple_is_no_payload_itself(self) -> None:
        """It travels as the type of a field, methods and all."""
        with pytest.raises(DefinitionError, match="named tuple"):
            payload(others.LogprobsTensors)

        cls = payload(others.logprobs_tensors(ATTRS))
        moved = filled(cls, host_leaf, others.LOGPROBS_TENSORS).to_device("meta")

        assert type(moved.logprobs) is others.LogprobsTensors

    def test_object_that_is_its_own_part_raises(self) -> None:
        """`cross` may be the object itself: that has no end."""
        shape = others.ATTENTION_METADATA
        cls = payload(shape.declare(DATACLASS), fields=shape.remedies)
        value = filled(cls, host_leaf, shape)
        value.cross = value

        with pytest.raises(ValueError, match="cross"):
            value.to_device("meta")

        mended = payload(
            shape.declare(DATACLASS),
            fields={**shape.remedies, "cross": shape.remedies["kv_cache_manager"]},
        )
        value = filled(mended, host_leaf, shape)
        value.cross = value

        assert value.to_device("meta").cross is value

    def test_field_that_is_a_property_travels_by_its_storage(self) -> None:
        """The property reads the twin's own storage."""
        shape = others.ATTENTION_METADATA
        cls = payload(shape.declare(DATACLASS), fields=shape.remedies)
        moved = filled(cls, host_leaf, shape).to_device("meta")

        assert moved.seq_lens.is_meta
        assert moved.seq_lens is moved._seq_lens
        assert "seq_lens" not in cls.payload_keys()

    def test_shared_default_stays_shared(self) -> None:
        """A default that many instances share is the same object in a twin."""
        shape = others.JOINT_STATE
        cls = payload(shape.declare(ATTRS), fields=shape.remedies)

        assert cls([1.0]).to_device("meta").device_cfg is others.SHARED_CFG

    def test_lying_values_raise(self) -> None:
        """The annotation of `input_multimodals` lies; its value says so."""
        cls = payload(lmdeploy.vision_model_inputs(DATACLASS))
        leaf = lmdeploy.MultiModalData(torch.ones(1), 0)
        value = cls(input_multimodals=[{"image": [leaf]}])

        with pytest.raises(TypeError, match=r"input_multimodals\[0\]"):
            value.to_device("meta")

    def test_child_of_itself_is_nested(self) -> None:
        """A list of the class's own instances is walked."""
        shape = servers.FORWARD_BATCH
        cls = payload(shape.declare(DATACLASS), fields=shape.remedies)
        value, child = (filled(cls, host_leaf, shape) for _ in range(2))
        value.tbo_children = [child]

        keys = [key for key, _ in tensors(value.to_device("meta"))]

        assert "tbo_children[0].input_ids" in keys
        assert "tbo_children[0].prefix_chunk_kv_indices[0]" in keys
