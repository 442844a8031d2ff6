"""Assertions of the test kit: what they pass, and how they name what is left out."""

import collections
import enum
from dataclasses import dataclass, field, fields
from typing import Any

import attrs
import integration.engine_inputs as engine
import numpy as np
import pytest
import torch
from integration.engine_inputs import (
    CacheCheckpointInputs,
    ModelInputs,
    ModelInputsDelta,
    MultiModalData,
    SamplingInputs,
    VisionModelInputs,
)
from torch import Tensor

from tensorpack import Borrowed, Derived, Dynamic, HostOnly, Payload, payload
from tensorpack._rules.markers import PLAN
from tensorpack.testing import (
    assert_covers,
    assert_equal,
    assert_honest,
    assert_moves,
    example,
    recorded_streams,
)

OWNERS = [cls for cls in vars(engine).values() if PLAN in getattr(cls, "__dict__", ())]


def failure(call: Any, *args: Any, **options: Any) -> list[str]:
    """Give the lines of the error that a call must raise."""
    with pytest.raises(AssertionError) as caught:
        call(*args, **options)
    return str(caught.value).splitlines()


# assert_covers: generated methods.


@pytest.mark.parametrize("owner", OWNERS, ids=lambda cls: cls.__name__)
def test_owners_of_an_engine_are_covered(owner: type) -> None:
    """Every field of every owner moves and is recorded, from its annotations alone."""
    assert_covers(owner)
    assert_moves(example(owner), "cuda")
    assert_honest(example(owner))


def test_owners_are_those_of_the_engine() -> None:
    """The list above is not empty by a mistake."""
    wanted = {
        CacheCheckpointInputs,
        ModelInputs,
        ModelInputsDelta,
        MultiModalData,
        SamplingInputs,
        VisionModelInputs,
    }

    assert wanted < set(OWNERS)


def test_borrowed_tensors_are_neither_moved_nor_recorded() -> None:
    """A class that records what it only borrows is told so."""

    @payload(keep=("record_stream",))
    class Batch(Payload):
        ids: Tensor
        cache: Borrowed[list[Tensor]]

        def record_stream(self, stream: torch.Stream, /) -> None:
            self.ids.record_stream(stream)
            self.cache[0].record_stream(stream)

    (sentence,) = failure(assert_covers, Batch)
    assert sentence.endswith(
        "Batch.record_stream` records `cache[0]`, which is borrowed."
    )


def test_derived_fields_are_recorded_and_reset() -> None:
    """What is computed from other fields must be recorded, and does not travel."""

    @payload
    class Batch(Payload):
        ids: Tensor
        total: Derived[Tensor | None] = None

    assert example(Batch).total is not None
    assert_covers(Batch)


# assert_covers: hand-written methods.


@dataclass
class Vision:
    """A nested owner with hand-written methods."""

    ranges: list[Tensor]
    by_name: dict[str, Tensor] = field(default_factory=dict)

    def to_device(self, device: Any, non_blocking: bool = False) -> "Vision":
        return Vision(
            [x.to(device, non_blocking=non_blocking) for x in self.ranges],
            {
                k: x.to(device, non_blocking=non_blocking)
                for k, x in self.by_name.items()
            },
        )

    def record_stream(self, stream: torch.Stream) -> None:
        for x in (*self.ranges, *self.by_name.values()):
            x.record_stream(stream)


@dataclass
class Owner:
    """An owner with hand-written methods that leave out what they are told to."""

    input_ids: Tensor
    seq_length: Tensor
    state_offsets: Tensor | None = None
    embeddings: list[list[Tensor]] | None = None
    vision: Vision | None = None
    max_q_seqlen: int = 1
    forgets: str = field(default="", kw_only=True)

    def _moved(self, value: Any, device: Any) -> Any:
        if isinstance(value, (Tensor, Vision)):
            move = value.to if isinstance(value, Tensor) else value.to_device
            return move(device)
        if isinstance(value, list):
            return [self._moved(item, device) for item in value]
        return value

    def to_device(self, device: Any, non_blocking: bool = False) -> "Owner":
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {
            name: value
            if f"move {name}" == self.forgets
            else self._moved(value, device)
            for name, value in values.items()
        }
        return type(self)(**moved)

    def record_stream(self, stream: torch.Stream) -> None:
        def record(value: Any) -> None:
            if isinstance(value, list):
                for item in value:
                    record(item)
            elif hasattr(value, "record_stream"):
                value.record_stream(stream)

        for f in fields(self):
            if f"record {f.name}" != self.forgets:
                record(getattr(self, f.name))


FORGOTTEN = {
    "input_ids": "`input_ids`",
    "seq_length": "`seq_length`",
    "state_offsets": "`state_offsets`",
    "embeddings": "`embeddings[0][0]`",
    "vision": "`vision.ranges[0]`, `vision.by_name['a']`",
}


def test_right_hand_written_methods_are_covered() -> None:
    """No decorator is needed, and an example is made from the annotations."""
    assert_covers(Owner)
    assert_covers(Vision)
    assert_moves(example(Owner), "cuda")


@pytest.mark.parametrize("name", FORGOTTEN)
def test_field_that_record_stream_forgets_is_named(name: str) -> None:
    """Whichever field is deleted from a hand-written `record_stream`."""
    owner = example(Owner, forgets=f"record {name}")

    assert failure(assert_covers, owner) == [
        f"`Owner.record_stream` leaves out {FORGOTTEN[name]}."
    ]


@pytest.mark.parametrize("name", FORGOTTEN)
def test_field_that_to_device_forgets_is_named(name: str) -> None:
    """Whichever field is deleted from a hand-written `to_device`."""
    owner = example(Owner, forgets=f"move {name}")

    assert failure(assert_covers, owner) == [
        f"`Owner.to_device` leaves {FORGOTTEN[name]} where it was."
    ]


def test_field_that_somebody_else_answers_for_is_ignored() -> None:
    """`ignore=` leaves out a key, and everything under it."""
    assert_covers(example(Owner, forgets="record vision"), ignore=["vision"])
    assert_covers(example(Owner, forgets="move embeddings"), ignore=["embeddings[0]"])


def test_values_by_name_go_into_the_example() -> None:
    """What annotations cannot tell is given; the other fields are filled."""

    @payload
    class Sized(Payload):
        ids: Tensor
        images: list[Tensor] | None = None
        size: int = attrs.field(default=100, validator=attrs.validators.ge(100))

    with pytest.raises(ValueError, match="must be >= 100"):
        assert_covers(Sized)
    assert_covers(Sized, size=100)
    assert_covers(Owner, forgets="record state_offsets", state_offsets=None)
    assert failure(assert_covers, Owner, forgets="record state_offsets") == [
        "`Owner.record_stream` leaves out `state_offsets`."
    ]
    assert_covers(Owner, ignore=["state_offsets"], forgets="record state_offsets")


def test_values_beside_an_instance_are_refused() -> None:
    """They would have no place to go; a field's name that is wrong is told too."""
    with pytest.raises(TypeError) as caught:
        assert_covers(example(Owner), mask=None, size=3)
    assert (
        "`assert_covers` was given `mask`, `size` beside an `Owner`. Set them in the "
        "instance, or pass its class."
    ) == str(caught.value)

    with pytest.raises(TypeError, match="has no field `nothing`"):
        assert_covers(Owner, nothing=1)


class Plain:
    """An owner that is neither attrs nor dataclass, whose move has other faults."""

    def __init__(self, ids: Tensor, mask: Tensor) -> None:
        self.ids = ids
        self.mask = mask

    def to(self, device: Any) -> Any:
        return Plain(self.ids.to(device), self.mask.to(device))


def test_class_with_to_alone_is_checked_by_it() -> None:
    """A class without `record_stream` is asked to move, under the name that it has."""
    assert_covers(Plain)


@pytest.mark.parametrize(
    ("move", "sentence"),
    [
        (lambda s, d: None, "`Plain.to` returns a `NoneType`."),
        (lambda s, d: Plain(s.mask.to(d), s.mask.to(d)), "`Plain.to` alters `ids`."),
        (
            lambda s, d: Plain(s.ids.to(d).float() + 1, s.mask.to(d)),
            "`Plain.to` alters `ids`.",
        ),
        (lambda s, d: Plain(s.ids.to(d), None), "`Plain.to` loses `mask`."),
        (lambda s, d: s, "`Plain.to` leaves `ids`, `mask` where it was."),
    ],
)
def test_other_faults_of_a_move_are_told(
    move: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is returned, a field is lost, or it holds other numbers."""
    monkeypatch.setattr(Plain, "to", move)

    assert [sentence] == failure(assert_covers, Plain)


def test_class_without_either_method_is_told() -> None:
    """There is nothing that could cover it."""

    @dataclass
    class Batch:
        ids: Tensor

    assert failure(assert_covers, Batch) == [
        "a `Batch` has neither `record_stream` nor `to_device`."
    ]


# assert_moves.


def test_moves_to_any_device() -> None:
    """Meta, the host, and a device that the machine need not have."""
    inputs = example(ModelInputs)
    for device in ("cpu", "meta", "cuda", torch.device("cuda:0")):
        assert_moves(inputs, device)


def test_move_that_changes_the_original_is_told() -> None:
    """A twin is a new object, and the old one is left as it was."""

    @dataclass
    class Batch:
        ids: Tensor

        def to_device(self, device: Any) -> "Batch":
            self.ids = self.ids.to(device)
            return self

    assert failure(assert_moves, example(Batch), "meta")[-1].endswith(
        "Batch.to_device` changes `ids`."
    )


def test_containers_move_by_the_free_function() -> None:
    """What has no method of its own is moved by `tensorpack.to_device`."""
    assert_moves({"a": [torch.ones(2)], "b": 1}, "meta")


# assert_honest.


class Callback:
    """An object of nobody's that holds a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@payload
class Session(Payload):
    ids: Tensor
    context: HostOnly[list[dict[str, Any]]]
    extra: Dynamic[Any] = None
    cache: Borrowed[Any] = None


def test_honest_payload_passes() -> None:
    """Host tensors may stand in `HostOnly` fields, borrowed ones anywhere."""
    with recorded_streams():
        device = torch.ones(1, device="cuda")
        assert_honest(
            Session(
                ids=device,
                context=[{"x": Callback(torch.ones(1))}],
                extra={"y": [torch.ones(1)]},
                cache=Callback(device * 2),
            )
        )


def test_device_tensor_deep_in_a_host_field_is_named() -> None:
    """The traversal looks at the surface; this looks into the objects there."""
    with recorded_streams():
        device = torch.ones(1, device="cuda")
        session = Session(torch.ones(1), context=[{"x": Callback(device)}])
        session.record_stream(torch.cuda.Stream())

        (sentence,) = failure(assert_honest, session)
        assert sentence == (
            "`Session` has `context[0]['x'].tensor` on a device, in a `HostOnly` "
            "field. Mark the field `Borrowed` if it is owned and recorded elsewhere."
        )


def test_tensor_hidden_in_a_host_container_is_named() -> None:
    """A list that is annotated as one of numbers holds a tensor in its middle."""

    @payload
    class Batch(Payload):
        ids: Tensor
        sizes: list[int]

    batch = Batch(torch.ones(1), [1, torch.ones(1), 3])
    (sentence,) = failure(assert_honest, batch)

    assert sentence.endswith(
        "hides `sizes[1]` in a host field. Annotate the field so that its tensors "
        "travel, or mark it `HostOnly`."
    )


def test_payload_that_lies_at_the_surface_fails_with_the_reason() -> None:
    """What the traversal itself refuses is an assertion's failure here."""
    lying = Session(torch.ones(1), context=[])
    lying.ids = "text"

    (sentence,) = failure(assert_honest, lying)
    assert sentence.startswith("`Session.ids`: a `str`")


# assert_equal.


class Colour(enum.Enum):
    RED = 1


@attrs.define(eq=False)
class Odd:
    """Has no equality of its own."""

    value: object


def rich() -> Any:
    """Make a value of many kinds, anew each time."""
    return {
        "tensors": [torch.arange(3), torch.tensor([float("nan"), 1.0])],
        "float8": torch.ones(2).to(torch.float8_e4m3fn),
        "complex": torch.ones(2, dtype=torch.complex64).conj(),
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.ones(2, device="meta"),
        "odd": Odd((1, "a", Colour.RED, Odd(None))),
        "array": np.arange(3),
        "deque": collections.deque([1, 2]),
        "set": {1},
        "empty": [(), {}, Odd(Odd([]))],
    }


def test_equal_objects_pass() -> None:
    """Tensors by their numbers, NaN too; the rest by what it holds."""
    assert_equal(rich(), rich())
    with recorded_streams():
        assert_equal(torch.ones(2), torch.ones(2, device="cuda"))


NUMBERS = "tensor([0, 1, 2]) and tensor([0, 9, 2])."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda v: v["tensors"].__setitem__(0, torch.tensor([0, 9, 2])),
            "`['tensors'][0]`: the numbers differ: " + NUMBERS,
        ),
        (
            lambda v: v["tensors"].__setitem__(0, torch.arange(3).int()),
            "`['tensors'][0]`: the dtypes differ: torch.int64 and torch.int32.",
        ),
        (
            lambda v: v["tensors"].__setitem__(0, torch.arange(4)),
            "`['tensors'][0]`: the shapes differ: [3] and [4].",
        ),
        (
            lambda v: v["tensors"].append(1),
            "`['tensors'][2]`: only one of them has it.",
        ),
        (
            lambda v: v["odd"].value[3].__setattr__("value", 7),
            "`['odd'].value[3].value`: one is `None`, the other is `7`.",
        ),
        (
            lambda v: v["array"].__setitem__(1, 5),
            "`['array']`: array([0, 1, 2]) is not array([0, 5, 2]).",
        ),
        (
            lambda v: v.__setitem__("set", torch.ones(1)),
            "`['set']`: one is `{1}`, the other is a `Tensor`.",
        ),
    ],
)
def test_first_difference_is_named(change: Any, sentence: str) -> None:
    """The key, and what differs there."""
    other = rich()
    change(other)

    assert [sentence] == failure(assert_equal, rich(), other)


ONE = torch.ones(2)
NAN = float("nan")
ALIKE: dict[str, tuple[Any, Any]] = {
    "floats": ({"a": NAN}, {"a": float("nan")}),
    "array": (np.array([NAN, 1.0]), np.array([NAN, 1.0])),
    "array of objects": (
        np.array([ONE, "a"], object),
        np.array([ONE + 0, "a"], object),
    ),
    "order": ({"a": ONE, "b": 2}, {"b": 2, "a": ONE + 0}),
    "set": ({"x", "y", "z"}, {"z", "y", "x"}),
    "parameter": (torch.nn.Parameter(ONE), torch.nn.Parameter(ONE + 0)),
    "conjugate": (torch.ones(1, dtype=torch.cfloat).conj(), torch.ones(1) + 0j),
}
DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "dtype of arrays": (
        np.zeros(2, np.int32),
        np.zeros(2, np.int64),
        "the dtypes differ: int32 and int64.",
    ),
    "shape of arrays": (
        np.zeros(2),
        np.zeros((2, 1)),
        "the shapes differ: [2] and [2, 1].",
    ),
    "no numbers": (np.zeros(0), np.zeros(3), "the shapes differ: [0] and [3]."),
    "shape of arrays of objects": (
        np.array([[1]], object),
        np.array([1], object),
        "the shapes differ: [1, 1] and [1].",
    ),
    "parameter": (
        torch.nn.Parameter(ONE),
        ONE,
        "the classes differ: `Parameter` and `Tensor`.",
    ),
    "layout": (
        torch.eye(2),
        torch.eye(2).to_sparse(),
        "the layouts differ: torch.strided and torch.sparse_coo.",
    ),
    "NaN and a number": ([NAN], [1.0], "`[0]`: nan is not 1.0."),
    "sets": ({1}, {2}, "{1} is not {2}."),
}


@pytest.mark.parametrize("name", ALIKE)
def test_alike(name: str) -> None:
    """NaN equals NaN wherever it is; the order of a mapping does not count."""
    assert_equal(*ALIKE[name])


@pytest.mark.parametrize("name", DIFFERENT)
def test_difference_in_kind(name: str) -> None:
    """Class, dtype, shape and layout count before the numbers do."""
    one, other, sentence = DIFFERENT[name]

    assert [sentence] == failure(assert_equal, one, other)


def test_parameters_are_equal_on_two_devices() -> None:
    """What stands for a parameter on the device is one there."""
    with recorded_streams():
        module = torch.nn.Linear(2, 1)
        moved = torch.nn.Linear(2, 1).to("cuda")
        moved.load_state_dict(module.state_dict())

        assert_equal(module.weight, moved.weight)
        assert failure(assert_equal, module.weight.detach(), moved.weight) == [
            "the classes differ: `Tensor` and `Parameter`."
        ]


def test_devices_are_compared_on_demand() -> None:
    """Equal numbers on two devices are equal unless the device was asked for."""
    with recorded_streams():
        sentence = failure(
            assert_equal, torch.ones(1), torch.ones(1, device="cuda"), device=True
        )

    assert ["the devices differ: cpu and cuda:0."] == sentence


def test_cycles_end() -> None:
    """Objects that hold themselves are equal if they do it alike."""
    one: list[Any] = [1]
    other: list[Any] = [1]
    one.append(one)
    other.append(other)

    assert_equal(one, other)


@payload
class OwnNames(Payload):
    """Uses the names of trainers for methods of its own, which have drifted."""

    ids: Tensor
    mask: Tensor | None = None

    def to(self, device: Any, non_blocking: bool = False) -> "OwnNames":
        return OwnNames(self.ids.to(device))

    def pin_memory(self) -> "OwnNames":
        return OwnNames(self.ids.pin_memory())


@payload
class OtherMeaning(Payload):
    """Its `to` converts, and moves nothing."""

    ids: Tensor

    def to(self, dtype: torch.dtype) -> "OtherMeaning":
        return OtherMeaning(self.ids.to(dtype))


def test_own_methods_of_a_payload_are_asked_too() -> None:
    """They are what a trainer and the pin thread of a loader call."""
    with pytest.raises(AssertionError) as caught:
        assert_covers(OwnNames)

    assert ("`OwnNames.to` loses `mask`.\n`OwnNames.pin_memory` loses `mask`.") == str(
        caught.value
    )
    assert_covers(OtherMeaning)
