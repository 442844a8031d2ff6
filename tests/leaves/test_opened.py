"""Odd leaves: what a tensor of any kind owns, and that a stream reaches all of it."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tensorpack import LeafError, clone, payload, tensors
from tensorpack._leaves.record import record
from tensorpack._leaves.storage import as_stored, inner_tensors, owned_tensors

# torch warns that nested, sparse and quantized tensors may still change.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quant.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quant.*:DeprecationWarning"),
]


STREAM = torch.Stream(stream_id=5, device_index=0, device_type=1)  # need not exist


# What is asked here is what torch itself makes of a leaf of each of its kinds, on the
# host too, before it reaches a kernel. The kit's device tensors have a dispatch of
# their own, and the log's storages come from the very functions that are tested. So
# these tests have a recorder of their own, and torch's own fake tensors.


class Reached(TorchDispatchMode):
    """Notes each tensor that a stream is recorded on, with the id of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.record_stream.default:
            return self.calls.append((args[0], args[1].stream_id))
        return func(*args, **(kwargs or {}))


@contextmanager
def reached() -> Iterator[list[tuple[Tensor, int]]]:
    """List every record that the body causes."""
    with Reached() as mode:
        yield mode.calls


@payload
class Batch:
    x: Tensor


def start(tensor: Tensor) -> int:
    """Give the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def coo(*, coalesced: bool) -> tuple[Tensor, list[Tensor]]:
    """Make a sparse tensor, and list what it owns."""
    found = torch.sparse_coo_tensor([[0, 0], [1, 2]], torch.ones(2, 3), (2, 3, 3))
    found = found.coalesce() if coalesced else found
    return found, [found._indices(), found._values()]


def compressed(form: str) -> tuple[Tensor, list[Tensor]]:
    """Make a sparse tensor of a compressed layout, and list what it owns."""
    size = ((2, 2),) if form.startswith("bs") else ()
    found = getattr(torch.eye(4), f"to_sparse_{form}")(*size)
    rows = ("crow_indices", "col_indices")
    columns = ("ccol_indices", "row_indices")
    names = rows if form.endswith("r") else columns
    return found, [*(getattr(found, name)() for name in names), found.values()]


def nested() -> tuple[Tensor, list[Tensor]]:
    """Make a nested tensor of the strided layout, and list what it owns."""
    found = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    return found, [found[0]]  # its first item begins where the buffer begins


def jagged(*, lengths: bool) -> tuple[Tensor, list[Tensor]]:
    """Make a jagged tensor, and list what it owns."""
    parts = [torch.ones(10), torch.tensor([0, 3, 10])]
    parts += [torch.tensor([2, 5])] if lengths else []
    return torch.nested.nested_tensor_from_jagged(*parts), parts


def quantized(*, by_channel: bool) -> tuple[Tensor, list[Tensor]]:
    """Make a quantized tensor, and list what it owns."""
    if not by_channel:
        found = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        return found, [found]
    scales, zeros = torch.ones(3).double(), torch.zeros(3, dtype=torch.int64)
    found = torch.quantize_per_channel(torch.ones(3, 2), scales, zeros, 0, torch.qint8)
    return found, [
        found,
        found.q_per_channel_scales(),
        found.q_per_channel_zero_points(),
    ]


def wrapper() -> tuple[Tensor, list[Tensor]]:
    """Make a wrapper subclass, and list what it owns."""
    parts = [torch.ones(2), torch.ones(2)]
    return TwoTensor(*parts), parts


def wrapped_wrapper() -> tuple[Tensor, list[Tensor]]:
    """Make a wrapper of wrappers, and list what it owns."""
    parts = [torch.ones(2) for _ in range(4)]
    return TwoTensor(TwoTensor(*parts[:2]), TwoTensor(*parts[2:])), parts


def wrapped_sparse() -> tuple[Tensor, list[Tensor]]:
    """Make a wrapper of sparse tensors, and list what it owns."""
    parts = [torch.eye(3).to_sparse() for _ in range(2)]
    inner = [(part._indices(), part._values()) for part in parts]
    return TwoTensor(*parts), list(itertools.chain(*inner))


KINDS: dict[str, Callable[[], tuple[Tensor, list[Tensor]]]] = {
    "coo": lambda: coo(coalesced=True),
    "coo, not coalesced": lambda: coo(coalesced=False),
    "csr": lambda: compressed("csr"),
    "csc": lambda: compressed("csc"),
    "bsr": lambda: compressed("bsr"),
    "bsc": lambda: compressed("bsc"),
    "nested": nested,
    "jagged": lambda: jagged(lengths=False),
    "jagged with lengths": lambda: jagged(lengths=True),
    "quantized": lambda: quantized(by_channel=False),
    "quantized by channel": lambda: quantized(by_channel=True),
    "wrapper": wrapper,
    "wrapped wrapper": wrapped_wrapper,
    "wrapped sparse": wrapped_sparse,
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
class TestKinds:
    """Each odd kind is opened down to the storages that it owns."""

    def test_owns_what_it_is_made_of(
        self, make: Callable[[], tuple[Tensor, list[Tensor]]]
    ) -> None:
        """The inner tensors are plain, and their storages are the leaf's own."""
        leaf, parts = make()

        found = [tensor for tensor in inner_tensors("x", leaf) if tensor.numel()]

        assert list(map(start, parts)) == list(map(start, found))
        assert {torch.strided} == {tensor.layout for tensor in found}

    def test_clone_owns_other_memory(
        self, make: Callable[[], tuple[Tensor, list[Tensor]]]
    ) -> None:
        """A clone shares no storage with its original, as far as torch's does not.

        A jagged tensor's clone keeps the same offsets, by which torch knows that the
        two have one shape; a quantized tensor's keeps the same scales.
        """
        leaf, parts = make()

        twin = clone(Batch(leaf)).x
        found = [tensor for tensor in inner_tensors("x", twin) if tensor.numel()]
        shares = leaf.layout is torch.jagged or leaf.is_quantized
        own = parts[:1] if shares else parts

        assert len(parts) == len(found)
        assert set(map(start, own)).isdisjoint(map(start, found))

    def test_stays_the_same_on_its_own_device(
        self, make: Callable[[], tuple[Tensor, list[Tensor]]]
    ) -> None:
        """A leaf that is where it shall go is the same object, as `Tensor.to` says."""
        leaf, _ = make()

        assert Batch(leaf).to_device("cpu").x is leaf
        assert [("x", leaf)] == list(tensors(Batch(leaf)))


DENSE: dict[str, Callable[[], Tensor]] = {
    "zero elements": lambda: torch.ones(0, 3),
    "0-dim": lambda: torch.tensor(1.0),
    "expanded": lambda: torch.ones(1).expand(5),
    "transposed": lambda: torch.ones(2, 3).t(),
    "strided": lambda: torch.ones(4, 4)[::2, 1],
    "channels last": lambda: torch.ones(1, 2, 3, 3).to(
        memory_format=torch.channels_last
    ),
    "one row": lambda: torch.ones(100, 3)[7],
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "float8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "bool": lambda: torch.ones(2, dtype=torch.bool),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "requires grad": lambda: torch.ones(2, requires_grad=True),
    "not a leaf of autograd": lambda: torch.ones(2, requires_grad=True) * 2,
}


@pytest.mark.parametrize("make", DENSE.values(), ids=DENSE)
def test_dense_leaf_keeps_what_tensor_to_keeps(make: Callable[[], Tensor]) -> None:
    """Shape, strides, dtype and class come out as `to` and `clone` leave them."""
    leaf = make()
    moved, copied = Batch(leaf).to_device("meta").x, clone(Batch(leaf)).x
    same, other = leaf.to("meta"), leaf.clone()

    for found, expected in ((moved, same), (copied, other)):
        assert type(expected) is type(found)
        assert expected.shape == found.shape
        assert expected.stride() == found.stride()
        assert expected.dtype == found.dtype
        assert expected.requires_grad == found.requires_grad
        assert expected.is_conj() == found.is_conj()


@pytest.mark.parametrize("make", DENSE.values(), ids=DENSE)
def test_dense_leaf_is_recorded_itself(make: Callable[[], Tensor]) -> None:
    """What reaches the allocator has the storage of the leaf, not of a copy.

    Of a conjugate or negative view, torch recorded a plain copy that it had made.
    """
    leaf = make()

    with reached() as recorded, as_stored():
        for tensor in inner_tensors("x", leaf):
            tensor.record_stream(STREAM)

    assert [start(leaf)] == [start(tensor) for tensor, _ in recorded]


FAKE: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.empty(2, device="cuda"),
    "conjugate": lambda: torch.empty(2, dtype=torch.cfloat, device="cuda").conj(),
    "negative": lambda: torch.empty(2, dtype=torch.cfloat, device="cuda").conj().imag,
    "0-dim": lambda: torch.empty((), device="cuda"),
    "no elements": lambda: torch.empty(0, device="cuda"),
    "view": lambda: torch.empty(2, 4, device="cuda").t(),
}


@pytest.mark.parametrize("make", FAKE.values(), ids=FAKE)
def test_payload_records_a_device_leaf_once(make: Callable[[], Tensor]) -> None:
    """A stream is recorded once on a leaf, and on nothing that torch makes of it."""
    with FakeTensorMode():
        leaf = make()

    with reached() as recorded:
        Batch(leaf).record_stream(STREAM)

    ((tensor, stream_id),) = recorded
    assert 5 == stream_id
    assert leaf.is_conj() == tensor.is_conj()
    assert leaf.is_neg() == tensor.is_neg()


@pytest.mark.parametrize("kind", ["coo", "wrapper"])
def test_payload_records_each_inner_tensor(kind: str) -> None:
    """A stream is recorded on each tensor inside, and each is on the device."""
    with FakeTensorMode():
        parts = [torch.empty(2, device="cuda"), torch.empty(2, device="cuda")]
        indices = torch.empty(1, 2, dtype=torch.int64, device="cuda")
        leaf = TwoTensor(*parts)
        if kind == "coo":
            leaf = torch.sparse_coo_tensor(indices, parts[0], (3,))

    with reached() as recorded:
        Batch(leaf).record_stream(STREAM)

    assert 2 == len(recorded)
    assert all(tensor.is_cuda for tensor, _ in recorded)


def test_host_parts_of_a_device_leaf_are_passed_over() -> None:
    """A leaf on the device may keep small tensors on the host.

    They were recorded too, which torch refuses.
    """

    class OffsetsOnHost(TwoTensor):
        """Says it is on the device, with one part that is not."""

        is_cuda = True

    with FakeTensorMode():
        device = torch.empty(2, device="cuda")
    leaf = OffsetsOnHost(torch.ones(2), torch.ones(2))
    leaf.a = device

    with reached() as recorded:
        Batch(leaf).record_stream(STREAM)

    assert [device] == [tensor for tensor, _ in recorded]
    assert [device] == owned_tensors("x", leaf)


class Scaled(Tensor):
    """Has memory of its own, a dispatch of its own, and a tensor on the side."""

    scale: Tensor

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def scaled() -> Tensor:
    """Make a tensor of a class that keeps another tensor."""
    leaf: Any = torch.ones(2).as_subclass(Scaled)
    leaf.scale = torch.ones(1)
    return leaf


CLOSED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "wrapper without a way in": (
        lambda: LoggingTensor(torch.ones(2)),
        "wraps memory that only it knows",
    ),
    "masked": (
        lambda: masked_tensor(torch.ones(2), torch.tensor([True, False])),
        "wraps memory that only it knows",
    ),
    "tensor on the side": (scaled, "holds tensors beside its own memory"),
    "opaque layout": (
        lambda: torch.ones(2).to_mkldnn(),
        "has the layout `torch._mkldnn`",
    ),
}


@pytest.mark.filterwarnings("ignore:.*prototype stage:UserWarning")
@pytest.mark.parametrize(("make", "problem"), CLOSED.values(), ids=CLOSED)
def test_what_cannot_be_opened_raises(make: Callable[[], Tensor], problem: str) -> None:
    """Nobody can tell what such a leaf owns, so a record would prove nothing."""
    with pytest.raises(LeafError) as caught:
        list(inner_tensors("x", make()))

    assert problem in caught.value.problem
    assert "x" == caught.value.key


def test_plain_subclass_keeps_its_storage() -> None:
    """A subclass that only changes functions owns what it shows."""

    class Named(Tensor):
        pass

    leaf = torch.ones(2).as_subclass(Named)

    assert [leaf] == list(inner_tensors("x", leaf))
    assert type(leaf) is type(Batch(leaf).to_device("meta").x)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Give the mesh of a group of one process."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("this build has no torch.distributed")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_distributed_tensor_owns_its_local_tensor(mesh: Any) -> None:
    """A `DTensor` is opened by its local tensor, and moves with it.

    Its flattened form names the device mesh too, which was opened like a tensor.
    """
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: PLC0415

    leaf = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    moved = Batch(leaf).to_device("meta").x

    assert [start(leaf._local_tensor)] == list(map(start, inner_tensors("x", leaf)))
    assert DTensor is type(moved)
    assert moved._local_tensor.is_meta
    assert leaf.placements == moved.placements


def test_tensor_of_zeros_without_memory() -> None:
    """The zeros of forward-mode autograd own nothing, and do not stop a record.

    torch refuses to record a stream on them: they cannot be changed.
    """
    leaf = torch._efficientzerotensor(3)

    with reached() as recorded, as_stored():
        leaf.record_stream(STREAM)

    assert 1 == len(recorded)
    assert Batch(leaf).to_device("meta").x.is_meta


def test_record_counts_what_it_has_recorded() -> None:
    """The count is of records, not of leaves."""
    with FakeTensorMode():
        parts = [torch.empty(2, device="cuda") for _ in range(3)]
        pair = TwoTensor(*parts[:2])

    with reached() as recorded:
        count = record([pair, parts[2], torch.ones(2), pair], STREAM)

    assert 3 == count == len(recorded)
