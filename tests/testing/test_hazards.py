"""What `hazards()` finds and what it leaves alone: the log's use of the model."""

import asyncio
from pathlib import Path

import pytest
import torch

from tensorpack.testing import Log, recorded_streams

HERE = Path(__file__).name


@pytest.fixture
def log(recorded_streams: Log) -> Log:
    return recorded_streams


def pinned(value: float) -> torch.Tensor:
    return torch.full((4,), value).pin_memory()


def only(log: Log) -> str:
    """Return the one hazard of a log."""
    (text,) = log.hazards()
    return text


# A held stream delays its numbers.


def test_held_copy_takes_the_numbers_that_its_source_has_at_the_end(log: Log) -> None:
    """A pinned source is read when the copy is done, and its rewriting is a hazard."""
    copies, source = torch.cuda.Stream(), pinned(1)
    with log.held(copies):
        with copies:
            there = source.to("cuda", non_blocking=True)
        source.fill_(5)
    copies.synchronize()

    assert [5.0] * 4 == there.tolist()
    assert "the host writes memory that stream 1 `copies` copies from" in only(log)


def test_held_copy_of_a_pageable_source_is_taken_at_once(log: Log) -> None:
    """Torch copies pageable memory away before the host goes on."""
    copies, source = torch.cuda.Stream(), torch.ones(4)
    with log.held(copies):
        with copies:
            there = source.to("cuda", non_blocking=True)
        source.fill_(5)
    copies.synchronize()

    assert [1.0] * 4 == there.tolist()
    assert [] == log.hazards()


def test_work_behind_a_held_copy_is_delayed_as_well(log: Log) -> None:
    """What waits for a held stream computes from what arrives at the end."""
    copies, forward, source = torch.cuda.Stream(), torch.cuda.Stream(), pinned(1)
    with log.held(copies):
        with copies:
            there = source.to("cuda", non_blocking=True)
        forward.wait_stream(copies)
        with forward:
            twice = there * 2
            twice.add_(1)
            back = twice.to("cpu", non_blocking=True)
            done = forward.record_event()
    done.synchronize()

    assert [3.0] * 4 == back.tolist()
    there.record_stream(forward)
    assert [] == log.hazards()


def test_result_of_a_held_stream_is_not_there_yet(log: Log) -> None:
    """A host that reads before the end reads something else, and is told of."""
    forward = torch.cuda.Stream()
    with log.held(forward):
        with forward:
            back = torch.ones(4, device="cuda").to("cpu", non_blocking=True)
        early = back.tolist()

    assert [0.0] * 4 == early
    assert [1.0] * 4 == back.tolist()
    assert "before the copy is done" in log.hazards()[0]


def test_pinned_source_may_be_rewritten_behind_its_event(log: Log) -> None:
    """A host that has waited for the copy may write."""
    copies, source = torch.cuda.Stream(), pinned(1)
    with copies:
        source.to("cuda", non_blocking=True)
        done = copies.record_event()
    done.synchronize()
    source.fill_(5)

    assert [] == log.hazards()


def test_pinned_source_may_be_rewritten_where_the_event_was_asked(log: Log) -> None:
    """A true query proves as much as a synchronization to who asks."""
    copies, source = torch.cuda.Stream(), pinned(1)
    with copies:
        source.to("cuda", non_blocking=True)
        done = copies.record_event()
    if done.query():
        source.fill_(5)

    assert [] == log.hazards()


# What a report says.


def test_report_names_lines_shapes_and_streams(log: Log) -> None:
    """File and line of copy, read and free; dtype and shape; the program's names."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with copies:
        ids = torch.ones(2, 3).to("cuda", non_blocking=True)
    forward.wait_stream(copies)
    with forward:
        ids.sum()
    del ids
    text = only(log)
    lines = text.splitlines()

    assert "storage 0: freed while stream 2 `forward` may still use it." == lines[0]
    for part in (
        "allocated on stream 1 `copies`",
        'ids = torch.ones(2, 3).to("cuda", non_blocking=True)',
        "stream 2 `forward` reads by aten.sum.default: float32 (2, 3) on cuda:0",
        "ids.sum()",
        "del ids",
    ):
        assert any(part in line for line in lines), part
    assert 3 <= sum(HERE in line for line in lines[:-1])


def test_report_names_a_stream_by_its_attribute(log: Log) -> None:
    """A stream that an object holds has the attribute's name."""

    class Engine:
        def __init__(self) -> None:
            self.side = torch.cuda.Stream()

    x = torch.ones(2, device="cuda")
    with Engine().side:
        x.sum()

    assert "stream 1 `side` reads what the default stream writes" in only(log)


def test_report_names_what_was_recorded_instead(log: Log) -> None:
    """A record of the wrong stream is a step of the story."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with copies:
        ids = torch.ones(2).to("cuda", non_blocking=True)
    forward.wait_stream(copies)
    ids.record_stream(copies)
    with forward:
        ids.sum()
    del ids

    assert "recorded on stream 1 `copies`" in only(log)


# Wrong engines.


def test_fill_of_memory_of_another_stream_is_found(log: Log) -> None:
    """A copy into memory that its own stream may still use from its life before."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with forward:
        torch.ones(4, device="cuda").mul(2)
        static = torch.empty(4, device="cuda")
    with copies:
        static.copy_(pinned(1), non_blocking=True)

    assert "stream 1 `copies` writes what stream 2 `forward` allocated" in only(log)


@pytest.mark.parametrize("read", ["sum", "tolist", "numpy", "item"])
def test_early_read_of_a_result_is_found(read: str, log: Log) -> None:
    """Each way of reading host memory counts."""
    x = torch.ones(() if read == "item" else (4,), device="cuda")
    back = x.to("cpu", non_blocking=True)
    getattr(back, read)()

    assert "the host reads memory that the default stream copies to" in only(log)


def test_result_copied_into_a_pinned_buffer_is_found(log: Log) -> None:
    """The same for a buffer that is there already."""
    buffer = torch.empty(4).pin_memory()
    buffer.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    buffer.sum()

    assert "before the copy is done" in only(log)


# Right engines.


def test_static_buffer_of_the_consumer_is_handed_over(log: Log) -> None:
    """The consumer's own memory needs no record, only the order."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with forward:
        static = torch.empty(4, device="cuda")
    copies.wait_stream(forward)
    with copies:
        static.copy_(pinned(1), non_blocking=True)
    forward.wait_stream(copies)
    with forward:
        static.sum()

    log.assert_handed_over({"static": static}, forward)
    assert [] == log.hazards()


def test_buffer_that_is_reused_behind_an_event_is_handed_over(log: Log) -> None:
    """At the second step the copy stream waits before it writes again."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with copies:
        buffer = torch.empty(4, device="cuda")
    buffer.record_stream(forward)
    for step in range(2):
        with copies:
            buffer.copy_(pinned(step), non_blocking=True)
        forward.wait_stream(copies)
        with forward:
            buffer.sum()
        copies.wait_event(forward.record_event())
    del buffer

    assert [] == log.hazards()


def test_references_dropped_behind_a_query_are_right(log: Log) -> None:
    """Who asks whether the use is done may drop what was used."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with copies:
        x = torch.ones(4).to("cuda", non_blocking=True)
    forward.wait_stream(copies)
    with forward:
        x.sum()
        done = forward.record_event()
    while not done.query():
        pass
    del x

    assert [] == log.hazards()


def test_query_of_another_task_proves_nothing(log: Log) -> None:
    """On a device the answer might have come later than the reference went."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()

    async def use() -> torch.cuda.Event:
        with copies:
            x = torch.ones(4).to("cuda", non_blocking=True)
        forward.wait_stream(copies)
        with forward:
            x.sum()
            done = forward.record_event()
        queue.put_nowait(done)
        await asyncio.sleep(0)
        del x
        return done

    async def output() -> None:
        done = await queue.get()
        done.query()

    async def both() -> None:
        await asyncio.gather(use(), output())

    queue: asyncio.Queue[torch.cuda.Event] = asyncio.Queue()
    asyncio.run(both())

    assert "freed while stream 2" in only(log)


def test_free_before_the_join_is_right(log: Log) -> None:
    """Memory that is freed early is safe if its stream waits before it allocates."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with copies:
        x = torch.ones(4).to("cuda", non_blocking=True)
    forward.wait_stream(copies)
    with forward:
        x.sum()
    del x
    assert 1 == len(log.hazards())
    copies.wait_stream(forward)

    assert [] == log.hazards()


# The real device.


@pytest.mark.cuda
@pytest.mark.unguarded
def test_real_device_sees_frees() -> None:
    """A missing record is reported as on a recorded machine."""
    texts = []
    for real in (False, True):
        with recorded_streams(real=real) as log:
            copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
            with torch.cuda.stream(copies):
                ids = torch.ones(4).to("cuda", non_blocking=True)
            forward.wait_stream(copies)
            with torch.cuda.stream(forward):
                ids.sum()
            del ids
            texts.append(only(log).partition(" stream ")[0])

    assert texts[0] == texts[1] == "storage 0: freed while"


@pytest.mark.cuda
@pytest.mark.unguarded
def test_real_device_sees_that_views_keep_a_block() -> None:
    """A block is free when its last view is gone, and not before."""
    with recorded_streams(real=True) as log:
        x = torch.ones(4, device="cuda")
        view = x[1:]
        del x
        before = len(log.of("free"))
        del view

        assert [0, 1] == [before, len(log.of("free"))]


def test_replay_of_a_held_stream_waits(log: Log) -> None:
    """The numbers of a replay come when its stream goes on."""
    ids, total = torch.ones(2, device="cuda"), torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total.copy_(ids.sum())
    with log.held(torch.cuda.current_stream()):
        graph.replay()
        ids.fill_(5)

    assert 2 == total.item()


def test_memory_of_a_graph_is_no_hazard(log: Log) -> None:
    """Its pool is its own, on whatever stream it is replayed."""
    ids = torch.ones(2, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        twice = ids * 2
    side.wait_stream(torch.cuda.current_stream())
    ids.record_stream(side)
    with side:
        graph.replay()
    del twice
    graph.reset()
    torch.ones(2, device="cuda")

    assert [] == log.hazards()


def test_replay_is_judged_on_its_stream(log: Log) -> None:
    """A replay that does not wait for the input of its graph is a hazard."""
    ids = torch.zeros(2, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        ids.add_(1)
    ids.zero_()
    ids.record_stream(side)
    with side:
        graph.replay()

    assert any("side" in text for text in log.hazards())
