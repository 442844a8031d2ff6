"""The validator: all bad fields of a class in one error, each with its way out."""

import dataclasses
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import (
    Borrowed,
    Dynamic,
    HostOnly,
    LifetimeError,
    Payload,
    payload,
    tensors,
)
from tensorpack.errors import Refusal

META = torch.device("meta")
ONE = torch.ones(1)


def refusals_of(cls: type) -> tuple[Refusal, ...]:
    """Decorate a class that is to be refused."""
    with pytest.raises(LifetimeError) as caught:
        payload(cls)
    assert cls.__qualname__ == caught.value.cls
    return caught.value.refusals


class Undecorated:
    ids: Tensor


class TestOneError:
    """One class, one error, all its bad fields."""

    def test_lists_all_bad_fields_in_field_order(self) -> None:
        """Good fields between bad ones are not named."""

        class Batch:
            c: Any
            ids: Tensor
            b: "Nobody"  # type: ignore[name-defined]  # noqa: F821
            size: int
            a: list[Undecorated]

        assert ["c", "b", "a"] == [r.field for r in refusals_of(Batch)]

    def test_gives_the_annotation_as_it_was_written(self) -> None:
        """An annotation that is text is repeated, letter by letter."""

        class Batch:
            a: "dict[str,  Undecorated]|None"
            b: dict[str, Undecorated] | None
            c: "Undecorated"
            d: HostOnly[Any] | dict

        assert [
            "dict[str,  Undecorated]|None",
            "dict[str, Undecorated] | None",
            "Undecorated",
            "HostOnly[Any] | dict",
        ] == [r.annotation for r in refusals_of(Batch)]

    def test_points_at_the_part_without_support(self) -> None:
        """The culprit is the innermost part that cannot travel."""

        class Batch:
            a: dict[str, list[Undecorated]]
            b: Tensor | Any
            c: tuple[Tensor, "Nobody"]  # type: ignore[name-defined]  # noqa: F821
            d: list[set[Tensor]]

        assert ["Undecorated", "Any", "Nobody", "set[Tensor]"] == [
            r.culprit for r in refusals_of(Batch)
        ]

    def test_remedies_fit_the_culprit(self) -> None:
        """Each refusal tells what to write instead."""

        @dataclasses.dataclass
        class Data:
            ids: Tensor

        class Batch:
            a: Data
            b: torch.nn.Linear
            c: Any
            d: Undecorated

        assert [
            "Decorate `Data` with `@payload`, or call `payload(Data)`.",
            "Write `Borrowed[Linear]` to pass on the same object.",
            "Name the types (`list[Tensor]`, `dict[str, Tensor]`).",
            (
                "Decorate `Undecorated` with `@payload`, or write a "
                "`LifetimeAdapter[Undecorated]`."
            ),
        ] == [r.remedies[0] for r in refusals_of(Batch)]

    def test_first_culprit_of_a_field_counts(self) -> None:
        """A field is named once, however many parts of it are bad."""

        class Batch:
            a: dict[str, Any | Undecorated]

        assert ["Any"] == [r.culprit for r in refusals_of(Batch)]

    def test_same_for_every_way_to_make_a_class(self) -> None:
        """Plain, attrs and dataclass alike."""

        class Batch:
            ids: Tensor
            bad: Any
            worse: Undecorated

        for make in (lambda c: c, attrs.define, dataclasses.dataclass):
            assert ["bad", "worse"] == [r.field for r in refusals_of(make(Batch))]


class TestPlaceholders:
    """A name that nobody knows when the class is made."""

    def test_is_free_where_the_type_does_not_matter(self) -> None:
        """Under `HostOnly`, `Borrowed` and `Dynamic` nobody needs to know it."""

        @payload
        class Batch(Payload):
            a: "HostOnly[Nobody]"  # type: ignore[name-defined]  # noqa: F821
            b: "Borrowed[nowhere.Nobody[int] | None]"  # type: ignore[name-defined]  # noqa: F821
            c: "Dynamic[dict[str, Nobody]]"  # type: ignore[name-defined]  # noqa: F821

        value = object()
        batch = Batch(value, value, {"x": ONE})

        assert ["c['x']"] == [key for key, _ in tensors(batch)]
        assert (("c",), ("a", "b")) == (Batch.payload_keys(), Batch.host_keys())

    def test_does_not_hide_the_verdict_on_other_fields(self) -> None:
        """Other fields are judged as if every name were known."""

        class Batch:
            a: "Nobody"  # type: ignore[name-defined]  # noqa: F821
            b: "list[Nobody] | None"  # type: ignore[name-defined]  # noqa: F821
            c: "Tensor"
            d: "Any"
            e: "nowhere.Nobody"  # type: ignore[name-defined]  # noqa: F821

        found = refusals_of(Batch)

        assert ["a", "b", "d", "e"] == [r.field for r in found]
        assert ["Nobody", "Nobody", "Any", "nowhere.Nobody"] == [
            r.culprit for r in found
        ]

    def test_annotation_that_cannot_be_read_is_one_refusal(self) -> None:
        """Broken text, or a type that cannot be subscripted, is told with its cause."""

        class Batch:
            a: "Tensor |"  # type: ignore[syntax]  # noqa: F722
            b: "int[Tensor]"  # type: ignore[type-arg]
            c: Tensor

        found = refusals_of(Batch)

        assert ["Tensor |", "int[Tensor]"] == [r.culprit for r in found]
        assert "SyntaxError" in found[0].reason
        assert "TypeError" in found[1].reason

    def test_local_names_are_found(self) -> None:
        """Text in a local class may name what stands around it."""

        @payload
        class Part(Payload):
            grid: Tensor

        @payload
        class Batch(Payload):
            part: "Part"
            more: "list[Part] | None" = None

        assert META == Batch(Part(ONE)).to_device(META).part.grid.device

    def test_field_may_have_the_name_of_its_type(self) -> None:
        """A field called `float` hides the type neither for itself nor for others."""

        @payload
        class Batch(Payload):
            float: "float"
            ratio: "float" = 0.5  # type: ignore[valid-type]
            Tensor: "Tensor | None" = None

        assert (("Tensor",), ("float", "ratio")) == (
            Batch.payload_keys(),
            Batch.host_keys(),
        )


class TestLostStorage:
    """What a class holds besides its fields would be lost."""

    def test_annotation_of_a_base_that_is_no_field(self) -> None:
        """A plain base's annotation is storage that no twin would get."""

        class Base:
            mask: Tensor

        class Batch(Base):
            ids: Tensor

        (refusal,) = refusals_of(Batch)

        assert "mask" == refusal.field
        assert "is annotated in `Base` but is not a field of `" in refusal.reason

    def test_dataclass_base_under_attrs(self) -> None:
        """`attrs.define` over a dataclass loses the base's fields in silence."""

        @dataclasses.dataclass
        class Base:
            mask: Tensor

        class Batch(Base):
            ids: Tensor

        (refusal,) = refusals_of(Batch)

        assert ("mask", True) == (refusal.field, "dataclass" in refusal.remedies[0])

    def test_slot_that_is_no_field(self) -> None:
        """A slot of a base is storage as well."""

        class Base:
            __slots__ = ("mask",)

        class Batch(Base):
            ids: Tensor

        (refusal,) = refusals_of(Batch)

        assert ("mask", "mask") == (refusal.field, refusal.culprit)

    def test_class_variable_is_fine(self) -> None:
        """What belongs to the class is not lost."""

        class Base:
            table: ClassVar[dict[str, Any]] = {}

        @payload
        class Batch(Base, Payload):
            ids: Tensor

        assert ("ids",) == Batch.payload_keys()


class TestInheritance:
    """Each class resolves only its own annotations."""

    def test_child_reuses_the_plan_of_its_base(self) -> None:
        """A name that was known to the base need not be known to the child."""

        def base() -> type:
            @payload
            class Part(Payload):
                grid: Tensor

            @payload
            class Base(Payload):
                part: "Part"

            return Base

        @payload
        class Child(base()):  # type: ignore[misc]
            ids: Tensor

        assert ("part", "ids") == Child.payload_keys()

    def test_child_may_narrow_a_field(self) -> None:
        """The nearest annotation of a field counts."""

        @payload
        class Base(Payload):
            ids: Tensor | int

        @payload
        class Child(Base):
            ids: HostOnly[Any]

        assert (("ids",), ()) == (Base.payload_keys(), Base.host_keys())
        assert ((), ("ids",)) == (Child.payload_keys(), Child.host_keys())

    def test_bad_field_of_an_undecorated_base_is_named(self) -> None:
        """Fields that an attrs base declares are judged with the child."""

        @attrs.define
        class Base:
            bad: Any

        class Batch(Base):
            ids: Tensor

        assert ["bad"] == [r.field for r in refusals_of(Batch)]
