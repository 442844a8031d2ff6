"""The model agent: three tasks that hand a step from one to the next.

    scheduler -> incoming -> preprocess -> ready -> background -> done -> output
        ^                                                                   |
        +-------------------------------------------------------------------+

`preprocess` sends the inputs on their way, `background` queues the model's work on the
forward stream, `output` takes the tokens in. None of them blocks the host, so while a
step is on the device, the inputs of the next are built and copied.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import attrs
import torch

from tensorpack._cli.demo.inputs import StepInputs, StepOutputs
from tensorpack._cli.demo.model import KVCache, Transformer
from tensorpack._cli.demo.sampling import sample, stopped
from tensorpack._cli.demo.scheduler import Scheduler
from tensorpack._cli.demo.sequences import Session
from tensorpack._cli.demo.transport import (
    Fetch,
    Handoff,
    Transport,
    has_streams,
    open_transport,
)

__all__ = ["ModelAgent", "Transport"]


@attrs.frozen(eq=False)
class _Done:
    """A step whose work is queued: whom it serves, and its outcome on the way."""

    group: int
    sessions: list[Session]
    fetch: Fetch


class ModelAgent:
    """Serves the scheduler's steps on one device.

    Args:
        model: on the host; the agent moves it to the device.
        scheduler: gives the steps and takes the tokens.
        device: where the model runs.
        on_step: called after each step with the number of tokens that it gave.
    """

    def __init__(
        self,
        model: Transformer,
        scheduler: Scheduler,
        device: torch.device,
        *,
        on_step: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.transport = open_transport(device)
        self.scheduler = scheduler
        self._on_step = on_step
        self._stream = torch.Stream(device) if has_streams(device) else None
        with self._forward_stream():
            # On the stream that reads them, so that nothing else has to be waited for.
            self._model = model.to(device)
            self._cache = KVCache(model.config, device)
        self._incoming: asyncio.Queue[StepInputs | None] = asyncio.Queue()
        self._ready: asyncio.Queue[Handoff | None] = asyncio.Queue()
        self._done: asyncio.Queue[_Done | None] = asyncio.Queue()
        self._busy: set[int] = set()
        self._started = 0

    async def serve(self, steps: int) -> None:
        """Run that many steps, or fewer if the requests end before.

        Args:
            steps: how many forward steps to run.

        Streams:
            The host waits for no stream. At the end nothing is on its way.
        """
        self._started = 0
        self._submit(steps)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._preprocess())
            tasks.create_task(self._background())
            tasks.create_task(self._output(steps))

    async def _preprocess(self) -> None:
        while (step := await self._incoming.get()) is not None:
            self._ready.put_nowait(self.transport.start(step))
        self._ready.put_nowait(None)

    async def _background(self) -> None:
        while (handoff := await self._ready.get()) is not None:
            step = handoff.wait(self._stream)
            outputs = self._forward(step)
            fetch = self.transport.fetch(outputs, after=self._stream)
            sessions = step["inputs"].session_ctx
            self._done.put_nowait(_Done(step["group"], sessions, fetch))
        self._done.put_nowait(None)

    async def _output(self, steps: int) -> None:
        while (done := await self._done.get()) is not None:
            outputs = await done.fetch
            tokens, stops = outputs.tokens.tolist(), outputs.stopped.tolist()
            self.scheduler.commit(done.sessions, tokens, stops)
            self._busy.remove(done.group)
            self._on_step(len(tokens))
            self._submit(steps)

    def _submit(self, steps: int) -> None:
        """Queue a step of every idle group; after the last, the end."""
        for group in range(len(self.scheduler.live)):
            if group in self._busy or self._started == steps:
                continue
            step = self.scheduler.next_step(group, self._started)
            if step is not None:
                self._started += 1
                self._busy.add(group)
                self._incoming.put_nowait(step)
        if not self._busy:
            self._incoming.put_nowait(None)

    def _forward(self, step: StepInputs) -> StepOutputs:
        """Queue the model's work on the forward stream."""
        inputs = step["inputs"]
        with self._forward_stream():
            logits = self._model(inputs, self._cache)
            tokens = sample(logits, inputs.sampling)
            return StepOutputs(tokens, stopped(tokens, step["stopping_criteria"]))

    def _forward_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else self._stream
