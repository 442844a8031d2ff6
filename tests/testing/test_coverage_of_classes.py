"""What `assert_covers` fills of a class, and what it says of what it could not."""

import copy
from collections.abc import Sequence
from typing import Any, Generic, NotRequired, TypedDict, TypeVar, Union

import attrs
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from tensorpack import (
    Borrowed,
    Dynamic,
    HostOnly,
    LifetimeAdapter,
    Payload,
    payload,
)
from tensorpack.testing import (
    assert_covers,
    assert_honest,
    assert_moves,
    example,
    reachable,
)


def failure(subject: Any, **values: object) -> list[str]:
    """Return the lines of the error that `assert_covers` must raise."""
    with pytest.raises(AssertionError) as caught:
        assert_covers(subject, **values)
    return str(caught.value).splitlines()


# What adapters leave on the host.


class Paged:
    """Has a table on the host beside what is on the device."""

    def __init__(self, pages: Tensor, table: Tensor) -> None:
        self.pages, self.table = pages, table


class PagedAdapter(LifetimeAdapter[Paged]):
    def leaves(self, value: Paged) -> list[Tensor]:
        return [value.pages]

    def rebuild(self, value: Paged, leaves: Sequence[Tensor]) -> Paged:
        return Paged(leaves[0], value.table)

    def host(self, value: Paged) -> list[Tensor]:
        return [value.table]


class Silent(Paged):
    """Has an adapter that does not say so."""


class SilentAdapter(LifetimeAdapter[Silent]):
    def leaves(self, value: Silent) -> list[Tensor]:
        return [value.pages]

    def rebuild(self, value: Silent, leaves: Sequence[Tensor]) -> Silent:
        return Silent(leaves[0], value.table)


class Moving(Paged):
    """Has an adapter that moves what it says it leaves."""


class MovingAdapter(LifetimeAdapter[Moving]):
    def leaves(self, value: Moving) -> list[Tensor]:
        return [value.pages, value.table]

    def rebuild(self, value: Moving, leaves: Sequence[Tensor]) -> Moving:
        return Moving(*leaves)

    def host(self, value: Moving) -> list[Tensor]:
        return [value.table]


def holder(annotation: Any) -> Any:
    return payload(attrs.make_class("Holder", {"x": attrs.field(type=annotation)}))


@pytest.mark.parametrize("annotation", [PackedSequence, Paged, list[Paged]])
def test_declared_host_tensor_stays(annotation: Any) -> None:
    """All assertions pass: the adapter says what it leaves on the host."""
    cls = holder(annotation)

    assert_covers(cls)
    assert_moves(example(cls), "cuda")
    assert_honest(example(cls))


def test_packed_sequence_of_the_user_is_honest() -> None:
    """Its batch sizes are on the host wherever it is."""
    packed = pack_sequence([torch.ones(3), torch.ones(2)])

    assert_honest(holder(PackedSequence)(packed))
    assert_moves(holder(PackedSequence)(packed), "meta")


def test_host_tensor_that_is_not_declared_is_accused() -> None:
    """The adapter's leaves are not believed: they may have forgotten it."""
    assert "`Holder.to_device` leaves `x.table` where it was." in failure(
        holder(Silent)
    )


def test_declared_host_tensor_that_moves_is_accused() -> None:
    """The declaration is held to."""
    lines = failure(holder(Moving))

    assert (
        "`Holder.to_device` moves `x.table`, which its adapter keeps on the host."
    ) in lines


# Recursive types.

Nested = Union[list["Nested"], list[Tensor], Tensor, tuple[Tensor, ...]]
Deep = list[Union["Deep", Tensor]]
Either = dict[str, Union["Either", list[Tensor], None]]


class Tree(TypedDict):
    value: Tensor
    children: "list[Tree]"
    up: "NotRequired[Tree]"


@pytest.mark.parametrize(
    "annotation",
    [Dynamic[Nested], Dynamic[Deep], Dynamic[Either], Dynamic[Tree], Nested, Deep],
    ids=str,
)
def test_recursive_type_has_an_example(annotation: Any) -> None:
    """An arm that ends is taken, or an empty list; there is a tensor."""

    @attrs.define
    class Batch:
        x: annotation

    assert list(reachable(example(Batch)))


def test_type_that_is_not_known_asks_for_a_value() -> None:
    """It is neither left out nor None."""

    @attrs.define
    class Batch:
        x: Dynamic["Unresolvable"]  # noqa: F821

    with pytest.raises(TypeError) as caught:
        example(Batch)
    assert str(caught.value).endswith(
        ".Batch.x`: the type `Unresolvable` is not known. Pass a value: "
        "`example(Batch, x=...)`."
    )


# Classes that are hard to make or to copy.


class SelfMoving:
    """Moves and records itself, and cannot be pinned."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    @property
    def device(self) -> torch.device:
        return self.data.device

    def to(self, device: Any) -> "SelfMoving":
        return SelfMoving(self.data.to(device))

    def record_stream(self, stream: torch.Stream) -> None:
        self.data.record_stream(stream)


class Forwarding(SelfMoving):
    """Has the attributes of what it holds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)

    def to(self, device: Any) -> "Forwarding":
        return Forwarding(self.data.to(device))

    def pin_memory(self) -> "Forwarding":
        return Forwarding(self.data.pin_memory())


class NotCopied(SelfMoving):
    """Is itself where it is copied, and forgets its tensor."""

    def __deepcopy__(self, memo: Any) -> "NotCopied":
        return self

    def to(self, device: Any) -> "NotCopied":
        return NotCopied(self.data.to(device))

    def record_stream(self, stream: torch.Stream) -> None:
        pass


@pytest.mark.parametrize("cls", [SelfMoving, Forwarding])
def test_type_that_moves_itself_is_covered(cls: type) -> None:
    """Alone and as a field, though it cannot be pinned or forwards all names."""
    assert_covers(cls)
    assert_covers(holder(cls))


def test_class_that_is_not_copied_is_covered_all_the_same() -> None:
    """Its `__deepcopy__` is not asked: what it records is seen."""
    assert copy.deepcopy(kept := NotCopied(torch.ones(1))) is kept
    assert failure(NotCopied) == ["`NotCopied.record_stream` leaves out `data`."]


def test_own_init_is_called_with_what_it_takes() -> None:
    """It may have other arguments than there are fields."""

    @payload
    @attrs.define(init=False)
    class Batch:
        ids: Tensor
        mask: Tensor

        def __init__(self, ids: Tensor, scale: float) -> None:
            self.ids, self.mask = ids, ids * scale

    assert_covers(Batch)
    assert ["ids", "mask"] == [key for key, _ in reachable(example(Batch))]


# What is filled.


class ByHand:
    """Records what it is told to, of a list and of a union."""

    def __init__(self, xs: list[Tensor], either: Tensor | list[Tensor] | None) -> None:
        self.xs, self.either = xs, either

    def record_stream(self, stream: torch.Stream) -> None:
        self.xs[0].record_stream(stream)
        if isinstance(self.either, Tensor):
            self.either.record_stream(stream)


def test_second_item_and_every_arm_are_looked_at() -> None:
    """A method that handles the first of each leaves out the others."""
    assert failure(ByHand) == [
        "`ByHand.record_stream` leaves out `xs[1]`.",
        "`ByHand.record_stream` leaves out `xs[1]`, `either[0]`, `either[1]`.",
    ]


def test_two_entries_of_a_mapping_are_looked_at() -> None:
    """Each with a key of its own."""

    class Mapped:
        def __init__(
            self, named: dict[str, Tensor], counted: dict[int, Tensor]
        ) -> None:
            self.named, self.counted = named, counted

        def record_stream(self, stream: torch.Stream) -> None:
            next(iter(self.named.values())).record_stream(stream)
            self.counted[1].record_stream(stream)

    (line,) = failure(Mapped)
    assert line.endswith("leaves out `named['ab']`, `counted[2]`.")


T = TypeVar("T")


class Opaque:
    def __init__(self, handle) -> None:  # noqa: ANN001  # nothing is known
        self.handle = handle


class Vague(Generic[T]):
    """Fields that an example cannot fill."""

    def __init__(
        self, ids: Tensor, extra: Any, items: list, handle: Opaque | None = None
    ) -> None:
        self.ids, self.extra, self.items, self.handle = ids, extra, items, handle

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)


def test_field_that_could_not_be_filled_is_an_error() -> None:
    """Each is named, with the way to give a value."""
    assert failure(Vague) == [
        f"`Vague.{name}`: {problem}. Pass a value: `assert_covers(Vague, {name}=...)`."
        for name, problem in {
            "extra": "`Any` does not say what it holds",
            "items": "`list` does not say what it holds",
            "handle": "no example can be made of `Opaque`",
        }.items()
    ]
    assert_covers(Vague, extra=None, items=[], handle=None)
    assert failure(Vague, extra=None, items=[], handle=torch.ones(1)) == [
        "`Vague.record_stream` leaves out `handle`."
    ]


def test_field_that_stays_needs_no_example() -> None:
    """What is marked to stay where it is owes nothing."""

    @payload
    class Batch(Payload):
        ids: Tensor
        session: HostOnly[Any]
        owner: Borrowed[Opaque]
        extra: Dynamic[Any] = None

    assert_covers(Batch)
