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

from tensorpack import CopyStream, Fetch, Handoff
from tensorpack._cli.demo.inputs import TRAVELLING_KEYS, StepInputs, StepOutputs
from tensorpack._cli.demo.model import KVCache, Transformer
from tensorpack._cli.demo.sampling import sample, stopped
from tensorpack._cli.demo.scheduler import Scheduler
from tensorpack._cli.demo.sequences import Session

__all__ = ["ModelAgent"]


@attrs.frozen(eq=False)
class _Done:
    """A step whose work is queued: whom it serves, and its outcome on the way."""

    group: int
    sessions: list[Session]
    fetch: Fetch[StepOutputs]


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
        self.copies = CopyStream(device)
        self.scheduler = scheduler
        self._on_step = on_step
        self._stream = None if self.copies.stream is None else torch.Stream(device)
        with self._forward_stream():
            # On the stream that reads them, so that nothing else has to be waited for.
            self._model = model.to(device)
            self._cache = KVCache(model.config, device)
        self._busy: set[int] = set()
        self._left = 0

    async def serve(self, steps: int) -> None:
        """Run that many steps, or fewer if the requests end before.

        Args:
            steps: how many forward steps to run.

        Streams:
            The host waits for no stream. At the end nothing is on its way.
        """
        incoming: asyncio.Queue[StepInputs | None] = asyncio.Queue()
        ready: asyncio.Queue[Handoff[StepInputs] | None] = asyncio.Queue()
        done: asyncio.Queue[_Done | None] = asyncio.Queue()
        self._left = steps
        self._submit(incoming)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._preprocess(incoming, ready))
            tasks.create_task(self._background(ready, done))
            tasks.create_task(self._output(done, incoming))

    async def _preprocess(
        self,
        incoming: asyncio.Queue[StepInputs | None],
        ready: asyncio.Queue[Handoff[StepInputs] | None],
    ) -> None:
        """Send each step's inputs on their way."""
        while (step := await incoming.get()) is not None:
            await self.copies.room()
            ready.put_nowait(self.copies.start(step, keys=TRAVELLING_KEYS))
        ready.put_nowait(None)

    async def _background(
        self,
        ready: asyncio.Queue[Handoff[StepInputs] | None],
        done: asyncio.Queue[_Done | None],
    ) -> None:
        """Queue each step's work behind its inputs, and its outcome behind that."""
        while (handoff := await ready.get()) is not None:
            step = handoff.take(self._stream)
            outputs = self._forward(step)
            fetch = self.copies.fetch(outputs, after=self._stream)
            sessions = step["inputs"].session_ctx
            done.put_nowait(_Done(step["group"], sessions, fetch))
        done.put_nowait(None)

    async def _output(
        self,
        done: asyncio.Queue[_Done | None],
        incoming: asyncio.Queue[StepInputs | None],
    ) -> None:
        """Give each step's tokens to the scheduler, and ask it for the next step."""
        while (step := await done.get()) is not None:
            outputs = await step.fetch
            tokens, stops = outputs.tokens.tolist(), outputs.stopped.tolist()
            self.scheduler.commit(step.sessions, tokens, stops)
            self._busy.remove(step.group)
            self._on_step(len(tokens))
            self._submit(incoming)

    def _submit(self, incoming: asyncio.Queue[StepInputs | None]) -> None:
        """Queue a step of every idle group; after the last, the end."""
        for group in range(len(self.scheduler.live)):
            if group in self._busy or not self._left:
                continue
            step = self.scheduler.next_step(group)
            if step is not None:
                self._left -= 1
                self._busy.add(group)
                incoming.put_nowait(step)
        if not self._busy:
            incoming.put_nowait(None)

    def _forward(self, step: StepInputs) -> StepOutputs:
        """Queue the model's work on the forward stream."""
        inputs = step["inputs"]
        with self._forward_stream():
            logits = self._model(inputs, self._cache)
            tokens = sample(logits, inputs.sampling)
            return StepOutputs(tokens, stopped(tokens, step["stopping_criteria"]))

    def _forward_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else self._stream
