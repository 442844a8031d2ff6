"""torchrec: its train pipeline, its jagged tensors as leaves, its contexts adopted.

Each release of torch has one pair that loads beside it: 1.8 with fbgemm-gpu-cpu 1.8
beside 2.13, 1.6.1 with 1.6 beside 2.11. The kernels for the host are enough on a device
too, since nothing here asks for others.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from clients.libraries import as_they_were, client
from torch import Tensor, nn

from tensorpack import (
    Borrowed,
    DefinitionError,
    LifetimeAdapter,
    LifetimeError,
    clone,
    payload,
    tensors,
    to_device,
)
from tensorpack._leaves.adapters import _adapters
from tensorpack.testing import recorded_streams

torchrec = client("torchrec", "1.6")
pipeline = client("torchrec.distributed.train_pipeline")
streamable = client("torchrec.streamable")

pytestmark = pytest.mark.filterwarnings("ignore")  # of what the library itself calls

KeyedJaggedTensor = torchrec.KeyedJaggedTensor
JaggedTensor = torchrec.JaggedTensor
KeyedTensor = torchrec.KeyedTensor


@payload
class Batch(streamable.Pipelineable):  # type: ignore[misc,name-defined]  # no stubs
    dense: Tensor
    sparse: KeyedJaggedTensor
    labels: Tensor
    names: tuple[str, ...] = ()


@payload
class Jagged:
    keyed: dict[str, KeyedJaggedTensor]
    one: JaggedTensor | None = None
    pooled: KeyedTensor | None = None


def keyed_jagged(**options: Any) -> Any:
    """Make features of two keys and two rows."""
    return KeyedJaggedTensor(
        keys=["a", "b"],
        values=torch.arange(5),
        weights=torch.ones(5),
        lengths=torch.tensor([1, 2, 0, 2]),
        **options,
    )


class TestLeaves:
    """Jagged tensors travel in fields, with every tensor that they own."""

    def test_keyed_jagged_tensor_travels_whole(self) -> None:
        """Values, weights, lengths and computed offsets; its form is kept."""
        features = keyed_jagged()
        features.offsets()
        value = Jagged({"x": features})
        copied = clone(value).keyed["x"]

        assert 4 == len(list(tensors(value)))
        assert all(t.is_meta for _, t in tensors(value.to_device("meta")))
        assert type(copied) is KeyedJaggedTensor
        assert ["a", "b"] == copied.keys()
        assert torch.equal(features.values(), copied.values())
        assert torch.equal(features["b"].values(), copied["b"].values())
        assert torch.equal(features["b"].offsets(), copied["b"].offsets())
        assert copied.values() is not features.values()

    def test_inverse_indices_travel(self) -> None:
        """The library's own `record_stream` leaves them out."""
        features = keyed_jagged(inverse_indices=(["a", "b"], torch.zeros(2, 2)))
        moved = Jagged({"x": features}).to_device("meta").keyed["x"]

        assert moved.inverse_indices()[1].is_meta
        assert ["a", "b"] == moved.inverse_indices()[0]

    def test_cache_by_key_is_made_anew(self) -> None:
        """After a move the parts by key are cut from the new tensors."""
        features = keyed_jagged()
        features.to_dict()
        moved = to_device(features, "meta")

        assert all(part.values().is_meta for part in moved.to_dict().values())
        assert not any(part.values().is_meta for part in features.to_dict().values())

    def test_jagged_and_keyed_tensor_travel(self) -> None:
        """The other two kinds of torchrec, each in a union with None."""
        one = JaggedTensor(torch.ones(3), lengths=torch.tensor([1, 2]))
        pooled = KeyedTensor(["a", "b"], [1, 2], torch.ones(2, 3))
        moved = Jagged({}, one, pooled).to_device("meta")

        assert moved.one is not None
        assert moved.one.lengths().is_meta
        assert moved.pooled is not None
        assert (["a", "b"], True) == (moved.pooled.keys(), moved.pooled["b"].is_meta)

    def test_every_tensor_is_recorded(self) -> None:
        """What is recorded is what is listed."""
        with recorded_streams() as log:
            leaves = [torch.arange(4, device="cuda") for _ in range(2)]
            features = KeyedJaggedTensor(["a"], leaves[0], lengths=leaves[1])
            Jagged({"x": features}).record_stream(torch.Stream("cuda"))

        assert ["[0]", "[1]"] == log.recorded(leaves)


class Model(nn.Module):
    """Reads the dense and the sparse part of a payload."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 1)
        self.sparse = nn.Embedding(5, 1)
        self.seen: list[Any] = []

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        self.seen.append(batch)
        found = self.dense(batch.dense).squeeze(-1)
        found = found + self.sparse(batch.sparse.values()).mean()
        return (found - batch.labels).square().mean(), found.detach()


def batches() -> Iterator[Batch]:
    """Make payloads to learn from."""
    for n in range(6):
        dense = torch.full((2, 2), 1.0)
        yield Batch(dense, keyed_jagged(), dense.sum(1), (f"batch {n}",))


class TestPipeline:
    """`TrainPipelineBase` takes a payload that derives from `Pipelineable`."""

    def test_payload_keeps_the_contract(self) -> None:
        """The abstract methods are there, so instances can be made."""
        batch = next(batches())

        assert isinstance(batch, streamable.Pipelineable)
        assert ("dense", "sparse", "labels") == Batch.payload_keys()
        assert batch.to(torch.device("meta"), non_blocking=True).sparse.values().is_meta

    @pytest.mark.parametrize(
        "name", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
    )
    def test_trains_on_payloads(self, name: str) -> None:
        """Each step gets the payload, moved and recorded by the pipeline."""
        device = torch.device(name)
        model = Model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = pipeline.TrainPipelineBase(model, optimizer, device)
        data = batches()
        results = [trainer.progress(data) for _ in range(6)]
        errors = [(result - 2).square().mean().item() for result in results]

        with pytest.raises(StopIteration):
            trainer.progress(data)

        assert 6 == len(model.seen)
        assert [Batch] * 6 == [type(batch) for batch in model.seen]
        assert ("batch 5",) == model.seen[-1].names
        assert {name} == {t.device.type for _, t in tensors(model.seen[-1])}
        assert errors[-1] < errors[0]

    def test_copy_into_the_same_memory_is_not_offered(self) -> None:
        """`enable_inplace_copy_batch` gives `to` a stream, a form of torchrec's own."""
        trainer = pipeline.TrainPipelineBase(
            model := Model(),
            torch.optim.SGD(model.parameters(), lr=0.01),
            torch.device("cpu"),
            enable_inplace_copy_batch=True,
        )
        trainer._memcpy_stream = object()

        with pytest.raises(TypeError, match="data_copy_stream"):
            trainer.progress(batches())


class TestContexts:
    """torchrec's own contexts, adopted in place: their hand-written methods go."""

    @pytest.fixture
    def contexts(self) -> Iterator[Any]:
        """Take the hand-written methods out; put all back afterwards."""
        embedding = client("torchrec.distributed.embedding")
        kinds = client("torchrec.distributed.embedding_types")
        sharding = client("torchrec.distributed.embedding_sharding")
        sequence = client("torchrec.distributed.sharding.sequence_sharding")
        written = [
            sharding.EmbeddingShardingContext,
            sequence.SequenceShardingContext,
            sequence.InferSequenceShardingContext,
            embedding.EmbeddingCollectionContext,
        ]
        found = type("Contexts", (), {cls.__name__: cls for cls in written})
        found.KJTList = kinds.KJTList
        found.SequenceVBEContext = embedding.SequenceVBEContext
        with as_they_were(*written, embedding.SequenceVBEContext):
            yield found
        _adapters.pop(kinds.KJTList, None)

    def test_hand_written_method_is_named(self, contexts: Any) -> None:
        """As they stand they are refused, since their methods would live on."""
        with pytest.raises(DefinitionError, match="its body defines `record_stream`"):
            payload(contexts.InferSequenceShardingContext)

    def test_container_of_its_own_needs_an_adapter(self, contexts: Any) -> None:
        """A `KJTList` is no list, and records itself without being able to move."""
        infer = contexts.InferSequenceShardingContext
        del infer.record_stream

        with pytest.raises(LifetimeError, match="`KJTList`"):
            payload(infer)

        class ListAdapter(LifetimeAdapter[contexts.KJTList]):  # type: ignore[name-defined]
            def leaves(self, value: Any) -> list[Tensor]:
                return [leaf for _, leaf in tensors(list(value))]

            def rebuild(self, value: Any, leaves: Any) -> Any:
                rest = iter(leaves)
                return type(value)(
                    [
                        KeyedJaggedTensor(
                            kjt.keys(),
                            *(None if t is None else next(rest) for t in _parts(kjt)),
                        )
                        for kjt in value
                    ]
                )

        payload(infer)
        value = infer(
            contexts.KJTList([keyed_jagged(), keyed_jagged()]),
            keyed_jagged(),
            bucket_mapping_tensor=torch.ones(2),
            embedding_names_per_rank=[["a"]],
        )
        moved = value.to_device("meta")

        assert type(moved.features) is contexts.KJTList
        assert 10 == len(list(tensors(value)))
        assert all(t.is_meta for _, t in tensors(moved))

    def test_nested_contexts_are_adopted_from_the_inside(self, contexts: Any) -> None:
        """A list of contexts needs its item first; a borrowed field is not visited."""
        outer = contexts.EmbeddingCollectionContext
        if not dataclasses.is_dataclass(outer):
            pytest.skip("no dataclass before torchrec 1.8, and without this field")
        for name in ("EmbeddingShardingContext", "SequenceShardingContext"):
            cls = getattr(contexts, name)
            if "record_stream" in vars(cls):
                del cls.record_stream
            payload(cls)
        del contexts.SequenceVBEContext.record_stream
        payload(contexts.SequenceVBEContext)
        del outer.record_stream
        payload(
            outer,
            fields={"early_releasable_inputs": Borrowed[list[KeyedJaggedTensor]]},
        )
        early = keyed_jagged()
        value = outer(
            sharding_contexts=[
                contexts.SequenceShardingContext(
                    features_before_input_dist=keyed_jagged(), input_splits=[1]
                )
            ],
            input_features=[keyed_jagged()],
            reverse_indices=[torch.ones(1)],
            early_releasable_inputs=[early],
        )
        moved = value.to_device("meta")

        assert moved.sharding_contexts[0].features_before_input_dist.values().is_meta
        assert moved.input_features[0].lengths().is_meta
        assert moved.reverse_indices[0].is_meta
        assert moved.early_releasable_inputs[0] is early
        assert 7 == len(list(tensors(value)))


def _parts(value: Any) -> list[Tensor | None]:
    """Give the arguments that make a `KeyedJaggedTensor`, in order."""
    return [
        value.values(),
        value.weights_or_none(),
        value.lengths_or_none(),
        value.offsets_or_none(),
    ]
