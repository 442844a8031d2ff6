"""Payloads that a function makes or takes while `torch.compile` traces it whole."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import Payload, payload

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch warns of its own internals
    pytest.mark.skipif(
        torch.__version__ < "2.11", reason="an older torch traces no sets"
    ),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Let each test trace anew."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def double(value: Any) -> Any:
    return 2 * value


class Fields:
    ids: Tensor
    size: int = 3


class Converted:
    ids: Tensor = attrs.field(converter=double)
    size: int = attrs.field(default=3, validator=attrs.validators.instance_of(int))


MADE: dict[str, Callable[[], Any]] = {
    "plain": lambda: payload(_copy(Fields)),
    "with a base": lambda: payload(_copy(Fields, Payload)),
    "in a dictionary": lambda: payload(slots=False)(_copy(Fields)),
    "frozen": lambda: payload(frozen=True)(_copy(Fields)),
    "frozen, in a dictionary": lambda: payload(frozen=True, slots=False)(_copy(Fields)),
    "converted": lambda: payload(_copy(Converted)),
    "adopted attrs": lambda: payload(attrs.frozen(_copy(Fields))),
    "dataclass": lambda: payload(dataclasses.dataclass(_copy(Fields))),
    "frozen dataclass": lambda: payload(
        dataclasses.dataclass(frozen=True, slots=True)(_copy(Fields))
    ),
}


def _copy(body: type, *bases: type) -> type:
    """Make a class anew, since each test decorates its own."""
    kept = {k: v for k, v in vars(body).items() if k not in ("__dict__", "__weakref__")}
    return type("Batch", bases, kept)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_construction_is_traced_whole(make: Callable[[], Any], backend: str) -> None:
    """A payload may be made, read and handed out; frozen ones were not traced."""
    cls = make()

    def step(ids: Tensor) -> tuple[Any, Tensor]:
        batch = cls(ids + 1, size=4)
        return batch, batch.ids * batch.size

    expected, expected_product = step(torch.ones(2))
    batch, product = torch.compile(step, fullgraph=True, backend=backend)(torch.ones(2))

    assert type(batch) is cls
    assert torch.equal(expected.ids, batch.ids)
    assert 4 == batch.size
    assert torch.equal(expected_product, product)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_move_is_traced_whole(make: Callable[[], Any]) -> None:
    """A payload that comes in may be moved, and read on the way."""
    batch = make()(torch.ones(2))

    def step(batch: Any) -> Tensor:
        moved = batch.to_device("cpu", non_blocking=True)
        found: Tensor = moved.ids * moved.size + batch.ids
        return found

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")

    assert torch.equal(step(batch), compiled(batch))


def test_gradients_flow_through_a_payload() -> None:
    """What is computed from a payload's leaves can be differentiated."""

    @payload(frozen=True)
    class Batch:
        ids: Tensor

    def loss(ids: Tensor) -> Tensor:
        return (Batch(ids * 2).to_device("cpu").ids ** 2).sum()

    ids = torch.ones(2, requires_grad=True)
    torch.compile(loss, fullgraph=True, backend="aot_eager")(ids).backward()

    assert [8.0, 8.0] == ids.grad.tolist()  # type: ignore[union-attr]  # it has one


def test_frozen_payload_stays_frozen() -> None:
    """What lets the `__init__` be traced opens nothing else."""

    @payload(frozen=True)
    class Batch:
        ids: Tensor

    batch = Batch(torch.ones(2))

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        batch.ids = torch.ones(3)  # type: ignore[misc]  # on purpose


def test_other_functions_keep_their_names() -> None:
    """An `__init__` that is written by hand lives in its module, and is left alone."""

    @payload(frozen=True)
    class Batch:
        ids: Tensor

        def __init__(self, ids: Tensor) -> None:
            self.__attrs_init__(ids)  # type: ignore[attr-defined]  # attrs makes it

    assert __name__ == Batch.__init__.__globals__["__name__"]
    assert torch.equal(torch.ones(2), Batch(torch.ones(2)).ids)
