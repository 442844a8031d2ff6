"""tensordict: its dictionaries and tensorclasses as leaves of a payload."""

from typing import Any

import pytest
import torch
from clients.libraries import client
from torch import Tensor
from torch.utils import _pytree as pytree

from tensorpack import (
    Dynamic,
    Payload,
    clone,
    payload,
    register_pytree,
    tensors,
    to_device,
)
from tensorpack.testing import recorded_streams

tensordict = client("tensordict", "0.15")
TensorDict, LazyStackedTensorDict = (
    tensordict.TensorDict,
    tensordict.LazyStackedTensorDict,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of what the library itself calls


@tensordict.tensorclass
class State:
    position: Tensor
    name: str


class Typed(tensordict.TensorClass):  # type: ignore[misc,name-defined]  # no stubs
    velocity: Tensor


@register_pytree
@payload
class Batch(Payload):
    data: TensorDict
    state: State | None = None
    typed: Typed | None = None
    many: list[TensorDict] | None = None
    open: Dynamic[Any] = None


def data(size: int = 3) -> Any:
    """Make a dictionary with a part of its own and a value that is no tensor."""
    return TensorDict(
        {"a": torch.ones(size), "in": TensorDict({"b": torch.ones(size, 2)}, [size])},
        batch_size=[size],
    ).set_non_tensor("note", "text")


def batch() -> Batch:
    """Make a payload with each kind of tensordict."""
    return Batch(
        data(),
        State(position=torch.ones(3), name="s", batch_size=[3]),
        Typed(velocity=torch.ones(3), batch_size=[3]),
        [data(1), LazyStackedTensorDict(data(2), data(4), stack_dim=0)],
        {"x": [data()]},
    )


def test_every_kind_travels_whole() -> None:
    """Classes, batch sizes, nested parts and values that are no tensors are kept."""
    value = batch()
    moved = value.to_device("meta")
    assert moved.state is not None
    assert moved.many is not None

    assert all(leaf.is_meta for _, leaf in tensors(moved))
    assert not any(leaf.is_meta for _, leaf in tensors(value))
    assert [key for key, _ in tensors(value)] == [key for key, _ in tensors(moved)]
    assert (TensorDict, State, Typed) == (
        type(moved.data),
        type(moved.state),
        type(moved.typed),
    )
    assert ([3], "text") == (list(moved.data.batch_size), moved.data["note"])
    assert "s" == moved.state.name
    assert type(moved.many[1]) is LazyStackedTensorDict
    assert [(2,), (4,)] == [part["a"].shape for part in moved.many[1].tensordicts]


def test_clone_has_new_memory() -> None:
    """No leaf of a clone is a leaf of the original."""
    value = batch()
    old = {id(leaf) for _, leaf in tensors(value)}

    assert not old & {id(leaf) for _, leaf in tensors(clone(value))}
    assert torch.equal(value.data["in", "b"], clone(value).data["in", "b"])


def test_every_tensor_is_recorded_once() -> None:
    """Its own `record_stream` refuses tensors on the host; each leaf is asked here."""
    host = torch.ones(2)
    with recorded_streams() as log:
        leaves = leaf, other = [torch.ones(2, device="cuda") for _ in range(2)]
        mixed = TensorDict({"a": leaf, "b": host, "c": {"d": other}}, batch_size=[2])
        value = Batch(mixed, many=[TensorDict({"again": leaf}, [2])])
        value.record_stream(torch.Stream("cuda"))

    assert ["[0]", "[1]"] == log.recorded(leaves)


def test_device_that_it_knows_is_the_new_one() -> None:
    """A dictionary that was told its device says the right one after a move."""
    known = TensorDict({"a": torch.ones(2)}, [2], device="cpu").lock_()
    moved = to_device({"data": known}, "meta")["data"]

    assert torch.device("meta") == moved.device
    assert moved.is_locked
    assert torch.device("cpu") == known.device


def test_is_a_part_of_torchs_trees() -> None:
    """Its classes are registered with torch, so `vmap` sees through both."""
    value = Batch(data())
    sums = torch.vmap(lambda one: one.data["a"] + one.data["in", "b"].sum())(value)

    assert [3.0] * 3 == sums.tolist()
    assert 2 <= len(pytree.tree_leaves(value))
