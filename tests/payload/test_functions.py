"""The free functions, on payloads, tensors, containers and mappings with `keys=`."""

import collections
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from subjects import Opaque
from torch import Tensor

import tensorpack
from tensorpack import (
    Borrowed,
    CycleError,
    Derived,
    Dynamic,
    HostOnly,
    LeafError,
    Payload,
    UndecoratedError,
    clone,
    evolve,
    opaque,
    payload,
    record_stream,
    tensors,
    to_device,
)
from tensorpack.testing import recorded_streams

META = torch.device("meta")


@payload
class Part(Payload):
    grid: Tensor
    size: int = 1


@payload
class Batch(Payload):
    ids: Tensor
    images: list[list[Tensor]] | None = None
    part: Part | None = None
    meta: Dynamic[dict[str, Any] | None] = None
    handle: Opaque | None = None
    names: tuple[str, ...] = ()
    owner: HostOnly[object] = None


def keys(value: object) -> list[str]:
    return [key for key, _ in tensors(value)]


def a_batch() -> Batch:
    return Batch(
        ids=torch.ones(2),
        images=[[torch.ones(1)], [torch.ones(2), torch.ones(3)]],
        part=Part(torch.ones(4)),
        meta={"grid": torch.ones(5), "part": Part(torch.ones(6)), "n": 3},
        handle=Opaque(),
        names=("a",),
        owner=object(),
    )


class TestTensors:
    """`tensors` and `opaque`: what travels, with its address."""

    def test_lists_every_leaf_with_its_key(self) -> None:
        """Keys read like the expression that reaches the leaf."""
        assert [
            "ids",
            "images[0][0]",
            "images[1][0]",
            "images[1][1]",
            "part.grid",
            "meta['grid']",
            "meta['part'].grid",
        ] == keys(a_batch())

    def test_gives_the_very_tensors(self) -> None:
        """The tensors are the payload's own objects."""
        batch = a_batch()
        found = dict(tensors(batch))

        assert found["ids"] is batch.ids
        assert found["meta['grid']"] is batch.meta["grid"]  # type: ignore[index]

    def test_a_leaf_in_two_fields_has_two_keys(self) -> None:
        """An object that stands twice is listed at both places."""
        one = torch.ones(1)

        assert ["[0]", "[1]"] == keys([one, one])

    def test_opaque_lists_the_leaves_that_are_no_tensors(self) -> None:
        """What moves and records itself is listed apart."""
        batch = a_batch()

        assert [("handle", batch.handle)] == list(opaque(batch))

    def test_of_a_tensor_is_the_tensor(self) -> None:
        """A tensor alone is its own only leaf, without a key."""
        one = torch.ones(1)

        assert [("", one)] == list(tensors(one))

    def test_of_a_host_value_is_nothing(self) -> None:
        """A host value has no leaves."""
        assert [] == list(tensors(3))

    def test_derived_fields_are_left_out(self) -> None:
        """A cache is recorded but does not travel, so it is not listed."""

        @payload
        class Cached(Payload):
            ids: Tensor
            cache: Derived[Tensor | None] = None

        assert ["ids"] == keys(Cached(torch.ones(1), torch.ones(2)))

    def test_raises_when_called(self) -> None:
        """A wrong value raises at the call, not when the iterator is used."""
        with pytest.raises(LeafError, match=r"Part\.grid"):
            tensors(Part(3))  # type: ignore[arg-type]

    def test_containers_inside_dynamic_values(self) -> None:
        """Every known container inside a dynamic value is walked."""

        class Point(NamedTuple):
            x: Tensor
            n: int

        value = {
            "point": Point(torch.ones(1), 3),
            "deque": collections.deque([torch.ones(1)]),
            "default": collections.defaultdict(list, {0: torch.ones(1)}),
            3: (torch.ones(1), {"a": [torch.ones(1)]}),
        }

        assert [
            "['point'].x",
            "['deque'][0]",
            "['default'][0]",
            "[3][0]",
            "[3][1]['a'][0]",
        ] == keys(value)


class TestClone:
    """`clone`: new storage for every leaf."""

    def test_gives_every_leaf_new_storage(self) -> None:
        """No leaf of the twin shares memory with the original."""
        batch = a_batch()
        twin = clone(batch)
        pairs = list(zip(tensors(batch), tensors(twin), strict=True))

        assert all(a[0] == b[0] for a, b in pairs)
        assert all(a[1].data_ptr() != b[1].data_ptr() for a, b in pairs)
        assert all(torch.equal(a[1], b[1]) for a, b in pairs)
        assert twin.handle is not batch.handle

    def test_keeps_host_fields(self) -> None:
        """Host fields are the same objects."""
        batch = a_batch()
        twin = clone(batch)

        assert batch.owner is twin.owner
        assert batch.names is twin.names

    def test_keeps_one_object_one(self) -> None:
        """An object in two places stays one object."""
        one = torch.ones(1)
        left, right = clone([one, one])

        assert left is right
        assert left is not one

    def test_names_a_leaf_that_cannot(self) -> None:
        """A leaf without `clone` raises before any leaf was cloned."""

        class Bare:
            device: torch.device = torch.device("cpu")

            def to_device(self, device: object) -> "Bare":
                return self

            def record_stream(self, stream: object) -> None: ...

        with pytest.raises(LeafError, match=r"`\[1\]`: the `Bare` has no method"):
            clone([torch.ones(1), Bare()])


class TestEvolve:
    """`evolve`: a changed copy."""

    def test_changes_what_is_asked(self) -> None:
        """Other fields are the same objects, leaves included."""
        batch = a_batch()
        twin = evolve(batch, ids=torch.ones(9))

        assert 9 == twin.ids.numel()
        assert batch.owner is twin.owner
        assert batch.part is not None
        assert twin.part is not None
        assert batch.part.grid is twin.part.grid

    def test_changes_frozen_classes(self) -> None:
        """A frozen payload is copied with the change."""

        @payload(frozen=True)
        class Frozen(Payload):
            ids: Tensor
            _n: int = 1

        twin = evolve(Frozen(torch.ones(1)), _n=3)

        assert 3 == twin._n

    def test_runs_no_init(self) -> None:
        """No init, validator or converter runs."""
        ran = []

        @payload
        class Checked(Payload):
            ids: Tensor = attrs.field(validator=lambda *_: ran.append(1))

        checked = Checked(torch.ones(1))
        ran.clear()
        evolve(checked, ids=torch.ones(2))

        assert [] == ran

    def test_derived_fields_get_their_default(self) -> None:
        """A cache of the old values does not live on, unless it is given."""

        @payload
        class Cached(Payload):
            ids: Tensor
            cache: Derived[Tensor | None] = None

        cached = Cached(torch.ones(1), torch.ones(2))

        assert None is evolve(cached, ids=torch.ones(3)).cache
        assert 5 == evolve(cached, cache=torch.ones(5)).cache.numel()  # type: ignore[union-attr]

    def test_unknown_name_raises(self) -> None:
        """A name that is no field is named, with those that are."""
        with pytest.raises(TypeError, match="has no field `girth`, `n`"):
            evolve(Part(torch.ones(1)), girth=1, n=2)

    def test_property_is_no_field(self) -> None:
        """A field that a property computes cannot be given."""

        @payload
        class Shadowing(Payload):
            ids: Tensor

        @payload(slots=False)
        class Computed(Shadowing):
            @property
            def ids(self) -> Tensor:  # type: ignore[override]
                return torch.ones(1)

            @ids.setter
            def ids(self, _: Tensor) -> None: ...

        with pytest.raises(TypeError, match="has no field `ids`"):
            evolve(Computed(torch.ones(1)), ids=torch.ones(2))

    @pytest.mark.parametrize("value", [3, [torch.ones(1)], torch.ones(1)])
    def test_takes_payloads_only(self, value: object) -> None:
        """Anything else is refused by what it is."""
        with pytest.raises(TypeError, match="`evolve` takes a payload"):
            evolve(value)

    def test_refuses_an_undecorated_subclass(self) -> None:
        """The fields of an undecorated subclass would be lost."""

        class Child(Part):
            mask: Tensor

        with pytest.raises(UndecoratedError, match="`mask` would be lost"):
            evolve(Child(torch.ones(1)))


class TestToDevice:
    """`to_device` and `record_stream` on anything that has leaves."""

    CONTAINERS: tuple[Callable[[Tensor], Any], ...] = (
        lambda x: x,
        lambda x: [x],
        lambda x: (x, 3),
        lambda x: {"a": x},
        lambda x: collections.OrderedDict(a=x),
        lambda x: collections.defaultdict(int, a=x),
        lambda x: collections.deque([x], maxlen=2),
        Part,
        lambda x: [Part(x), {"b": (Part(x),)}],
    )

    @pytest.mark.parametrize("make", CONTAINERS)
    def test_moves_whatever_has_leaves(self, make: Callable[[Tensor], Any]) -> None:
        """Every leaf is moved, and the same kind of container comes back."""
        value = make(torch.ones(2))
        twin = to_device(value, META)

        assert type(value) is type(twin)
        assert keys(value) == keys(twin)
        assert {META} == {leaf.device for _, leaf in tensors(twin)}

    @pytest.mark.parametrize("make", CONTAINERS)
    def test_records_whatever_has_leaves(self, make: Callable[[Tensor], Any]) -> None:
        """Each leaf object is recorded exactly once."""
        with recorded_streams() as log:
            stream, leaf = torch.Stream("cuda"), torch.ones(2, device="cuda")
            record_stream(make(leaf), stream)

        assert [""] == log.recorded(leaf) == log.recorded(leaf, stream)

    def test_keeps_what_a_container_has_besides_items(self) -> None:
        """The factory of a defaultdict and the length of a deque are kept."""
        default = to_device(collections.defaultdict(list, a=torch.ones(1)), META)
        deque = to_device(collections.deque([torch.ones(1)], maxlen=3), META)

        assert (list, 3) == (default.default_factory, deque.maxlen)

    def test_raises_for_what_has_no_support(self) -> None:
        """An unknown object is named by its address."""
        with pytest.raises(LeafError, match=r"`\[1\]\['x'\]`: an `object` has no"):
            to_device([torch.ones(1), {"x": object()}], META)

    def test_raises_for_a_cycle(self) -> None:
        """A container that holds itself has no end."""
        value: list[object] = []
        value.append(value)

        with pytest.raises(CycleError, match=r"`\[0\]`: this `list` holds itself"):
            to_device(value, META)

    def test_host_value_comes_back_as_it_is(self) -> None:
        """A host value has nothing to move."""
        assert 3 == to_device(3, META)


class TestMapping:
    """The forward inputs of an engine: a mapping, of which some keys travel."""

    KEYS = ("inputs", "extra", "absent", "none")

    def test_moves_the_keys_and_passes_the_rest(self) -> None:
        """Entries under the keys travel; others are the same objects."""
        other = object()
        stays = torch.ones(1)
        forward = {
            "inputs": Part(torch.ones(1)),
            "extra": [torch.ones(2)],
            "none": None,
            "stays": stays,
            "other": other,
        }
        moved = to_device(forward, META, keys=self.KEYS)

        assert list(forward) == list(moved)
        assert (META, META) == (moved["inputs"].grid.device, moved["extra"][0].device)  # type: ignore[union-attr,index]
        assert moved["none"] is None
        assert stays is moved["stays"]
        assert other is moved["other"]
        assert forward is not moved

    def test_records_the_keys_only(self) -> None:
        """Entries outside the keys are not looked at, those inside all are."""
        with recorded_streams() as log:
            one, two, three = (torch.ones(n, device="cuda") for n in (1, 2, 3))
            inputs: dict[str, Any] = {"inputs": Part(one), "extra": {"a": two}}
            forward = {**inputs, "stays": three, "x": self}
            record_stream(forward, torch.Stream("cuda"), keys=self.KEYS)

        assert ["['inputs'].grid", "['extra']['a']"] == log.recorded(inputs)

    def test_one_object_under_two_keys_stays_one(self) -> None:
        """An object in two entries is moved once and recorded once."""
        one = torch.ones(1)
        moved = to_device({"a": Part(one), "b": one}, META, keys=["a", "b"])
        with recorded_streams() as log:
            device = torch.ones(1, device="cuda")
            forward = {"a": Part(device), "b": device}
            record_stream(forward, torch.Stream("cuda"), keys=["a", "b"])

        assert moved["a"].grid is moved["b"]  # type: ignore[union-attr]
        assert [""] == log.recorded(device)

    @pytest.mark.parametrize("value", [3, "x", object(), lambda: None, torch.nn.Linear])
    def test_entry_without_support_raises_before_anything_moves(
        self, value: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An unsupported entry is a TypeError that names its key; nothing has moved."""
        monkeypatch.setattr(Tensor, "to", lambda *_, **__: pytest.fail("moved"))
        forward = {"inputs": Part(torch.ones(1)), "extra": value}

        with pytest.raises(TypeError, match="`extra`: ") as caught:
            to_device(forward, META, keys=self.KEYS)
        assert "extra" == caught.value.key  # type: ignore[attr-defined]

        with pytest.raises(TypeError, match="`extra`: "):
            record_stream(forward, object(), keys=self.KEYS)  # type: ignore[arg-type]

    def test_wrong_value_deep_inside_an_entry_names_the_entry(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The address of a wrong value begins with the key of its entry."""
        monkeypatch.setattr(Tensor, "to", lambda *_, **__: pytest.fail("moved"))
        wrong: Any = [Part(torch.ones(1)), Part(3)]  # type: ignore[arg-type]

        with pytest.raises(TypeError, match=r"`extra\[1\].grid`: an `int` was found"):
            to_device({"extra": wrong}, META, keys=self.KEYS)

    def test_undecorated_subclass_inside_an_entry_names_the_entry(self) -> None:
        """The address of an undecorated payload begins with the key of its entry."""

        class Child(Part):
            mask: Tensor

        with pytest.raises(UndecoratedError, match="`extra`: "):
            to_device({"extra": Child(torch.ones(1))}, META, keys=self.KEYS)

    @pytest.mark.parametrize(
        "make", [dict, collections.OrderedDict, collections.UserDict]
    )
    def test_same_kind_of_mapping_comes_back(self, make: Callable[[Any], Any]) -> None:
        """The mapping is copied, not rebuilt as a dictionary."""
        moved = to_device(make({"a": torch.ones(1), "b": 2}), META, keys=["a"])

        assert make is type(moved)
        assert (META, 2) == (moved["a"].device, moved["b"])

    def test_keys_need_not_be_text(self) -> None:
        """A mapping may be keyed by anything that hashes."""
        moved = to_device({3: torch.ones(1), (1, 2): torch.ones(1)}, META, keys=[3])

        assert ("meta", "cpu") == (moved[3].device.type, moved[1, 2].device.type)

    def test_one_text_as_keys_raises(self) -> None:
        """`keys="inputs"` would be read letter by letter, so it is refused."""
        for call in (to_device, record_stream):
            with pytest.raises(TypeError, match=r"Write `keys=\('inputs',\)`"):
                call({"inputs": torch.ones(1)}, META, keys="inputs")  # type: ignore[operator]

    @pytest.mark.parametrize("value", [[1], torch.ones(1), Part(torch.ones(1))])
    def test_keys_without_a_mapping_raise(self, value: object) -> None:
        """`keys=` goes with a mapping."""
        for call in (to_device, record_stream):
            with pytest.raises(TypeError, match="`keys=` goes with a mapping"):
                call(value, META, keys=["a"])  # type: ignore[operator]

    def test_read_only_mapping_can_only_be_recorded(self) -> None:
        """A mapping that takes no new entries says so instead of changing its type."""
        with recorded_streams() as log:
            leaf = torch.ones(1, device="cuda")
            proxy = types.MappingProxyType({"a": leaf})
            record_stream(proxy, torch.Stream("cuda"), keys=["a"])

        assert [""] == log.recorded(leaf)
        with pytest.raises(TypeError, match=r"Pass `dict\(mapping\)`"):
            to_device(proxy, META, keys=["a"])


def test_borrowed_values_are_not_looked_at() -> None:
    """What is owned elsewhere is neither listed, moved, cloned nor recorded."""

    @payload
    class Cached(Payload):
        ids: Tensor
        cache: Borrowed[list[dict[str, Any]]]

    with recorded_streams() as log:
        cache = [{"kv": torch.ones(2, device="cuda"), "owner": object()}]
        cached = Cached(torch.ones(1, device="cuda"), cache)
        cached.record_stream(torch.Stream("cuda"))

    assert ["ids"] == keys(cached) == log.recorded(cached)
    assert cache is tensorpack.clone(Cached(torch.ones(1), cache)).cache
    assert cache is Cached(torch.ones(1), cache).to_device(META).cache


def test_changed_while_it_moves_raises() -> None:
    """A payload that loses a leaf between the walk and the rebuild is reported."""

    class Sly(Opaque):
        victim: Any = None

        def to_device(self, device: Any, non_blocking: bool = False) -> "Sly":
            self.victim.images = self.images
            return self

    @payload
    class Victim(Payload):
        sly: Sly
        images: list[Tensor]

    for images in ([], [torch.ones(1)] * 3):
        victim = Victim(Sly(), [torch.ones(1)])
        victim.sly.victim, victim.sly.images = victim, images  # type: ignore[attr-defined]
        with pytest.raises(tensorpack.LeafCountError, match="2 leaves were given"):
            victim.to_device(META)
