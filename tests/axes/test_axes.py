"""What each operation on axes does: runs, offsets, positions, sizes, None."""

from typing import Annotated, Any

import numpy as np
import pytest
import torch
from axes.batches import ROPE, decode, listed
from torch import Tensor

from tensorpack import (
    Axis,
    AxisError,
    Borrowed,
    Derived,
    Dynamic,
    HostOnly,
    Index,
    Offsets,
    Payload,
    Size,
    payload,
)
from tensorpack.axes import cat, copy_, empty_like, pad, select, sizes, split
from tensorpack.testing import recorded_streams


@payload
class Sampling(Payload):
    """How tokens are drawn; most of it is optional."""

    top_k: Annotated[Tensor | None, Axis("requests", pad=1)] = None
    seed: Annotated[Tensor, Axis("requests")] | None = None
    size: Annotated[int, Size("requests")] = 0


@payload
class Step(Payload):
    """A step with a nested payload."""

    ids: Annotated[Tensor, Axis("requests", pad=0)]
    sampling: Sampling | None = None


def step(count: int, **sampling: Tensor) -> Step:
    """Make a step of some requests."""
    inner = Sampling(size=count, **sampling) if sampling else None
    return Step(torch.arange(count), inner)


def test_sizes_are_those_of_every_axis() -> None:
    """Axes come in the order of the fields; nested ones are among them."""
    expected = {"tokens": 5, "requests": 2, "blocks": 3}

    assert expected == sizes(decode(2, 3, blocks=3))
    assert {"requests": 4} == sizes(step(4, top_k=torch.zeros(4)))


def test_select_takes_the_runs_of_the_requests() -> None:
    """Tokens, offsets and positions follow the requests; the hook runs last."""
    value = select(decode(2, 3, 4), requests=[2, 0])

    expected = {
        "input_ids": [105, 106, 107, 108, 100, 101],
        "seq_lens": [4, 2],
        "starts": [0, 4, 6],
        "last": [3, 5],
        "table": [[4, 5], [0, 1]],
        "names": ["r2", "r0"],
        "count": 2,
        "rope": ROPE.tolist(),
        "longest": 4,
    }
    assert expected == listed(value)
    assert value.rope is ROPE


def test_slices_are_views_and_positions_are_copies() -> None:
    """A slice of requests is a slice of the tokens as well."""
    whole = decode(2, 3, 4)
    cut, taken = select(whole, requests=slice(1, 3)), select(whole, requests=[1, 2])

    assert whole.input_ids[2:].data_ptr() == cut.input_ids.data_ptr()
    assert whole.table[1:].data_ptr() == cut.table.data_ptr()
    assert listed(cut) == listed(taken)
    assert whole.table[1:].data_ptr() != taken.table.data_ptr()


def test_split_and_cat_undo_each_other() -> None:
    """Offsets and positions are those of the whole again."""
    whole = decode(2, 3, 4)
    parts = split(whole, "requests", [1, 2])

    assert [[0, 2], [0, 3, 7]] == [part.starts.tolist() for part in parts]
    assert listed(whole) == listed(cat(parts, "requests", combine={"longest": max}))
    assert [1, 1, 1] == [part.count for part in split(whole, "requests", 1)]


def test_pad_repeats_the_last_offset_and_sets_the_size() -> None:
    """Padded requests have runs of no tokens."""
    value = pad(decode(2, 3), requests=4, tokens=6, blocks=3)

    assert [0, 2, 5, 5, 5] == value.starts.tolist()
    assert [100, 101, 102, 103, 104, 0] == value.input_ids.tolist()
    assert [[0, 1, -1], [2, 3, -1], [0, 0, -1], [0, 0, -1]] == value.table.tolist()
    assert (["r0", "r1", "", ""], 4) == (value.names, value.count)


def test_padded_tokens_belong_to_no_run() -> None:
    """What was padded in both axes is selected as before."""
    whole = decode(2, 3)
    back = select(pad(whole, requests=4, tokens=9), requests=slice(0, 2))

    assert listed(whole) == listed(back)


def test_lengths_may_be_offsets_lists_and_arguments() -> None:
    """Runs are read from offsets, from a host list, or from the caller."""

    @payload
    class Ragged(Payload):
        tokens: Annotated[Tensor, Axis("tokens", lengths="starts")]
        starts: Annotated[Tensor, Offsets("requests")]
        pages: Annotated[Tensor, Axis("pages", lengths="counts")]
        counts: Annotated[list[int], Axis("requests")]

    whole = Ragged(torch.arange(5), torch.tensor([0, 2, 5]), torch.arange(3), [1, 2])
    second = select(whole, requests=[1])
    given = select(whole, requests=[1], lengths={"tokens": [2, 3], "pages": [1, 2]})

    assert [[2, 3, 4], [0, 3], [1, 2], [2]] == list(listed(second).values())
    assert listed(second) == listed(given)


def test_runs_inside_runs_follow() -> None:
    """Selecting requests takes their sequences, and these take their tokens."""

    @payload
    class Beams(Payload):
        beams: Annotated[Tensor, Axis("requests")]
        lengths: Annotated[Tensor, Axis("beams", lengths="beams")]
        tokens: Annotated[Tensor, Axis("tokens", lengths="lengths")]

    whole = Beams(torch.tensor([1, 2]), torch.tensor([2, 1, 3]), torch.arange(6))

    assert [[2], [1, 3], [2, 3, 4, 5]] == list(
        listed(select(whole, requests=[1])).values()
    )


def test_positions_whose_rows_are_left_out_do_not_matter() -> None:
    """Only the rows that stay have to point at what is still there."""
    value = select(decode(2, 3), requests=[1])

    assert [2] == value.last.tolist()


def test_one_object_in_two_fields_stays_one() -> None:
    """Both fields get the same new leaf."""

    @payload
    class Shared(Payload):
        one: Annotated[Tensor, Axis("requests", pad=0)]
        two: Annotated[Tensor, Axis("requests", pad=0)]

    ids = torch.arange(3)
    whole = Shared(ids, ids)
    for value in (select(whole, requests=[0]), pad(whole, requests=4)):
        assert value.one is value.two
    together = cat([whole, whole], "requests")
    assert together.one is together.two


def test_lists_of_leaves_run_along_an_axis() -> None:
    """The list is cut; what is inside each item is its own."""

    @payload
    class Images(Payload):
        pixels: Annotated[list[Tensor], Axis("requests")]
        ids: Annotated[Tensor, Axis("requests")]

    images = [torch.zeros(n) for n in (1, 2, 3)]
    whole = Images(images, torch.arange(3))
    value = select(whole, requests=[2, 0])

    assert [images[2], images[0]] == value.pixels
    assert images[2] is value.pixels[0]
    assert images == cat(split(whole, "requests", [1, 2]), "requests").pixels


def test_arrays_follow_their_axes() -> None:
    """An array of numpy is cut, padded and put together like a tensor."""

    @payload
    class Hosted(Payload):
        ids: Annotated[np.ndarray[Any, Any], Axis("requests", pad=9)]
        starts: Annotated[np.ndarray[Any, Any], Offsets("requests")]
        last: Annotated[
            np.ndarray[Any, Any], Axis("requests", pad=0), Index("requests")
        ]

    whole = Hosted(np.arange(6).reshape(3, 2), np.array([0, 1, 3, 6]), np.arange(3))

    value = select(whole, requests=[2, 1])
    assert [[[4, 5], [2, 3]], [0, 3, 5], [0, 1]] == list(listed_arrays(value))
    value = pad(whole, requests=4)
    assert ([9, 9], 6, 0) == (
        value.ids[3].tolist(),
        value.starts[4],
        value.last[3],
    )
    value = cat(split(whole, "requests", [1, 2]), "requests")
    assert list(listed_arrays(whole)) == list(listed_arrays(value))


def listed_arrays(value: Any) -> list[Any]:
    """Return the fields of a payload of arrays, as lists."""
    return [getattr(value, n).tolist() for n in type(value).__annotations__]


def test_none_in_some_becomes_rows_of_pad() -> None:
    """A leaf that one batch lacks has the pad of its axis for its items."""
    one, two = step(2, top_k=torch.tensor([5, 6])), step(1, top_k=torch.tensor([7]))
    assert one.sampling is not None
    one.sampling.top_k = None

    assert [1, 1, 7] == both(one, two).top_k.tolist()
    assert both(one, two).seed is None


def both(one: Step, two: Step) -> Any:
    """Return the sampling inputs of two steps put together."""
    return cat([one, two], "requests").sampling


def test_payload_that_one_batch_lacks_is_all_pad() -> None:
    """Its host fields are those of the other; its size is that of both."""
    found = both(step(2), step(1, top_k=torch.tensor([7])))

    assert ([1, 1, 7], 3) == (found.top_k.tolist(), found.size)


def test_cat_shifts_positions_in_every_part() -> None:
    """Positions on an axis count from the start of the whole."""
    value = cat([decode(2, 1), decode(3)], "requests", combine={"longest": max})

    assert [1, 2, 5] == value.last.tolist()
    assert [0, 2, 3, 6] == value.starts.tolist()


def test_fields_without_an_axis_are_the_same_objects() -> None:
    """Nested payloads too, where nothing in them has the axis."""

    @payload
    class Outer(Payload):
        ids: Annotated[Tensor, Axis("rows")]
        other: Annotated[Tensor, Axis("columns")]
        inner: Dynamic[Any] = None
        log: HostOnly[list[int] | None] = None
        cache: Borrowed[Tensor | None] = None
        total: Derived[Tensor | None] = None

    whole = Outer(torch.arange(2), ROPE, decode(1), [1], ROPE, torch.ones(1))
    value = select(whole, blocks=[0])

    for name in ("ids", "other", "log", "cache"):
        assert getattr(whole, name) is getattr(value, name)
    assert [[0]] == value.inner.table.tolist()
    assert value.total is None


def test_containers_of_payloads_are_followed() -> None:
    """A list and a dictionary of payloads are cut together."""
    value = select({"a": [step(2)], "b": step(2)}, requests=[1])

    assert [1] == value["a"][0].ids.tolist()
    assert [1] == value["b"].ids.tolist()


def test_union_of_leaf_and_list_goes_by_value() -> None:
    """Each arm has its own axes."""

    @payload
    class Mixed(Payload):
        x: Annotated[Tensor, Axis("tokens")] | Annotated[list[Tensor], Axis("requests")]

    assert [1] == select(Mixed(torch.arange(2)), tokens=[1]).x.tolist()
    assert 1 == len(select(Mixed([ROPE, ROPE]), requests=[1]).x)


def test_static_memory_is_written_in_its_first_rows() -> None:
    """`copy_` leaves what is beyond as it was, and hands out views."""
    static = empty_like(decode(1), requests=4, tokens=8)
    views = copy_(static, decode(2, 3))

    assert listed(decode(2, 3)) == listed(views)
    assert [100, 101, 102, 103, 104, 0, 0, 0] == static.input_ids.tolist()
    assert static.input_ids.data_ptr() == views.input_ids.data_ptr()
    assert (4, 4) == (static.count, len(static.names))


def test_static_memory_is_made_for_every_dtype() -> None:
    """Small leaves share one buffer, each on a boundary; none is a view to autograd."""

    @payload
    class Mixed(Payload):
        a: Annotated[Tensor, Axis("requests", pad=3)]
        b: Annotated[Tensor, Axis("requests", pad=0.5)]
        c: Annotated[Tensor, Axis("requests")]

    example = Mixed(
        torch.zeros(1, dtype=torch.uint8),
        torch.zeros(1, 3, dtype=torch.float64),
        torch.zeros(1, dtype=torch.bfloat16),
    )
    static = empty_like(example, requests=5)

    leaves = (static.a, static.b, static.c)
    assert 1 == len({leaf.untyped_storage().data_ptr() for leaf in leaves})
    assert [0, 0, 0] == [
        leaf.data_ptr() % 256 - static.a.data_ptr() % 256 for leaf in leaves
    ]
    assert [3, 0.5, 0] == [leaf.flatten()[-1].item() for leaf in leaves]
    assert not any(leaf._is_view() for leaf in leaves)


def test_device_positions_serve_device_leaves(device: Any) -> None:
    """The host does not read positions that are on the device."""
    ids = torch.arange(4, device=device)

    @payload
    class Ids(Payload):
        ids: Annotated[Tensor, Axis("requests")]

    value = select(Ids(ids), requests=torch.tensor([3, 1], device=device))
    assert [3, 1] == value.ids.cpu().tolist()


@pytest.fixture
def device() -> Any:
    """Give a device, recorded where there is none."""
    with recorded_streams():
        yield "cuda"


def test_operation_on_a_changed_object_is_refused() -> None:
    """A field whose size lies is found before anything is made."""
    value = decode(2, 3)
    value.count = 7

    with pytest.raises(AxisError, match="has 7 items on the axis `requests`"):
        select(value, requests=[0])
