"""What cached properties keep: recorded, never moved, never computed by us."""

import copy
import dataclasses
import functools
import inspect
import pickle
import types
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import (
    Borrowed,
    CycleError,
    Derived,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeAdapter,
    LifetimeError,
    clone,
    evolve,
    payload,
    record_stream,
    tensors,
)
from tensorpack._codegen.leaves import write
from tensorpack._walk.walk import Walk
from tensorpack.testing import assert_covers, assert_honest, recorded_streams

META = torch.device("meta")
ONE = torch.ones(1)
STREAM = torch.Stream(stream_id=7, device_index=0, device_type=1)  # need not exist

MAKERS: dict[str, Callable[[type], Any]] = {
    "slots": payload,
    "dict": payload(slots=False),
    "frozen": payload(frozen=True),
    "frozen dict": payload(frozen=True, slots=False),
    "adopted": lambda cls: payload(attrs.define(cls)),
    "dataclass": lambda cls: payload(dataclasses.dataclass(cls)),
    "frozen dataclass": lambda cls: payload(dataclasses.dataclass(frozen=True)(cls)),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


class Helper:
    """A class that tensorpack does not know."""

    def __init__(self, inner: object) -> None:
        self.inner = inner


class Adapted:
    def __init__(self, inner: Tensor) -> None:
        self.inner = inner


class AdaptedAdapter(LifetimeAdapter[Adapted]):
    def leaves(self, value: Adapted) -> list[Tensor]:
        return [value.inner]

    def rebuild(self, value: Adapted, leaves: Any) -> Adapted:
        return Adapted(leaves[0])


@payload
class Part:
    grid: Tensor
    mask: Derived[Tensor | None] = None
    above: Dynamic[object] = None


@payload(slots=False)
class Holder:
    """Keeps what a test gives it."""

    ids: Tensor
    make: HostOnly[Any]

    @functools.cached_property
    def found(self) -> Dynamic[Any]:
        return self.make(self)


def holder(make: Callable[[Any], object]) -> Any:
    """Make an object that has computed its cached property."""
    made = Holder(ONE, make)
    made.found  # noqa: B018  # fills the cache
    return made


def record_only(value: Any) -> list[str]:
    """Name the leaves that are recorded and do not move."""
    found = Walk(value, keyed=True).run()
    return [key for key, _ in found.recordable()[len(found.leaves) :]]


def returning(annotation: object, value: object = None, *, slots: bool = True) -> Any:
    """Make a payload whose cached property is annotated to return a type."""

    def found(self: object) -> object:  # a property's
        return value

    found.__annotations__["return"] = annotation
    if annotation is inspect.Signature.empty:
        del found.__annotations__["return"]
    body = {"__annotations__": {"ids": Tensor}}
    cached = functools.cached_property(found)
    return payload(slots=slots)(type("Batch", (), {**body, "found": cached}))


def made(body: type, make: Callable[[type], Any], *bases: type) -> Any:
    """Make a payload anew from the body of a plain class."""
    kept = {k: v for k, v in vars(body).items() if k not in ("__dict__", "__weakref__")}
    for name, value in kept.items():
        if isinstance(value, functools.cached_property):
            kept[name] = functools.cached_property(value.func)
    # attrs adds to the annotations what it caches.
    kept["__annotations__"] = dict(body.__annotations__)
    return make(type("Batch", bases, kept))


class Body:
    ids: Tensor

    @functools.cached_property
    def total(self) -> Tensor:
        return self.ids.clone()


class TestRecorded:
    """A value that is there is recorded, and nothing computes it."""

    @each_maker
    def test_record_stream_reaches_it(self, make: Any) -> None:
        """It was passed over in silence once."""
        with recorded_streams() as log:
            batch = made(Body, make)(torch.ones(2, device="cuda"))
            leaves = [batch.ids, batch.total]
            one, two = torch.Stream("cuda"), torch.Stream("cuda")
            batch.record_stream(one)
            record_stream(batch, two)

        assert ["[0]", "[1]"] == log.recorded(leaves, one) == log.recorded(leaves, two)
        assert ["[0]", "[1]"] * 2 == log.recorded(leaves)
        assert ["total"] == record_only(batch)

    @each_maker
    def test_nothing_computes_it(self, make: Any) -> None:
        """A value that is not there stays away, whatever is done."""
        calls = []

        class Counting:
            ids: Tensor

            @functools.cached_property
            def total(self) -> Tensor:
                calls.append(self)
                return ONE

        batch = made(Counting, make)(ONE)
        batch.record_stream(STREAM)
        for twin in (batch.to_device(META), clone(batch), evolve(batch, ids=ONE)):
            assert ["ids"] == [key for key, _ in tensors(twin)]
        assert [] == record_only(batch)

        assert [] == calls

    @each_maker
    def test_a_twin_computes_its_own(self, make: Any) -> None:
        """No twin carries it: not the moved one, no clone, no changed copy."""
        batch = made(Body, make)(ONE)
        total = batch.total

        for twin in (batch.to_device(META), clone(batch), evolve(batch, ids=ONE + 1)):
            assert [] == record_only(twin)
            assert total is not twin.total
            assert twin.ids.device == twin.total.device
        assert total is batch.total

    @each_maker
    def test_it_is_no_field(self, make: Any) -> None:
        """It has no place among the keys, and `evolve` does not take it."""
        cls = made(Body, make)

        assert (("ids",), ()) == (cls.payload_keys(), cls.host_keys())
        with pytest.raises(TypeError, match="has no field `total`"):
            evolve(cls(ONE), total=ONE)

    @pytest.mark.parametrize("slots", [True, False])
    def test_private_names(self, slots: bool) -> None:
        """A name that Python mangles is kept under the mangled one."""

        @payload(slots=slots)
        class Batch:
            ids: Tensor

            @functools.cached_property
            def __total(self) -> Tensor:
                return self.ids

            def read(self) -> Tensor:
                return self.__total

        batch = Batch(ONE)
        batch.read()

        assert ["_Batch__total"] == record_only(batch)

    def test_another_name_for_it(self) -> None:
        """It is kept under the name of its definition."""

        @payload(slots=False)
        class Batch:
            ids: Tensor

            @functools.cached_property
            def total(self) -> Tensor:
                return self.ids

        Batch.again = Batch.__dict__["total"]  # type: ignore[attr-defined]

        @payload(slots=False)
        class Child(Batch):
            pass

        child = Child(ONE)
        child.again  # type: ignore[attr-defined]  # noqa: B018  # fills the cache

        assert ["total"] == record_only(child)

    def test_a_struct_in_a_dictionary(self) -> None:
        """A msgspec struct keeps it in the `__dict__` that it was asked to have."""
        msgspec = pytest.importorskip("msgspec")
        batch = made(
            Body, payload, types.new_class("Base", (msgspec.Struct,), {"dict": True})
        )(ONE)
        batch.total  # noqa: B018  # fills the cache

        assert ["total"] == record_only(batch)
        assert [] == record_only(batch.to_device(META))

    def test_a_class_that_has_no_place_for_it(self) -> None:
        """A dataclass in slots cannot keep one, so there is nothing to look at."""

        @payload
        @dataclasses.dataclass(slots=True)
        class Batch:
            ids: Tensor

            @functools.cached_property
            def total(self) -> Tensor:
                return self.ids

        assert "total" not in write(Batch.__tensorpack_plan__).text  # type: ignore[attr-defined]
        assert Batch(ONE).to_device(META).ids.is_meta

    def test_inside_other_payloads(self) -> None:
        """The key leads through fields, containers and cached properties."""
        inner = holder(lambda _: {"a": [ONE]})
        outer = holder(lambda _: (Part(ONE, ONE), inner))

        @payload
        class Batch:
            part: Holder
            many: list[Holder]

        assert [
            "part.found['a'][0]",
            "many[0].found[0].grid",
            "many[0].found[0].mask",
            "many[0].found[1].ids",
            "many[0].found[1].found['a'][0]",
        ] == record_only(Batch(inner, [outer]))

    def test_a_class_without_any_pays_nothing(self) -> None:
        """Its text is the one that it always was."""

        @payload
        class Batch:
            ids: Tensor

        text = write(Batch.__tensorpack_plan__).text  # type: ignore[attr-defined]

        assert 4 == text.partition("\n\n")[0].count("\n") + 1

    @pytest.mark.skipif(torch.__version__ < "2.11", reason="traces no sets")
    @pytest.mark.parametrize("slots", [True, False])
    def test_traces_whole(self, slots: bool) -> None:
        """Traced code moves a payload that has filled its cached properties."""

        @payload(slots=slots)
        class Batch:
            ids: Tensor

            @functools.cached_property
            def found(self) -> tuple[int, Tensor]:
                return 3, self.ids

        batch = Batch(ONE)
        batch.found  # noqa: B018  # fills the cache
        step = torch.compile(
            lambda b: b.to_device("cpu").ids + 1, fullgraph=True, backend="eager"
        )

        assert 2.0 == step(batch).item()

    @pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
    def test_copies_are_python_s_own(self, way: Callable[[Any], Any]) -> None:
        """`copy` takes along what is in the `__dict__`, as it does for any class."""
        batch = made(Body, payload(slots=False))(ONE)
        batch.total  # noqa: B018  # fills the cache

        assert ["total"] == record_only(way(batch))


class TestInherited:
    """Cached properties of bases, and what children put in their place."""

    @each_maker
    def test_of_a_plain_base(self, make: Any) -> None:
        """A base that is no payload has them too."""

        class Base:
            @functools.cached_property
            def total(self) -> Tensor:
                return ONE

        class Child:
            ids: Tensor

        batch = made(Child, make, Base)(ONE)
        batch.total  # noqa: B018  # fills the cache

        assert ["total"] == record_only(batch)

    @pytest.mark.parametrize("child_slots", [True, False])
    @pytest.mark.parametrize("base_slots", [True, False])
    def test_overridden(self, base_slots: bool, child_slots: bool) -> None:
        """One that replaces another is found where it is kept, and once."""

        @payload(slots=base_slots)
        class Base:
            ids: Tensor

            @functools.cached_property
            def total(self) -> Tensor:
                return self.ids

            @functools.cached_property
            def other(self) -> Tensor:
                return self.ids

        @payload(slots=child_slots)
        class Child(Base):
            @functools.cached_property
            def total(self) -> Tensor:
                return self.ids + 1

        child = Child(ONE)
        assert 2.0 == child.total.item()
        child.other  # noqa: B018  # fills the cache

        assert ["other", "total"] == sorted(record_only(child))

    def test_under_a_property(self) -> None:
        """What a property takes from the base's stays where the base keeps it."""

        @payload(slots=False)
        class Base:
            ids: Tensor

            @functools.cached_property
            def total(self) -> Tensor:
                return self.ids

        @payload(slots=False)
        class Child(Base):
            @property
            def total(self) -> Tensor:  # type: ignore[override]
                return super().total

        child = Child(ONE)
        child.total  # noqa: B018  # fills the cache

        assert ["total"] == record_only(child)

    @pytest.mark.parametrize("slots", [True, False])
    def test_a_field_in_its_place_travels(self, slots: bool) -> None:
        """A field that replaces a base's cached property was lost once."""

        class Base:
            @functools.cached_property
            def total(self) -> Tensor:
                return ONE

        @payload(slots=slots)
        class Child(Base):
            total: Tensor  # type: ignore[assignment]

        child = Child(ONE)

        assert ["total"] == [key for key, _ in tensors(child)]
        assert [] == record_only(child)
        assert child.to_device(META).total.is_meta

    @pytest.mark.parametrize("frozen", [True, False])
    @pytest.mark.parametrize("base_slots", [True, False])
    def test_in_the_place_of_a_field(self, base_slots: bool, frozen: bool) -> None:
        """What `__init__` was given was lost: a twin computed its own in its place."""

        @payload(slots=base_slots, frozen=frozen)
        class Base:
            total: Tensor | None = None

        class Child:
            other: int = 0

            @functools.cached_property
            def total(self) -> Tensor:
                return ONE

        with pytest.raises(LifetimeError, match=r"Batch.total`.* Keep one of them"):
            made(Child, payload(slots=False, frozen=frozen), Base)
        # In slots attrs takes the property out, and the field is one as before.
        child = made(Child, payload(slots=True, frozen=frozen), Base)(ONE + 1)
        assert 2.0 == child.total.item() == clone(child).total.item()
        assert ["total"] == [key for key, _ in tensors(child)]

    @pytest.mark.parametrize("frozen", [True, False])
    def test_in_the_place_of_a_dataclass_s_field(self, frozen: bool) -> None:
        """So it was for dataclasses, in one class or two, with a default or without."""
        make = dataclasses.dataclass(frozen=frozen)

        class Base:
            ids: Tensor
            total: Tensor | None = None
            size: int = 0

        class Child:
            @functools.cached_property
            def total(self) -> Tensor:
                return ONE

            @functools.cached_property
            def size(self) -> int:
                return 1

        base = payload(make(Base))
        caches = {name: vars(Child)[name] for name in ("total", "size")}
        with pytest.raises(LifetimeError) as caught:
            payload(make(type("Batch", (base,), {**caches, "__annotations__": {}})))

        assert ["total", "size"] == [r.field for r in caught.value.refusals]

    @each_maker
    def test_a_field_of_the_same_class(self, make: Any) -> None:
        """An annotation and a cached property of one name end in an error.

        attrs takes the property for the field's default, which is not a tensor.
        """

        class Both:
            total: Tensor

            @functools.cached_property
            def total(self) -> Tensor:  # type: ignore[no-redef]
                return ONE

        with pytest.raises((LifetimeError, LeafError), match=r"Batch\.total"):
            made(Both, make)().to_device(META)


class TestAnnotated:
    """The return annotation is read as that of a `Derived` field."""

    @pytest.mark.parametrize("slots", [True, False])
    def test_what_is_borrowed_costs_nothing(self, slots: bool) -> None:
        """The mark takes the line out of the text."""
        cls = returning(Borrowed[Tensor], slots=slots)

        assert "found" not in write(cls.__tensorpack_plan__).text

    @pytest.mark.parametrize(
        ("annotation", "value", "keys"),
        [
            (Tensor, ONE, ["found"]),
            (list[Tensor], [ONE, ONE], ["found[0]", "found[1]"]),
            (dict[str, "Part"], {"a": Part(ONE)}, ["found['a'].grid"]),
            (Adapted, Adapted(ONE), ["found[0]"]),
            (Tensor | int, ONE, ["found"]),
            (Dynamic[Any], (ONE, {"a": Part(ONE)}), ["found[0]", "found[1]['a'].grid"]),
            (int, 3, []),
            ("int | None", None, []),
            (dict[str, list[int]], {"a": [1]}, []),
            (HostOnly[Helper], Helper(ONE), []),
            (HostOnly["NoSuchName"], Helper(ONE), []),
            (HostOnly[Helper] | None, None, []),
        ],
        ids=range(12),
    )
    @pytest.mark.parametrize("slots", [True, False])
    def test_what_it_returns_is_recorded(
        self, annotation: object, value: object, keys: list[str], slots: bool
    ) -> None:
        """Leaves are, by the annotation; host values and what is marked are not."""
        batch = returning(annotation, value, slots=slots)(ONE)
        batch.found  # noqa: B018  # fills the cache

        assert keys == record_only(batch)
        assert [] == record_only(batch.to_device(META))

    @pytest.mark.parametrize(
        "annotation",
        [None, Any, object, Helper, "NoSuchName", "1 +", Derived[int], Callable],
        ids=str,
    )
    def test_what_says_too_little_is_refused(self, annotation: Any) -> None:
        """It is refused as in a field, and names the cached property."""
        with pytest.raises(LifetimeError) as caught:
            returning(annotation if annotation is not None else inspect.Signature.empty)

        assert ["found"] == [refusal.field for refusal in caught.value.refusals]

    def test_all_refusals_are_listed(self) -> None:
        """Fields and cached properties are refused in one error."""

        class Body:
            bad: object

            @functools.cached_property
            def one(self): ...  # type: ignore[no-untyped-def]  # noqa: ANN202

            @functools.cached_property
            def two(self) -> Any: ...

        with pytest.raises(LifetimeError) as caught:
            payload(Body)

        assert ["bad", "one", "two"] == [r.field for r in caught.value.refusals]

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [(Tensor, 3), (list[Tensor], ONE), (int, ONE), (Dynamic[Any], Helper(ONE))],
        ids=range(4),
    )
    def test_a_value_of_another_type_raises(
        self, annotation: object, value: object
    ) -> None:
        """What the annotation does not say is an error, as in a field."""
        batch = returning(annotation, value)(ONE)
        batch.found  # noqa: B018  # fills the cache

        for use in (
            lambda: batch.record_stream(STREAM),
            lambda: batch.to_device(META),
        ):
            with pytest.raises(LeafError, match=r"^`Batch.found`") as caught:
                use()
            assert "found" == caught.value.key

    def test_one_that_leads_back_is_a_circle(self) -> None:
        """An owner that holds itself cannot be walked, through any field."""
        batch = holder(lambda owner: [owner])

        with pytest.raises(CycleError, match=r"Holder.found\[0\]"):
            batch.record_stream(STREAM)

    def test_a_part_that_is_marked(self) -> None:
        """A mark inside holds for its part alone."""

        @payload
        class Batch:
            ids: Tensor

            @functools.cached_property
            def found(
                self,
            ) -> tuple[Tensor, Borrowed[Tensor], HostOnly[Helper], Dynamic[Any]]:
                return self.ids, self.ids, Helper(self.ids), [3, self.ids]

            @functools.cached_property
            def either(self) -> Tensor | HostOnly[Helper]:
                return ONE

        batch = Batch(ONE)
        batch.found, batch.either  # noqa: B018  # fills the caches

        assert ["found[0]", "found[3][1]", "either"] == record_only(batch)

    def test_corrected(self) -> None:
        """`fields=` corrects it for a class that cannot be edited."""

        class Theirs:
            ids: Tensor

            @functools.cached_property
            def found(self) -> object:
                return Helper(self.ids)

        cls: Any = payload(
            attrs.define(slots=False)(Theirs), fields={"found": Borrowed[Helper]}
        )

        @payload(slots=False)
        class Child(cls):  # type: ignore[misc]
            pass

        for batch in (cls(ONE), Child(ONE)):
            batch.found  # noqa: B018  # fills the cache
            assert [] == record_only(batch)

    def test_correction_of_nothing(self) -> None:
        """A name that is neither a field nor a cached property is refused."""
        with pytest.raises(TypeError, match="`fields=` names `none`"):
            payload(
                attrs.define(slots=False)(made(Body, lambda c: c)), fields={"none": int}
            )


@dataclasses.dataclass
class Shape:
    size: int

    @functools.cached_property
    def mask(self) -> Tensor:
        return torch.ones(self.size)


@attrs.define(slots=False)
class AttrsShape:
    size: int

    @functools.cached_property
    def mask(self) -> list[Tensor]:
        return [torch.ones(self.size)]


@attrs.define
class SlottedShape:
    size: int

    @functools.cached_property
    def mask(self):  # type: ignore[no-untyped-def]  # noqa: ANN201  # on purpose
        return torch.ones(self.size)


class WithMask:
    @functools.cached_property
    def mask(self) -> Any:
        return torch.ones(1)


@dataclasses.dataclass
class InheritingShape(WithMask):
    size: int


class WithSlot:
    __slots__ = ("mask",)


@dataclasses.dataclass
class BesideSlot(WithSlot):
    size: int

    def __post_init__(self) -> None:
        self.mask = torch.ones(self.size)


@attrs.define
class CountingShape:
    size: int

    @functools.cached_property
    def twice(self) -> int:
        return self.size * 2

    @functools.cached_property
    def names(self) -> dict[str, list[int]] | None:
        return None


@dataclasses.dataclass
class MarkedShape:
    size: int

    @functools.cached_property
    def lent(self) -> Borrowed[Tensor]:
        return ONE


SHAPES = [Shape, AttrsShape, SlottedShape, InheritingShape, BesideSlot]


class TestHostStructs:
    """A struct of host values has cached properties too."""

    @pytest.mark.parametrize("cls", SHAPES)
    def test_one_that_may_keep_a_tensor_is_refused(self, cls: Any) -> None:
        """It was taken for a struct of host values, and hid what it kept."""
        for annotation in (cls, list[cls], dict[str, cls] | None, set[cls]):
            body = {"__annotations__": {"ids": Tensor, "shape": annotation}}
            with pytest.raises(LifetimeError, match=r"Batch.shape`"):
                payload(type("Batch", (), body))

    @pytest.mark.parametrize("cls", SHAPES)
    def test_the_value_is_looked_at(self, cls: Any) -> None:
        """In `Dynamic` fields and cached properties, in slots as in the `__dict__`."""
        shape = cls(3)
        shape.mask  # noqa: B018  # fills the cache

        with pytest.raises(LeafError, match=r"above`.* has no lifetime support"):
            Part(ONE, above=shape).record_stream(STREAM)  # type: ignore[attr-defined]
        with pytest.raises(LeafError, match=r"found`.* has no lifetime support"):
            holder(lambda _: shape).record_stream(STREAM)

    @pytest.mark.parametrize("cls", [CountingShape, MarkedShape])
    def test_one_that_keeps_host_values_stays(self, cls: Any) -> None:
        """A host type or a mark as what it returns makes it one again."""
        body = {"__annotations__": {"ids": Tensor, "shape": cls}}
        batch: Any = payload(type("Batch", (), body))
        shape = cls(3)

        assert shape is batch(ONE, shape).to_device(META).shape

    def test_host_values_in_caches_are_no_matter(self) -> None:
        """A struct that has computed one is the host value that it was."""
        shape = CountingShape(3)
        shape.twice, shape.names  # noqa: B018  # fills the caches

        for value in (shape, [shape], {"a": shape}):
            moved = Part(ONE, above=value).to_device(META)  # type: ignore[attr-defined]
            assert repr(value) == repr(moved.above)

    def test_structs_that_know_each_other(self) -> None:
        """Two that lead to each other ran out of the stack once."""
        one, two = CountingShape(1), CountingShape(2)
        one.size, two.size = two, one  # type: ignore[assignment]

        assert one is Part(ONE, above=one).to_device(META).above  # type: ignore[attr-defined]


class TestTestingKit:
    """The oracle and the assertions agree with what is recorded."""

    @each_maker
    def test_a_planted_tensor_is_covered(self, make: Any) -> None:
        """`assert_covers` plants a device tensor in it, and finds it recorded."""
        batch = made(Body, make)(ONE)
        batch.total  # noqa: B018  # fills the cache

        assert_covers(batch)
        assert_honest(batch)

    @pytest.mark.parametrize("slots", [True, False])
    def test_a_method_that_leaves_it_out_is_named(self, slots: bool) -> None:
        """A hand-written method owes it too; and an annotation that lies."""

        @attrs.define(slots=slots)
        class ByHand:
            ids: Tensor

            @functools.cached_property
            def total(self) -> Tensor:
                return self.ids + 1

            def record_stream(self, stream: torch.Stream) -> None:
                self.ids.record_stream(stream)

            def to_device(self, device: Any) -> Any:
                return ByHand(self.ids.to(device))

        batch = ByHand(ONE)
        batch.total  # noqa: B018  # fills the cache
        with pytest.raises(AssertionError) as caught:
            assert_covers(batch)

        assert str(caught.value).endswith("ByHand.record_stream` leaves out `total`.")

    def test_an_annotation_that_lies_is_named(self) -> None:
        """A tensor under a host annotation raises, and the kit says so."""

        @payload
        class Batch:
            ids: Tensor

            @functools.cached_property
            def total(self) -> int:
                return self.ids + 1  # type: ignore[return-value]

        batch = Batch(ONE)
        batch.total  # noqa: B018  # fills the cache

        with pytest.raises(LeafError, match=r"total`: a `Tensor` was found where"):
            batch.record_stream(STREAM)  # type: ignore[attr-defined]
        with pytest.raises(AssertionError, match=r"total`: a `Tensor` was found"):
            assert_honest(batch)

    def test_marks_are_kept(self) -> None:
        """What is borrowed or of the host alone is not owed."""

        @payload
        class Batch:
            ids: Tensor

            @functools.cached_property
            def lent(self) -> Borrowed[Tensor]:
                return self.ids + 1

            @functools.cached_property
            def own(self) -> HostOnly[Tensor]:
                return self.ids + 2

        batch = Batch(ONE)
        batch.lent, batch.own  # noqa: B018  # fills the caches

        assert_covers(batch)
        assert_honest(batch)

    def test_hand_over(self) -> None:
        """What a consumer computes after `wait` is recorded on another by hand."""
        with recorded_streams() as log:
            first, second = torch.cuda.Stream(), torch.cuda.Stream()
            batch = made(Body, payload)(ONE).to_device("cuda")
            with torch.cuda.stream(first):
                batch.total  # noqa: B018  # fills the cache
            before = log.missing(batch, second)
            batch.record_stream(second)

            assert ["ids", "total"] == before
            assert [] == log.missing(batch, second)


def test_pickle_is_as_it_was() -> None:
    """A class in slots leaves it out, one with a `__dict__` takes it along."""
    for cls, expected in ((InSlotsBatch, []), (InDictBatch, ["total"])):
        batch = cls(ONE)
        batch.total  # noqa: B018  # fills the cache

        assert expected == record_only(pickle.loads(pickle.dumps(batch)))  # noqa: S301  # ours


@payload
class InSlotsBatch:
    ids: Tensor

    @functools.cached_property
    def total(self) -> Tensor:
        return self.ids + 1


@payload(slots=False)
class InDictBatch:
    ids: Tensor

    @functools.cached_property
    def total(self) -> Tensor:
        return self.ids + 1
