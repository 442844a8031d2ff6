"""Asking events whether they are done: without blocking a loop, and not in a capture.

# Note [polling and captures]
`query` on any thread can invalidate a graph capture that runs on another one, so
polling can be paused: then nothing here asks an event anything.
"""

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from tensorpack.errors import HandoffError
from tensorpack.guard.queries import is_done

__all__ = ["Poller"]

_YIELDS = 8
"""How often a coroutine looks by itself before it asks a helper thread to wait."""
_HELPERS = 4
"""Threads that wait: a copy that takes long must not hold up who awaits another."""
_NAP = 0.001
"""Seconds between looks while polling is paused."""


class Poller:
    """Waits for events on behalf of coroutines, on a few helper threads.

    Attributes:
        paused_by: how often each thread has paused, by its number.
    """

    def __init__(self) -> None:
        self._helpers: ThreadPoolExecutor | None = None
        self.paused_by: dict[int, int] = {}
        self._running = threading.Condition()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Ask no event anything until the block ends."""
        me = threading.get_ident()
        with self._running:
            self.paused_by[me] = self.paused_by.get(me, 0) + 1
        try:
            yield
        finally:
            with self._running:
                self.paused_by[me] -= 1
                if not self.paused_by[me]:
                    del self.paused_by[me]
                self._running.notify_all()

    def await_running(self, call: str) -> None:
        """Block until nobody pauses; on the pausing thread that would be for ever.

        Raises:
            HandoffError: the calling thread itself has paused.
        """
        if not self.paused_by:
            return
        if threading.get_ident() in self.paused_by:
            raise HandoffError(
                call=call,
                problem="this thread has paused the copy stream",
                remedy="Call it before or after the `pause()` block.",
            )
        with self._running:
            self._running.wait_for(lambda: not self.paused_by)

    def all_done(self, events: Iterable[torch.Event]) -> bool:
        """Tell whether events are done; while paused, say no."""
        return not self.paused_by and all(is_done(event) for event in events)

    async def until(self, events: Sequence[torch.Event]) -> None:
        """Wait for events without blocking the running loop."""
        for _ in range(_YIELDS):
            if events and self.all_done(events):
                return
            await asyncio.sleep(0)
        if not events:
            return
        while self.paused_by:  # noqa: ASYNC110  # threads pause, not coroutines
            await asyncio.sleep(_NAP)
        await asyncio.wrap_future(self._submit(events))

    def _submit(self, events: Sequence[torch.Event]) -> Future[None]:
        """Let a helper thread wait; the first call makes them."""
        with self._running:
            if self._helpers is None:
                self._helpers = ThreadPoolExecutor(
                    _HELPERS, thread_name_prefix="tensorpack"
                )
            return self._helpers.submit(self._synchronize, events)

    def _synchronize(self, events: Sequence[torch.Event]) -> None:
        """Wait on a helper thread; look again and again while paused."""
        for event in events:
            while self.paused_by:
                time.sleep(_NAP)
            event.synchronize()

    def close(self) -> None:
        """End the helper threads."""
        with self._running:
            helpers, self._helpers = self._helpers, None
        if helpers is not None:
            helpers.shutdown()
