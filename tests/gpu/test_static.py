"""A graph over static memory: a fresh batch at each replay, equal to eager."""

import random
from typing import Annotated

import pytest
import torch
from torch import Tensor

from tensorpack import Axis, CopyStream, Payload, payload
from tensorpack.axes import copy_, empty_like
from tensorpack.transfer.static_memory import StaticMemory
from tests.gpu.streams import hold

pytestmark = pytest.mark.cuda

BUCKETS = (4, 16, 64)
STEPS = 1000
WIDTH = 32


@payload
class Decode(Payload):
    """What a step reads: small leaves, a wide one, and one that is large."""

    ids: Annotated[Tensor, Axis("requests", pad=0)]
    lens: Annotated[Tensor, Axis("requests", pad=1)]
    scale: Annotated[Tensor, Axis("requests", pad=0.0)]
    table: Annotated[Tensor, Axis("requests", pad=0), Axis("blocks", dim=1, pad=0)]
    hidden: Annotated[Tensor, Axis("requests", pad=0.0)]


def batch(count: int, seed: int) -> Decode:
    """Make a batch on the host; whole numbers, so that sums are exact."""
    made = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randint(0, 50, shape, generator=made)

    return Decode(
        ids=numbers(count),
        lens=numbers(count) + 1,
        scale=numbers(count).float(),
        table=numbers(count, 1 + seed % WIDTH).int(),
        hidden=numbers(count, 2048).float(),
    )


def model(x: Decode) -> Tensor:
    """Compute something that every item of every row goes into."""
    rows = x.hidden.sum(1) * x.scale + x.ids * x.lens
    return rows + x.table.sum(1) * 3


def captured(static: Decode, bucket: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Capture the model over the first rows of static memory."""
    views = Decode(
        static.ids[:bucket],
        static.lens[:bucket],
        static.scale[:bucket],
        static.table[:bucket],
        static.hidden[:bucket],
    )
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        model(views)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(views)
    return graph, out


def replayed(copies: CopyStream, *, slow: bool = False, steps: int = STEPS) -> int:
    """Replay with a fresh batch each, and count the results that are not eager's."""
    choice = random.Random(0)
    static = empty_like(batch(1, 0), device="cuda", requests=BUCKETS[-1], blocks=WIDTH)
    graphs = {bucket: captured(static, bucket) for bucket in BUCKETS}
    forward = torch.cuda.Stream()
    torch.cuda.synchronize()
    results: list[tuple[Tensor, Tensor]] = []
    for seed in range(steps):
        count = choice.randint(1, BUCKETS[-1])
        bucket = next(b for b in BUCKETS if b >= count)
        step = batch(count, seed)
        sizes = {"requests": bucket, "blocks": WIDTH}
        copies.start(step, into=static, sizes=sizes).wait(forward)
        graph, out = graphs[bucket]
        if slow:
            hold(forward, 2)
        with torch.cuda.stream(forward):
            graph.replay()
            results.append((model(step), out[:count].clone()))
    torch.cuda.synchronize()
    return sum(not torch.equal(eager, found.cpu()) for eager, found in results)


def test_thousand_replays_are_eager() -> None:
    """Sizes and buckets vary; each batch is the one that its replay reads."""
    with CopyStream("cuda") as copies:
        assert 0 == replayed(copies)


def test_slow_consumer_reads_its_own_batch() -> None:
    """Copies wait for the replay before them, however long that takes."""
    with CopyStream("cuda") as copies:
        assert 0 == replayed(copies, slow=True, steps=50)


def test_without_the_order_results_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what keeps the order is the wait for the readers."""
    monkeypatch.setattr(StaticMemory, "read_by", lambda *_: None)
    with CopyStream("cuda") as copies:
        assert 0 < replayed(copies, slow=True, steps=50)


def test_copies_on_the_device_are_captured() -> None:
    """`copy_` is plain torch: the graph copies at each replay."""
    source = batch(4, 1).to_device("cuda")
    static = empty_like(source, requests=8, blocks=WIDTH)
    copy_(static, source)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        views = copy_(static, source)
    source.ids.add_(1)
    graph.replay()
    torch.cuda.synchronize()

    assert torch.equal(source.ids, views.ids)
    assert torch.equal(source.ids, static.ids[:4])


def test_results_are_fetched_into_pinned_memory() -> None:
    """Each fetch writes the same memory, and gives what was on the device."""
    pinned = empty_like(
        batch(1, 0), device="cpu", pinned=True, requests=64, blocks=WIDTH
    )
    with CopyStream("cuda") as copies:
        for seed in range(50):
            step = batch(1 + seed, seed)
            found = copies.fetch(step.to_device("cuda"), into=pinned).result()

            assert pinned.ids.data_ptr() == found.ids.data_ptr()
            assert torch.equal(step.hidden, found.hidden)
            assert torch.equal(step.table, found.table)
