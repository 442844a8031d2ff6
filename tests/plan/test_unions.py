"""Unions: the value decides, and where it cannot, the class is refused."""

import collections
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypedDict, Union

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from tensorpack import (
    Borrowed,
    Derived,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeAdapter,
    LifetimeError,
    payload,
    tensors,
)


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


@payload
class Inner:
    t: Tensor


@payload
class Child(Inner):
    u: Tensor | None = None


class Pair(NamedTuple):
    left: Tensor
    right: int = 0


class Numbers(NamedTuple):
    n: int


class Extra(TypedDict):
    a: Tensor


class Handle:
    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class HandleAdapter(LifetimeAdapter[Handle]):
    def leaves(self, value: Handle) -> Sequence[Tensor]:
        return [value.keys]

    def rebuild(self, value: Handle, leaves: Sequence[Tensor]) -> Handle:
        return Handle(leaves[0])


def holder(annotation: Any) -> Any:
    """Make a payload whose one field `x` has an annotation."""
    return payload(attrs.make_class("Holder", {"x": attrs.field(type=annotation)}))


def keys(annotation: Any, value: Any) -> list[str]:
    """List the keys in a field after a move, without the field's name."""
    moved = holder(annotation)(value).to_device("meta")
    assert type(value) is type(moved.x)
    assert all(leaf.is_meta for _, leaf in tensors(moved))
    return [key[1:] for key, _ in tensors(moved)]


Nested = Tensor | list[Tensor | list[int]]

TAKES: list[tuple[Any, Any, list[str]]] = [
    (Tensor | bool, one(), [""]),
    (Tensor | bool, True, []),
    (Tensor | bool, None, []),
    (Union[int, None, Tensor], one(), [""]),
    (Nested, one(), [""]),
    (Nested, [one(), None], ["[0]"]),
    (Nested, [[1], [2]], []),
    (Nested, [[1], one()], ["[1]"]),
    (list[Tensor] | tuple[Tensor, ...], (one(),), ["[0]"]),
    (list[Tensor] | tuple[Tensor, ...], [one()], ["[0]"]),
    (
        Tensor | dict[str, Tensor] | dict[tuple[str, str], Tensor],
        {"a": one()},
        ["['a']"],
    ),
    (list[int] | list[str] | Tensor, ["a"], []),
    (Inner | Child, Child(one(), one()), [".t", ".u"]),
    (Inner | Tensor | int, Inner(one()), [".t"]),
    (Inner | Tensor | int, 3, []),
    (Handle | Tensor | None, Handle(one()), ["[0]"]),
    (Pair | tuple[Tensor, int], Pair(one()), [".left"]),
    (Pair | tuple[Tensor, int], (one(), 1), ["[0]"]),
    (Pair | Numbers, Numbers(1), []),
    (Extra | list[Tensor], {"a": one()}, ["['a']"]),
    (Extra | list[Tensor], [one()], ["[0]"]),
    (Tensor | HostOnly[Any], one(), [""]),
    (Tensor | HostOnly[Any], object(), []),
    (dict[str, Tensor | HostOnly[object]], {"a": one(), "b": object()}, ["['a']"]),
    (Dynamic[dict[str, Any]] | Tensor, {"a": [one()]}, ["['a'][0]"]),
    (Dynamic[dict[str, Any]] | Tensor, one(), [""]),
    (Annotated[Tensor | int, "note"], one(), [""]),
    (Tensor | np.ndarray, np.ones(2), []),
    (Tensor | typing.Literal["auto"], "auto", []),
    (list[float] | Tensor | None, [0.5], []),
    (list[Tensor | Inner] | Inner, [Inner(one()), one()], ["[0].t", "[1]"]),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), TAKES)
def test_value_decides(annotation: Any, value: Any, expected: list[str]) -> None:
    """Each value goes the way of its own arm, or of the merged arms."""
    assert expected == keys(annotation, value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Tensor | bool, object()),
        (Tensor | int, [torch.ones(1)]),
        (Tensor | int, Inner(torch.ones(1))),
        (Inner | int, torch.ones(1)),
        (list[Tensor] | int, {"a": torch.ones(1)}),
        (list[Tensor] | int, torch.ones(1)),
        (Handle | Tensor, [Handle(torch.ones(1))]),
        (Nested, [[torch.ones(1)], object()]),
        (tuple[Tensor, int] | Inner, (torch.ones(1), 2, 3)),
    ],
)
def test_value_of_no_arm_raises(annotation: Any, value: Any) -> None:
    """A value that no arm claims raises, unless it is a host value."""
    with pytest.raises(LeafError, match="x"):
        keys(annotation, value)


@pytest.mark.parametrize(
    ("annotation", "culprit"),
    [
        (Extra | dict[str, Tensor], "Extra | dict[str, Tensor]"),
        (Extra | Mapping[str, int], "Extra | Mapping[str, int]"),
        (Borrowed[Tensor] | Tensor, "Borrowed[Tensor] | Tensor"),
        (Borrowed[Tensor] | HostOnly[int], "Borrowed[Tensor] | HostOnly[int]"),
        (
            list[Borrowed[Tensor]] | list[Tensor],
            "list[Borrowed[Tensor]] | list[Tensor]",
        ),
        (Dynamic[list] | HostOnly[dict], "Dynamic[list] | HostOnly[dict]"),
        (Derived[Tensor] | int, "Derived[Tensor]"),
        (Tensor | object, "object"),
        (Tensor | Any, "Any"),
        (Tensor | list[object], "object"),
    ],
    ids=str,
)
def test_arms_that_no_value_could_tell_apart_are_refused(
    annotation: Any, culprit: str
) -> None:
    """A class is refused where a value could not say which arm it belongs to."""
    with pytest.raises(LifetimeError) as caught:
        holder(annotation)

    assert culprit == caught.value.refusals[0].culprit


ALIKE: list[tuple[Any, str]] = [
    (list[Tensor] | list[Inner], "list[Tensor | Inner]"),
    (list[Tensor] | list[list[Tensor]] | None, "list[Tensor | list[Tensor]]"),
    (list[Tensor] | list[int], "list[Tensor | int]"),
    (list[Tensor] | Sequence[Inner], "Sequence[Tensor | Inner]"),
    (tuple[Tensor, ...] | Sequence[Tensor], "Sequence[Tensor]"),
    (tuple[Tensor, ...] | tuple[Inner, ...], "tuple[Tensor | Inner, ...]"),
    (tuple[Tensor, int] | tuple[int, Tensor], "tuple[Tensor | int, int | Tensor]"),
    (tuple[Tensor, int] | tuple[Tensor], "tuple[Tensor | int, ...]"),
    (tuple[Tensor, int] | Sequence[Tensor], "Sequence[Tensor | int]"),
    (collections.deque[Tensor] | collections.deque[Inner], "deque[Tensor | Inner]"),
    (dict[str, Tensor] | dict[int, Inner], "dict[str | int, Tensor | Inner]"),
    (dict[str, Tensor] | Mapping[str, Inner], "Mapping[str, Tensor | Inner]"),
    (
        dict[str, Tensor] | collections.OrderedDict[str, Handle],
        "dict[str, Tensor | Handle]",
    ),
    (list[list[Tensor]] | list[list[Inner]], "list[list[Tensor | Inner]]"),
    (list[Tensor | int] | list[int | str], "list[Tensor | int | str]"),
    (
        list[Union[Tensor, dict[str, int]]] | list[str],
        "list[Tensor | dict[str, int] | str]",
    ),
]


@pytest.mark.parametrize(("annotation", "instead"), ALIKE, ids=str)
def test_arms_of_one_container_are_refused(annotation: Any, instead: str) -> None:
    """A list does not say which of two lists it is: the union belongs inside it."""
    with pytest.raises(LifetimeError) as caught:
        holder(annotation)

    (refusal,) = caught.value.refusals
    assert "that a value cannot tell apart" in refusal.reason
    assert (f"Write `{instead}`.",) == refusal.remedies


@pytest.mark.parametrize(("annotation", "instead"), ALIKE, ids=str)
def test_remedy_for_arms_of_one_container_is_accepted(
    annotation: Any, instead: str
) -> None:
    """What the refusal says to write is no dead end."""
    scope = {**globals(), "deque": collections.deque}
    accepted: Any = eval(instead, scope)  # noqa: S307  # the remedy is code

    assert ("x",) == holder(accepted).payload_keys()


def test_arms_of_one_container_with_equal_items_are_one() -> None:
    """Keys stay on the host, so dictionaries that differ in keys alone are alike."""
    annotation = dict[str, Tensor] | dict[tuple[str, str], Tensor]

    assert ["['a']"] == keys(annotation, {"a": one()})


def test_containers_of_host_values_stay() -> None:
    """Nothing has to be told apart where nothing is moved."""
    assert ("x",) == holder(list[int] | list[str] | Sequence[float]).host_keys()


def test_order_of_arms_does_not_matter() -> None:
    """The same arms in another order give the same verdicts."""
    values = [one(), Inner(one()), [one()], 3, {"a": one()}]
    arms = [Tensor, Inner, list[Tensor], int, dict[str, Tensor]]
    for turn in range(len(arms)):
        annotation: Any = Union[tuple(arms[turn:] + arms[:turn])]
        assert [[""], [".t"], ["[0]"], [], ["['a']"]] == [
            keys(annotation, value) for value in values
        ]


def test_tuple_with_an_unpacked_tuple_is_refused() -> None:
    """`tuple[int, *tuple[Tensor, ...]]` was read as a tuple inside a tuple."""
    with pytest.raises(LifetimeError, match="unpacks a tuple"):
        holder(tuple[int, *tuple[Tensor, ...]])


def test_empty_tuple_is_a_host_type() -> None:
    """`tuple[()]` is the empty tuple; a bare `Tuple` is not.

    A bare `typing.Tuple` was read as the empty tuple.
    """
    assert ("x",) == holder(tuple[()]).host_keys()
    with pytest.raises(LifetimeError):
        holder(typing.Tuple)
