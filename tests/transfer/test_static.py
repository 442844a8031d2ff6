"""Copies into static memory, on recorded streams: order, reuse, errors, counts."""

from collections.abc import Iterator
from typing import Annotated

import pytest
import torch
from torch import Tensor

from tensorpack import (
    Axis,
    AxisError,
    CaptureError,
    CopyStream,
    HandoffError,
    Offsets,
    Payload,
    map_tensors,
    payload,
    prefetch,
)
from tensorpack.axes import empty_like, pad
from tensorpack.testing import Log, recorded_streams


@payload
class Step(Payload):
    ids: Annotated[Tensor, Axis("requests", pad=0)]
    lens: Annotated[Tensor, Axis("requests", pad=1)]
    starts: Annotated[Tensor, Offsets("requests")]
    table: Annotated[Tensor, Axis("requests", pad=0), Axis("blocks", dim=1, pad=-1)]
    hidden: Annotated[Tensor | None, Axis("requests", pad=0.5)] = None
    name: str = "step"


def step(count: int, *, wide: bool = False, blocks: int = 2) -> Step:
    """Make a step of some requests."""
    ids = torch.arange(count)
    hidden = torch.rand(count, 80_000) if wide else None
    starts = torch.arange(count + 1) * 2
    table = torch.arange(count * blocks).view(count, blocks)
    return Step(ids, ids + 1, starts, table, hidden, name=f"step of {count}")


@pytest.fixture
def log() -> Iterator[Log]:
    """Record every stream and block."""
    with recorded_streams() as found:
        yield found


def static_for(size: int, device: str = "cuda", *, pinned: bool = False) -> Step:
    """Make static memory for steps."""
    example = step(1, wide=True)
    return empty_like(example, device=device, pinned=pinned, requests=size, blocks=4)


def read(value: Step, stream: torch.Stream) -> Step:
    """Read what a consumer was handed, on its stream."""
    with stream:
        found = map_tensors(lambda leaf: leaf.to("cpu"), value)
    stream.synchronize()
    return found


def assert_same(expected: Step, actual: Step) -> None:
    """Hold two steps against each other."""
    for name in ("ids", "lens", "starts", "table", "hidden"):
        one, two = getattr(expected, name), getattr(actual, name)
        assert (one is None) == (two is None), name
        assert one is None or torch.equal(one, two), name
    assert expected.name == actual.name


def test_what_is_handed_out_is_the_padded_step(log: Log) -> None:
    """Every leaf, large or small, has the rows of `pad`, in the static's own memory."""
    static, copies, forward = static_for(16), CopyStream("cuda"), torch.Stream("cuda")

    for count, bucket, wide in (
        (3, 8, False),
        (5, 8, True),
        (3, 8, True),
        (16, 16, True),
    ):
        batch = step(count, wide=wide)
        sizes = {"requests": bucket, "blocks": 3}
        views = copies.start(batch, into=static, sizes=sizes).wait(forward)

        assert_same(pad(batch, **sizes), read(views, forward))
        assert static.ids.untyped_storage()._cdata == views.ids.untyped_storage()._cdata
    assert [] == log.hazards()


def test_small_leaves_are_one_copy(log: Log) -> None:
    """Four leaves with their padding travel at once; none is recorded at each wait."""
    static, copies, forward = static_for(16), CopyStream("cuda"), torch.Stream("cuda")
    for _ in range(3):
        copies.start(step(3), into=static, sizes={"requests": 4}).wait(forward)

    assert (3, 0) == (copies.counters.copies, copies.counters.records)
    assert [] == log.hazards()


def test_next_copies_wait_for_every_reader(log: Log) -> None:
    """Both consumers are waited for before the memory is written again."""
    static, copies = static_for(8), CopyStream("cuda")
    readers = [torch.Stream("cuda") for _ in range(2)]
    first = copies.start(step(3), into=static)
    for reader in readers:
        read(first.wait(reader), reader)
    copies.start(step(4), into=static).wait(readers[0])

    assert [] == log.hazards()


def test_reader_that_was_not_named_is_a_hazard(log: Log) -> None:
    """The control: without `wait` on its stream nothing keeps the order."""
    static, copies = static_for(8), CopyStream("cuda")
    named, other = torch.Stream("cuda"), torch.Stream("cuda")
    views = copies.start(step(3), into=static).wait(named)
    read(views, other)
    copies.start(step(4), into=static).wait(named)

    assert [] != log.hazards()


def test_leaves_on_the_device_are_padded_there(log: Log) -> None:
    """The copy stream waits for what writes them."""
    static, copies, forward = static_for(8), CopyStream("cuda"), torch.Stream("cuda")
    batch = step(3, wide=True)
    on_device = batch.to_device("cuda")
    views = copies.start(on_device, into=static, sizes={"requests": 6}).wait(forward)

    assert_same(pad(batch, requests=6), read(views, forward))
    assert [] == log.hazards()


def test_results_are_fetched_into_pinned_memory(log: Log) -> None:
    """The views are those of the memory; a later fetch ends an earlier one."""
    static, copies = static_for(8, "cpu", pinned=True), CopyStream("cuda")
    batch = step(3, wide=True)
    found = copies.fetch(batch.to_device("cuda"), into=static)
    again = copies.fetch(batch.to_device("cuda"), into=static)

    assert_same(batch, again.result())
    assert static.ids.data_ptr() == again.result().ids.data_ptr()
    assert again.result(numpy=True).ids.tolist() == batch.ids.tolist()
    with pytest.raises(HandoffError, match="written again by a later call"):
        found.result()
    assert [] == log.hazards()


def test_without_streams_the_same_is_copied_at_once() -> None:
    """In CI on a CPU nothing is different but the time."""
    static, copies = static_for(8, "cpu"), CopyStream("cpu")
    batch = step(3, wide=True)
    views = copies.start(batch, into=static, sizes={"requests": 5}).wait()
    back = copies.fetch(views, into=static_for(8, "cpu")).result()

    assert_same(pad(batch, requests=5), views)
    assert_same(pad(batch, requests=5), back)


def test_old_handoff_is_ended_by_the_next() -> None:
    """Its rows are gone, so it is not handed out."""
    static, copies = static_for(8, "cpu"), CopyStream("cpu")
    old = copies.start(step(3), into=static)
    copies.start(step(3), into=static)

    with pytest.raises(HandoffError) as caught:
        old.wait()
    assert (
        "`wait`: its static memory was written again by a later call. Wait for each "
        "before the next one is started."
    ) == str(caught.value)


def test_nothing_is_written_where_a_leaf_does_not_fit(log: Log) -> None:
    """The check comes first; what was handed out before stays as it is."""
    static, copies, forward = static_for(4), CopyStream("cuda"), torch.Stream("cuda")
    handoff = copies.start(step(3), into=static)

    for wrong in (step(5), step(2, blocks=5)):
        with pytest.raises(AxisError):
            copies.start(wrong, into=static)
    assert_same(step(3), read(handoff.wait(forward), forward))
    assert 1 == copies.in_flight


def test_static_memory_belongs_to_one_copy_stream(log: Log) -> None:
    """Another one does not know the readers, until the first is closed."""
    static, one, two = static_for(4), CopyStream("cuda"), CopyStream("cuda")
    one.start(step(3), into=static).wait(torch.Stream("cuda"))

    with pytest.raises(HandoffError) as caught:
        two.start(step(3), into=static)
    assert (
        "`start`: another copy stream writes this static memory, and this one would "
        "not wait for its readers. Close the other one first, or use it for both."
    ) == str(caught.value)
    one.close()
    two.start(step(3), into=static).wait(torch.Stream("cuda"))
    assert [] == log.hazards()


MISUSES = [
    (
        lambda: CopyStream("cuda").start(step(2), into=static_for(4, "cpu")),
        (
            "`Step.ids`: its static is on `cpu`, and copies go to `cuda:0`. Make the "
            'static by `empty_like(..., device="cuda:0")`.'
        ),
    ),
    (
        lambda: CopyStream("cuda").start(step(5), into=static_for(4)),
        (
            "`Step.ids`: needs 5 items on `requests`, and its static has room for 4. "
            "Make the static with `requests=5` or more."
        ),
    ),
    (
        lambda: CopyStream("cuda").start(
            step(3), into=static_for(4), sizes={"requests": 2}
        ),
        (
            "`Step`: `requests` has 3 items, and 2 were asked for. Pass at least 3, or "
            "`select`."
        ),
    ),
    (
        lambda: CopyStream("cuda").start(
            step(3, wide=True), into=empty_like(step(1), device="cuda", requests=4)
        ),
        (
            "`Step.hidden`: has no memory in the static. Make the static from an "
            "example that has it."
        ),
    ),
    (
        lambda: CopyStream("cuda").start({"a": 1}, into=static_for(4)),
        (
            "`dict`: is not of the class of the static, `Step`. Make the static by "
            "`empty_like` from an object of the same class."
        ),
    ),
    (
        lambda: CopyStream("cuda").start(step(3), sizes={"requests": 4}),
        "`sizes={'requests': 4}` goes with `into=`. Pass the static memory.",
    ),
    (
        lambda: CopyStream("cuda").start(step(3), into=static_for(4), keys=["ids"]),
        "`into=` takes a whole payload. Leave `keys=` out.",
    ),
]


@pytest.mark.parametrize(("act", "text"), MISUSES, ids=range(len(MISUSES)))
def test_misuse_says_what_to_do(act: object, text: str) -> None:
    """What does not fit names the leaf, both sizes and the way out."""
    assert callable(act)
    with recorded_streams(), pytest.raises((AxisError, TypeError)) as caught:
        act()

    assert text == str(caught.value)


def test_capture_refuses_copies_from_outside(log: Log) -> None:
    """A replay would not copy again."""
    static, copies = static_for(4), CopyStream("cuda")
    forward = torch.Stream("cuda")
    with forward, log.capturing(forward), pytest.raises(CaptureError):
        copies.start(step(3), into=static)


@payload
class Inner(Payload):
    top_k: Tensor
    seeds: Tensor | None = None


@payload
class Outer(Payload):
    ids: Tensor
    inner: Inner
    images: list[Tensor]


def test_named_fields_of_a_payload_travel_alone() -> None:
    """The others are the same objects; a dotted name is a field of one inside."""
    batch = Outer(torch.ones(1), Inner(torch.ones(1)), [torch.ones(1)])
    keys = ("inner.top_k", "images", "inner.seeds")
    moved = CopyStream("cpu").start(batch, keys=keys).wait()
    (yielded,) = prefetch([batch], "cpu", keys=iter(keys))
    fetched = CopyStream("cpu").fetch(batch, keys=keys).result(numpy=True)

    for new in (moved, yielded, fetched):
        assert batch.ids is new.ids
        assert batch.inner.top_k is not new.inner.top_k
        assert batch.images[0] is not new.images[0]


KEYS = [
    (
        "id",
        (
            "`keys=` names 'id', and `Outer` has no field `id`. Its fields are `ids`, "
            "`inner`, `images`."
        ),
    ),
    (
        "inner.k",
        (
            "`keys=` names 'inner.k', and `Inner` has no field `k`. Its fields are "
            "`top_k`, `seeds`."
        ),
    ),
    (
        "images.x",
        (
            "`keys=` names 'images.x', and a `list` has no field `x`. Name the "
            "whole field."
        ),
    ),
]


@pytest.mark.parametrize(("key", "text"), KEYS, ids=[key for key, _ in KEYS])
def test_key_that_names_no_field_is_refused(key: str, text: str) -> None:
    """A misspelled name does not leave a leaf behind in silence."""
    batch = Outer(torch.ones(1), Inner(torch.ones(1)), [])
    with pytest.raises(TypeError) as caught:
        CopyStream("cpu").start(batch, keys=[key])

    assert text == str(caught.value)
