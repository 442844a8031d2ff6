"""Tests as an engine writes them for its input owners, with the testing kit."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from integration.engine_inputs import (
    KEYS,
    ARExtraInputs,
    ARStoppingCriteria,
    CacheCheckpointInputs,
    DPMeta,
    DraftExtraInputs,
    DraftStoppingCriteria,
    ExtraInputs,
    Modality,
    ModelInputs,
    ModelInputsDelta,
    MultiModalData,
    SamplingInputs,
    StoppingCriteria,
    VisionModelInputs,
)
from torch import Tensor

import tensorpack
from tensorpack import Payload, payload, record_stream, tensors, to_device
from tensorpack.testing import Log, recorded_streams

META = torch.device("meta")


class Leaves:
    """Makes named tensors on the recorded device, and tells which are recorded."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._names: list[str] = []
        self._made: list[Tensor] = []
        self.forward = torch.Stream("cuda")

    def __call__(self, name: str) -> Any:
        self._names.append(name)
        self._made.append(torch.zeros(1, device="cuda"))
        return self._made[-1]

    def fields(self, *names: str) -> dict[str, Any]:
        """Make one tensor for each field, named like it."""
        return {name: self(name) for name in names}

    def recorded(self) -> list[str]:
        """Name what is recorded, in the order of the records, all on one stream."""
        keys = self._log.recorded(self._made)
        assert keys == self._log.recorded(self._made, self.forward)
        return [self._names[int(key.strip("[]"))] for key in keys]

    def listed(self, value: object) -> list[str]:
        """Name the leaves that a payload lists."""
        names = dict(zip(map(id, self._made), self._names, strict=True))
        return [names[id(leaf)] for _, leaf in tensors(value)]


@pytest.fixture
def new() -> Iterator[Leaves]:
    with recorded_streams() as log:
        yield Leaves(log)


def model_inputs(new: Leaves) -> ModelInputs:
    """Fill every field of the model's inputs."""
    return ModelInputs(
        **new.fields(
            "input_ids",
            "seq_length",
            "history_lengths",
            "block_offsets",
            "num_ignored_history",
            "local_adapter_ids",
            "state_offsets",
            "target_hidden_states",
            "target_position_ids",
            "target_inputs_embeds",
            "mrope_pos_ids",
        ),
        vision_inputs=vision_inputs(new),
        model_metas=[{"state": new("a persistent state"), "n": 1}, None],
        is_decoding=False,
        max_q_seqlen=3,
        max_kv_seqlen=5,
        sum_kv_seqlen=8,
        dp_meta=DPMeta([1, 2], [3]),
    )


def vision_inputs(new: Leaves) -> VisionModelInputs:
    """Fill every field of the vision inputs."""
    return VisionModelInputs(
        history_lengths=new("vision.history_lengths"),
        input_embeddings=[[new("vision.emb00")], [new("vision.emb10")]],
        input_embedding_ranges=[new("vision.range0"), new("vision.range1")],
        input_embedding_indexing=new("vision.indexing"),
        input_multimodals=[
            {"image": [multimodal(new, "mm0"), multimodal(new, "mm1")]},
            {},
        ],
    )


def multimodal(new: Leaves, name: str) -> MultiModalData:
    """Fill every field of a multimodal item."""
    return MultiModalData(
        data=[new(f"{name}.data0"), new(f"{name}.data1")],
        start=0,
        end=4,
        meta={
            "grid": new(f"{name}.grid"),
            "sizes": (1, 2),
            "more": [{"mask": new(f"{name}.mask")}],
        },
        modality=Modality.VIDEO,
        mrope_pos_ids=np.zeros(3),
        content_hash="hash",
    )


VISION = (
    "vision.history_lengths",
    "vision.emb00",
    "vision.emb10",
    "vision.range0",
    "vision.range1",
    "vision.indexing",
    "mm0.data0",
    "mm0.data1",
    "mm0.grid",
    "mm0.mask",
    "mm1.data0",
    "mm1.data1",
    "mm1.grid",
    "mm1.mask",
)
SAMPLING = (
    "temperature",
    "bad_words",
    "bad_mask",
    "stop_words",
    "stop_mask",
    "repetition_penalty",
    "top_k",
    "top_p",
    "min_p",
    "random_seeds",
    "random_offsets",
    "all_ids",
    "num_ignore_eos",
    "generated_ids",
    "repetition_ngram_size",
    "repetition_ngram_threshold",
)
OWNERS: dict[str, tuple[Callable[[Leaves], Any], tuple[str, ...]]] = {
    "ModelInputs": (
        model_inputs,
        (
            "input_ids",
            "seq_length",
            "history_lengths",
            "block_offsets",
            "num_ignored_history",
            "local_adapter_ids",
            *VISION,
            "state_offsets",
            "target_hidden_states",
            "target_position_ids",
            "target_inputs_embeds",
            "mrope_pos_ids",
        ),
    ),
    "ModelInputsDelta": (
        lambda new: ModelInputsDelta(
            **new.fields("indices", "block_offsets", "num_ignored_history"),
            indice_cpu=np.arange(3),
            max_q_seqlen=1,
            max_kv_seqlen=2,
            sum_kv_seqlen=3,
        ),
        ("indices", "block_offsets", "num_ignored_history"),
    ),
    "VisionModelInputs": (vision_inputs, VISION),
    "MultiModalData": (
        lambda new: multimodal(new, "x"),
        ("x.data0", "x.data1", "x.grid", "x.mask"),
    ),
    "SamplingInputs": (
        lambda new: SamplingInputs(
            **new.fields(*SAMPLING),
            generated_ids_cpu=np.arange(3),
            logits_processors=[object()],
            session_ctx=[{"a": 1}],
        ),
        SAMPLING,
    ),
    "ARStoppingCriteria": (
        lambda new: ARStoppingCriteria(new("num_appendable_ids")),
        ("num_appendable_ids",),
    ),
    "DraftStoppingCriteria": (
        lambda new: DraftStoppingCriteria(
            new("num_appendable_ids"), new("num_rejected"), [new("accepted")]
        ),
        ("num_appendable_ids", "num_rejected", "accepted"),
    ),
    "ARExtraInputs": (lambda _: ARExtraInputs(), ()),
    "DraftExtraInputs": (
        lambda new: DraftExtraInputs(
            **new.fields("target_logits", "target_hidden_states", "draft_token_ids"),
            block_masks={"a": new("mask a"), "b": new("mask b")},
            num_draft=2,
        ),
        (
            "target_logits",
            "target_hidden_states",
            "draft_token_ids",
            "mask a",
            "mask b",
        ),
    ),
    "CacheCheckpointInputs": (
        lambda new: CacheCheckpointInputs(
            **new.fields("kv_restore_plan", "kv_save_plan"),
            state_restore_plan=((1,), (2,)),
        ),
        ("kv_restore_plan", "kv_save_plan"),
    ),
}
each_owner = pytest.mark.parametrize(
    ("make", "expected"), OWNERS.values(), ids=list(OWNERS)
)


@each_owner
def test_record_stream_reaches_every_device_field_once(
    make: Callable[[Leaves], Any], expected: tuple[str, ...], new: Leaves
) -> None:
    """Every device-owned tensor is recorded once, in field order, and nothing else."""
    make(new).record_stream(new.forward)

    assert list(expected) == new.recorded()


@each_owner
def test_what_is_recorded_is_what_travels(
    make: Callable[[Leaves], Any], expected: tuple[str, ...], new: Leaves
) -> None:
    """The listed, the moved and the recorded tensors are the same ones."""
    value = make(new)
    twin = value.to_device(META)

    assert list(expected) == new.listed(value)
    assert [key for key, _ in tensors(value)] == [key for key, _ in tensors(twin)]
    assert {META} >= {leaf.device for _, leaf in tensors(twin)}


@each_owner
def test_host_fields_are_the_same_objects(
    make: Callable[[Leaves], Any], expected: tuple[str, ...], new: Leaves
) -> None:
    """What stays on the host is handed on as it is."""
    value = make(new)
    twin = value.to_device(META)

    assert type(value) is type(twin)
    for name in type(value).host_keys():
        assert getattr(value, name) is getattr(twin, name)


def test_fields_stand_on_the_sides_where_the_engine_has_them() -> None:
    """The roles of the fields of each owner, as the engine declares them."""
    assert (
        "local_adapter_ids",
        "vision_inputs",
        "state_offsets",
        "target_hidden_states",
        "target_position_ids",
        "target_inputs_embeds",
        "mrope_pos_ids",
    ) == tuple(
        name
        for name in ModelInputs.payload_keys()
        if name
        not in (
            "input_ids",
            "seq_length",
            "history_lengths",
            "block_offsets",
            "num_ignored_history",
        )
    )
    assert "model_metas" in ModelInputs.host_keys()
    assert "dp_meta" in ModelInputs.host_keys()
    assert SAMPLING == SamplingInputs.payload_keys()
    assert (
        "max_top_k",
        "min_top_p",
        "response_formats",
        "logits_processors",
        "max_num_logprobs",
        "batch_size",
        "session_ctx",
        "session_to_cleanup",
        "generated_ids_cpu",
        "max_repetition_ngram_size",
    ) == SamplingInputs.host_keys()
    assert ("data", "meta") == MultiModalData.payload_keys()
    assert ("state_restore_plan", "state_save_plan") == (
        CacheCheckpointInputs.host_keys()
    )


class TestBorrowed:
    """Persistent tensors in `model_metas` belong to the model."""

    def test_are_neither_moved_nor_recorded(self, new: Leaves) -> None:
        """The very same list, with the very same tensors in it."""
        inputs = model_inputs(new)
        metas = inputs.model_metas
        assert metas is not None
        state = metas[0]["state"]  # type: ignore[index]
        twin = inputs.to_device(META)
        inputs.record_stream(new.forward)

        assert metas is twin.model_metas
        assert state is metas[0]["state"]  # type: ignore[index]
        assert "a persistent state" not in new.recorded()


class TestDynamic:
    """`MultiModalData.meta` holds what a model's processor has put there."""

    def test_payloads_and_tensors_travel_and_host_values_stay(
        self, new: Leaves
    ) -> None:
        """Each value is treated by what it is."""
        sizes = [1, 2]
        item = MultiModalData(
            new("data"), 0, meta={"nested": multimodal(new, "n"), "sizes": sizes}
        )
        twin = item.to_device(META)
        item.record_stream(new.forward)

        assert twin.meta is not None
        assert META == twin.meta["nested"].meta["grid"].device
        assert sizes == twin.meta["sizes"]
        assert ["data", "n.data0", "n.data1", "n.grid", "n.mask"] == new.recorded()

    def test_unknown_object_raises_with_its_key(self, new: Leaves) -> None:
        """A processor's own object is not passed over in silence."""

        class Grid:
            pass

        item = MultiModalData(new("data"), 0, meta={"grid": Grid()})

        with pytest.raises(TypeError, match=r"MultiModalData\.meta\['grid'\]`: a `Gri"):
            item.to_device(META)
        with pytest.raises(TypeError, match=r"`inputs\[0\]\.meta\['grid'\]`"):
            to_device({"inputs": [item]}, META, keys=KEYS)


class TestPrepared:
    """Tensors that are made from their host twins just before they travel."""

    def test_delta_makes_its_indices(self) -> None:
        """`indices` is None until the object travels."""
        delta = ModelInputsDelta(None, torch.zeros(2, 3), np.array([2, 0]), 1, 2, 3)
        host = delta.to_device("cpu")

        assert delta.indices is None
        assert host.indices is not None
        assert [2, 0] == host.indices.tolist()
        assert META == to_device(delta, META).indices.device  # type: ignore[union-attr]
        assert delta.indice_cpu is host.indice_cpu

    def test_sampling_makes_its_generated_ids(self) -> None:
        """`generated_ids` is made if it is missing and there is a host twin."""
        ids = np.array([[1, 2]])

        assert None is SamplingInputs().to_device("cpu").generated_ids
        made = SamplingInputs(generated_ids_cpu=ids).to_device("cpu")
        assert [[1, 2]] == made.generated_ids.tolist()  # type: ignore[union-attr]
        given = torch.zeros(1)
        kept = SamplingInputs(generated_ids=given, generated_ids_cpu=ids)
        assert given is kept.to_device("cpu").generated_ids

    def test_inside_the_forward_inputs(self) -> None:
        """The mapping is prepared like everything else."""
        delta = ModelInputsDelta(None, torch.zeros(2), np.array([1]), 1, 2, 3)
        moved = to_device({"delta": delta}, META, keys=KEYS)

        assert META == moved["delta"].indices.device  # type: ignore[union-attr]


class TestForwardInputs:
    """The dictionary that one step hands from task to task."""

    @staticmethod
    def forward(new: Leaves) -> dict[str, Any]:
        """Make the forward inputs of one step."""
        owners = {
            "inputs": "ModelInputs",
            "delta": "ModelInputsDelta",
            "cache_inputs": "CacheCheckpointInputs",
            "sampling_inputs": "SamplingInputs",
            "stopping_criteria": "DraftStoppingCriteria",
            "extra_inputs": "DraftExtraInputs",
        }
        travelling = {key: OWNERS[name][0](new) for key, name in owners.items()}
        return {
            **travelling,
            "is_last_step": False,
            "sequences": [object()],
            "callback": print,
            "a tensor that stays": new("stays"),
        }

    def test_entries_under_the_keys_are_recorded(self, new: Leaves) -> None:
        """Every owner's tensors, in the order of the keys, each exactly once."""
        record_stream(self.forward(new), new.forward, keys=KEYS)
        expected = [
            name
            for owner in (
                "ModelInputs",
                "ModelInputsDelta",
                "CacheCheckpointInputs",
                "SamplingInputs",
                "DraftStoppingCriteria",
                "DraftExtraInputs",
            )
            for name in OWNERS[owner][1]
        ]

        assert expected == new.recorded()

    def test_entries_outside_the_keys_pass_untouched(self, new: Leaves) -> None:
        """Flags, sequences and callbacks are the same objects."""
        forward = self.forward(new)
        moved = to_device(forward, META, keys=KEYS)

        assert list(forward) == list(moved)
        for key, value in forward.items():
            assert (key in KEYS) is (moved[key] is not value)
        assert META == moved["extra_inputs"].block_masks["a"].device

    def test_absent_entries_are_skipped(self, new: Leaves) -> None:
        """A decoding step has no inputs, a prefill step no delta."""
        forward = {"inputs": None, "delta": OWNERS["ModelInputsDelta"][0](new)}
        moved = to_device(forward, META, keys=KEYS)
        record_stream(forward, new.forward, keys=KEYS)

        assert ["inputs", "delta"] == list(moved)
        assert moved["inputs"] is None
        assert list(OWNERS["ModelInputsDelta"][1]) == new.recorded()

    @pytest.mark.parametrize("value", [object(), 3, "text", [object()], {"a": print}])
    def test_entry_without_support_is_a_type_error(
        self, value: object, new: Leaves
    ) -> None:
        """The key is named, and nothing is recorded by halves."""
        forward = {**self.forward(new), "extra_inputs": value}

        with pytest.raises(TypeError, match="`extra_inputs"):
            to_device(forward, META, keys=KEYS)
        with pytest.raises(TypeError, match="`extra_inputs"):
            record_stream(forward, new.forward, keys=KEYS)
        assert [] == new.recorded()

    def test_owner_that_is_not_migrated_yet_works_too(self, new: Leaves) -> None:
        """A class with hand-written methods is asked to do it itself."""

        class ByHand:
            device = META

            def __init__(self, *moved: object) -> None:
                self.moved = moved
                self.streams: list[object] = []

            @property
            def is_cuda(self) -> bool:
                return True

            def to_device(self, device: object, non_blocking: bool = False) -> object:
                return ByHand(device, non_blocking)

            def record_stream(self, stream: object) -> None:
                self.streams.append(stream)

        owner = ByHand()
        forward = {"inputs": owner, "extra_inputs": new("x")}
        record_stream(forward, new.forward, keys=KEYS)
        moved = to_device(forward, META, keys=KEYS, non_blocking=True)

        assert [new.forward] == owner.streams
        assert (META, True) == moved["inputs"].moved  # type: ignore[attr-defined]


class TestStrategies:
    """Abstract bases, subclassed per strategy."""

    def test_bases_stay_abstract(self) -> None:
        """The generated methods are there; the strategy's own is still asked for."""
        assert frozenset({"step"}) == StoppingCriteria.__abstractmethods__
        assert frozenset({"describe"}) == ExtraInputs.__abstractmethods__
        with pytest.raises(TypeError, match="abstract"):
            StoppingCriteria(torch.zeros(1))  # type: ignore[abstract]

    def test_subclass_covers_its_base(self) -> None:
        """A subclass's keys are its base's and its own."""
        assert ("num_appendable_ids",) == ARStoppingCriteria.payload_keys()
        assert ("num_appendable_ids", "num_rejected", "accepted") == (
            DraftStoppingCriteria.payload_keys()
        )

    def test_a_field_of_the_base_takes_every_strategy(self, new: Leaves) -> None:
        """Dispatch is on the value's class."""

        @payload
        class Step(Payload):
            criteria: StoppingCriteria
            extra: ExtraInputs | None = None

        criteria = DraftStoppingCriteria(new("a"), new("b"), [new("c")])
        step = Step(criteria, DraftExtraInputs(new("d")))
        step.record_stream(new.forward)

        assert ["a", "b", "c", "d"] == new.recorded()
        assert DraftStoppingCriteria is type(step.to_device(META).criteria)

    def test_forgotten_decorator_is_found_at_first_use(self, new: Leaves) -> None:
        """A third strategy whose author forgot the decorator fails at once."""

        class Forgotten(ARStoppingCriteria):
            mask: Tensor

        forward = {"stopping_criteria": Forgotten(new("a"))}

        with pytest.raises(TypeError, match="`mask` would be lost"):
            to_device(forward, META, keys=KEYS)
        with pytest.raises(TypeError, match="`mask` would be lost"):
            record_stream(forward, new.forward, keys=KEYS)

    def test_forgotten_field_cannot_happen(self, new: Leaves) -> None:
        """A field that is added later is covered by writing its annotation."""

        @payload
        class Grown(DraftExtraInputs):
            new_masks: dict[str, list[Tensor]] | None = None

        grown = Grown(new_masks={"a": [new("added")]})
        grown.record_stream(new.forward)

        assert ["added"] == new.recorded()


def owners() -> Iterator[Any]:
    with recorded_streams() as log:
        for make, _ in OWNERS.values():
            yield make(Leaves(log))


def test_every_owner_is_short_to_print() -> None:
    """A log line of an owner has no numbers of tensors in it."""
    for owner in owners():
        assert "tensor(" not in repr(owner)


def test_every_owner_can_be_cloned() -> None:
    """A clone has as many leaves, and none of the original's memory."""
    for owner in owners():
        pairs = zip(tensors(owner), tensors(tensorpack.clone(owner)), strict=True)
        assert all(a.data_ptr() != b.data_ptr() for (_, a), (_, b) in pairs)
