"""Model agents on recorded streams: the right one passes, each mistake is found."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from integration.engine_inputs import (
    KEYS,
    ARExtraInputs,
    CacheCheckpointInputs,
    DraftStoppingCriteria,
    ModelInputs,
    ModelInputsDelta,
    SamplingInputs,
)

from tensorpack import CopyStream, record_stream, tensors, to_device
from tensorpack._cli.demo import PROMPTS, serve
from tensorpack.testing import Log, assert_equal, example, recorded_streams
from tensorpack.transfer import copy_stream as transfer

STEPS = 3
Step = dict[str, Any]


@pytest.fixture
def log() -> Iterator[Log]:
    with recorded_streams() as made:
        yield made


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.cuda)])
def any_log(request: pytest.FixtureRequest) -> Iterator[Log]:
    """Record a machine that is made up, and where there is a device, that one."""
    with recorded_streams(real=request.param) as made:
        yield made


def step(number: int) -> Step:
    """Make the forward inputs of one step: some entries travel, the rest passes."""
    return {
        "inputs": example(ModelInputs),
        "delta": example(ModelInputsDelta),
        "cache_inputs": example(CacheCheckpointInputs),
        "sampling_inputs": example(SamplingInputs),
        "stopping_criteria": example(DraftStoppingCriteria),
        "extra_inputs": ARExtraInputs(),
        "number": number,
        "callback": print,
    }


def model(inputs: Step) -> torch.Tensor:
    """Read every leaf that travels."""
    total = torch.zeros((), device="cuda")
    for key in KEYS:
        for _, leaf in tensors(inputs[key]):
            total = total + leaf.double().sum()
    return total


class Agent:
    """Hands steps from one task to the next, as an engine does by hand.

    Attributes:
        mistake: which one it makes, if any.
        seen: the steps as the model got them.
        totals: what the model made of them, on the host.
    """

    def __init__(self, mistake: str = "") -> None:
        self.mistake = mistake
        self.copies = torch.cuda.Stream()
        self.forward = torch.cuda.Stream()
        self.seen: list[Step] = []
        self.totals: list[float] = []

    async def run(self, steps: list[Step]) -> None:
        """Run all steps, to their end."""
        incoming: asyncio.Queue[Any] = asyncio.Queue()
        ready: asyncio.Queue[Any] = asyncio.Queue()
        done: asyncio.Queue[Any] = asyncio.Queue()
        for one in (*steps, None):
            incoming.put_nowait(one)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.preprocess(incoming, ready))
            tasks.create_task(self.background(ready, done))
            tasks.create_task(self.output(done))

    async def preprocess(
        self, incoming: asyncio.Queue[Any], ready: asyncio.Queue[Any]
    ) -> None:
        while (one := await incoming.get()) is not None:
            kept = [one[key] for key in KEYS]
            with torch.inference_mode(), torch.cuda.stream(self.copies):
                event = torch.cuda.Event()
                if self.mistake == "event before the copies":
                    event.record()
                moved = to_device(one, "cuda", keys=KEYS, non_blocking=True)
                if self.mistake != "event before the copies":
                    event.record()
            ready.put_nowait((moved, event, kept))
        ready.put_nowait(None)

    async def background(
        self, ready: asyncio.Queue[Any], done: asyncio.Queue[Any]
    ) -> None:
        kept: list[Any] = []
        while (found := await ready.get()) is not None:
            moved, event, sources = found
            kept.append((event, sources))
            if self.mistake == "record before the wait":
                record_stream(moved, self.forward, keys=KEYS)
            if self.mistake != "no wait":
                self.forward.wait_event(event)
            if self.mistake in ("", "no wait", "event before the copies"):
                record_stream(moved, self.forward, keys=KEYS)
            if self.mistake == "wrong stream":
                record_stream(moved, self.copies, keys=KEYS)
            if self.mistake == "one entry forgotten":
                record_stream(moved, self.forward, keys=KEYS[:-2])
            with torch.inference_mode(), torch.cuda.stream(self.forward):
                total = model(moved)
                finished = self.forward.record_event()
            if self.mistake == "record after the model":
                record_stream(moved, self.forward, keys=KEYS)
            self.seen.append(moved)
            done.put_nowait((total, finished))
            kept = [(event, s) for event, s in kept if not event.query()]
        done.put_nowait(None)

    async def output(self, done: asyncio.Queue[Any]) -> None:
        while (found := await done.get()) is not None:
            total, finished = found
            while not finished.query():  # noqa: ASYNC110  # an event of the device
                await asyncio.sleep(0)
            self.totals.append(total.item())


class CopyingAgent(Agent):
    """Does the same with a copy stream of tensorpack."""

    def __init__(self) -> None:
        super().__init__()
        self.transfers = CopyStream("cuda", max_in_flight=2)

    async def preprocess(
        self, incoming: asyncio.Queue[Any], ready: asyncio.Queue[Any]
    ) -> None:
        while (one := await incoming.get()) is not None:
            await self.transfers.room()
            ready.put_nowait(self.transfers.start(one, keys=KEYS))
        ready.put_nowait(None)

    async def background(
        self, ready: asyncio.Queue[Any], done: asyncio.Queue[Any]
    ) -> None:
        while (handoff := await ready.get()) is not None:
            moved = handoff.take(self.forward)
            with torch.inference_mode(), torch.cuda.stream(self.forward):
                total = model(moved)
            self.seen.append(moved)
            done.put_nowait(self.transfers.fetch(total, after=self.forward))
        done.put_nowait(None)

    async def output(self, done: asyncio.Queue[Any]) -> None:
        while (fetch := await done.get()) is not None:
            self.totals.append((await fetch).item())


def assert_all_handed_over(log: Log, agent: Agent) -> None:
    assert STEPS == len(agent.seen)
    for moved in agent.seen:
        for key in KEYS[:-1]:
            log.assert_handed_over(moved[key], agent.forward)


@pytest.mark.parametrize("make", [Agent, CopyingAgent])
def test_right_agent_hands_every_leaf_over(
    make: Callable[[], Agent], any_log: Log
) -> None:
    """Each leaf is copied, awaited, recorded and read, in that order, by streams."""
    agent = make()
    steps = [step(number) for number in range(STEPS)]
    asyncio.run(agent.run(steps))

    assert_all_handed_over(any_log, agent)
    lives = any_log.life(agent.seen[0]["sampling_inputs"])
    copying = getattr(agent, "transfers", agent).__dict__.get("stream", agent.copies)
    for life in lives.values():
        calls = [e.call for e in life if e.call != "fetch"]
        order = ["copy", "event", "wait", "record", "read"]

        assert order == list(dict.fromkeys(calls))
        assert all(e.on(copying) for e in life if e.call in ("copy", "event"))
        assert all(
            e.on(agent.forward) for e in life if e.call in ("wait", "record", "read")
        )
    agent.seen.clear()
    assert [] == any_log.hazards()


def test_agents_pass_the_rest_through_and_compute_right(log: Log) -> None:
    """What does not travel is the same object, and the numbers are the host's."""
    steps = [step(number) for number in range(STEPS)]
    agents = [Agent(), CopyingAgent()]
    for agent in agents:
        asyncio.run(agent.run(steps))
        for one, moved in zip(steps, agent.seen, strict=True):
            assert one["number"] is moved["number"]
            assert one["callback"] is moved["callback"]
            for key in KEYS:
                assert_equal(one[key].to_device("cpu"), moved[key])
    expected = sum(
        float(leaf.double().sum()) for key in KEYS for _, leaf in tensors(steps[0][key])
    )

    assert [expected] * STEPS == agents[0].totals == agents[1].totals


@pytest.mark.parametrize("make", [Agent, CopyingAgent])
def test_no_agent_blocks_the_host_before_the_output(
    make: Callable[[], Agent], log: Log
) -> None:
    """Neither handing over nor the model synchronizes with a stream."""

    async def nothing(self: Any, done: asyncio.Queue[Any]) -> None:
        while await done.get() is not None:
            pass

    agent = make()
    agent.output = nothing.__get__(agent)  # type: ignore[method-assign]
    asyncio.run(agent.run([step(number) for number in range(STEPS)]))

    assert [] == log.of("synchronize")


MISTAKES = {
    "no record": "is not recorded on the stream",
    "wrong stream": "is not recorded on the stream",
    "record before the wait": "is recorded before the stream waits for its copy",
    "record after the model": "is used before the stream is recorded on it",
    "no wait": "is recorded before the stream waits for its copy",
    "event before the copies": "is recorded before the stream waits for its copy",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_agent_with_a_mistake_is_found(mistake: str, any_log: Log) -> None:
    """The assertion fails, says which mistake it is, and names every leaf."""
    agent = Agent(mistake)
    asyncio.run(agent.run([step(number) for number in range(STEPS)]))

    with pytest.raises(AssertionError, match=f"`input_ids` {MISTAKES[mistake]}"):
        assert_all_handed_over(any_log, agent)


def test_forgotten_entry_is_found(log: Log) -> None:
    """One entry of the dictionary that is not recorded is enough."""
    agent = Agent("one entry forgotten")
    asyncio.run(agent.run([step(0)]))
    log.assert_handed_over(agent.seen[0]["inputs"], agent.forward)

    with pytest.raises(AssertionError, match="`num_appendable_ids` is not recorded"):
        log.assert_handed_over(agent.seen[0]["stopping_criteria"], agent.forward)


class Forgetful(list[Step]):
    """Keeps nothing: a step that is kept to the end is safe, recorded or not."""

    def append(self, one: Step, /) -> None:
        pass


@pytest.mark.parametrize(
    "mistake", ["no record", "wrong stream", "no wait", "event before the copies"]
)
def test_mistake_that_corrupts_is_a_hazard(mistake: str, log: Log) -> None:
    """Without looking at any payload the log tells which memory is in danger."""
    agent = Agent(mistake)
    agent.seen = Forgetful()
    asyncio.run(agent.run([step(number) for number in range(STEPS)]))
    kind = "wait for it" if "wait" in mistake or "event" in mistake else "freed while"

    assert log.hazards()
    assert all(kind in hazard for hazard in log.hazards())


def test_copying_agent_without_the_record_is_found(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for an agent that leaves its transfers to a broken copy stream."""
    monkeypatch.setattr(transfer, "record_handoff", lambda *_, **__: 0)
    agent = CopyingAgent()
    asyncio.run(agent.run([step(number) for number in range(STEPS)]))

    with pytest.raises(AssertionError, match="`input_ids` is not recorded"):
        assert_all_handed_over(log, agent)


@pytest.mark.parametrize("broken", [False, True])
def test_demo_serves_on_recorded_streams(
    broken: bool,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A whole agent with its model runs without a device, and its log is clean."""
    if broken:
        monkeypatch.setattr(transfer, "record_handoff", lambda *_, **__: 0)
    summary = serve(torch.device("cuda"), 2, list(PROMPTS[:1]))

    assert 2 == summary.steps
    assert "cuda" == summary.device.type
    assert broken is bool(log.hazards())
