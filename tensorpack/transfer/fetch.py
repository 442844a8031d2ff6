"""The way back: device leaves gathered, copied to pinned memory, readable when done."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Never, TypeVar

import torch
from torch import Tensor

from tensorpack._leaves.operations import each_once, moved
from tensorpack._leaves.record import record
from tensorpack._leaves.storage import is_plain_tensor
from tensorpack._leaves.streams import Streams
from tensorpack._walk.build import rebuild
from tensorpack._walk.walk import Walk
from tensorpack.errors import StreamError
from tensorpack.transfer.layout import layout_of
from tensorpack.transfer.packing import gather
from tensorpack.transfer.polling import Poller

__all__ = ["Fetch", "Fetcher"]

T = TypeVar("T")

_HOST = torch.device("cpu")
_GATHER_BELOW = 256 << 10
"""Bytes under which a leaf is gathered with others before it is copied."""


class Fetch(Generic[T]):
    """Results on their way to the host; unreadable before the copies are done."""

    def __init__(
        self,
        value: T,
        leaves: Sequence[Any],
        polls: Poller,
        events: Sequence[torch.Event] = (),
        *,
        put_back: Callable[[Any], T] | None = None,
    ) -> None:
        # Made now, so that the caller may change the original, and its leaves may die.
        self._twin = rebuild(value, leaves)
        self._put_back = put_back
        self._leaves = leaves
        self._events = events
        self._polls = polls

    def __repr__(self) -> str:
        """Show the class of what travels; its numbers may not be there yet."""
        return f"Fetch({type(self._twin).__qualname__})"

    def __getattr__(self, name: str) -> Never:
        """Raise for the use of the handle as the result."""
        msg = f"a fetch has no `{name}`: `result()` or `await` gives the payload"
        raise AttributeError(msg, name=name, obj=self)

    def __getitem__(self, key: object) -> Never:
        """Raise in the same way where the result is a container."""
        msg = f"a fetch has no items ({key!r}): `result()` or `await` gives them"
        raise TypeError(msg)

    def done(self) -> bool:
        """Return whether the results can be read; not while polling is paused."""
        return self._polls.all_done(self._events)

    def result(self, *, numpy: bool = False) -> T:
        """Block the host until the copies are done, and give the payload on the host.

        The leaves carry no gradients.

        Args:
            numpy: give each tensor as an array of the same memory. Dtypes that numpy
                lacks (bfloat16, float8) stay tensors.
        """
        self._polls.synchronize(self._events)
        found = self._twin
        if numpy:
            found = rebuild(found, [_as_array(leaf) for leaf in self._leaves])
        return found if self._put_back is None else self._put_back(found)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the result without blocking the running loop."""
        yield from self._polls.until(self._events).__await__()
        return self.result()


def _as_array(leaf: Any) -> Any:
    """View a host tensor as an array, where numpy has its dtype."""
    if not isinstance(leaf, Tensor):
        return leaf
    try:
        return leaf.detach().numpy()
    except (TypeError, RuntimeError):
        return leaf


class Fetcher:
    """Queues copies from one device to the host, on a stream of its own."""

    def __init__(self, streams: Streams, device: torch.device, polls: Poller) -> None:
        self._streams = streams
        self._device = device
        self._polls = polls
        self.stream: torch.Stream = streams.new(0)
        self.last: torch.Event | None = None

    def drain(self) -> None:
        """Block the host until every copy is done."""
        if self.last is not None:
            self.last.synchronize()

    def fetch(
        self, found: Walk, after: torch.Stream
    ) -> tuple[list[Any], Poller, tuple[torch.Event, ...]]:
        """Queue the copies of walked leaves behind what `after` has queued."""
        stream = self.stream
        # The sources are read by the fetch stream: the allocator must know. First, so
        # that they are safe also where an error ends what follows.
        record(found.leaves, stream, where=found.where)
        with self._streams.entered(stream), torch.no_grad():
            self._streams.record(after).wait(stream)
            new = each_once(found.leaves, self._queue)
            ready = self.last = self._streams.record(stream)
        return new, self._polls, (ready,)

    def _queue(self, leaves: Sequence[Any]) -> list[Any]:
        """Copy small leaves through one buffer, the others one by one."""
        layout = layout_of(leaves, _GATHER_BELOW, on=self._device)
        new = gather(layout, leaves, self._device, self._streams.pinned)
        for index in layout.alone:
            new[index] = self._to_host(leaves[index])
        return new

    def _to_host(self, leaf: Any) -> Any:
        """Copy one leaf: into pinned memory if its bytes are all there is to it."""
        odd = not is_plain_tensor(type(leaf)) or leaf.is_nested or leaf.is_quantized
        if odd or leaf.layout is not torch.strided:
            (host,) = moved([leaf], _HOST, non_blocking=False)
            return host
        if leaf.device.type == "cpu":
            return leaf.clone()
        if leaf.device != self._device:
            raise StreamError(
                problem=f"a leaf is on `{leaf.device}`, and this fetches from "
                f"`{self._device}`",
                remedy=f"Fetch it with a `CopyStream` of `{leaf.device}`.",
            )
        twin = torch.empty_like(
            leaf, device="meta", memory_format=torch.preserve_format
        )
        row = self._streams.pinned(leaf.numel(), leaf.dtype)
        host = row.as_strided(twin.shape, twin.stride())
        return host.copy_(leaf, non_blocking=True)
