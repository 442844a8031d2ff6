"""What a field's type means: the rows of the table, each in right and wrong use."""

import collections
import dataclasses
import datetime as dt
import enum
import pathlib
import typing
import uuid
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    Self,
    TypedDict,
    TypeVar,
    Union,
)

import attrs
import numpy as np
import pytest
import torch
from subjects import Opaque
from torch import Tensor

from tensorpack import (
    Borrowed,
    Derived,
    Dynamic,
    HostOnly,
    LifetimeAdapter,
    LifetimeError,
    Payload,
    SupportsLifetime,
    borrowed,
    derived,
    dynamic,
    host_only,
    payload,
    register,
    tensors,
)
from tensorpack.errors import Refusal
from tensorpack.testing import recorded_streams

META = torch.device("meta")
ONE = torch.ones(1)
T = TypeVar("T")
B = TypeVar("B", bound=Tensor)
C = TypeVar("C", Tensor, int)


def payload_of(annotation: Any, **body: Any) -> Any:
    """Make a payload with one field."""
    return payload(
        type("Batch", (), {"__annotations__": {"field": annotation}, **body})
    )


def role_of(annotation: Any, **body: Any) -> str:
    """Tell what happens to a field of a type."""
    (field,) = payload_of(annotation, **body).__tensorpack_plan__.fields
    role: str = field.role
    return role


def refusal_of(annotation: Any, **body: Any) -> Refusal:
    """Give the refusal of a field of a type."""
    with pytest.raises(LifetimeError) as caught:
        payload_of(annotation, **body)
    (refusal,) = caught.value.refusals
    return refusal


def moved(annotation: Any, value: object) -> Any:
    """Move a value of a type; the devices of all its leaves must have changed."""
    twin = payload_of(annotation)(value).to_device(META)
    assert {META} >= {leaf.device for _, leaf in tensors(twin)}
    return twin.field


def keys(annotation: Any, value: object) -> list[str]:
    """List the keys of a value's leaves."""
    return [key for key, _ in tensors(payload_of(annotation)(value))]


@payload
class Part(Payload):
    grid: Tensor


class Unknown:
    ids: Tensor


class Handle:
    def __init__(self, keys: Tensor, name: str = "x") -> None:
        self.keys, self.name = keys, name


class HandleAdapter(LifetimeAdapter[Handle]):
    def leaves(self, value: Handle) -> Sequence[Tensor]:
        return [value.keys]

    def rebuild(self, value: Handle, leaves: Sequence[Tensor]) -> Handle:
        return Handle(leaves[0], value.name)


class TestRow1HostOnly:
    """`HostOnly[T]` stays on the host, the very same object."""

    @pytest.mark.parametrize(
        "annotation",
        [
            HostOnly[object],
            HostOnly[Unknown],
            HostOnly["Nobody"],
            HostOnly[Tensor],
            typing.Annotated[Unknown, host_only],
            HostOnly[Any] | None,
        ],
    )
    def test_right(self, annotation: Any) -> None:
        """Any type is accepted, even one that nobody knows."""
        value = object()

        assert "host only" == role_of(annotation)
        assert value is moved(annotation, value)

    def test_wrong(self) -> None:
        """Two markers contradict each other."""
        annotation = typing.Annotated[int, host_only, borrowed]

        assert "has 2 markers" in refusal_of(annotation).reason


class TestRow2Borrowed:
    """`Borrowed[T]` is owned and recorded elsewhere."""

    @pytest.mark.parametrize(
        "annotation",
        [
            Borrowed[list[dict[str, Any]]],
            Borrowed[Tensor],
            Borrowed["Nobody"],
            typing.Annotated[torch.Generator, borrowed],
        ],
    )
    def test_right(self, annotation: Any) -> None:
        """The same object, neither moved nor recorded."""
        with recorded_streams() as log:
            value = [{"a": torch.ones(1, device="cuda")}]
            batch = payload_of(annotation)(value)
            batch.record_stream(torch.Stream("cuda"))

        assert "borrowed" == role_of(annotation)
        assert value is batch.to_device(META).field
        assert [] == log.recorded(value)

    def test_wrong(self) -> None:
        """A marker on one arm of a union says nothing about the others."""
        assert "contradicts" in refusal_of(Borrowed[Tensor] | list[Tensor]).reason


class TestRow3Derived:
    """`Derived[T]` is a cache: recorded, and a twin gets the default."""

    @pytest.mark.parametrize(
        "annotation", [Derived[Tensor | None], typing.Annotated[Tensor, derived]]
    )
    def test_right(self, annotation: Any) -> None:
        """Its leaves are recorded and never moved."""
        with recorded_streams() as log:
            leaf = torch.ones(1, device="cuda")
            batch = payload_of(annotation, field=None)(leaf)
            batch.record_stream(torch.Stream("cuda"))

        assert "derived" == role_of(annotation, field=None)
        assert [""] == log.recorded(leaf)
        assert batch.to_device(META).field is None

    def test_default_may_be_made(self) -> None:
        """Every moved copy gets a new default from the factory."""

        @payload
        class Batch(Payload):
            ids: Tensor
            table: Derived[dict[str, Tensor]] = attrs.field(factory=dict)

        @payload
        @dataclasses.dataclass
        class Data(Payload):
            ids: Tensor
            table: Derived[dict[str, Tensor]] = dataclasses.field(default_factory=dict)

        twin = Batch(ONE, {"a": ONE}).to_device(META)

        assert {} == twin.table
        assert {} == Data(ONE, {"a": ONE}).to_device(META).table

    def test_default_that_reads_other_fields_is_refused(self) -> None:
        """It would read tensors whose copies may not be done."""

        class Decorated:
            ids: Tensor
            size: Derived[int] = attrs.field()

            @size.default
            def _size(self) -> int:
                return len(self.ids)

        class Given:
            ids: Tensor
            size: Derived[int] = attrs.Factory(lambda _: 3, takes_self=True)

        for cls in (Decorated, Given):
            with pytest.raises(LifetimeError, match="reads other fields"):
                payload(cls)

    def test_default_of_a_plain_field_may_read_others(self) -> None:
        """A field that travels is copied, so its default is not made again."""

        @payload
        class Batch(Payload):
            ids: Tensor
            size: int = attrs.Factory(lambda self: len(self.ids), takes_self=True)

        assert 1 == Batch(ONE).to_device(META).size

    def test_wrong(self) -> None:
        """It needs a default, and marks a whole field."""
        assert "needs a default" in refusal_of(Derived[Tensor]).reason
        assert "is inside another type" in refusal_of(list[Derived[Tensor]]).reason
        assert (
            "does not say what it contains"
            in refusal_of(Derived[Any], field=None).reason
        )


class TestRow4Dynamic:
    """`Dynamic[T]` is walked by the types of its values."""

    @pytest.mark.parametrize(
        "annotation",
        [
            Dynamic[dict[str, Any]],
            Dynamic[Any],
            Dynamic["Nobody"],
            SupportsLifetime,
            typing.Annotated[object, dynamic],
            dict[str, Dynamic[Any]],
        ],
    )
    def test_right(self, annotation: Any) -> None:
        """Leaves are found, whatever the annotation says; host values stay."""
        value = {"a": ONE, "b": [Part(ONE), 3], "c": Handle(ONE)}

        assert ["field['a']", "field['b'][0].grid", "field['c'][0]"] == (
            keys(annotation, value)
        )
        assert 3 == moved(annotation, value)["b"][1]

    def test_wrong(self) -> None:
        """It cannot stand in a union with a marker that says otherwise."""
        assert "contradicts" in refusal_of(Dynamic[Any] | HostOnly[Any]).reason


class TestRow5Tensors:
    """Tensors, by whatever name."""

    class Float:
        """As jaxtyping makes them: a class that knows its array type."""

        array_type = Tensor

    Float.__module__ = "jaxtyping._array_types"

    @pytest.mark.parametrize(
        "annotation",
        [
            Tensor,
            torch.nn.Parameter,
            torch.LongTensor,
            torch.FloatTensor,
            "Tensor",
            "torch.Tensor",
            type("Mine", (Tensor,), {}),
            Float,
            B,
            typing.Annotated[Tensor, "b n"],
            NewType("Ids", Tensor),
            Final[Tensor],
        ],
        ids=str,
    )
    def test_right(self, annotation: Any) -> None:
        """Each is a leaf."""
        assert "leaf" == role_of(annotation, __module__=__name__)

    def test_wrong(self) -> None:
        """The function `torch.tensor` is no type."""
        assert "is a function, not a type" == refusal_of(torch.tensor).reason


@payload
class Node(Payload):
    ids: Tensor
    next: "Node | None" = None
    same: Self | None = None


class TestRow6Payloads:
    """Another payload; self and forward references."""

    def test_right(self) -> None:
        """It travels by its own class, however deep."""
        twin = Node(ONE, Node(ONE), Node(ONE)).to_device(META)

        assert twin.next is not None
        assert twin.same is not None
        assert (META, META) == (twin.next.ids.device, twin.same.ids.device)
        assert "nested payload" == role_of(Part)

    def test_decorated_later(self) -> None:
        """A local class may refer to itself by its name."""

        @payload
        class Local(Payload):
            ids: Tensor
            others: "list[Local] | None" = None

        twin = Local(ONE, [Local(ONE)]).to_device(META)

        assert twin.others is not None
        assert META == twin.others[0].ids.device

    def test_wrong(self) -> None:
        """An undecorated subclass, and a name that nobody knows yet."""

        class Child(Part):
            mask: Tensor

        assert "derives from a payload but is not" in refusal_of(Child).reason
        assert "cannot be resolved" in refusal_of("Later").reason


class TestRow7Adapters:
    """A type with an adapter."""

    def test_right(self) -> None:
        """Its leaves join the traversal, and the adapter makes the twin."""
        twin = moved(Handle, Handle(ONE, "name"))

        assert ["field[0]"] == keys(Handle, Handle(ONE))
        assert ("name", META) == (twin.name, twin.keys.device)

    def test_two_functions_will_do(self) -> None:
        """`register` takes an adapter as two functions."""

        class Theirs:
            def __init__(self, x: Tensor) -> None:
                self.x = x

        register(Theirs, leaves=lambda v: [v.x], rebuild=lambda _, new: Theirs(new[0]))

        assert META == moved(Theirs, Theirs(ONE)).x.device
        assert META == moved(list[Theirs], [Theirs(ONE)])[0].x.device

    def test_of_a_base_counts_for_derived_classes(self) -> None:
        """The nearest base's adapter is used."""

        class Derivation(Handle):
            pass

        assert "leaf" == role_of(Derivation)

    def test_wrong(self) -> None:
        """Without an adapter the class is refused, and the error says so."""
        remedy, _ = refusal_of(Unknown).remedies

        assert "write a `LifetimeAdapter[Unknown]`" in remedy


class TestRow8Opaque:
    """A type that moves and records itself."""

    def test_right(self) -> None:
        """It is asked to move and to record itself."""
        handle = Opaque("cuda:0")
        batch = payload_of(Opaque)(handle)
        batch.record_stream(stream := object())

        assert "leaf" == role_of(Opaque)
        assert [stream] == handle.records
        assert META == batch.to_device("meta").field.device

    def test_wrong(self) -> None:
        """Recording alone is not enough: it must move, and say where it is."""

        class NoMove:
            device = torch.device("cpu")

            def record_stream(self, stream: object) -> None: ...

        class NoPlace:
            def to(self, device: object) -> object: ...

            def record_stream(self, stream: object) -> None: ...

        for cls in (NoMove, NoPlace):
            assert "has `record_stream` but no `to_device`" in refusal_of(cls).reason


class TestRow9Unions:
    """`X | None` and unions: by value."""

    @pytest.mark.parametrize(
        "annotation",
        [
            Tensor | None,
            Optional[Tensor],
            Union[Tensor, None],
            "Tensor | None",
            "Optional[Tensor]",
            None | Tensor,
        ],
        ids=str,
    )
    def test_optional(self, annotation: Any) -> None:
        """None is a value like any other, and nothing to move."""
        assert None is moved(annotation, None) if not isinstance(annotation, str) else 1
        assert "leaf" == role_of(annotation, __module__=__name__)

    @pytest.mark.parametrize(
        ("annotation", "values"),
        [
            (Tensor | int, [ONE, 3]),
            (Tensor | list[Tensor], [ONE, [ONE]]),
            (Tensor | list[Tensor] | dict[str, Tensor], [ONE, [ONE], {"a": ONE}]),
            (Tensor | Part | str, [ONE, Part(ONE), "x"]),
            (Part | Node, [Part(ONE), Node(ONE)]),
            (list[Tensor] | tuple[Tensor, ...], [[ONE], (ONE,)]),
            (Handle | Tensor, [Handle(ONE), ONE]),
            (Opaque | Tensor, [Opaque(), ONE]),
            (Sequence[Tensor] | Tensor, [[ONE], (ONE,), ONE]),
            (Tensor | HostOnly[list[int]], [ONE, [3]]),
            (Tensor | np.ndarray, [ONE, np.ones(1)]),
            (Dynamic[Any] | Tensor, [ONE, {"a": ONE}]),
        ],
        ids=str,
    )
    def test_value_decides(self, annotation: Any, values: list[object]) -> None:
        """Each value is moved by what it is, and keeps its class."""
        for value in values:
            assert type(value) is type(moved(annotation, value))

    def test_wrong(self) -> None:
        """Arms without support, and arms that a value cannot tell apart."""

        class One(TypedDict):
            a: Tensor

        class Two(TypedDict):
            b: Tensor

        assert "Unknown" == refusal_of(Tensor | Unknown).culprit
        assert "cannot tell apart" in refusal_of(One | Two).reason
        assert "cannot tell apart" in refusal_of(One | dict[str, Tensor]).reason


class Point(NamedTuple):
    x: Tensor
    n: int


class Total(TypedDict):
    a: Tensor
    n: NotRequired[int]


class Partial(TypedDict, total=False):
    a: Required[Tensor]
    b: list[Tensor]


class Child(Total):
    c: Tensor


class TestRow10Containers:
    """Containers of supported types; the same type comes back."""

    @pytest.mark.parametrize(
        ("annotation", "value", "found"),
        [
            (list[Tensor], [ONE, ONE], ["[0]", "[1]"]),
            (typing.List[Tensor], [ONE], ["[0]"]),
            (tuple[Tensor, int], (ONE, 3), ["[0]"]),
            (tuple[int, Tensor], (3, ONE), ["[1]"]),
            (tuple[Tensor, ...], (ONE,), ["[0]"]),
            (typing.Tuple[Tensor], (ONE,), ["[0]"]),
            (tuple[()], (), []),
            (dict[str, Tensor], {"a": ONE}, ["['a']"]),
            (typing.Dict[int, Tensor], {3: ONE}, ["[3]"]),
            (dict[tuple[int, str], Tensor], {(1, "x"): ONE}, ["[(1, 'x')]"]),
            (Sequence[Tensor], [ONE], ["[0]"]),
            (Sequence[Tensor], (ONE,), ["[0]"]),
            (MutableSequence[Tensor], [ONE], ["[0]"]),
            (Mapping[str, Tensor], {"a": ONE}, ["['a']"]),
            (MutableMapping[str, Tensor], {"a": ONE}, ["['a']"]),
            (collections.deque[Tensor], collections.deque([ONE]), ["[0]"]),
            (
                collections.OrderedDict[str, Tensor],
                collections.OrderedDict(a=ONE),
                ["['a']"],
            ),
            (
                collections.defaultdict[str, Tensor],
                collections.defaultdict(lambda: ONE, a=ONE),
                ["['a']"],
            ),
            (Point, Point(ONE, 3), [".x"]),
            (Total, {"a": ONE}, ["['a']"]),
            (Partial, {"b": [ONE], "a": ONE}, ["['a']", "['b'][0]"]),
            (Child, {"a": ONE, "n": 3, "c": ONE}, ["['a']", "['c']"]),
            (list[list[Tensor]], [[ONE], []], ["[0][0]"]),
            (list[dict[str, Part]], [{"a": Part(ONE)}], ["[0]['a'].grid"]),
            (dict[str, tuple[Tensor, ...]], {"a": (ONE,)}, ["['a'][0]"]),
            (list[Point], [Point(ONE, 3)], ["[0].x"]),
            (list[Total], [{"a": ONE}], ["[0]['a']"]),
            (list[Tensor | list[Tensor]], [ONE, [ONE]], ["[0]", "[1][0]"]),
            (tuple[list[Tensor], ...], ([ONE], [ONE]), ["[0][0]", "[1][0]"]),
        ],
        ids=str,
    )
    def test_right(self, annotation: Any, value: object, found: list[str]) -> None:
        """Every item is found, and a container of the same class comes back."""
        twin = moved(annotation, value)

        assert [f"field{key}" for key in found] == keys(annotation, value)
        assert type(value) is type(twin)
        assert len(value) == len(twin)  # type: ignore[arg-type]

    def test_host_items_are_the_same_objects(self) -> None:
        """A host item beside leaves is kept, a container of host items as a whole."""
        text = "x" * 99
        many = list(range(9))

        assert text is moved(tuple[Tensor, str], (ONE, text))[1]
        assert many is moved(list[int], many)
        assert "host" == role_of(list[int])

    def test_order_of_a_mapping_is_kept(self) -> None:
        """The entries of a twin stand in the order of the original."""
        assert ["b", "a"] == list(moved(dict[str, Tensor], {"b": ONE, "a": ONE}))
        assert ["b", "a"] == list(moved(Partial, {"b": [ONE], "a": ONE}))

    @pytest.mark.parametrize(
        ("annotation", "culprit", "reason"),
        [
            (list, "list", "does not say what it contains"),
            (dict, "dict", "does not say what it contains"),
            (tuple, "tuple", "does not say what it contains"),
            (typing.List, "List", "does not say what it contains"),
            (list[Any], "Any", "does not say what it contains"),
            (dict[str, object], "object", "does not say what it contains"),
            (dict[Tensor, int], "Tensor", "is the key of a mapping"),
            (list[Unknown], "Unknown", "has no lifetime support"),
            (type("Mine", (dict,), {}), "Mine", "is a custom container"),
            (type("Mine", (list,), {}), "Mine", "is a custom container"),
            (collections.UserDict, "UserDict", "has no lifetime support"),
            (collections.Counter, "Counter", "is a custom container"),
            (set[Tensor], "set[Tensor]", "contains leaves"),
            (collections.namedtuple("Bare", "x y"), "Bare", "does not say what `x` is"),  # noqa: PYI024
        ],
        ids=str,
    )
    def test_wrong(self, annotation: Any, culprit: str, reason: str) -> None:
        """Bare containers, leaves as keys, and classes that nobody can rebuild."""
        refusal = refusal_of(annotation)

        assert culprit == refusal.culprit
        assert reason in refusal.reason

    def test_named_tuple_with_methods_is_refused(self) -> None:
        """A named tuple that somebody derived from may keep more than its items."""

        class Derivation(Point):
            def norm(self) -> Tensor:
                return self.x

        assert "custom container" in refusal_of(Derivation).reason


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class HostData:
    n: int
    names: list[str]


@attrs.define
class HostAttrs:
    data: HostData
    when: dt.datetime | None = None


class TestRow11Host:
    """Host types are kept by reference."""

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (bool, True),
            (int, 3),
            (float, 1.5),
            (complex, 1j),
            (str, "x"),
            (bytes, b"x"),
            (type(None), None),
            (Colour, Colour.RED),
            (Literal[1, "a"], "a"),
            (torch.dtype, torch.int8),
            (torch.device, torch.device("cpu")),
            (torch.Size, torch.Size([1])),
            (torch.layout, torch.strided),
            (np.ndarray, np.ones(2)),
            (np.float32, np.float32(1)),
            (np.ndarray | None, np.ones(2)),
            (dt.datetime, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
            (dt.timedelta, dt.timedelta(1)),
            (pathlib.Path, pathlib.Path("x")),
            (uuid.UUID, uuid.UUID(int=1)),
            (range, range(3)),
            (slice, slice(1)),
            (set[int], {1}),
            (frozenset[str], frozenset("x")),
            (list[int], [1]),
            (dict[str, list[tuple[int, ...]]], {"a": [(1, 2)]}),
            (HostData, HostData(1, ["x"])),
            (HostAttrs, HostAttrs(HostData(1, []))),
            (list[HostAttrs], [HostAttrs(HostData(1, []))]),
            (int | str | None, "x"),
        ],
        ids=str,
    )
    def test_right(self, annotation: Any, value: object) -> None:
        """The very same object stands in the twin."""
        assert "host" == role_of(annotation)
        assert value is moved(annotation, value)

    def test_wrong(self) -> None:
        """A dataclass that holds a tensor is no host type, but could be a payload."""

        @dataclasses.dataclass
        class Data:
            n: int
            ids: Tensor

        @attrs.define
        class Outer:
            data: Data

        for cls in (Data, Outer):
            refusal = refusal_of(cls)
            assert "has fields that are not host types" in refusal.reason
            assert "Decorate `" in refusal.remedies[0]


class TestRow12Refused:
    """All else is refused with the way out."""

    @pytest.mark.parametrize(
        ("annotation", "culprit", "reason"),
        [
            (Any, "Any", "does not say what it contains"),
            (object, "object", "does not say what it contains"),
            (Callable, "Callable", "is a callable, which may capture"),
            (
                Callable[[], int],
                "Callable[[], int]",
                "is a callable, which may capture",
            ),
            (Unknown, "Unknown", "has no lifetime support"),
            (torch.nn.Module, "Module", "is a module"),
            (torch.nn.Linear, "Linear", "is a module"),
            (torch.Generator, "Generator", "belongs to a device"),
            (torch.Stream, "Stream", "belongs to a device"),
            (torch.Event, "Event", "belongs to a device"),
            (torch.cuda.CUDAGraph, "CUDAGraph", "belongs to a device"),
            (T, "T", "is a type variable that nothing binds"),
            (list[T], "T", "is a type variable that nothing binds"),
            ("Nobody", "Nobody", "cannot be resolved"),
            ("list[Nobody]", "Nobody", "cannot be resolved"),
            ("1 +", "1 +", "cannot be read"),
            (any, "any", "is a function, not a type"),
            (3, "3", "is not a type tensorpack can"),
            (type[int], "type[int]", "has no lifetime support"),
        ],
        ids=str,
    )
    def test_wrong(self, annotation: Any, culprit: str, reason: str) -> None:
        """The culprit is the part of the annotation without support."""
        refusal = refusal_of(annotation)

        assert culprit == refusal.culprit
        assert reason in refusal.reason
        assert refusal.remedies

    def test_init_var(self) -> None:
        """Only a dataclass has values that are passed to `__init__` and not stored."""

        class Batch:
            ids: Tensor
            extra: dataclasses.InitVar[int] = 3

        with pytest.raises(LifetimeError, match="but not stored"):
            payload(Batch)

    def test_right(self) -> None:
        """A variable that is bound, by a bound, by values or by a subclass, is fine."""

        @payload
        class Bound(Payload, Generic[B]):
            field: B

        @payload
        class Values(Payload, Generic[C]):
            field: C

        class Open(Generic[T]):
            field: T

        @payload
        class Closed(attrs.define(Open)[Tensor]):  # type: ignore[misc]
            pass

        for cls in (Bound, Values, Closed):
            made: Any = cls
            assert META == made(ONE).to_device(META).field.device
