"""Pinned memory of large pageable leaves, waits of the host, and pauses."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from tensorpack import CopyStream, HandoffError
from tensorpack.testing import Log, assert_equal, recorded_streams
from tensorpack.transfer import in_flight
from tensorpack.transfer.polling import Poller
from tensorpack.transfer.staging import SLOT

ONE = torch.ones(2)
LARGE = torch.ones(SLOT // 4)
"""A leaf that fills a slot."""


@pytest.fixture
def log() -> Iterator[Log]:
    with recorded_streams() as made:
        yield made


def three() -> list[torch.Tensor]:
    """Make three leaves, each of which fills a slot."""
    return [LARGE.clone(), LARGE * 2, LARGE * 3]


def counted(copies: CopyStream) -> tuple[int, int]:
    return copies.counters.staging_growths, copies.counters.staging_waits


def test_staging_grows_before_the_host_waits(log: Log) -> None:
    """A step that was too large once finds enough memory the second time."""
    copies, forward = CopyStream("cuda", staging=SLOT), torch.Stream("cuda")
    with log.held(copies.stream):
        first = copies.start(three())
        grown = counted(copies)
    found = first.take(forward)
    with log.held(copies.stream):
        second = copies.start(three())

    assert (2, 0) == grown
    assert (2, 0) == counted(copies)
    assert_equal(found, three())
    assert_equal(second.take(forward), three())


def test_host_waits_at_the_limit_of_staging(log: Log) -> None:
    """Two slots are all there may be: the third leaf waits for the first copy."""
    copies = CopyStream("cuda", staging=SLOT, staging_limit=2 * SLOT)
    started = threading.Event()

    def start() -> None:
        copies.start(three())
        started.set()

    thread = threading.Thread(target=start)
    with log.held(copies.stream):
        thread.start()
        blocked = not started.wait(0.2)
    thread.join(5)

    assert blocked
    assert started.is_set()
    assert (1, 1) == counted(copies)


def test_staging_made_at_once_may_be_more_than_its_limit(log: Log) -> None:
    """What was asked for is there; only the growth is bounded."""
    copies = CopyStream("cuda", staging=3 * SLOT, staging_limit=SLOT)
    with log.held(copies.stream):
        copies.start(three())

    assert (0, 0) == counted(copies)


def test_pause_waits_until_other_threads_have_left(log: Log) -> None:
    """A thread inside of `start` asks events; once it did so in the pause as well."""
    copies = CopyStream("cuda")
    inside, leave, order = threading.Event(), threading.Event(), []

    class Slow:
        """A leaf that takes its time to move."""

        is_cuda = False
        device = "cpu"

        def to_device(self, device: object) -> "Slow":
            inside.set()
            leave.wait(5)
            order.append("moved")
            return self

        def record_stream(self, stream: object) -> None:
            pass

    def pause() -> None:
        with copies.pause():
            order.append("paused")

    starting = threading.Thread(target=copies.start, args=([Slow()],))
    starting.start()
    inside.wait(5)
    pausing = threading.Thread(target=pause)
    pausing.start()
    pausing.join(0.1)
    waits = pausing.is_alive()
    leave.set()
    starting.join(5)
    pausing.join(5)

    assert waits
    assert ["moved", "paused"] == order


def test_pause_begins_while_a_start_waits_for_room(log: Log) -> None:
    """Who waits at the limit asks nothing; a pause that waited for it would not end."""
    copies, forward = CopyStream("cuda", max_in_flight=1), torch.Stream("cuda")
    first = copies.start(ONE)
    waiting = threading.Thread(target=copies.start, args=(ONE,))
    waiting.start()
    time.sleep(0.05)
    with copies.pause():
        paused = True
        first.take(forward)
        waiting.join(0.05)
        held = waiting.is_alive()
    waiting.join(5)

    assert paused
    assert held
    assert not waiting.is_alive()


def test_start_inside_of_a_pause_on_the_same_thread_leaves_nothing(log: Log) -> None:
    """After the refusal another thread's pause does not wait for this one."""
    polls = Poller()
    with polls.pause(), pytest.raises(HandoffError, match="this thread has paused"):
        polls.enter("start")

    assert {} == polls._inside


def test_dropped_handoff_wakes_who_waits(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector tells, so nothing has to look again and again."""
    monkeypatch.setattr(in_flight, "PATIENCE", 30)
    copies = CopyStream("cuda", max_in_flight=1)
    handoffs = [copies.start(ONE)]
    threading.Timer(0.05, handoffs.clear).start()
    start = time.monotonic()
    copies.start(ONE)

    assert time.monotonic() - start < 10
    assert 1 == copies.counters.blocked


class Late:
    """An event that is done after some questions."""

    def __init__(self, questions: int) -> None:
        self.questions = questions
        self.synchronized = False

    def query(self) -> bool:
        self.questions -= 1
        return self.questions <= 0

    def synchronize(self) -> None:
        self.synchronized = True


def test_host_sleeps_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nap is a tenth of the time waited so far, and a millisecond at most."""
    naps: list[float] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock[0] += seconds

    def now() -> float:
        clock[0] += 1e-5  # what it takes to ask
        return clock[0]

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", now)
    event = Late(400)
    Poller().synchronize([event])  # type: ignore[list-item]  # it has what is asked for

    assert event.synchronized
    assert 1e-3 == max(naps)
    assert naps == sorted(naps)
    assert naps[0] < 1e-5


def test_paused_wait_asks_nothing() -> None:
    """While a thread pauses, torch alone does the waiting."""
    polls, event = Poller(), Late(5)
    with polls.pause():
        polls.synchronize([event])  # type: ignore[list-item]  # the same

    assert (5, True) == (event.questions, event.synchronized)
