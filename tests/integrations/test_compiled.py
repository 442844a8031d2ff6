"""Payloads in functions that `torch.compile` traces whole."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from torch import Tensor

import tensorpack
from tensorpack import Derived, Dynamic, clone, evolve, payload, tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch warns of its own internals
    pytest.mark.skipif(
        torch.__version__ < "2.11", reason="an older torch traces no sets"
    ),
]


class Pair(NamedTuple):
    left: Tensor
    right: int


def classes() -> tuple[Any, Any, Any]:
    """Make payload classes that nobody has used yet."""

    @payload
    class Inner:
        t: Tensor
        n: int = 1

    @payload(frozen=True)
    class Frozen:
        t: Tensor
        inner: Inner | None = None

    @payload
    @attrs.define(slots=False)
    class Batch:
        ids: Tensor
        many: list[Tensor]
        named: dict[str, Tensor]
        inner: Inner
        frozen: Frozen
        pair: Pair
        either: Tensor | list[Tensor] | int = 3
        none: Tensor | None = None
        cache: Derived[Tensor | None] = None
        parts: tuple[Tensor, ...] = ()
        open: Dynamic[Any] = None

    return Inner, Frozen, Batch


def batch() -> Any:
    """Make a payload of a class that nobody has used yet."""
    inner, frozen, cls = classes()
    one = torch.ones(2)
    return cls(
        one,
        [one + 1],
        {"a": one + 2},
        inner(one + 3),
        frozen(one + 4, inner(one + 5)),
        Pair(one + 6, 1),
        [one + 7],
        None,
        one + 8,
        (one + 9,),
        {"x": one + 10, "y": [inner(one + 11), 3, "text"]},
    )


def total(value: Any) -> Tensor:
    """Add up all leaves."""
    found = torch.zeros(2)
    for _, leaf in tensors(value):
        found = found + leaf
    return found


USES: dict[str, Callable[[Any], Tensor]] = {
    "read": lambda value: value.ids + value.frozen.inner.t,
    "to_device": lambda value: total(value.to_device("cpu")),
    "to": lambda value: value.to("cpu").inner.t + 1,
    "another device": lambda value: value.to_device("meta").pair.left,
    "clone": lambda value: total(clone(value)),
    "evolve": lambda value: evolve(value, ids=value.ids + 1).ids,
    "tensors": total,
    "container": lambda value: tensorpack.to_device([value], "cpu")[0].many[0],
    "mapping": lambda value: tensorpack.to_device(
        {"in": value, "step": 3}, "cpu", keys=("in",)
    )["in"].either[0],
    "keys": lambda value: value.ids + len(value.payload_keys()),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Let each test trace anew."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("warm", [False, True], ids=["first use", "used before"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_is_traced_whole(use: Callable[[Any], Tensor], warm: bool) -> None:
    """Tracing finds one graph, also where it is the first to use a class.

    A class compiles its traversals when it is first used, and tracing looked into that.
    """
    value = batch()
    if warm:
        value.to_device("cpu")
        list(tensors(value))
    compiled = torch.compile(use, fullgraph=True, backend="eager")
    found = [compiled(value) for _ in range(3)]
    expected = use(value)

    for result in found:
        assert expected.device == result.device
        assert result.is_meta or torch.equal(expected, result)


def test_payload_is_an_argument_and_a_result() -> None:
    """A payload may enter and leave a compiled function."""
    value = batch()

    @torch.compile(fullgraph=True, backend="eager")
    def step(value: Any) -> Any:
        moved = value.to_device("cpu")
        return evolve(moved, ids=moved.ids * 2)

    result = step(value)

    assert type(value) is type(result)
    assert [2.0, 2.0] == result.ids.tolist()
    assert [1.0, 1.0] == value.ids.tolist()
    assert result.cache is None


def test_first_use_in_a_trace_still_compiles_for_later() -> None:
    """After a trace, an ordinary use puts the real traversals in place."""
    value = batch()
    torch.compile(lambda value: value.to("cpu").ids, fullgraph=True, backend="eager")(
        value
    )
    value.to_device("cpu")

    file = type(value).__tensorpack_leaves__.__code__.co_filename

    assert file.startswith("<tensorpack generated")
