"""Asking events whether they are done: without blocking a loop, and not in a capture.

# Note [polling and captures]
`query` on any thread can invalidate a graph capture that runs on another one, so
polling can be paused: then nothing here asks an event anything. A thread that is inside
of `start` or `fetch` asks as well, so a pause begins when it has left. To keep track of
that costs two writes to a dictionary, each at once under the GIL: who enters writes
first and looks for a pause then, and who pauses does it the other way round.

# Note [sleeping waits]
torch makes its events so that a host that synchronizes with one spins on the driver's
lock; `torch.Event` takes `blocking=True` and ignores it, up to torch 2.13 at least. So
the host asks now and then, and sleeps in between for a tenth of the time that it has
waited already: what a wait takes longer is a tenth at most.
"""

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from tensorpack.errors import HandoffError

__all__ = ["Poller"]

_YIELDS = 8
"""How often a coroutine looks by itself before it asks a helper thread to wait."""
_HELPERS = 4
"""Threads that wait: a copy that takes long must not hold up who awaits another."""
_NAP = 0.001
"""Seconds between looks while polling is paused, and of the longest nap of a wait."""
_SPIN = 50e-6
"""Seconds for which a wait only asks: no nap is shorter."""
_LONGEST_WAIT = 10.0
"""Seconds after which a wait is left to torch."""


class Poller:
    """Waits for events on behalf of coroutines, on a few helper threads.

    Attributes:
        paused_by: how often each thread has paused, by its number.
    """

    def __init__(self) -> None:
        self._helpers: ThreadPoolExecutor | None = None
        self.paused_by: dict[int, int] = {}
        self._inside: dict[int, int] = {}
        self._running = threading.Condition()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Ask no event anything until the block ends.

        It begins when every other thread has left what it has entered.
        """
        me = threading.get_ident()
        with self._running:
            self.paused_by[me] = self.paused_by.get(me, 0) + 1
        try:
            with self._running:
                self._running.wait_for(lambda: not self._inside.keys() - {me})
            yield
        finally:
            with self._running:
                self.paused_by[me] -= 1
                if not self.paused_by[me]:
                    del self.paused_by[me]
                self._running.notify_all()

    @contextmanager
    def entered(self, call: str) -> Iterator[None]:
        """Hold up pauses until the block ends; first wait for the end of a pause.

        Raises:
            HandoffError: the calling thread itself has paused.
        """
        self.enter(call)
        try:
            yield
        finally:
            self.leave()

    def enter(self, call: str) -> None:
        """Begin what `entered` does."""
        me, inside = threading.get_ident(), self._inside
        inside[me] = inside.get(me, 0) + 1
        while self.paused_by:
            self.leave()
            self.await_running(call)
            inside[me] = inside.get(me, 0) + 1

    def leave(self) -> None:
        """End what `entered` does."""
        me, inside = threading.get_ident(), self._inside
        if inside[me] > 1:
            inside[me] -= 1
            return
        del inside[me]
        if self.paused_by:
            with self._running:
                self._running.notify_all()

    @contextmanager
    def stepped_out(self, call: str) -> Iterator[None]:
        """Let pauses begin while the block only waits."""
        self.leave()
        try:
            yield
        finally:
            self.enter(call)

    def await_running(self, call: str) -> None:
        """Block until no thread pauses; on the pausing thread that would be for ever.

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
        """Return whether events are done; not while paused."""
        return not self.paused_by and all(event.query() for event in events)

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
            self.synchronize((event,))

    def synchronize(self, events: Iterable[torch.Event]) -> None:
        """Block the host until events are done: see Note [sleeping waits].

        While a thread pauses, torch does the waiting, which asks nothing.
        """
        for event in events:
            start = time.monotonic()
            while not self.paused_by and not event.query():
                waited = time.monotonic() - start
                if waited > _LONGEST_WAIT:
                    break
                if waited > _SPIN:
                    time.sleep(min(waited / 10, _NAP))
            event.synchronize()

    def close(self) -> None:
        """End the helper threads."""
        with self._running:
            helpers, self._helpers = self._helpers, None
        if helpers is not None:
            helpers.shutdown()
