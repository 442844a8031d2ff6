"""A payload on its way into static memory, to the device or back."""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

import torch

from tensorpack._leaves.streams import Streams
from tensorpack._walk.walk import walk
from tensorpack.transfer.copy_queue import Queued
from tensorpack.transfer.fetch import Fetch
from tensorpack.transfer.handoff import Handoff
from tensorpack.transfer.in_flight import Flight
from tensorpack.transfer.polling import Poller
from tensorpack.transfer.static_copies import Written

__all__ = ["StaticFetch", "StaticHandoff", "check_into"]

T = TypeVar("T")


def check_into(
    into: object, sizes: Mapping[str, int] | None, keys: Iterable[str] | None
) -> None:
    """Raise for arguments of `start` that do not go together.

    Raises:
        TypeError: `sizes` has no `into`, or `into` goes with `keys`.
    """
    if into is None:
        msg = f"`sizes={sizes!r}` goes with `into=`. Pass the static memory."
        raise TypeError(msg)
    if keys is not None:
        msg = "`into=` takes a whole payload. Leave `keys=` out."
        raise TypeError(msg)


class StaticHandoff(Handoff[T]):
    """A payload on its way into static memory; the next one into it ends this one."""

    __slots__ = ("_streams", "_written")

    def __init__(
        self,
        written: Written,
        polls: Poller,
        hand_out: Callable[[Handoff[Any], torch.Stream | None], None] | None = None,
        streams: Streams | None = None,
        flight: Flight | None = None,
    ) -> None:
        queued = None
        if written.ready is not None:
            # No block is recorded at each wait: those of a static are, once.
            queued = Queued([], [], (), (), written.ready)
        super().__init__(written.value, polls, hand_out, queued, flight)
        self._written = written
        self._streams = streams

    def wait(self, stream: torch.Stream | None = None) -> T:
        """Do what `Handoff.wait` does; the next copies go behind the consumer.

        Raises:
            HandoffError: the static memory was written again since.
        """
        with self._written.memory.held():
            self._written.check("wait")
            value = super().wait(stream)
            if self._streams is not None:
                consumer = self._streams.current() if stream is None else stream
                self._written.memory.read_by(consumer)
        return value


class StaticFetch(Fetch[T]):
    """Results on their way into static memory; the next ones into it end these."""

    def __init__(self, written: Written, polls: Poller) -> None:
        self._twin = written.value
        self._put_back = None
        self._leaves = walk(written.value).leaves
        self._events = () if written.ready is None else (written.ready,)
        self._polls = polls
        self._written = written

    def result(self, *, numpy: bool = False) -> T:
        """Do what `Fetch.result` does.

        Raises:
            HandoffError: the static memory was written again since.
        """
        self._written.check("result")
        return super().result(numpy=numpy)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the result without blocking the running loop."""
        yield from self._polls.until(self._events).__await__()
        return self.result()
