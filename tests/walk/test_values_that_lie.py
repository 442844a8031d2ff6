"""Annotations lie: a value that is not what its field says raises, with its key."""

import collections
import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import attrs
import numpy as np
import pytest
import torch
from subjects import Opaque
from torch import Tensor

from tensorpack import (
    Borrowed,
    CycleError,
    Derived,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeAdapter,
    Payload,
    TensorpackError,
    UndecoratedError,
    clone,
    evolve,
    payload,
    record_stream,
    tensors,
    to_device,
)
from tensorpack.testing import device_twin

META = torch.device("meta")
ONE = torch.ones(1)
STREAM: Any = object()  # a leaf on the host never looks at it

USES: tuple[Callable[[Any], object], ...] = (
    lambda x: x.to_device(META),
    lambda x: x.record_stream(STREAM),
    lambda x: x.pin_memory(),
    tensors,
    clone,
    evolve,
    lambda x: to_device(x, META),
    lambda x: record_stream(x, STREAM),
    lambda x: to_device({"x": x}, META, keys=["x"]),
    lambda x: to_device([x], META),
)


def error_of(
    annotation: Any, value: object, error: type[TensorpackError] = LeafError
) -> Any:
    """Put a value into a field; every use raises the same, which is returned."""
    body = {"__annotations__": {"field": annotation}}
    batch: Any = payload(type("Batch", (), body))
    found = []
    for use in USES:
        with pytest.raises(error) as caught:
            use(batch(value))
        found.append(caught.value)
    first, *others = found
    tail = str(first).partition("`: ")[2]
    assert all(tail in str(other) for other in others)
    return first


class Point(NamedTuple):
    x: Tensor
    n: int


class Entry(TypedDict, total=False):
    a: Tensor
    n: int


@payload
class Part(Payload):
    grid: Tensor
    part: "Part | None" = None


@payload
class Other(Payload):
    ids: Tensor


class MyList(list[Tensor]):
    pass


class Colour(enum.Enum):
    RED = 1


class Foreign:
    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class ForeignAdapter(LifetimeAdapter[Foreign]):
    def leaves(self, value: Foreign) -> Sequence[Tensor]:
        return [value.keys]

    def rebuild(self, value: Foreign, leaves: Sequence[Tensor]) -> Foreign:
        return Foreign(leaves[0])


class TestHostFields:
    """A tensor found as the value of a host field raises."""

    @pytest.mark.parametrize(
        "annotation",
        [
            int,
            str,
            float,
            int | None,
            int | str,
            list[int],
            dict[str, int],
            tuple[int, ...],
            set[str],
            None,
            torch.dtype,
        ],
    )
    def test_tensor_in_a_host_field(self, annotation: Any) -> None:
        """It would be neither moved nor recorded."""
        error = error_of(annotation, ONE)

        assert ("field", "a `Tensor`") == (error.key, error.found)
        assert "neither moved nor recorded" in error.problem

    @pytest.mark.parametrize("annotation", [int, list[int] | None, Colour, None])
    @pytest.mark.parametrize(
        "value",
        [Part(ONE), Opaque(), torch.nn.Parameter(ONE), Part(Part(ONE))],  # type: ignore[arg-type]
        ids=["payload", "own leaf", "parameter", "payload that lies itself"],
    )
    def test_any_leaf_or_payload_in_a_host_field(
        self, annotation: Any, value: object
    ) -> None:
        """Whatever moves and records would be neither here."""
        error = error_of(annotation, value)
        name = "Tensor" if isinstance(value, Tensor) else type(value).__name__

        assert error.key == "field"
        assert "neither moved nor recorded" in error.problem
        assert error.remedy.startswith(f"Annotate the field `{name}`, or `HostOnly[")

    @pytest.mark.parametrize("value", [None, 1, "a", [1], {"a": 1}, Colour.RED, object])
    @pytest.mark.parametrize("annotation", [int, Colour, np.ndarray])
    def test_host_value_of_another_class_stays(
        self, annotation: Any, value: object
    ) -> None:
        """A host value where another is annotated is nobody's loss."""
        body = {"__annotations__": {"field": annotation}}
        batch: Any = payload(type("Batch", (), body))(value)

        assert value is batch.to_device(META).field

    def test_tensor_among_the_host_items_of_a_tuple(self) -> None:
        """A host item of a tuple is looked at too."""
        assert "field[1]" == error_of(tuple[Tensor, int], (ONE, ONE)).key

    def test_tensor_as_a_host_member(self) -> None:
        """Host members of named tuples and typed dictionaries are looked at too."""
        assert "field.n" == error_of(Point, Point(ONE, ONE)).key  # type: ignore[arg-type]
        assert "field['n']" == error_of(Entry, {"n": ONE}).key


class TestMarkedFields:
    """Values of fields that are marked."""

    def test_device_tensor_in_a_host_only_field(self) -> None:
        """It lives where the author has said that it never does."""
        error = error_of(HostOnly[object], device_twin(ONE))

        assert "lives on `cuda:0`" in error.problem

    def test_host_tensor_in_a_host_only_field_is_fine(self) -> None:
        """A host tensor stays, the very same object."""
        body = {"__annotations__": {"field": HostOnly[Tensor]}}
        batch: Any = payload(type("Batch", (), body))

        assert ONE is batch(ONE).to_device(META).field
        batch(ONE).record_stream(STREAM)

    def test_borrowed_values_are_never_looked_at(self) -> None:
        """Whatever stands there."""
        body = {"__annotations__": {"field": Borrowed[object]}}
        batch: Any = payload(type("Batch", (), body))

        for value in (device_twin(ONE), object(), Part(3)):  # type: ignore[arg-type]
            assert value is batch(value).to_device(META).field

    def test_wrong_value_in_a_derived_field(self) -> None:
        """A cache is recorded, so its values have to be leaves as well."""

        @payload
        class Cached(Payload):
            ids: Tensor
            cache: Derived[Tensor | None] = None

        with pytest.raises(LeafError, match=r"Cached\.cache`: an `int` was found"):
            Cached(ONE, 3).record_stream(STREAM)  # type: ignore[arg-type]

    @pytest.mark.parametrize("value", [object(), lambda: None, {"a": object()}])
    def test_unknown_object_in_a_dynamic_field(self, value: object) -> None:
        """A value without lifetime support raises and names its key."""
        error = error_of(Dynamic[dict[str, Any]], {"k": value})

        assert error.key in ("field['k']", "field['k']['a']")
        assert "has no lifetime support" == error.problem

    def test_undecorated_payload_in_a_dynamic_field(self) -> None:
        """An undecorated subclass is refused wherever it stands."""

        class Child(Part):
            mask: Tensor

        error = error_of(Dynamic[Any], [Child(ONE)], UndecoratedError)

        assert "Batch.field[0]" == error.key


class TestTensorFields:
    """A wrong value in a tensor field raises."""

    @pytest.mark.parametrize(
        "value", [3, 1.5, "x", [ONE], (ONE,), {"a": ONE}, object(), Part(ONE), Point]
    )
    def test_wrong_value(self, value: object) -> None:
        """It is named by its key and its class."""
        error = error_of(Tensor, value)

        assert "field" == error.key
        assert "was found where a tensor is annotated" == error.problem

    def test_payload_says_to_annotate_it(self) -> None:
        """A payload where a tensor is declared gets the remedy that fits."""
        assert "Annotate the field `Part`." == error_of(Tensor, Part(ONE)).remedy

    @pytest.mark.parametrize(
        ("annotation", "value", "key"),
        [
            (list[Tensor], [ONE, 3], "field[1]"),
            (dict[str, Tensor], {"a": 3}, "field['a']"),
            (tuple[Tensor, Tensor], (ONE, "x"), "field[1]"),
            (tuple[Tensor, ...], (3,), "field[0]"),
            (list[list[Tensor]], [[ONE], [ONE, 3]], "field[1][1]"),
            (dict[str, list[Tensor]], {"a": [3]}, "field['a'][0]"),
            (Point, Point(3, 3), "field.x"),  # type: ignore[arg-type]
            (Entry, {"a": 3}, "field['a']"),
            (Part, Part(3), "field.grid"),  # type: ignore[arg-type]
            (list[Part], [Part(ONE, Part(3))], "field[0].part.grid"),  # type: ignore[arg-type]
        ],
    )
    def test_wrong_value_deep_inside(
        self, annotation: Any, value: object, key: str
    ) -> None:
        """However deep it stands, its whole address is given."""
        assert key == error_of(annotation, value).key

    def test_nothing_has_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The payload is checked as a whole before the first leaf is moved."""
        monkeypatch.setattr(Tensor, "to", lambda *_, **__: pytest.fail("moved"))

        @payload
        class Batch(Payload):
            one: Tensor
            two: Tensor

        with pytest.raises(LeafError):
            Batch(ONE, 3).to_device(META)  # type: ignore[arg-type]

    def test_wrong_value_in_an_opaque_field(self) -> None:
        """A field of a type that records itself takes leaves only."""
        assert "field" == error_of(Opaque, 3).key


class TestContainers:
    """A container of another class, length or keys than annotated raises."""

    @pytest.mark.parametrize(
        ("annotation", "value", "wanted"),
        [
            (list[Tensor], (ONE,), "list"),
            (list[Tensor], {"a": ONE}, "list"),
            (list[Tensor], 3, "list"),
            (tuple[Tensor, ...], [ONE], "tuple"),
            (tuple[Tensor, int], [ONE, 3], "tuple"),
            (dict[str, Tensor], [ONE], "dict"),
            (collections.OrderedDict[str, Tensor], {"a": ONE}, "OrderedDict"),
            (collections.deque[Tensor], [ONE], "deque"),
            (Sequence[Tensor], {0: ONE}, "Sequence"),
            (Mapping[str, Tensor], [ONE], "Mapping"),
            (Point, (ONE, 3), "Point"),
            (Entry, [ONE], "dict"),
        ],
    )
    def test_container_of_another_class(
        self, annotation: Any, value: object, wanted: str
    ) -> None:
        """Both classes are named."""
        error = error_of(annotation, value)

        assert f"was found where `{wanted}` is annotated" == error.problem
        assert f"`{type(value).__name__}`" in error.found

    @pytest.mark.parametrize("annotation", [list[Tensor], Sequence[Tensor], Point])
    def test_tensor_is_not_walked_by_rows(self, annotation: Any) -> None:
        """A tensor where a sequence is declared raises instead of being taken apart."""
        error = error_of(annotation, torch.ones(3, 2))

        assert "a `Tensor`" == error.found
        assert "Wrap the tensor" in error.remedy

    def test_tensor_in_a_list_of_lists(self) -> None:
        """The same one level further in."""
        assert "field[1]" == error_of(list[list[Tensor]], [[ONE], ONE]).key

    def test_subclass_of_a_container(self) -> None:
        """Nobody knows what a class of its own would lose."""
        error = error_of(list[Tensor], MyList([ONE]))

        assert "`LifetimeAdapter[MyList]`" in error.remedy

    def test_one_tuple_with_more_items(self) -> None:
        """`tuple[Tensor]` says one item, and is often meant for any number."""
        error = error_of(tuple[Tensor], (ONE, ONE))

        assert "has 2 items, and its annotation says 1" == error.problem
        assert "write `tuple[Tensor, ...]`" in error.remedy

    @pytest.mark.parametrize("value", [(), (ONE,), (ONE, ONE, ONE)])
    def test_tuple_of_another_length(self, value: object) -> None:
        """A tuple of a fixed length has that length."""
        assert "its annotation says 2" in error_of(tuple[Tensor, Tensor], value).problem

    def test_undeclared_key_of_a_typed_dictionary(self) -> None:
        """A key that is not declared would be kept without being looked at."""
        error = error_of(Entry, {"a": ONE, "b": ONE, "c": 3})

        assert "has the keys 'b', 'c', which" in error.problem

    def test_missing_key_of_a_typed_dictionary_stays_missing(self) -> None:
        """A twin has the keys of the original."""
        body = {"__annotations__": {"field": Entry}}
        batch: Any = payload(type("Batch", (), body))

        assert {"n": 3} == batch({"n": 3}).to_device(META).field

    def test_none_is_accepted_everywhere(self) -> None:
        """In every field, and inside every container."""
        names = {
            "a": Tensor,
            "b": list[Tensor],
            "c": dict[str, Tensor],
            "d": tuple[Tensor, int],
            "e": Part,
            "f": Point,
            "g": Entry,
            "h": int,
            "i": Dynamic[Any],
            "j": Foreign,
            "k": Opaque,
            "l": Tensor | list[Tensor],
            "m": collections.deque[Tensor],
        }
        cls: Any = payload(type("Batch", (), {"__annotations__": names}))
        twin = cls(*[None] * len(names)).to_device(META)
        assert [None] * len(names) == [getattr(twin, name) for name in names]

        twin = cls(
            None, [None], {"a": None}, (None, 3), None, Point(None, 3), {"a": None},  # type: ignore[arg-type]
            *[None] * 4, [None, ONE], collections.deque([None]),
        ).to_device(META)  # fmt: skip
        assert ([None], {"a": None}, (None, 3)) == (twin.b, twin.c, twin.d)
        assert (Point(None, 3), {"a": None}) == (twin.f, twin.g)  # type: ignore[arg-type]
        assert (None, META) == (twin.l[0], twin.l[1].device)


class TestUnions:
    """The value decides; one that fits no arm raises."""

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (Tensor | int, object()),
            (Tensor | list[Tensor], object()),
            (Tensor | Part, Undecided := type("Undecided", (), {})()),
            (list[Tensor] | int, ONE),
            (Tensor | dict[str, Tensor], [ONE]),
            (Part | int, ONE),
        ],
    )
    def test_value_of_no_arm(self, annotation: Any, value: object) -> None:
        """It is not passed over in silence."""
        error = error_of(annotation, value)

        assert "does not match any arm of the annotated union" == error.problem

    def test_host_values_of_no_arm_are_harmless(self) -> None:
        """A host value owns nothing, whichever arm was meant."""
        body = {"__annotations__": {"field": Tensor | int}}
        batch: Any = payload(type("Batch", (), body))

        assert "x" == batch("x").to_device(META).field


class TestPayloadFields:
    """A field typed with a payload."""

    @pytest.mark.parametrize("value", [3, ONE, [Part(ONE)], object()])
    def test_no_payload(self, value: object) -> None:
        """Something else where a payload is declared raises."""
        error = error_of(Part, value)

        assert "was found where a payload is annotated" == error.problem

    def test_another_payload_travels_by_its_own_plan(self) -> None:
        """Dispatch is on the value's class: nothing of it is lost."""
        body = {"__annotations__": {"field": Part}}
        batch: Any = payload(type("Batch", (), body))

        assert META == batch(Other(ONE)).to_device(META).field.ids.device

    def test_cycle(self) -> None:
        """A payload that holds itself has no end."""
        part = Part(ONE)
        part.part = Part(ONE, part)
        for use in USES[:-2]:
            with pytest.raises(CycleError, match=r"`Part.part.part`: this `Part`"):
                use(part)

    def test_cycle_through_a_dynamic_container(self) -> None:
        """A container may close the circle as well."""
        table: dict[str, object] = {}
        table["self"] = [table]

        assert "Batch.field['self'][0]" == error_of(Dynamic[Any], table, CycleError).key

    def test_same_payload_twice_is_no_cycle(self) -> None:
        """An object that stands in two places side by side does not hold itself."""
        part = Part(ONE)
        twin = to_device([part, Part(ONE, part)], META)

        assert META == twin[1].part.grid.device  # type: ignore[union-attr]


class TestAdapters:
    """Values of a type that has an adapter."""

    def test_value_without_an_adapter(self) -> None:
        """Another class than the adapted one raises."""
        error = error_of(Foreign, object())

        assert "has no adapter, but the annotated class has one" == error.problem

    def test_adapter_that_lists_no_tensor(self) -> None:
        """What an adapter lists is looked at."""
        error = error_of(Foreign, Foreign(3))  # type: ignore[arg-type]

        assert "field[0]" == error.key
        assert "is not a tensor, but <ForeignAdapter for Foreign>" in error.problem

    def test_adapter_of_a_base_may_not_change_the_class(self) -> None:
        """An adapter that makes its base of a derived class would lose the rest."""

        class Derivation(Foreign):
            pass

        body = {"__annotations__": {"field": Foreign}}
        batch: Any = payload(type("Batch", (), body))

        with pytest.raises(LeafError, match="made a `Foreign` from a `Derivation`"):
            batch(Derivation(ONE)).to_device(META)


class TestAttributes:
    """What an instance has besides its fields."""

    def test_attribute_that_is_no_field(self) -> None:
        """It would be lost, so it raises."""

        @payload(slots=False)
        class Batch(Payload):
            ids: Tensor

        @payload
        class Whole(Payload):
            batch: Batch

        batch = Batch(ONE)
        batch.mask = ONE  # type: ignore[attr-defined]
        for use in USES[:-2]:
            with pytest.raises(LeafError, match=r"Batch\.mask`: a `Tensor` is an"):
                use(batch)
        with pytest.raises(LeafError, match=r"Whole\.batch\.mask`: a `Tensor` is"):
            Whole(batch).to_device(META)

    def test_cached_property_is_no_stray_attribute(self) -> None:
        """It is computed, and a twin computes its own."""

        @payload
        @attrs.define(slots=False)
        class Batch(Payload):
            ids: Tensor

            @functools.cached_property
            def total(self) -> int:
                return self.ids.numel()

        batch = Batch(ONE)

        assert 1 == batch.total
        assert "total" not in vars(batch.to_device(META))


@dataclasses.dataclass
class _Extra:
    n: int = 0


@payload
@dataclasses.dataclass
class _ExtraWithLeaf(_Extra):
    leaf: Tensor | None = None


class TestStructOfHostValues:
    """A field annotated with a struct of host values."""

    def test_a_derived_payload_raises(self) -> None:
        """Its leaves would be lost; once they were passed over in silence."""

        @payload
        class Batch:
            ids: Tensor
            extra: _Extra | None = None

        batch = Batch(torch.ones(1), _ExtraWithLeaf(1, torch.ones(1)))

        with pytest.raises(LeafError, match=r"Batch.extra`: a `_ExtraWithLeaf` is not"):
            batch.to_device("meta")

    def test_the_struct_itself_and_host_children_pass(self) -> None:
        """What holds host values only is no harm, whatever its class."""

        @dataclasses.dataclass
        class Child(_Extra):
            text: str = ""

        @payload
        class Batch:
            ids: Tensor
            extra: _Extra | None = None

        for extra in (None, _Extra(2), Child(1, "x"), _ExtraWithLeaf(1)):
            assert extra is Batch(torch.ones(1), extra).to_device("meta").extra


@pytest.mark.parametrize(
    "answer", [True, object(), type, torch.ones(1), "a"], ids=range(5)
)
def test_a_class_that_has_any_name(answer: object) -> None:
    """A metaclass that answers for a payload's plan makes no payload of its class."""

    class Meta(type):
        def __getattr__(cls, name: str) -> Any:
            return answer

        def __dir__(cls) -> Any:
            raise AssertionError

    class Odd(metaclass=Meta):
        pass

    @payload
    class Inner:
        grid: Tensor

    @payload
    class Batch:
        part: Inner
        many: Dynamic[object] = None
        either: Inner | Tensor | None = None

    part: Any = Inner(torch.ones(1))
    for value, said in (
        (Batch(Odd()), r"Batch\.part`: an `Odd` was found where"),  # type: ignore[arg-type]
        (Batch(part, Odd()), r"Batch\.many`: an `Odd` has no"),
        (Batch(part, None, Odd()), r"Batch\.either`: an `Odd` does not match"),  # type: ignore[arg-type]
    ):
        with pytest.raises(LeafError, match=said):
            value.to_device(META)  # type: ignore[attr-defined]
