"""The end of a copy stream: closed in a pause, beside an await, and while full."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch

from tensorpack import CopyStream, HandoffError
from tensorpack.testing import Log, recorded_streams
from tensorpack.transfer import in_flight as _flights

ONE = torch.ones(2)


@pytest.fixture
def log() -> Iterator[Log]:
    with recorded_streams() as made:
        yield made


def test_close_inside_of_a_pause_is_refused(log: Log) -> None:
    """It would ask events, and wait for threads that wait for the pause's end."""
    copies = CopyStream("cuda")
    handoff = copies.start(ONE)
    with copies.pause(), pytest.raises(HandoffError, match="`close`: this thread has"):
        copies.close()
    copies.close()

    assert handoff.done()


def test_close_waits_while_another_thread_pauses(log: Log) -> None:
    """Nobody is asked anything in the pause; then everything is drained."""
    copies = CopyStream("cuda")
    copies.start(ONE)
    closer = threading.Thread(target=copies.close)
    with copies.pause():
        before = len(log)
        closer.start()
        closer.join(0.05)

        assert closer.is_alive()
        assert before == len(log)
    closer.join(5)

    assert not closer.is_alive()
    assert "CopyStream('cuda:0', closed)" == repr(copies)


def test_close_drains_what_is_fetched(log: Log) -> None:
    """What was on its way to the host is there afterwards."""
    copies = CopyStream("cuda")
    fetched = copies.fetch(torch.ones(2, device="cuda"))
    copies.close()

    assert fetched.done()
    assert [1.0, 1.0] == fetched.result().tolist()


def test_await_goes_on_while_another_thread_closes(log: Log) -> None:
    """Each await ends with its result, also one that begins after the end."""
    copies, forward = CopyStream("cuda"), torch.Stream("cuda")
    there = copies.start(ONE).wait(forward)

    async def agent() -> list[list[float]]:
        with log.held(forward):
            fetches = [copies.fetch(there, after=forward) for _ in range(3)]
            first = asyncio.ensure_future(asyncio.wait_for(fetches[0], 5))
            await asyncio.sleep(0.05)
            closer = threading.Thread(target=copies.close)
            closer.start()
            await asyncio.sleep(0.05)
            second = asyncio.ensure_future(asyncio.wait_for(fetches[1], 5))
            await asyncio.sleep(0.05)
        found = [await first, await second, await fetches[2]]
        closer.join(5)
        return [x.tolist() for x in found]

    assert [[1.0, 1.0]] * 3 == asyncio.run(agent())


def test_room_that_nobody_makes(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no task takes what is in flight, `room` says so, as `start` does."""
    monkeypatch.setattr(_flights, "PATIENCE", 0.05)
    copies = CopyStream("cuda", max_in_flight=1)
    handoff = copies.start(ONE)

    async def agent() -> None:
        await asyncio.wait_for(copies.room(), 5)

    with pytest.raises(HandoffError) as caught:
        asyncio.run(agent())

    assert (
        "`room`: 1 handoffs were started and none was waited for. Call `wait` on the "
        "oldest one first, or raise `max_in_flight`."
    ) == str(caught.value)
    handoff.take(torch.Stream("cuda"))
    asyncio.run(agent())


def test_room_lets_another_task_take(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits the loop goes on, so that a task may take the oldest."""
    monkeypatch.setattr(_flights, "PATIENCE", 5)
    copies = CopyStream("cuda", max_in_flight=1)
    handoff = copies.start(ONE)

    async def take_later() -> None:
        await asyncio.sleep(0.05)
        handoff.take(torch.Stream("cuda"))

    async def agent() -> None:
        taking = asyncio.create_task(take_later())
        await asyncio.wait_for(copies.room(), 5)
        await taking

    asyncio.run(agent())

    assert not copies.full()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("limit", [0, -1, 1.5, "8", None])
def test_limit_that_is_none(device: str, limit: object, log: Log) -> None:
    """Without streams the same is refused as with them."""
    with pytest.raises(ValueError, match="Choose a whole number of at least 1"):
        CopyStream(device, max_in_flight=limit)  # type: ignore[arg-type]


def test_patience_is_long_enough_for_a_slow_consumer() -> None:
    """A forward of a second is no reason to give up."""
    assert _flights.PATIENCE >= 10
