"""Transfers in the order that they owe, on recorded streams: no device is needed."""

import asyncio
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorpack import (
    CaptureError,
    CopyStream,
    HandoffError,
    LeafError,
    Payload,
    StreamError,
    payload,
    prefetch,
    record_stream,
)
from tensorpack.testing import Log, assert_equal, recorded_streams
from tensorpack.transfer import copy_stream as transfer, handoff as _handoff, in_flight
from tensorpack.transfer.native import SWITCH, Native

LARGE = 1 << 18
"""Items of a leaf that is too large for a pack: 1 MiB of float32."""


@payload
class Inputs(Payload):
    ids: Tensor
    mask: Tensor | None = None
    big: Tensor | None = None


@pytest.fixture
def log() -> Iterator[Log]:
    with recorded_streams() as made:
        yield made


@pytest.fixture
def copies(log: Log) -> Iterator[CopyStream]:
    with CopyStream("cuda") as made:
        yield made


@pytest.fixture
def forward(log: Log) -> torch.Stream:
    return torch.Stream("cuda")


def small() -> Inputs:
    return Inputs(ids=torch.arange(6), mask=torch.tensor([True, False]))


def mixed() -> Inputs:
    return Inputs(ids=torch.arange(6), mask=torch.ones(3), big=torch.ones(LARGE))


def odd() -> Inputs:
    return Inputs(
        ids=torch.eye(3).to_sparse(),
        mask=torch.ones(4, dtype=torch.complex64).conj(),
        big=torch.nn.Parameter(torch.ones(2)),
    )


def in_thread(action: Callable[[], Any]) -> None:
    """Run an action on another thread, to its end."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


# Order and device lifetime.


@pytest.mark.parametrize("make", [small, mixed, odd])
def test_every_leaf_is_copied_awaited_and_recorded_in_that_order(
    make: Callable[[], Inputs], log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """Copy and event on the copy stream, then wait and record on the consumer."""
    source = make()
    inputs = copies.start(source).wait(forward)
    lives = log.life(inputs)

    assert {key for key, _ in source_tensors(source)} == set(lives)
    for life in lives.values():
        calls = [call for call, _ in itertools.groupby(life, lambda e: e.call)]
        assert ["copy", "event", "wait", "record"] == calls
        assert all(e.on(forward) is (e.call in ("wait", "record")) for e in life)
    assert [] == log.missing(inputs, forward)
    log.assert_handed_over(inputs, forward)
    assert_equal(inputs.ids.to_dense(), source.ids.to_dense())


def source_tensors(source: Inputs) -> list[tuple[str, Tensor]]:
    names = ("ids", "mask", "big")
    return [(n, getattr(source, n)) for n in names if getattr(source, n) is not None]


def test_packed_leaves_share_one_copy_and_one_record(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """Small leaves lie in one block, which is copied once and recorded once."""
    inputs = copies.start(small()).wait(forward)
    lives = log.life(inputs)

    assert lives["ids"] == lives["mask"]
    assert ["ids, mask"] == [e.key for e in log.of("copy")]
    assert ["ids, mask"] == [e.key for e in log.of("record")]
    assert (1, 1) == (copies.counters.copies, copies.counters.records)


def test_transfer_without_the_record_is_found(
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    copies: CopyStream,
    forward: torch.Stream,
) -> None:
    """A consumer that is not recorded is named with every leaf, and is a hazard."""
    monkeypatch.setattr(transfer, "record_handoff", lambda *_, **__: 0)
    inputs = copies.start(mixed()).take(forward)
    with forward:
        inputs.ids.sum()

    assert ["ids", "mask", "big"] == log.missing(inputs, forward)
    with pytest.raises(AssertionError, match="`mask` is not recorded on the stream"):
        log.assert_handed_over(inputs, forward)
    assert [] == log.hazards()
    del inputs
    assert 1 == len(log.hazards())
    assert "(ids, mask): freed while stream" in log.hazards()[0]


def test_record_before_the_wait_is_found(
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    copies: CopyStream,
    forward: torch.Stream,
) -> None:
    """The order of the two debts is part of what is checked."""
    real = _handoff.record_handoff

    class LateEvent:
        def __init__(self, event: torch.Event) -> None:
            self.event = event

        def wait(self, stream: torch.Stream) -> None:
            real(handoff, stream, own=False)
            self.event.wait(stream)

    monkeypatch.setattr(transfer, "record_handoff", lambda *_, **__: 0)
    handoff = copies.start(small())
    handoff.events[:] = [LateEvent(event) for event in handoff.events]
    inputs = handoff.wait(forward)

    assert [] == log.missing(inputs, forward)
    with pytest.raises(AssertionError, match="recorded before the stream waits"):
        log.assert_handed_over(inputs, forward)


def test_wait_inside_the_copy_stream_raises(copies: CopyStream) -> None:
    """The copy stream, being current, is no consumer."""
    handoff = copies.start(small())
    with copies.stream, pytest.raises(StreamError):
        handoff.wait()


def test_consumer_is_the_explicit_stream_also_where_it_is_current(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """That a stream is current is no reason to leave out the wait or the record."""
    with forward:
        explicit = copies.start(small()).wait(forward)
        implicit = copies.start(small()).wait()

    log.assert_handed_over(explicit, forward)
    log.assert_handed_over(implicit, forward)


def test_consumer_is_the_current_stream_of_the_thread_that_waits(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """Another thread's current stream counts there, not the starting thread's."""
    other = torch.Stream("cuda")
    handoff = copies.start(small())
    found = []

    def consume() -> None:
        with other:
            found.append(handoff.wait())

    with forward:
        in_thread(consume)

    log.assert_handed_over(found[0], other)
    assert ["ids", "mask"] == log.missing(found[0], forward)


def test_start_inside_the_copy_stream_is_a_start_as_any(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """The copies are queued on the copy stream, whatever is current."""
    with copies.stream:
        handoff = copies.start(mixed())

    log.assert_handed_over(handoff.wait(forward), forward)


def test_each_consumer_is_recorded(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """Several consumers may wait for one handoff."""
    other = torch.Stream("cuda")
    handoff = copies.start(mixed())

    log.assert_handed_over(handoff.wait(forward), forward)
    log.assert_handed_over(handoff.wait(other), other)


def test_consumer_that_is_the_copy_stream_owes_nothing(log: Log) -> None:
    """An engine that copies on its forward stream needs no record of its blocks."""
    forward = torch.Stream("cuda")
    copies = CopyStream("cuda", stream=forward)
    inputs = copies.start(mixed()).wait(forward)
    with forward:
        inputs.ids.sum()

    assert [] == log.of("record")
    log.assert_handed_over(inputs, forward)
    del inputs
    assert [] == log.hazards()


def test_second_wait_is_not_held_up_by_a_later_transfer(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """With the second transfer held, the first one's consumer runs."""
    first = copies.start(small())
    with log.held(copies.stream):
        second = copies.start(small())
        first.wait(forward)

        assert forward.query()
        assert first.done()
        assert not second.done()
        second.wait(forward)
        assert not forward.query()
    assert second.done()


def test_leaves_on_the_device_arrive_after_their_producer(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """The consumer waits for the stream that writes a leaf already on the device."""
    producer = torch.Stream("cuda")
    with producer:
        resident = torch.ones(4, device="cuda")
        handoff = copies.start(Inputs(ids=torch.ones(2), big=resident))
    inputs = handoff.wait(forward)
    with forward:
        inputs.big.sum()

    assert inputs.big is resident
    log.assert_handed_over(inputs, forward)
    del inputs, handoff, resident
    assert [] == log.hazards()


def test_named_producer_is_awaited(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """`after=` says who writes the leaves, where that is not the current stream."""
    producer = torch.Stream("cuda")
    with producer:
        resident = torch.ones(4, device="cuda")
    inputs = copies.start(Inputs(ids=resident), after=producer).wait(forward)

    log.assert_handed_over(inputs, forward)


# What travels.


def test_entries_under_keys_travel_and_the_rest_passes(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """A mapping comes back with new values under the keys and the same elsewhere."""
    context = object()
    step = {"inputs": small(), "extra": None, "flag": True, "context": context}
    found = copies.start(step, keys=("inputs", "extra", "missing")).wait(forward)

    assert list(step) == list(found)
    assert context is found["context"]
    assert found["inputs"].ids.is_cuda
    log.assert_handed_over(found["inputs"], forward)


def test_entry_without_support_is_named_and_nothing_is_queued(
    log: Log, copies: CopyStream
) -> None:
    """The error names the key, and no copy was queued."""
    before = len(log)
    with pytest.raises(LeafError, match="`bad`"):
        copies.start({"inputs": small(), "bad": object()}, keys=("inputs", "bad"))

    assert before == len(log)
    assert 0 == copies.in_flight


def test_shared_leaf_stays_one_object(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """A tensor in two fields is copied once; two views of a storage are two leaves."""
    base = torch.ones(2 * LARGE)
    inputs = copies.start(Inputs(base, base, base[:LARGE])).wait(forward)

    assert inputs.ids is inputs.mask
    assert inputs.ids is not inputs.big
    log.assert_handed_over(inputs, forward)


def test_source_may_be_overwritten_at_once(
    copies: CopyStream, forward: torch.Stream, log: Log
) -> None:
    """What `start` has returned from is copied already, also behind a held stream."""
    source = mixed()
    with log.held(copies.stream):
        handoff = copies.start(source)
        for _, tensor in source_tensors(source):
            tensor.zero_()
    inputs = handoff.wait(forward)

    assert [0, 1, 2, 3, 4, 5] == inputs.ids.tolist()
    assert LARGE == int(inputs.big.sum())


# Host lifetime.


def test_pinned_source_is_kept_until_its_copy_is_done(
    log: Log, copies: CopyStream
) -> None:
    """Memory that DMA reads lives until then, and no longer than the next reap."""
    source = torch.ones(LARGE).pin_memory()
    alive = weakref.ref(source)
    with log.held(copies.stream):
        copies.start(source)
        del source
        copies.reap()
        gc.collect()
        kept = alive() is not None, copies.retained
    copies.reap()

    assert (True, 1) == kept
    assert alive() is None
    assert 0 == copies.retained


def test_pageable_source_is_not_kept(log: Log, copies: CopyStream) -> None:
    """It was staged, so nothing reads it any more."""
    source = torch.ones(LARGE)
    alive = weakref.ref(source)
    with log.held(copies.stream):
        copies.start(source)
        del source

        assert alive() is None
        assert 0 == copies.retained


def test_error_between_copies_keeps_what_was_queued(
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
    copies: CopyStream,
    forward: torch.Stream,
) -> None:
    """After an error in the middle, sources stay until their copies are done."""
    first = torch.ones(LARGE).pin_memory()
    second = torch.ones(LARGE).pin_memory()
    alive = weakref.ref(first)
    real = copies._queue.stager.move

    def fails_on_second(leaf: Tensor, stream: torch.Stream) -> Any:
        if leaf is second:
            raise MemoryError
        return real(leaf, stream)

    monkeypatch.setattr(copies._queue.stager, "move", fails_on_second)
    with log.held(copies.stream):
        with pytest.raises(MemoryError):
            copies.start([first, second])
        del first
        copies.reap()
        kept = alive() is not None
    copies.reap()

    assert kept
    assert alive() is None
    log.assert_handed_over(copies.start(mixed()).wait(forward), forward)


# In flight.


def test_payloads_in_flight_are_bounded_over_many_steps(
    log: Log, forward: torch.Stream
) -> None:
    """With the device keeping up, 300 steps never wait and leave nothing behind."""
    with CopyStream("cuda", max_in_flight=3) as copies:
        most = 0
        for _ in range(300):
            inputs = copies.start(small()).take(forward)
            most = max(most, copies.in_flight)
            del inputs
        freed = len(log.of("free"))

        assert most <= 3
        assert 300 == freed
        assert [] == log.hazards()
        assert [] == log.of("synchronize")


def test_start_blocks_at_the_limit_until_the_oldest_is_past(
    log: Log, forward: torch.Stream
) -> None:
    """With the consumer held, the start over the limit waits, and says so."""
    copies = CopyStream("cuda", max_in_flight=2)
    done = threading.Event()

    def over_the_limit() -> None:
        copies.start(small())
        done.set()

    with log.held(forward):
        for _ in range(2):
            copies.start(small()).take(forward)
        assert copies.full()
        thread = threading.Thread(target=over_the_limit)
        thread.start()
        blocked = not done.wait(0.1)
    thread.join()

    assert blocked
    assert done.is_set()
    assert 1 == copies.counters.blocked
    assert copies.in_flight <= 2


def test_threads_that_race_stay_within_the_limit(
    log: Log, forward: torch.Stream
) -> None:
    """Room is found and taken in one step, however many threads ask for it."""
    copies = CopyStream("cuda", max_in_flight=2)
    seen: list[int] = []

    def start_many() -> None:
        for _ in range(30):
            handoff = copies.start(small())
            seen.append(copies.in_flight)
            handoff.take(forward)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=start_many) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert 180 == len(seen)
    assert max(seen) <= 2


def test_start_that_fails_gives_its_place_back(log: Log, forward: torch.Stream) -> None:
    """What could not be started is not in flight."""
    copies = CopyStream("cuda", max_in_flight=1)
    for _ in range(3):
        with pytest.raises(LeafError, match="meta"):
            copies.start(torch.ones(2, device="meta"))

    assert 0 == copies.in_flight
    log.assert_handed_over(copies.start(small()).wait(forward), forward)


def test_start_at_the_limit_raises_where_nobody_takes(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone with handoffs that were never waited for, blocking would never end."""
    monkeypatch.setattr(in_flight, "PATIENCE", 0.05)
    copies = CopyStream("cuda", max_in_flight=2)
    handoffs = [copies.start(small()) for _ in range(2)]
    with pytest.raises(HandoffError, match="2 handoffs were started"):
        copies.start(small())

    handoffs.pop().take(torch.Stream("cuda"))
    assert copies.start(small()) is not None


def test_start_at_the_limit_waits_for_another_thread_to_take(log: Log) -> None:
    """A consumer thread that takes a handoff makes room."""
    copies = CopyStream("cuda", max_in_flight=1)
    forward = torch.Stream("cuda")
    first = copies.start(small())
    thread = threading.Timer(0.05, lambda: first.take(forward))
    thread.start()
    second = copies.start(small())
    thread.join()

    assert second is not None
    assert 1 == copies.counters.blocked


def test_dropped_handoff_makes_room_when_its_copies_are_done(log: Log) -> None:
    """A payload that nobody can ask for any more is past."""
    copies = CopyStream("cuda", max_in_flight=1)
    copies.start(small())

    assert not copies.full()


def test_room_waits_without_blocking_the_loop(log: Log, forward: torch.Stream) -> None:
    """A coroutine waits for room while another goes on, and `start` does not block."""
    copies = CopyStream("cuda", max_in_flight=1)
    beats = []

    async def beat() -> None:
        while not copies.counters.payloads > 1:
            beats.append(1)
            await asyncio.sleep(0.001)

    async def agent() -> None:
        with log.held(forward):
            copies.start(small()).take(forward)
            beating = asyncio.create_task(beat())
            waiting = asyncio.create_task(copies.room())
            await asyncio.sleep(0.05)
            assert not waiting.done()
        await waiting
        copies.start(small())
        await beating

    asyncio.run(agent())
    copies.close()

    assert len(beats) > 5
    assert 0 == copies.counters.blocked


# The way back.


def test_fetch_reads_behind_the_producer_and_is_recorded(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """The fetch stream waits for what is fetched, and the allocator knows of it."""
    with forward:
        outputs = Inputs(
            ids=torch.arange(6, device="cuda"),
            mask=torch.ones(3, device="cuda"),
            big=torch.ones(LARGE, device="cuda"),
        )
    fetch = copies.fetch(outputs, after=forward)
    fetching = log.of("fetch")[-1].stream
    expected = [e.key for e in log.entries if e.call == "record"]
    del outputs
    found = fetch.result()

    assert [] == log.hazards()
    assert len(expected) >= 3
    assert fetching not in {e.stream for e in log.of("event")[:1]}
    assert_equal(found.ids, torch.arange(6))
    assert LARGE == int(found.big.sum())


def test_fetch_is_not_done_before_its_copies_are(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """`done` says no, and `await` lets other coroutines run until then."""
    inputs = copies.start(mixed()).wait(forward)

    async def agent() -> Inputs:
        with log.held(forward):
            fetch = copies.fetch(inputs, after=forward)
            waiting = asyncio.ensure_future(result(fetch))
            await asyncio.sleep(0.02)
            assert not fetch.done()
            assert not waiting.done()
        return await waiting

    async def result(fetch: Any) -> Inputs:
        found: Inputs = await fetch
        return found

    assert_equal(mixed(), asyncio.run(agent()))


def test_fetch_of_host_leaves_gives_them_as_they_are(copies: CopyStream) -> None:
    """There is nothing to wait for."""
    assert_equal(mixed(), copies.fetch(mixed()).result())


def test_repr_says_that_the_compiled_core_is_used(
    log: Log, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is used where it is built, unless the environment says no."""
    monkeypatch.delenv(SWITCH, raising=False)
    with_it = CopyStream("cuda")
    monkeypatch.setenv(SWITCH, "0")

    assert "CopyStream('cuda:0', in_flight=0, native)" == repr(with_it)
    assert "CopyStream('cuda:0', in_flight=0)" == repr(CopyStream("cuda"))
    assert (True, False) == (with_it.native, CopyStream("cuda").native)


def test_reprs_tell_the_state_and_read_nothing(
    log: Log, forward: torch.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a debugger shows neither waits for a copy nor asks an event."""
    monkeypatch.setenv(SWITCH, "0")
    copies = CopyStream("cuda")
    first, second = copies.start(small()), copies.start({"ids": torch.ones(2)})
    before = len(log)

    assert "CopyStream('cuda:0', in_flight=2)" == repr(copies)
    assert "Handoff(Inputs)" == repr(first)
    assert "Handoff(dict)" == repr(second)
    assert before == len(log)

    inputs = first.take(forward)
    with CopyStream("cuda") as other:
        pass

    assert "Handoff(taken)" == repr(first)
    assert "Fetch(Inputs)" == repr(copies.fetch(inputs))
    assert "CopyStream('cuda:0', closed)" == repr(other)
    assert "CopyStream('cpu', in_flight=0)" == repr(CopyStream("cpu"))


HANDLES: dict[str, tuple[Callable[[Any], object], str]] = {
    "field": (
        lambda handle: handle.ids,
        "a handoff has no `ids`: `wait(stream)` gives the payload",
    ),
    "item": (
        lambda handle: handle["ids"],
        "a handoff has no items ('ids'): `wait(stream)` gives the payload",
    ),
    "taken": (
        lambda handle: (handle.take(), handle.value),
        "a handoff has no `value`, and its payload was taken",
    ),
    "result": (
        lambda handle: CopyStream("cpu").fetch(handle.wait()).ids,
        "a fetch has no `ids`: `result()` or `await` gives the payload",
    ),
    "item of a result": (
        lambda handle: CopyStream("cpu").fetch(handle.wait())[0],
        "a fetch has no items (0): `result()` or `await` gives them",
    ),
}


@pytest.mark.parametrize(("act", "text"), HANDLES.values(), ids=list(HANDLES))
def test_handle_taken_for_the_payload(act: Callable[[Any], object], text: str) -> None:
    """Who forgets to wait is told so."""
    with pytest.raises((AttributeError, TypeError)) as caught:
        act(CopyStream("cpu").start(small()))

    assert text == str(caught.value)


# Refusals.


def test_wrong_streams_are_refused(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """A consumer of another device, or what is no stream, is a clear error."""
    handoff = copies.start(small())
    other = torch.Stream("cuda:1")
    for bad in (other, torch.device("cpu"), "cuda"):
        with pytest.raises(StreamError):
            handoff.wait(bad)
    with pytest.raises(StreamError):
        CopyStream("cuda", stream=other)

    log.assert_handed_over(handoff.wait(forward), forward)


def test_record_of_a_host_payload_does_nothing(log: Log, forward: torch.Stream) -> None:
    """Host leaves are passed over, as are meta leaves."""
    before = len(log)
    record_stream([small(), torch.ones(2, device="meta")], forward)

    assert before == len(log)


def test_capture_refuses_transfers(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """While a graph is captured, `start`, `wait` and `fetch` say why they do not."""
    handoff = copies.start(small())
    inputs = handoff.wait(forward)
    calls: dict[str, Callable[[], Any]] = {
        "start": lambda: copies.start(small()),
        "wait": lambda: handoff.wait(forward),
        "fetch": lambda: copies.fetch(inputs, after=forward),
    }
    before = len(log)
    with log.capturing(forward):
        for name in ("wait", "fetch"):
            with pytest.raises(CaptureError, match=f"`{name}`"):
                calls[name]()
        with forward:
            for name in ("start", "fetch"):
                with pytest.raises(CaptureError, match=f"`{name}`"):
                    calls[name]()
    quiet = len(log) - before
    with log.capturing(copies.stream), pytest.raises(CaptureError, match="copy stream"):
        calls["start"]()

    assert 0 == quiet
    for call in calls.values():
        call()


def test_transfers_wait_while_another_thread_pauses(
    log: Log, copies: CopyStream, forward: torch.Stream
) -> None:
    """No event is asked anything in a pause, and the pausing thread is refused."""
    handoff = copies.start(small())
    done = threading.Event()

    def transfer_later() -> None:
        copies.start(small())
        done.set()

    with copies.pause():
        with pytest.raises(HandoffError, match="paused"):
            copies.start(small())
        assert not handoff.done()
        thread = threading.Thread(target=transfer_later)
        thread.start()
        waited = not done.wait(0.05)
    thread.join()

    assert waited
    assert handoff.done()
    assert done.is_set()


def test_taken_payload_is_gone(copies: CopyStream, forward: torch.Stream) -> None:
    """After `take`, only the caller holds it, and nobody can wait for it again."""
    handoff = copies.start(small())
    alive = weakref.ref(handoff.take(forward))

    assert alive() is None
    with pytest.raises(HandoffError, match="taken before"):
        handoff.wait(forward)


def test_close_waits_for_the_copies_and_ends_the_starts(
    log: Log, forward: torch.Stream
) -> None:
    """Nothing is kept after `close`; what was started can still be taken."""
    copies = CopyStream("cuda")
    handoff = copies.start(torch.ones(LARGE).pin_memory())
    copies.close()

    assert 0 == copies.retained
    assert handoff.done()
    assert [copies.stream] == [
        s
        for s in (copies.stream, forward)
        if any(e.on(s) for e in log.of("synchronize"))
    ]
    with pytest.raises(HandoffError, match="closed"):
        copies.start(small())
    log.assert_handed_over(handoff.wait(forward), forward)


# Loaders.


def test_loaders_and_epochs_of_a_device_share_one_copy_stream(log: Log) -> None:
    """Two loaders and three epochs copy on one stream, and every batch is recorded."""
    forward = torch.Stream("cuda")
    with forward:
        for _ in range(3):
            for loader in ([small(), mixed()], [mixed()]):
                for batch in prefetch(loader, "cuda"):
                    log.assert_handed_over(batch, forward)

    assert 1 == len({e.stream for e in log.of("copy")})


# Layouts.


def texts(copies: CopyStream) -> list[str]:
    return copies._queue.packer.texts()


def test_layout_that_recurs_gets_one_function(
    copies: CopyStream, forward: torch.Stream
) -> None:
    """The loop moves a layout once or twice, its own function from then on."""
    found = [copies.start(small()).wait(forward) for _ in range(5)]

    assert 1 == len(texts(copies))
    assert "def pack(leaves, device, pinned):" in texts(copies)[0]
    for inputs in found:
        assert_equal(small(), inputs)


def test_many_shapes_cost_no_functions_and_bounded_memory(
    copies: CopyStream, forward: torch.Stream
) -> None:
    """An adversary's shapes, each of them new, compile nothing and are forgotten."""
    for n in range(1, 300):
        inputs = copies.start([torch.ones(n), torch.ones(2)]).take(forward)
        assert n == inputs[0].numel()
    packer = copies._queue.packer

    assert [] == texts(copies)
    assert len(packer._seen) <= 256
    assert len(packer._known) <= 256


def test_packing_can_be_left_out(log: Log, forward: torch.Stream) -> None:
    """With `pack=False` each leaf has a block, a copy and a record of its own."""
    with CopyStream("cuda", pack=False) as copies:
        inputs = copies.start(small()).wait(forward)

    log.assert_handed_over(inputs, forward)
    assert ["ids", "mask"] == [e.key for e in log.of("copy")]
    assert ["ids", "mask"] == [e.key for e in log.of("record")]


# Without streams.


def test_leaves_that_do_not_tell_their_bytes_are_copied_too() -> None:
    """A sparse leaf has no `nbytes`: counting the bytes failed with a RuntimeError."""
    found = CopyStream("cpu").start([torch.eye(3).to_sparse()]).wait()

    assert_equal([torch.eye(3)], [found[0].to_dense()])


def test_without_streams_the_same_code_copies() -> None:
    """On the host a payload is copied too, so the source may be overwritten."""
    copies = CopyStream("cpu")
    source = mixed()
    handoff = copies.start(source)
    source.ids.zero_()
    inputs = handoff.wait()

    assert [0, 1, 2, 3, 4, 5] == inputs.ids.tolist()
    assert handoff.done()
    assert (0, 0) == (copies.in_flight, copies.retained)
    assert_equal(inputs, copies.fetch(inputs).result())


def test_fetch_is_a_snapshot(copies: CopyStream) -> None:
    """The caller may change what was fetched; once the result followed the changes."""
    out = {"a": torch.tensor(1.0), "b": torch.tensor(2.0), "step": 1}
    for stream in (copies, CopyStream("cpu")):
        source: dict[str, Any] = dict(out)
        fetched = stream.fetch(source)
        first = source.pop("a")
        source.update(a=first, step=2)

        assert {"a": 1.0, "b": 2.0, "step": 1} == {
            key: float(value) for key, value in fetched.result().items()
        }


def test_await_is_not_held_up_by_a_slower_one() -> None:
    """A result can be had while another task waits for a copy that is held."""
    with recorded_streams() as log, CopyStream("cuda") as copies:
        forward = torch.cuda.Stream()
        first = copies.start(small()).wait(forward)

        async def agent() -> bool:
            with log.held(copies.stream):
                waiter = asyncio.ensure_future(copies.start(small()))
                await asyncio.sleep(0.05)
                with log.held(forward):
                    fetched = asyncio.ensure_future(copies.fetch(first, after=forward))
                    await asyncio.sleep(0.05)
                await asyncio.wait_for(fetched, 5)
                pending = not waiter.done()
            await waiter
            return pending

        assert asyncio.run(agent())


def test_room_lets_other_tasks_run_behind_two_consumers() -> None:
    """With one of two consumers slow, the loop goes on; it once span for ever."""
    with recorded_streams() as log:
        copies = CopyStream("cuda", max_in_flight=1)
        slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
        handoff = copies.start(torch.ones(2))

        async def waits() -> bool:
            with log.held(slow):
                handoff.wait(slow)
                handoff.wait(quick)
                waiter = asyncio.create_task(copies.room())
                await asyncio.sleep(0.05)
                pending = not waiter.done()
            await waiter
            return pending

        assert asyncio.run(waits())


def test_prefetch_does_not_take_a_stray_stop_for_the_end() -> None:
    """A `StopIteration` out of a batch is an error; it once cut the data short."""

    @payload
    class Batch:
        ids: Tensor

        def __payload_prepare__(self) -> "Batch":
            if int(self.ids[0]) == 2:
                next(iter(()))
            return self

    batches = prefetch([Batch(torch.tensor([i])) for i in range(6)], "cpu")

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(batches)


def test_two_loaders_share_a_copy_stream() -> None:
    """When one loader has filled the stream, the other yields what it has started."""
    with recorded_streams():
        first = prefetch([torch.ones(1) * i for i in range(20)], "cuda", depth=5)
        second = prefetch([torch.ones(1) * i for i in range(20)], "cuda", depth=5)

        assert 20 == len(list(zip(first, second, strict=True)))


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_must_leave_room_for_one(limit: int) -> None:
    """A limit that nothing could pass is refused when the stream is made."""
    with recorded_streams(), pytest.raises(ValueError, match="at least 1"):
        CopyStream("cuda", max_in_flight=limit)


def test_kept_memory_outlives_the_modes_of_its_maker() -> None:
    """Pinned memory made in inference mode or under a default device stays usable."""
    with recorded_streams():
        with torch.inference_mode(), torch.device("meta"):
            copies = CopyStream("cuda")
            copies.start([torch.ones(3, device="cpu"), torch.ones(4, device="cpu")])
        large = copies.start(torch.ones(1 << 19)).take(torch.cuda.Stream())

        assert bool((large.cpu() == 1).all())
