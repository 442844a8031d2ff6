"""Examples: instances made from annotations, with every leaf in them."""

import abc
import collections
import dataclasses
import datetime as dt
import enum
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    Self,
    TypedDict,
    TypeVar,
    Union,
)

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from tensorpack import Borrowed, Derived, Dynamic, HostOnly, Payload, payload
from tensorpack.testing import assert_covers, example, reachable

T = TypeVar("T")
Count = NewType("Count", int)


class Modality(enum.Enum):
    IMAGE = "image"


class Named(NamedTuple):
    leaf: Tensor
    size: int


class Typed(TypedDict):
    leaf: Tensor
    name: str


@payload
class Child(Payload):
    leaf: Tensor
    size: int = 1


def made(annotation: Any) -> Any:
    """Make an example of a class with one field."""

    @payload
    class Batch(Payload):
        value: annotation

    return example(Batch).value


WITH_LEAVES = [
    Tensor,
    Tensor | None,
    Optional[Tensor],
    Union[int, Tensor],
    torch.LongTensor,
    torch.nn.Parameter,
    list[Tensor],
    list[list[Tensor]] | None,
    tuple[Tensor, int],
    tuple[Tensor, ...],
    dict[str, Tensor],
    dict[int, list[Tensor]],
    Sequence[Tensor],
    Mapping[str, Tensor],
    collections.deque[Tensor],
    collections.OrderedDict[str, Tensor],
    collections.defaultdict[str, Tensor],
    Child,
    list[Child | None],
    Named,
    Typed,
    Dynamic[dict[str, Any]],
    Dynamic[Any],
    Borrowed[list[dict[str, Any]]],
    Annotated[Tensor, "a note"],
    PackedSequence,
]


@pytest.mark.parametrize("annotation", WITH_LEAVES, ids=str)
def test_example_has_its_leaves(annotation: Any) -> None:
    """Optional fields are filled, containers have an item."""
    assert list(reachable(made(annotation)))


HOST: dict[Any, Any] = {
    int: 1,
    float: 1.0,
    bool: True,
    str: "a",
    Count: 1,
    Modality: Modality.IMAGE,
    Literal["x", "y"]: "x",
    int | None: 1,
    list[int]: [1],
    set[int]: {1},
    frozenset[str]: frozenset({"a"}),
    torch.dtype: torch.float32,
    torch.device: torch.device("cpu"),
    pathlib.Path: pathlib.Path("a"),
    dt.date: dt.date(2000, 1, 1),
    uuid.UUID: uuid.UUID(int=1),
    HostOnly[Callable[[int], int]]: repr,
    HostOnly[object]: None,
    HostOnly[list[dict[str, object]]]: [{"a": None}],
    None: None,
}


@pytest.mark.parametrize("annotation", HOST, ids=str)
def test_example_has_host_values(annotation: Any) -> None:
    """Each host type has a value that stands for it."""
    assert HOST[annotation] == made(annotation)


def test_arrays_are_made_where_numpy_is() -> None:
    """An array, whatever its parameters say."""
    assert isinstance(made(np.ndarray), np.ndarray)
    assert isinstance(made(np.typing.NDArray[np.float32]), np.ndarray)


def test_tensors_have_numbers_of_their_own() -> None:
    """Two leaves that change places are told apart; dtypes are those that are named."""

    @payload
    class Batch(Payload):
        a: Tensor
        b: Tensor
        long: torch.LongTensor
        flags: torch.BoolTensor

    batch = example(Batch)

    assert not torch.equal(batch.a, batch.b)
    assert (torch.int64, torch.bool) == (batch.long.dtype, batch.flags.dtype)
    assert all(not t.requires_grad for _, t in reachable(batch))


def test_given_values_are_taken() -> None:
    """By field name, also where `__init__` has another name for it."""

    @payload
    class Batch(Payload):
        ids: Tensor
        _size: int
        label: str = "x"

    ids = torch.ones(9)
    batch = example(Batch, ids=ids, _size=7)

    assert (ids, 7, "a") == (batch.ids, batch._size, batch.label)
    with pytest.raises(TypeError, match="has no field `nothing`"):
        example(Batch, nothing=1)


def test_all_makers_of_classes_are_served() -> None:
    """attrs, dataclasses, frozen or not, and a class that is only annotated."""

    @attrs.frozen
    class A:
        leaf: Tensor

    @dataclasses.dataclass(frozen=True, slots=True)
    class B:
        leaf: list[A]
        later: int = dataclasses.field(init=False, default=3)

    class C:
        def __init__(self, leaf: B, *, other: Tensor | None = None) -> None:
            self.leaf, self.other = leaf, other

    assert ["leaf.leaf[0].leaf", "other"] == [k for k, _ in reachable(example(C))]


def test_fields_that_init_does_not_take_are_filled() -> None:
    """A cache that is computed later is there, so that it must be recorded."""

    @payload
    class Batch(Payload):
        ids: Tensor
        cache: Derived[Tensor | None] = attrs.field(default=None, init=False)
        kept: int = attrs.field(default=4, init=False)

    batch = example(Batch)

    assert batch.cache is not None
    assert 4 == batch.kept
    assert_covers(batch)


def test_abstract_class_gives_a_subclass() -> None:
    """The first of its subclasses that can be made, also inside a field."""

    @payload
    class Base(Payload, abc.ABC):
        ids: Tensor

        @abc.abstractmethod
        def step(self) -> None: ...

    @payload
    class Middle(Base, abc.ABC):
        pass

    @payload
    class Concrete(Middle):
        extra: Tensor

        def step(self) -> None: ...

    @payload
    class Outer(Payload):
        inner: Base

    assert isinstance(example(Base), Concrete)
    assert isinstance(example(Outer).inner, Concrete)


def test_generic_class_is_filled_by_what_it_is_bound_to() -> None:
    """Type variables stand for what a subclass or a field says."""

    @attrs.define
    class Pair(Generic[T]):
        first: T
        rest: list[T]

    @payload
    class Batch(Payload):
        pair: Dynamic[Any]

    @payload
    @attrs.define
    class Bound(Pair[Tensor]):
        pass

    assert ["first", "rest[0]"] == [k for k, _ in reachable(example(Bound))]
    assert example(Batch, pair=1).pair == 1


def test_class_that_contains_itself_ends() -> None:
    """The inner one is left out where it may be."""

    @payload
    class Node(Payload):
        leaf: Tensor
        children: list["Node"]
        next: Self | None = None

    node = example(Node)

    assert [] == node.children
    assert node.next is None


def test_corrected_annotations_count() -> None:
    """What `payload(fields=...)` says of a field is what it holds."""

    @dataclasses.dataclass
    class Theirs:
        meta: Any

    payload(Theirs, fields={"meta": Dynamic[dict[str, Any]]})

    assert ["meta['a']"] == [k for k, _ in reachable(example(Theirs))]


class Closed:
    """Nobody can tell how to make one."""

    def __init__(self, *, secret) -> None:  # noqa: ANN001  # nothing is known
        self.secret = secret


def test_fields_without_an_example_are_listed() -> None:
    """All at once, each with the way to give a value."""

    @payload
    class Batch(Payload):
        ids: Tensor
        one: Borrowed[Closed]
        two: int = 1

    @dataclasses.dataclass
    class Plain:
        a: Closed
        b: "Unknown"  # noqa: F821
        c: Closed | None = None
        d: Closed = dataclasses.field(default_factory=lambda: Closed(secret=1))

    assert example(Batch).one is None
    with pytest.raises(TypeError) as caught:
        example(Plain)
    problems = {
        "a": "no example can be made of `Closed`",
        "b": "the type `Unknown` is not known",
    }
    where = "test_fields_without_an_example_are_listed.<locals>.Plain"
    assert str(caught.value).splitlines() == [
        f"`{where}.{name}`: {problem}. Pass a value: `example(Plain, {name}=...)`."
        for name, problem in problems.items()
    ]


def test_init_that_refuses_the_example_says_what_it_was() -> None:
    """The class's own error comes with a note on what to pass."""

    @payload
    class Batch(Payload):
        ids: Tensor
        size: int = attrs.field(validator=attrs.validators.ge(100))

    with pytest.raises(ValueError, match="must be >= 100") as caught:
        example(Batch)
    assert "example(Batch, name=...)" in caught.value.__notes__[0]
    assert 200 == example(Batch, size=200).size
