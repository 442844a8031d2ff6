"""The poison trial for a payload with every kind of dense leaf."""

from typing import Any, NamedTuple, TypedDict

import pytest
import torch
from torch import Tensor

from tensorpack import Dynamic, Payload, payload, tensors
from tests.gpu.poison import DEVICE, Trial, with_nothing, with_ours

pytestmark = [pytest.mark.cuda, pytest.mark.unguarded]  # controls record nothing

TIMES = 100
CONTROLS = 20
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


class Named(Tensor):
    """A subclass that keeps its storage."""


class Pair(NamedTuple):
    left: Tensor
    right: int


class Extra(TypedDict):
    a: Tensor
    n: int


@payload
class Inner(Payload):
    t: Tensor
    size: int = 1


@payload
class Every(Payload):
    """A leaf of every dense kind, in every kind of container."""

    by_dtype: dict[str, Tensor]
    scalar: Tensor
    empty: Tensor
    transposed: Tensor
    strided: Tensor
    expanded: Tensor
    channels_last: Tensor
    row: Tensor
    parameter: torch.nn.Parameter
    requires_grad: Tensor
    named: Named
    large: Tensor
    shared: Tensor
    again: Tensor
    inner: Inner
    images: list[list[Tensor]]
    pair: Pair
    extra: Extra
    parts: tuple[Tensor, ...]
    either: Tensor | list[Inner] | int
    open: Dynamic[dict[str, Any]]
    nothing: Tensor | None = None


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Make host values that differ from the poison."""
    return torch.ones(shape, dtype=torch.float32).to(dtype)


def every() -> Every:
    """Make the payload on the host."""
    shared = ones(300)
    return Every(
        by_dtype={str(dtype): ones(200, dtype=dtype) for dtype in DTYPES},
        scalar=torch.tensor(3.0),
        empty=ones(0, 3),
        transposed=ones(20, 30).t(),
        strided=ones(40, 40)[::2, 1:30],
        expanded=ones(1, 50).expand(20, 50),
        channels_last=ones(2, 3, 8, 8).to(memory_format=torch.channels_last),
        row=ones(1000, 200)[7],
        parameter=torch.nn.Parameter(ones(150)),
        requires_grad=ones(150).requires_grad_(),
        named=ones(120).as_subclass(Named),
        large=ones(1 << 20),
        shared=shared,
        again=shared,
        inner=Inner(ones(111)),
        images=[[ones(90), ones(91)], [ones(92)]],
        pair=Pair(ones(93), 1),
        extra={"a": ones(94), "n": 1},
        parts=(ones(95), ones(96)),
        either=[Inner(ones(97))],
        open={"grid": ones(98), "deep": [{"x": Inner(ones(99))}], "n": 3},
    )


def pinned(source: Every) -> Every:
    """Pin what can be pinned without a change of its strides."""
    source.large = source.large.pin_memory()
    source.inner.t = source.inner.t.pin_memory()
    return source


def test_every_dense_leaf_survives_until_it_is_read() -> None:
    """With our methods no value is ever another's; without the record many are."""
    source = pinned(every())
    trial = Trial(lambda: source.to_device(DEVICE, non_blocking=True))
    control = trial.corrupted(CONTROLS, with_nothing)
    ours = trial.corrupted(TIMES, with_ours)
    print(  # the figure
        f"leaves: {len(list(tensors(source)))}; corrupted: {ours} of {TIMES} recorded, "
        f"{control} of {CONTROLS} unrecorded"
    )

    assert 0 == ours
    assert CONTROLS // 2 < control


# The allocator of the driver says so itself when the allocation stream is recorded.
@pytest.mark.filterwarnings("ignore:Called record_stream on tensor whose original")
def test_recording_the_wrong_stream_is_no_help() -> None:
    """The stream that must be recorded is the one that reads."""
    source = every()
    trial = Trial(lambda: source.to_device(DEVICE, non_blocking=True))
    wrong = trial.corrupted(CONTROLS, lambda value, _: with_ours(value, trial.copies))

    assert CONTROLS // 2 < wrong


@pytest.mark.parametrize("key", [key for key, _ in tensors(every())])
def test_one_forgotten_leaf_is_seen(key: str) -> None:
    """The trial sees each leaf: recording all but one shows that one corrupted."""
    source = every()
    trial = Trial(lambda: source.to_device(DEVICE, non_blocking=True))
    leaf = dict(tensors(source))[key]
    if leaf.numel() == 0:
        pytest.skip("a leaf without memory cannot be corrupted")
    if torch.cuda.memory.get_allocator_backend() == "cudaMallocAsync":
        pytest.skip("which of many blocks is used again is the driver's choice")
    if leaf is source.shared:
        pytest.skip("the leaf stands in two fields, so it is recorded by the other")

    def all_but_one(value: Every, stream: torch.Stream) -> None:
        for other, found in tensors(value):
            if other != key:
                found.record_stream(stream)

    assert 0 < trial.corrupted(5, all_but_one)
