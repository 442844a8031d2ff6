"""`compact`: what is shipped is the leaves, not the memory that they were cut from."""

import copy
import io
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from tensorpack import CopyStream, Dynamic, HostOnly, Payload, compact, payload, tensors

ROWS, BYTES = 1000, 1000 * 8 * 4
"""A tensor of so many rows of eight, and its size."""


@payload
class Inner(Payload):
    row: Tensor


@payload
class Batch(Payload):
    row: Tensor
    inner: Inner | None = None
    rows: list[Tensor] | None = None
    packed: PackedSequence | None = None
    open: Dynamic[Any] = None
    host: HostOnly[Tensor | None] = None


def big() -> Tensor:
    """Make a tensor that nobody wants to ship."""
    return torch.arange(ROWS * 8.0).view(ROWS, 8)


def held(value: object) -> int:
    """Count the bytes that the leaves of a value hold."""
    storages = {t.untyped_storage().data_ptr(): t for _, t in tensors(value)}
    return sum(t.untyped_storage().nbytes() for t in storages.values())


def saved(value: object) -> int:
    """Count the bytes that `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.tell()


SHIPPED: dict[str, Callable[[object], int]] = {
    "pickle": lambda value: len(pickle.dumps(value)),
    "torch.save": saved,
    "deepcopy": lambda value: held(copy.deepcopy(value)),
}


@pytest.mark.parametrize("shipped", SHIPPED.values(), ids=SHIPPED)
def test_row_is_shipped_without_the_rest(shipped: Callable[[object], int]) -> None:
    """A leaf that is one row of a big tensor takes the whole along, unless asked."""
    batch = Batch(big()[3])

    assert shipped(batch) >= BYTES
    assert shipped(compact(batch)) < 4000


def test_finds_views_wherever_they_stand() -> None:
    """Nested payloads, containers, adapted types and dynamic values are looked into."""
    sequence = pack_sequence([torch.ones(3), torch.ones(2)])
    packed = PackedSequence(big()[0, :5], sequence.batch_sizes)
    batch = Batch(big()[0], Inner(big()[1]), [big()[2]], packed, {"x": big()[3]})
    own = compact(batch)

    assert 5 * BYTES == held(batch)
    assert (4 * 8 + 5) * 4 == held(own)
    assert all(
        torch.equal(old, new)
        for (_, old), (_, new) in zip(tensors(batch), tensors(own), strict=True)
    )


def test_leaves_with_their_own_memory_are_the_same_objects() -> None:
    """Only what is part of something larger is copied."""
    whole = big()
    batch = Batch(whole, rows=[whole.t(), whole.view(-1), whole[:0]])
    own = compact(batch)

    assert own.row is whole
    assert own.rows is not None
    assert [True, True, False] == [
        new is old for new, old in zip(own.rows, batch.rows or (), strict=True)
    ]
    assert 0 == own.rows[2].untyped_storage().nbytes()


def test_one_object_stays_one() -> None:
    """A view in two fields becomes one tensor."""
    row = big()[0]
    own = compact(Batch(row, rows=[row]))

    assert own.rows is not None
    assert own.row is own.rows[0]
    assert own.row is not row


def test_host_fields_stay_as_they_are() -> None:
    """What does not travel is nobody's business."""
    batch = Batch(torch.ones(1), host=big()[0])

    assert compact(batch).host is batch.host


def test_odd_tensors_stay_as_they_are() -> None:
    """A copy of a parameter or sparse tensor would be something else."""
    parameter = nn.Parameter(big()[0])
    sparse = torch.eye(3).to_sparse()
    batch = Batch(parameter, rows=[sparse])
    own = compact(batch)

    assert own.row is parameter
    assert [sparse] == own.rows


def test_gradients_end_where_they_did() -> None:
    """A leaf of the graph is one again, and can be sent; a result stays a result."""
    leaf = big()[0].requires_grad_()
    result = torch.ones(9, requires_grad=True)[1:]
    own = compact(Batch(leaf, rows=[result]))

    assert own.row.is_leaf
    assert own.row.requires_grad
    assert own.rows is not None
    assert own.rows[0].grad_fn is not None


def test_strides_are_kept() -> None:
    """A column-major slice stays column-major."""
    part = torch.ones(4, 6, 6).transpose(1, 2)[0]

    assert part.stride() == compact(Batch(part)).row.stride()


def test_works_for_tensors_and_containers() -> None:
    """Any value that travels can be made compact."""
    row = compact({"a": [big()[0]]})["a"][0]

    assert 32 == row.untyped_storage().nbytes()
    assert 32 == compact(big()[0]).untyped_storage().nbytes()


def test_packed_leaves_are_taken_apart() -> None:
    """What one transfer has packed together does not stay together on the wire."""
    buffer = torch.arange(64.0)
    chunk = torch.unsafe_split_with_sizes(buffer, [32, 32])[1].as_strided_((3,), (1,))
    own = compact(Batch(chunk))

    assert 64 * 4 == held(Batch(chunk))
    assert 12 == held(own)
    assert [32.0, 33.0, 34.0] == own.row.tolist()


@pytest.mark.cuda
def test_leaves_that_were_packed_for_a_device_are_taken_apart() -> None:
    """A leaf that came in a pack gets memory of its own on the device."""
    with CopyStream("cuda") as copies:
        batch = Batch(torch.ones(3), rows=[torch.ones(5) for _ in range(8)])
        moved = copies.start(batch).wait()
        own = compact(moved)

    assert all(t.untyped_storage().nbytes() > 2000 for _, t in tensors(moved))
    assert [12, *[20] * 8] == [t.untyped_storage().nbytes() for _, t in tensors(own)]
    assert [1.0] * 3 == own.row.tolist()


def _echo(inbox: Any, outbox: Any) -> None:
    """Say how much memory came along, in another process."""
    value = inbox.get()
    outbox.put((held(value), value.row.tolist()))
    inbox.get()


def test_queue_shares_the_row_alone() -> None:
    """Shared memory is mapped by the whole storage, so a compact one is small."""
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=_echo, args=(inbox, outbox), daemon=True)
    process.start()
    batch = Batch(big()[0])

    inbox.put(compact(batch))
    found = outbox.get(timeout=60)
    inbox.put("done")
    process.join(timeout=60)

    assert (32, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == found
