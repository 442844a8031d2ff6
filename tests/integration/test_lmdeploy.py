"""lmdeploy's own input owners, adopted in place: its hand-written twins are deleted.

Runs where lmdeploy is importable: its wheel without its requirements, and the modules
that its import asks for. No GPU: the engine's own functions move and record, and what
they ask of CUDA is answered by recorded streams.
"""

import asyncio
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from clients.libraries import as_they_were, client
from torch import Tensor

from tensorpack import (
    Borrowed,
    CopyStream,
    DefinitionError,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeError,
    payload,
    tensors,
)
from tensorpack.testing import recorded_streams

client("lmdeploy", "0.18")
inputs = client("lmdeploy.pytorch.model_inputs")
multimodal = client("lmdeploy.pytorch.multimodal.data_type")
sampling = client("lmdeploy.pytorch.engine.logits_process")
caching = client("lmdeploy.pytorch.engine.cache_inputs")
agent = client("lmdeploy.pytorch.engine.model_agent.agent")
base = client("lmdeploy.pytorch.strategies.base.model_agent")
ar = client("lmdeploy.pytorch.strategies.ar.model_agent")
ar_spec = client("lmdeploy.pytorch.strategies.ar_spec.model_agent")
dllm = client("lmdeploy.pytorch.strategies.dllm.model_agent")

WRITTEN = {
    cls: [name for name in ("to_device", "record_stream") if name in vars(cls)]
    for cls in (
        caching.CacheCheckpointInputs,
        multimodal.MultiModalData,
        inputs.VisionModelInputs,
        inputs.ModelInputsDelta,
        inputs.ModelInputs,
        sampling.SamplingInputs,
        base.ExtraInputs,
        base.ExtraOutputs,
        base.StoppingCriteria,
    )
}
"""The owners that have hand-written methods, with the names of these."""

STRATEGIES = [
    getattr(module, f"{name}{role}")
    for module, name in ((ar, "AR"), (ar_spec, "ARSpec"), (dllm, "DLLM"))
    for role in ("ExtraInputs", "ExtraOutputs", "StoppingCriteria")
]
"""What the strategies derive from the last three."""

LINES = {
    cls: sum(len(inspect.getsource(vars(cls)[name]).splitlines()) for name in names)
    for cls, names in WRITTEN.items()
}

FIELDS: dict[type, dict[str, object]] = {
    multimodal.MultiModalData: {"meta": Dynamic[dict[str, Any] | None]},
    inputs.VisionModelInputs: {
        "input_multimodals": list[dict[str, list[multimodal.MultiModalData]]]
    },
    inputs.ModelInputs: {"model_metas": Borrowed[list[dict[str, Any]] | None]},
    sampling.SamplingInputs: {
        "response_formats": HostOnly[tuple[str, ...]],
        "logits_processors": HostOnly[list[Any]],
        "session_ctx": HostOnly[list[Any] | None],
    },
    ar_spec.ARSpecExtraInputs: {"logprobs": agent.BatchedLogProbs | None},
}
"""What their annotations leave open, or say wrongly."""


def fill_indices(self: Any) -> Any:
    """Do what `ModelInputsDelta.to_device` did first."""
    self.fill_tensors()
    return self


def fill_generated_ids(self: Any) -> Any:
    """Do what `SamplingInputs.to_device` did first."""
    if self.generated_ids is None and self.generated_ids_cpu is not None:
        self.generated_ids = torch.from_numpy(self.generated_ids_cpu.copy())
    return self


@pytest.fixture
def adopted() -> Iterator[None]:
    """Delete the hand-written methods and decorate the owners; undo it afterwards."""
    with as_they_were(*WRITTEN, *STRATEGIES, agent.BatchedLogProbs):
        for cls, names in WRITTEN.items():
            for name in names:
                delattr(cls, name)
        inputs.ModelInputsDelta.__payload_prepare__ = fill_indices
        sampling.SamplingInputs.__payload_prepare__ = fill_generated_ids
        for cls in (agent.BatchedLogProbs, *WRITTEN, *STRATEGIES):
            payload(cls, fields=FIELDS.get(cls))
        yield


def ids(*shape: int) -> Tensor:
    """Make a leaf."""
    return torch.ones(shape or (2,), dtype=torch.long)


def model_inputs(make: Callable[..., Tensor] = ids, **options: Any) -> Any:
    """Make the inputs of two sequences."""
    return inputs.ModelInputs(
        input_ids=make(1, 6),
        seq_length=make(2),
        history_lengths=make(2),
        block_offsets=make(2, 3),
        is_decoding=True,
        num_ignored_history=make(2),
        max_q_seqlen=1,
        max_kv_seqlen=9,
        sum_kv_seqlen=18,
        **options,
    )


def vision(make: Callable[..., Tensor] = ids) -> Any:
    """Make what one picture brings; its meta data have tensors at some depth."""
    picture = multimodal.MultiModalData(
        data=[make(3)],
        start=2,
        meta={"grid_thw": make(3), "crops": [make(2), {"size": make(2)}], "id": 7},
        mrope_pos_ids=np.ones(3),
    )
    return inputs.VisionModelInputs(
        history_lengths=make(2),
        input_embeddings=[[make(4)], []],
        input_embedding_ranges=[make(1, 2)],
        input_embedding_indexing=make(6),
        input_multimodals=[{"image": [picture]}],
    )


def forward_inputs(make: Callable[..., Tensor] = ids) -> dict[str, Any]:
    """Make the dictionary of one step, with every owner in it."""
    persistent = [{"cache": make(2)}]
    return {
        "inputs": model_inputs(
            make, vision_inputs=vision(make), model_metas=persistent
        ),
        "delta": inputs.ModelInputsDelta(
            indices=None,
            block_offsets=make(2, 3),
            indice_cpu=np.array([0, 1]),
            max_q_seqlen=1,
            max_kv_seqlen=9,
            sum_kv_seqlen=18,
        ),
        "cache_inputs": caching.CacheCheckpointInputs(
            kv_restore_plan=make(2, 2), state_save_plan=((1,), (2,))
        ),
        "sampling_inputs": sampling.SamplingInputs(
            temperature=make(2),
            generated_ids_cpu=np.ones((2, 3), dtype=np.int64),
            session_ctx=[{"a": object()}],
            logits_processors=[[print]],
            batch_size=2,
        ),
        "stopping_criteria": ar.ARStoppingCriteria(num_appendable_ids=make(2)),
        "extra_inputs": ar_spec.ARSpecExtraInputs(
            target_logits=make(2, 4),
            logprobs=agent.BatchedLogProbs(vals=make(2), indices=make(2)),
        ),
        "return_logits": False,
        "callback": print,
    }


KEYS = {
    "inputs": [
        "input_ids",
        "seq_length",
        "history_lengths",
        "block_offsets",
        "num_ignored_history",
        "vision_inputs.history_lengths",
        "vision_inputs.input_embeddings[0][0]",
        "vision_inputs.input_embedding_ranges[0]",
        "vision_inputs.input_embedding_indexing",
        "vision_inputs.input_multimodals[0]['image'][0].data[0]",
        "vision_inputs.input_multimodals[0]['image'][0].meta['grid_thw']",
        "vision_inputs.input_multimodals[0]['image'][0].meta['crops'][0]",
        "vision_inputs.input_multimodals[0]['image'][0].meta['crops'][1]['size']",
    ],
    "delta": ["indices", "block_offsets"],
    "cache_inputs": ["kv_restore_plan"],
    "sampling_inputs": ["temperature", "generated_ids"],
    "stopping_criteria": ["num_appendable_ids"],
    "extra_inputs": ["target_logits", "logprobs.vals", "logprobs.indices"],
}
"""Every leaf that has to travel, by the entry of the dictionary."""

FORGOTTEN = {
    "inputs": KEYS["inputs"][-2:],
    "extra_inputs": KEYS["extra_inputs"][1:],
}
"""The leaves that the hand-written methods pass by in silence."""


def there(*shape: int) -> Tensor:
    """Make a leaf on the recorded device."""
    return torch.zeros(shape, dtype=torch.long, device="cuda")


def preprocess(entries: dict[str, Any]) -> dict[str, Any]:
    """Send a step through the engine's own preprocessing, and take out what it made."""

    async def one_step() -> dict[str, Any]:
        stub = types.SimpleNamespace(
            _pre_in_que=asyncio.Queue(), _in_que=asyncio.Queue(), out_stream=None
        )
        stub._pre_in_que.put_nowait(entries)
        loop = asyncio.create_task(
            agent.BaseModelAgent._async_loop_inputs_preprocess(stub)
        )
        waiting = asyncio.create_task(stub._in_que.get())
        await asyncio.wait([loop, waiting], return_when=asyncio.FIRST_COMPLETED)
        if loop.done():
            loop.result()  # raises what has stopped it
        loop.cancel()
        found: dict[str, Any] = waiting.result()
        return found

    return asyncio.run(one_step())


def test_owners_are_refused_as_they_stand() -> None:
    """Their methods would live on; without these, the open fields are named."""
    for cls, names in WRITTEN.items():
        with pytest.raises(DefinitionError) as caught:
            payload(cls)
        assert all(f"`{name}`" in str(caught.value) for name in names)

    open_fields = {}
    with as_they_were(*WRITTEN):
        for cls, names in WRITTEN.items():
            for name in names:
                delattr(cls, name)
            try:
                payload(cls)
            except LifetimeError as error:
                open_fields[cls.__name__] = [r.field for r in error.refusals]

    assert {
        "MultiModalData": ["meta"],
        "VisionModelInputs": ["input_multimodals"],
        "ModelInputs": ["vision_inputs", "model_metas"],
        "SamplingInputs": ["response_formats", "logits_processors", "session_ctx"],
    } == open_fields


@pytest.mark.usefixtures("adopted")
class TestAdopted:
    """After the adoption the engine's own functions reach every leaf."""

    def test_every_leaf_is_listed(self) -> None:
        """The keys are those of the table, once each."""
        entries = forward_inputs()
        found = {
            name: [key for key, _ in tensors(entries[name].to_device("cpu"))]
            for name in KEYS
        }

        assert KEYS == found

    def test_preprocessing_moves_every_leaf(self) -> None:
        """The engine's own loop moves the dictionary; other entries pass through."""
        entries = forward_inputs()
        with recorded_streams():
            moved = preprocess(entries)

        for name, keys in KEYS.items():
            leaves = dict(tensors(moved[name]))
            assert keys == list(leaves)
            assert all(leaf.is_cuda for leaf in leaves.values())
            assert type(moved[name]) is type(entries[name])
            assert not any(leaf.is_cuda for _, leaf in tensors(entries[name]))
        assert moved["callback"] is print
        assert moved["inputs"].model_metas is entries["inputs"].model_metas
        assert entries["delta"].indices is None
        assert set(KEYS) == set(moved["_h2d_transfer"].refs)

    def test_engine_records_every_leaf(self) -> None:
        """Its forward stream is recorded on each leaf, and on nothing borrowed."""
        with recorded_streams() as log:
            forward = torch.Stream("cuda")
            entries = forward_inputs(there)
            agent._record_forward_input_stream(entries, forward)
        leaves = [leaf for name in KEYS for _, leaf in tensors(entries[name])]
        each = [f"[{number}]" for number in range(len(leaves))]

        assert each == log.recorded(leaves) == log.recorded(leaves, forward)

    def test_host_fields_are_the_same_objects(self) -> None:
        """Arrays, plans, contexts and callbacks are not copied."""
        entries = forward_inputs()
        moved = {name: entries[name].to_device("meta") for name in KEYS}
        picture, twin = (
            e["inputs"].vision_inputs.input_multimodals[0]["image"][0]
            for e in (entries, moved)
        )

        assert picture.mrope_pos_ids is twin.mrope_pos_ids
        assert (2, 2, 7) == (twin.start, twin.end, twin.meta["id"])
        for name, field in (
            ("cache_inputs", "state_save_plan"),
            ("sampling_inputs", "session_ctx"),
            ("sampling_inputs", "logits_processors"),
            ("sampling_inputs", "generated_ids_cpu"),
        ):
            assert getattr(entries[name], field) is getattr(moved[name], field)

    def test_copy_stream_takes_the_dictionary(self) -> None:
        """One `start` and one `wait` stand for the engine's three steps."""
        copies = CopyStream("cpu")
        entries = forward_inputs()
        handoff = copies.start(entries, keys=agent._H2D_INPUT_KEYS)
        entries["inputs"].input_ids.zero_()
        arrived = handoff.wait()

        assert 6 == int(arrived["inputs"].input_ids.sum())
        assert [0, 1] == arrived["delta"].indices.tolist()
        assert (2, 3) == arrived["sampling_inputs"].generated_ids.shape
        assert arrived["callback"] is print

    def test_engine_goes_on_with_what_has_travelled(self) -> None:
        """Its own steps over the moved owners run as before."""
        moved = {
            k: v.to_device("cpu") for k, v in forward_inputs().items() if k in KEYS
        }
        stepped = moved["inputs"].step(ids(2))
        chosen = moved["stopping_criteria"].update(moved["delta"])
        stopped, _, criteria = chosen.step(ids(2), None)
        delta = moved["sampling_inputs"].get_delta()

        assert [2, 2] == stepped.history_lengths.tolist()
        assert (1, 2) == stepped.input_ids.shape
        assert stepped.to_device("meta").input_ids.is_meta
        assert [True, True] == stopped.tolist()
        assert [0, 0] == criteria.num_appendable_ids.tolist()
        assert delta is not None

    def test_lie_is_named(self) -> None:
        """A wrong value raises with its address, where it was passed by."""
        entries = forward_inputs()
        entries["inputs"].vision_inputs.input_multimodals[0]["image"][0].meta[
            "crops"
        ].append(object())

        with pytest.raises(LeafError, match=r"meta\['crops'\]\[2\]"):
            entries["inputs"].to_device("meta")

    def test_outputs_come_back(self) -> None:
        """The owners of the way back travel too."""
        outputs = ar_spec.ARSpecExtraOutputs(draft_token_ids=ids(2))

        assert outputs.to_cpu().draft_token_ids is outputs.draft_token_ids
        assert outputs.to_device("meta").draft_token_ids.is_meta


class TestBefore:
    """What the hand-written methods do, on the same inputs."""

    def test_hand_written_move_forgets(self) -> None:
        """Tensors below the first level of `meta` and in `logprobs` stay behind."""
        with recorded_streams():
            moved = preprocess(forward_inputs())
        meta = moved["inputs"].vision_inputs.input_multimodals[0]["image"][0].meta
        left = [
            meta["crops"][0],
            meta["crops"][1]["size"],
            moved["extra_inputs"].logprobs.vals,
            moved["extra_inputs"].logprobs.indices,
        ]

        assert meta["grid_thw"].is_cuda
        assert not any(leaf.is_cuda for leaf in left)

    def test_hand_written_record_forgets(self) -> None:
        """The same tensors are not recorded, so their blocks may be handed out."""
        with recorded_streams() as log:
            forward = torch.Stream("cuda")
            entries = forward_inputs(there)
            agent._record_forward_input_stream(entries, forward)
        with as_they_were(*WRITTEN, *STRATEGIES, agent.BatchedLogProbs):
            for cls, names in WRITTEN.items():
                for name in names:
                    delattr(cls, name)
            for cls in (agent.BatchedLogProbs, *WRITTEN, *STRATEGIES):
                payload(cls, fields=FIELDS.get(cls))
            missed = {
                name: [k for k, x in tensors(entries[name]) if log.missing(x, forward)]
                for name in KEYS
            }

        assert FORGOTTEN == {name: keys for name, keys in missed.items() if keys}

    def test_lines_are_counted(self) -> None:
        """Seventeen methods go, and what stands in their place is one line a class."""
        assert 17 == sum(map(len, WRITTEN.values()))
        assert 150 < sum(LINES.values())
