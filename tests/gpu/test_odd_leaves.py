"""Odd leaves on a device: a stream reaches every block that they own."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

from tensorpack import LeafError, payload
from tests.gpu.poison import DEVICE, Trial, device_tensors, with_nothing, with_ours

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.unguarded,  # controls record nothing
    pytest.mark.filterwarnings("ignore"),
]

TIMES = 10
N = 1000


@payload
class Batch:
    x: Tensor


def values(*shape: int) -> Tensor:
    """Make host values that differ from each other and from the poison."""
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) % 97


def nested(layout: torch.layout) -> Tensor:
    """Make a nested tensor."""
    return torch.nested.nested_tensor([values(N), values(2 * N)], layout=layout)


def by_channel() -> Tensor:
    """Make a tensor that is quantized by channels."""
    scales, zeros = torch.rand(N).double() + 0.1, torch.zeros(N, dtype=torch.int64)
    return torch.quantize_per_channel(values(N, 4), scales, zeros, 0, torch.qint8)


MOVED: dict[str, Callable[[], Tensor]] = {
    "coo": lambda: values(N, 8).to_sparse(),
    "coo, not coalesced": lambda: torch.sparse_coo_tensor(
        torch.zeros(1, N, dtype=torch.int64), values(N, 8), (4, 8)
    ),
    "csr": lambda: values(N, 8).to_sparse_csr(),
    "csc": lambda: values(N, 8).to_sparse_csc(),
    "bsr": lambda: values(N, 8).to_sparse_bsr((2, 2)),
    "bsc": lambda: values(N, 8).to_sparse_bsc((2, 2)),
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "jagged with lengths": lambda: torch.nested.nested_tensor_from_jagged(
        values(2 * N), torch.arange(0, N, 10), lengths=torch.ones(99).long()
    ),
    "quantized": lambda: torch.quantize_per_tensor(values(N), 0.5, 0, torch.qint8),
    "quantized by channel": by_channel,
    "wrapper": lambda: TwoTensor(values(N), values(N) + 1),
    "wrapped wrapper": lambda: TwoTensor(
        TwoTensor(values(N), values(N) + 1), TwoTensor(values(N) + 2, values(N) + 3)
    ),
}
"""Made on the host, and moved by the payload."""

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugate": lambda t: torch.complex(t, t + 1).conj(),
    "negative": lambda t: torch.complex(t, t + 1).conj().imag,
    "adjoint": lambda t: torch.complex(t, t + 1).mH,
    "transposed": lambda t: t.t(),
    "expanded": lambda t: t[0].expand(7, -1),
    "strided": lambda t: t[::3, 1],
    "channels last": lambda t: t.reshape(2, 4, 5, -1).to(
        memory_format=torch.channels_last
    ),
}
"""Made on the device, as a view of something that was moved."""


def check(make: Callable[[], Batch]) -> None:
    """Assert that the control is corrupted, and that ours is never."""
    trial = Trial(make)
    control = trial.corrupted(TIMES, with_nothing)
    ours = trial.corrupted(TIMES, with_ours)
    print(f"corrupted of {TIMES}: {control} unrecorded, {ours} recorded")  # the figure

    assert 0 < control
    assert 0 == ours


@pytest.mark.parametrize("make", MOVED.values(), ids=MOVED)
def test_moved_leaf_survives_until_it_is_read(make: Callable[[], Tensor]) -> None:
    """Every block of a leaf that was moved is kept for the stream that reads it."""
    source = Batch(make())
    try:
        source.to_device(DEVICE)
    except RuntimeError as error:
        pytest.skip(f"torch itself does not move it: {str(error)[:60]}")

    check(lambda: source.to_device(DEVICE, non_blocking=True))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_view_survives_until_it_is_read(view: Callable[[Tensor], Tensor]) -> None:
    """The block of a leaf that is a view of it is kept for the stream that reads it.

    Of a conjugate or negative view, torch records the block of a copy.
    """
    source = values(40, 50).pin_memory()

    check(lambda: Batch(view(source.to(DEVICE, non_blocking=True))))


@pytest.mark.parametrize("make", MOVED.values(), ids=MOVED)
def test_moved_leaf_is_equal(make: Callable[[], Tensor]) -> None:
    """A leaf that is moved there and back has the values of the original."""
    source = Batch(make())
    try:
        back = source.to_device(DEVICE).to_device("cpu")
    except RuntimeError as error:
        pytest.skip(f"torch itself does not move it: {str(error)[:60]}")

    assert type(source.x) is type(back.x)
    assert source.x.layout == back.x.layout
    for before, after in zip(plain(source.x), plain(back.x), strict=True):
        assert torch.equal(before, after)


def plain(leaf: Tensor) -> list[Tensor]:
    """List plain tensors that say what an odd one holds."""
    if isinstance(leaf, TwoTensor):
        return [*plain(leaf.a), *plain(leaf.b)]
    if leaf.is_quantized:
        return [leaf.int_repr(), leaf.dequantize()]
    if leaf.is_nested:
        return list(leaf.unbind())
    return [leaf.to_dense()]


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Give the mesh of a group of one process."""
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.init_device_mesh(DEVICE, (1,))
    dist.destroy_process_group()


def test_distributed_tensor_survives_until_it_is_read(mesh: Any) -> None:
    """A `DTensor` is recorded by its local tensor."""
    from torch.distributed.tensor import DTensor, Shard  # noqa: PLC0415  # not in all builds

    source = values(N).pin_memory()

    def make() -> Batch:
        local = source.to(DEVICE, non_blocking=True)
        return Batch(DTensor.from_local(local, mesh, [Shard(0)], run_check=False))

    check(make)


def test_tensor_without_memory_is_passed_over() -> None:
    """The zeros of forward-mode autograd, and empty tensors, have nothing to record."""
    for leaf in (
        torch._efficientzerotensor(3, device=DEVICE),
        torch.empty(0, device=DEVICE),
        torch.empty(3, 0, device=DEVICE).to_sparse(),
    ):
        Batch(leaf).record_stream(torch.cuda.Stream())


def test_what_cannot_be_opened_raises() -> None:
    """A leaf of unknown memory raises before it could be read too late."""
    on = torch.ones(2, device=DEVICE)
    leaf = masked_tensor(on, on > 0)

    with pytest.raises(LeafError, match="wraps memory that only it knows") as caught:
        Batch(leaf).record_stream(torch.cuda.Stream())

    assert "x" == caught.value.key


def test_host_parts_are_not_recorded() -> None:
    """What a device leaf keeps on the host is none of the allocator's business."""
    batch = Batch(by_channel())
    try:
        moved = batch.to_device(DEVICE)
    except RuntimeError as error:
        pytest.skip(f"torch itself does not move it: {str(error)[:60]}")

    assert all(tensor.is_cuda for tensor in device_tensors(moved))
    moved.record_stream(torch.cuda.Stream())
