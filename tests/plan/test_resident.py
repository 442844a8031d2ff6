"""`Resident`: recorded where it is, never moved, kept by a new object."""

from typing import Annotated

import pytest
import torch
from torch import Tensor

from tensorpack import (
    Axis,
    AxisError,
    CopyStream,
    LifetimeError,
    Payload,
    Resident,
    clone,
    evolve,
    payload,
    tensors,
)
from tensorpack.axes import cat, select
from tensorpack.testing import recorded_streams


@payload
class Step(Payload):
    ids: Annotated[Tensor, Axis("requests")]
    cache: Resident[list[Tensor]]


def test_resident_neither_travels_nor_is_listed() -> None:
    """It is in neither list of keys, and every new object has the same object."""
    cache = [torch.ones(1)]
    step = Step(torch.arange(2), cache)

    assert (("ids",), ()) == (Step.payload_keys(), Step.host_keys())
    assert ["ids"] == [key for key, _ in tensors(step)]
    for new in (step.to_device("meta"), clone(step), evolve(step, ids=cache[0])):
        assert cache is new.cache
    assert cache is select(step, requests=[0]).cache


def test_resident_is_recorded() -> None:
    """The consumer is recorded on it, and nothing is copied for it."""
    with recorded_streams() as log:
        cache = [torch.ones(1, device="cuda")]
        consumer = torch.Stream("cuda")
        moved = CopyStream("cuda").start(Step(torch.arange(2), cache)).value
        moved.record_stream(consumer)

        assert cache is moved.cache
        assert ["ids", "cache[0]"] == log.recorded(moved, consumer)


def test_resident_of_two_steps_must_be_one() -> None:
    """`cat` cannot choose between two."""
    one, two = (Step(torch.arange(2), [torch.ones(1)]) for _ in range(2))
    two.cache = [torch.zeros(1)]

    with pytest.raises(AxisError, match=r"`Step.cache`: is not the same in all"):
        cat([one, two], "requests")
    together = cat([one, evolve(two, cache=one.cache)], "requests")
    assert one.cache is together.cache


def test_resident_is_a_whole_field() -> None:
    """Inside another type it is refused, as it could not be told apart."""
    with pytest.raises(LifetimeError, match="Mark the whole field `Resident`"):

        @payload
        class Bad(Payload):
            caches: list[Resident[Tensor]]
