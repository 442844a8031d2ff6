"""`torch.save` and `torch.load`, which by default loads nothing but weights."""

import dataclasses
import io
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorpack import Derived, Payload, payload, tensors


@payload
class Slotted(Payload):
    ids: Tensor
    _private: Tensor | None = None
    size: int = 1


@payload(frozen=True)
class Frozen(Payload):
    ids: Tensor
    inner: Slotted | None = None
    cache: Derived[Tensor | None] = None


@payload(slots=False)
class InDict(Payload):
    ids: Tensor
    many: list[dict[str, Frozen]]


@payload
@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData(Payload):
    ids: Tensor
    names: tuple[str, ...] = ()


@payload
@dataclasses.dataclass
class Data(Payload):
    ids: Tensor
    data: FrozenData | None = None
    rows: list[Tensor] = dataclasses.field(default_factory=list)


CLASSES = [Slotted, Frozen, InDict, FrozenData, Data]


def one() -> Tensor:
    """Make a small leaf."""
    return torch.arange(3.0)


MADE: dict[str, Callable[[], Any]] = {
    "slotted": lambda: Slotted(one(), one() + 1, 7),
    "frozen": lambda: Frozen(one(), Slotted(one()), one()),
    "in a dictionary": lambda: InDict(one(), [{"a": Frozen(one())}]),
    "frozen dataclass": lambda: FrozenData(one(), ("a", "b")),
    "dataclass": lambda: Data(one(), FrozenData(one()), [one()]),
}


def saved(value: object) -> io.BytesIO:
    """Write a value into memory."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_weights_only_loads_a_class_that_is_declared_safe(
    make: Callable[[], Any],
) -> None:
    """After `safe_globals` a payload comes back whole; before it, torch refuses."""
    value = make()
    file = saved(value)

    with pytest.raises(UnpicklingError, match=type(value).__name__):
        torch.load(file)

    file.seek(0)
    with torch.serialization.safe_globals(CLASSES):
        again = torch.load(file)

    assert type(again) is type(value)
    assert [key for key, _ in tensors(value)] == [key for key, _ in tensors(again)]
    assert all(
        torch.equal(old, new)
        for (_, old), (_, new) in zip(tensors(value), tensors(again), strict=True)
    )
    assert all(
        getattr(value, name) == getattr(again, name) for name in value.host_keys()
    )


def test_map_location_reaches_every_leaf() -> None:
    """Leaves are loaded where the caller wants them."""
    with torch.serialization.safe_globals(CLASSES):
        again = torch.load(saved(MADE["frozen"]()), map_location="meta")

    assert all(leaf.is_meta for _, leaf in tensors(again))
    assert again.cache.is_meta
