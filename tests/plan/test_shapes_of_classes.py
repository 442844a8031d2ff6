"""The shapes that classes have in the field: bases, mixins, names, slots, hooks."""

import abc
import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import (
    Derived,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeError,
    Payload,
    UndecoratedError,
    payload,
    tensors,
)

Maker = Callable[[type], type]
MAKERS: dict[str, Maker] = {
    "attrs": attrs.define,
    "attrs-dict": attrs.define(slots=False),
    "attrs-frozen": attrs.frozen,
    "dataclass": dataclasses.dataclass,
    "dataclass-slots": dataclasses.dataclass(slots=True),
    "dataclass-frozen": dataclasses.dataclass(frozen=True),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


def keys(value: object) -> list[str]:
    """List the keys of all leaves."""
    return [key for key, _ in tensors(value)]


def twin(value: Any) -> Any:
    """Move a payload to the meta device, and see that every leaf is there."""
    new = value.to_device("meta")
    assert type(value) is type(new)
    assert keys(value) == keys(new)
    assert all(leaf.is_meta for _, leaf in tensors(new))
    assert not any(leaf.is_meta for _, leaf in tensors(value))
    return new


class TestBases:
    """A class covers its own fields and those of every base, or is refused."""

    @each_maker
    def test_payload_over_payload(self, make: Maker) -> None:
        """A decorated child covers its base's fields, then its own."""

        @payload
        @make
        class Base:
            a: Tensor

        @payload
        @make
        class Child(Base):
            b: Tensor

        assert ["a", "b"] == keys(twin(Child(one(), one())))

    @each_maker
    def test_payload_over_a_made_base_that_is_none(self, make: Maker) -> None:
        """The fields of an undecorated base made by the same tool are the child's."""

        @make
        class Base:
            a: list[Tensor]
            n: int

        @payload
        @make
        class Child(Base):
            b: Tensor

        moved = twin(Child([one()], 3, one()))

        assert ["a[0]", "b"] == keys(moved)
        assert 3 == moved.n

    @each_maker
    def test_plain_base_without_storage(self, make: Maker) -> None:
        """A mixin of methods, slotted or not, changes nothing."""

        class Methods:
            def size(self: Any) -> int:
                return len(self.a)

        class Slotted:
            __slots__ = ()
            LIMIT = 3

        @payload
        @make
        class Batch(Methods, Slotted):
            a: Tensor

        moved = twin(Batch(one()))

        assert 2 == moved.size()
        assert 3 == moved.LIMIT

    @each_maker
    def test_plain_base_that_annotates_is_refused(self, make: Maker) -> None:
        """An annotation in a plain base announces storage that is no field."""

        class Mixin:
            extra: Tensor

        with pytest.raises(LifetimeError) as caught:

            @payload
            @make
            class Batch(Mixin):
                a: Tensor

        (refusal,) = caught.value.refusals
        assert ("extra", "Tensor") == (refusal.field, refusal.annotation)
        assert "Decorate `Mixin` with `@attrs.define` or `@payload`." in str(
            caught.value
        )

    @each_maker
    def test_annotation_of_a_mixin_that_is_a_field_of_the_child(
        self, make: Maker
    ) -> None:
        """A mixin may announce what the child declares."""

        class Mixin:
            a: Tensor

        @payload
        @make
        class Batch(Mixin):
            a: Tensor

        assert ["a"] == keys(twin(Batch(one())))

    def test_slot_of_a_plain_base_is_refused(self) -> None:
        """A slot holds a value that a twin would not have."""

        class Slotted:
            __slots__ = ("secret",)

        with pytest.raises(LifetimeError) as caught:

            @payload
            class Batch(Slotted):
                a: Tensor

        assert "secret" == caught.value.refusals[0].field

    def test_fields_of_a_dataclass_base_are_missed_by_attrs(self) -> None:
        """Attrs takes no field of a dataclass base, so the child is refused."""

        @payload
        @dataclasses.dataclass
        class Base:
            a: Tensor

        with pytest.raises(LifetimeError) as caught:

            @payload
            class Child(Base):
                b: Tensor

        assert (
            "Decorate `Child` with `@dataclasses.dataclass` under `@payload`."
            == caught.value.refusals[0].remedies[0]
        )

    def test_fields_of_an_attrs_base_are_missed_by_dataclasses(self) -> None:
        """So it is the other way round, with the other remedy.

        The refusal named the base, which was made by attrs already.
        """

        @payload
        class Base:
            a: Tensor

        with pytest.raises(LifetimeError) as caught:

            @payload
            @dataclasses.dataclass
            class Child(Base):
                b: Tensor

        assert (
            "Decorate `Child` with `@attrs.define` under `@payload`."
            == caught.value.refusals[0].remedies[0]
        )

    def test_annotation_beside_attrs_fields_is_refused(self) -> None:
        """With one bare `attrs.field()`, attrs makes no fields of annotations."""
        with pytest.raises(LifetimeError) as caught:

            @payload
            @attrs.define
            class Batch:
                a = attrs.field(type=Tensor)
                b: Tensor

        assert (
            "Write `b: Tensor = attrs.field(...)`, as for the other fields."
            == caught.value.refusals[0].remedies[0]
        )

    @pytest.mark.parametrize("maker", ["attrs-dict", "dataclass", "dataclass-frozen"])
    def test_diamond(self, maker: str) -> None:
        """A diamond without own fields covers both sides, and the root once.

        Python itself combines no two bases that have slots.
        """
        make = MAKERS[maker]

        @payload
        @make
        class Root:
            r: Tensor | None = None

        @payload
        @make
        class Left(Root):
            x: Tensor | None = None

        @payload
        @make
        class Right(Root):
            y: Tensor | None = None

        @payload
        @make
        class Both(Left, Right):
            pass

        both = Both(r=one(), x=one(), y=one())

        assert {"r", "x", "y"} == set(keys(twin(both)))
        assert 3 == len(keys(both))

    def test_diamond_under_one_typed_base(self) -> None:
        """The base `Payload` may stand above both sides."""

        @payload(slots=False)
        class Left(Payload):
            x: Tensor

        @payload(slots=False)
        class Right(Payload):
            y: Tensor

        @payload(slots=False)
        class Both(Left, Right):
            z: Tensor

        assert {"x", "y", "z"} == set(keys(twin(Both(one(), one(), one()))))

    def test_protocol_and_abstract_bases(self) -> None:
        """A protocol's annotations are no storage; abstract methods are filled in."""

        class HasIds(Protocol):
            ids: Tensor

        class Movable(abc.ABC):
            @abc.abstractmethod
            def to_device(self, device: Any, non_blocking: bool = False) -> Any: ...

            @abc.abstractmethod
            def record_stream(self, stream: Any) -> None: ...

        @payload
        class Batch(Movable, HasIds):
            ids: Tensor

        assert ["ids"] == keys(twin(Batch(one())))

    def test_abstract_payload_is_dispatched_by_value(self) -> None:
        """A field typed with an abstract payload travels by the value's class."""

        @payload
        class Criteria(abc.ABC):
            @abc.abstractmethod
            def done(self) -> bool: ...

        @payload
        class ByLength(Criteria):
            lengths: Tensor

            def done(self) -> bool:
                return False

        @payload
        class Batch:
            criteria: Criteria

        assert ["criteria.lengths"] == keys(twin(Batch(ByLength(one()))))


class TestOverriding:
    """What a child says anew about a field counts."""

    @each_maker
    def test_child_narrows_a_type(self, make: Maker) -> None:
        """The child's annotation replaces its base's."""

        @payload
        @make
        class Base:
            a: HostOnly[list[Any]]

        @payload
        @make
        class Child(Base):
            a: list[Tensor]

        assert ["a[0]"] == keys(twin(Child([one()])))

    def test_child_makes_a_host_field_of_a_leaf(self) -> None:
        """It may also be the other way round."""

        @payload
        class Base:
            a: Tensor

        @payload
        class Child(Base):
            a: int

        assert ((), ("a",)) == (Child.payload_keys(), Child.host_keys())

    def test_child_computes_what_its_base_stores(self) -> None:
        """A property that hides a base's field has no storage to travel.

        The field was read through the property and written back into it.
        """

        @payload
        @dataclasses.dataclass
        class Base:
            a: Tensor | None = None

        @payload
        @dataclasses.dataclass(init=False)
        class Child(Base):
            b: Tensor

            def __init__(self, b: Tensor) -> None:
                self.b = b

            @property
            def a(self) -> Tensor:
                return self.b + 1

        assert ["b"] == keys(Child(one()))
        assert Child(one()).to_device("meta").a.is_meta

    def test_defaults_of_derived_fields_are_the_childs(self) -> None:
        """A twin's cache gets the default that its own class gives."""

        @payload
        class Base:
            cache: Derived[Tensor | int] = 1

        @payload
        class Child(Base):
            cache: Derived[Tensor | int] = 2

        assert 1 == Base(one()).to_device("meta").cache
        assert 2 == Child(one()).to_device("meta").cache

    def test_corrections_of_a_base_count_for_its_children(self) -> None:
        """A correction is inherited like an annotation, and may be overridden."""

        @dataclasses.dataclass
        class Base:
            a: object

        payload(Base, fields={"a": list[Tensor]})

        @payload
        @dataclasses.dataclass
        class Child(Base):
            b: Tensor | None = None

        @payload
        @dataclasses.dataclass
        class Other(Base):
            a: Tensor

        assert ["a[0]", "b"] == keys(twin(Child([one()], one())))
        assert ["a"] == keys(twin(Other(one())))


class TestUndecoratedChildren:
    """A child that forgot the decorator raises on every path to it."""

    @pytest.mark.parametrize("make", [attrs.define, dataclasses.dataclass, None])
    def test_raises_and_names_what_would_be_lost(self, make: Maker | None) -> None:
        """The base's methods would lose the child's own fields."""

        @payload
        @(make or attrs.define)
        class Base:
            a: Tensor

        class Child(Base):
            b: Tensor

        child = (make(Child) if make else Child)(one(), *[one()] * bool(make))

        @payload
        class Holder:
            held: Base
            many: list[Base] | None = None
            any: Dynamic[object] = None

        for use in (
            lambda: child.to_device("meta"),
            lambda: child.record_stream(None),
            lambda: Holder(child).to_device("meta"),
            lambda: Holder(Base(one()), [child]).to_device("meta"),
            lambda: Holder(Base(one()), any={"x": child}).to_device("meta"),
            lambda: list(tensors(child)),
        ):
            with pytest.raises(UndecoratedError) as caught:
                use()
            assert ("b",) == caught.value.lost


class TestNames:
    """Names that mean something elsewhere are only names here."""

    @each_maker
    def test_private_names_and_aliases(self, make: Maker) -> None:
        """Single and double underscores keep their values without an `__init__`."""

        @payload
        @make
        class Batch:
            _x: Tensor
            __y: Tensor
            _z_: int = 3

        batch = Batch(one(), one(), 4)

        assert ["_x", "_Batch__y"] == keys(twin(batch))
        assert 4 == batch.to_device("meta")._z_

    def test_alias_and_keyword_only(self) -> None:
        """The name in `__init__` is not the name of the field."""

        @payload(kw_only=True)
        class Batch:
            _ids: Tensor
            mask: Tensor = attrs.field(alias="attention_mask")

        batch = Batch(ids=one(), attention_mask=one())

        assert ["_ids", "mask"] == keys(twin(batch))

    def test_keyword_only_marker_is_no_field(self) -> None:
        """`KW_ONLY` in a dataclass's body is no storage."""

        @payload
        @dataclasses.dataclass
        class Batch:
            a: Tensor
            _: dataclasses.KW_ONLY
            b: Tensor

        assert ["a", "b"] == keys(twin(Batch(one(), b=one())))

    @each_maker
    def test_words_of_the_generated_text(self, make: Maker) -> None:
        """Fields may be called like builtins, and like what generated code uses."""
        words = ["Tensor", "at", "add", "build", "cls", "dict", "enumerate", "hasattr"]
        words += ["i1", "id", "int", "is_payload", "isinstance", "k", "leaves", "len"]
        words += ["like", "list", "mappings", "new", "object", "rebuild", "self_"]
        words += ["sequences", "str", "stores", "super", "take", "tuple", "type"]
        words += ["walk", "x", "x1", "zip"]
        made = type(
            "Words", (), {"__annotations__": dict.fromkeys(words, list[Tensor])}
        )
        words_class: Any = payload(make(made))

        words_of = words_class(*([one()] for _ in words))

        assert [f"{word}[0]" for word in words] == keys(twin(words_of))

    def test_field_called_self(self) -> None:
        """A dataclass may have a field called `self`."""
        made: Any = dataclasses.make_dataclass("Odd", [("self", Tensor), ("x", Tensor)])

        assert ["self", "x"] == keys(twin(payload(made)(one(), one())))

    def test_class_variables_are_no_fields(self) -> None:
        """A class variable stays with the class, also one of an unknown type."""

        @payload
        class Batch:
            a: Tensor
            limit: ClassVar[int] = 3
            cache: "ClassVar[Unknown]" = None  # noqa: F821
            plain = 4

        assert (("a",), ()) == (Batch.payload_keys(), Batch.host_keys())


class TestMaking:
    """Nothing of what makes an instance runs again, and nothing is missed by it."""

    def test_converters_validators_hooks_and_post_init(self) -> None:
        """A twin is filled as the original is, by nobody's code."""
        ran: list[str] = []

        def note(name: str) -> Callable[..., Any]:
            return lambda *args: ran.append(name) or (args[0] if args else None)

        @payload
        class Batch:
            a: Tensor = attrs.field(
                converter=note("converter"),
                validator=lambda *_: note("validator")(),
                on_setattr=note("on_setattr"),
            )
            b: int = attrs.field(init=False)
            c: Tensor = attrs.field(factory=one)

            def __attrs_post_init__(self) -> None:
                ran.append("post_init")
                self.b = 3

        batch = Batch(one())
        assert {"converter", "validator", "post_init"} <= set(ran)
        ran.clear()

        assert 3 == twin(batch).b
        assert [] == ran

    @pytest.mark.parametrize(
        "decorate",
        [dataclasses.dataclass(init=False), attrs.define(init=False)],
        ids=["dataclass", "attrs"],
    )
    def test_own_init_may_leave_fields_unset(self, decorate: Maker) -> None:
        """A field that the user's own `__init__` leaves out stays unset."""

        @payload
        @decorate
        class Batch:
            a: Tensor
            b: Tensor

            def __init__(self) -> None:
                self.a = one()

        moved = twin(Batch())

        assert ["a"] == keys(moved)
        assert not hasattr(moved, "b")

    def test_inherited_init_does_not_set_the_childs_fields(self) -> None:
        """A child without an `__init__` of its own may leave its fields unset."""

        @payload
        class Base:
            a: Tensor

        @payload(init=False)
        class Child(Base):
            b: Tensor

        assert ["a"] == keys(twin(Child(one())))

    def test_methods_with_super_and_class_cells(self) -> None:
        """A slotted class is made anew; methods that know their class still do."""

        @payload
        class Base:
            a: Tensor

            def total(self) -> Tensor:
                return self.a.sum()

        @payload
        class Child(Base):
            b: Tensor

            def total(self) -> Tensor:
                return super().total() + self.b.sum()

            def own(self) -> type:
                return __class__

        child = Child(one(), one())

        assert Child is child.own()
        assert 4 == child.total().item()
        assert child.to_device("meta").total().is_meta

    def test_kept_method_calls_what_is_generated(self) -> None:
        """`super().to_device()` in an override covers the subclass."""

        @payload
        class Base:
            a: Tensor

        @payload(keep=("to_device",))
        class Child(Base):
            b: Tensor

            def to_device(self, device: Any, non_blocking: bool = False) -> Any:
                return super().to_device(device, non_blocking)

        assert ["a", "b"] == keys(twin(Child(one(), one())))


class TestStorage:
    """What an instance keeps beside its fields is known, or raises."""

    @pytest.mark.parametrize("slots", [True, False])
    def test_cached_property(self, slots: bool) -> None:
        """A cached property is computed anew, also one of a base."""

        @payload(slots=slots)
        class Base:
            a: Tensor

            @functools.cached_property
            def total(self) -> Tensor:
                return self.a.sum()

        @payload(slots=slots)
        class Child(Base):
            b: Tensor

            @functools.cached_property
            def other(self) -> Tensor:
                return self.b.sum()

        child = Child(one(), one())
        child.total, child.other  # noqa: B018  # fills the caches
        moved = twin(child)

        assert moved.total.is_meta
        assert moved.other.is_meta

    def test_own_getattr_beside_a_cached_property(self) -> None:
        """A `__getattr__` with a local name like one of attrs' is left alone."""

        @payload(slots=False)
        class Batch:
            a: Tensor

            def __getattr__(self, name: str) -> Any:
                cached_properties = {"shape": self.a.shape}
                if name in cached_properties:
                    return cached_properties[name]
                raise AttributeError(name)

        assert (2,) == twin(Batch(one())).shape

    def test_getattr_that_forwards_to_a_leaf(self) -> None:
        """An object may answer as its leaf does."""

        @payload
        @dataclasses.dataclass
        class Batch:
            a: Tensor

            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return getattr(self.a, name)

        assert (2,) == twin(Batch(one())).shape

    @pytest.mark.parametrize(
        "decorate",
        [
            attrs.define,
            dataclasses.dataclass,
            dataclasses.dataclass(slots=True, weakref_slot=True),
        ],
        ids=["attrs", "dataclass", "dataclass-slots"],
    )
    def test_twins_can_be_referenced_weakly(self, decorate: Maker) -> None:
        """The slot for weak references is storage of nobody's."""

        @payload
        @decorate
        class Batch:
            a: Tensor

        moved = twin(Batch(one()))

        assert weakref.ref(moved)() is moved

    def test_own_getstate_is_not_asked(self) -> None:
        """A twin is made of fields, not of a pickled state."""

        @payload
        class Batch:
            a: Tensor

            def __getstate__(self) -> object:
                raise RuntimeError

            def __setstate__(self, state: object) -> None:
                raise RuntimeError

        assert ["a"] == keys(twin(Batch(one())))

    def test_attribute_that_is_no_field_raises(self) -> None:
        """An attribute set on the side would be lost."""

        @payload(slots=False)
        class Batch:
            a: Tensor

        batch: Any = Batch(one())
        batch.extra = one()

        with pytest.raises(LeafError, match="extra"):
            batch.to_device("meta")

    def test_property_over_its_own_storage(self) -> None:
        """A field that is a property travels by the private field behind it."""

        @payload
        @dataclasses.dataclass
        class Batch:
            lens: Tensor | None
            _lens: Tensor | None = dataclasses.field(default=None, init=False)

            @property
            def lens(self) -> Tensor | None:
                return self._lens

            @lens.setter
            def lens(self, lens: Tensor | None) -> None:
                self._lens = None if lens is None else lens + 1

        batch = Batch(one())
        moved = batch.to_device("cpu")

        assert ["_lens"] == keys(batch)
        assert [2.0, 2.0] == moved.lens.tolist()

    def test_descriptor_is_refused(self) -> None:
        """Reading a field must run nobody's code."""

        class Counting:
            def __get__(self, instance: object, owner: object) -> int:
                return 1

            def __set__(self, instance: object, value: object) -> None: ...

        @attrs.define(slots=False)
        class Batch:
            a: Tensor

        Batch.a = Counting()

        with pytest.raises(LifetimeError, match="Counting"):
            payload(Batch)
