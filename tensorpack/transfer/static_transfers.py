"""What `start` and `fetch` do where they are given static memory."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from tensorpack._leaves.record import record
from tensorpack._walk.build import prepared
from tensorpack._walk.walk import Walk
from tensorpack.errors import CaptureError
from tensorpack.transfer.copy_queue import check_leaves
from tensorpack.transfer.fetch import Fetch
from tensorpack.transfer.handoff import Handoff
from tensorpack.transfer.static_copies import Job, StaticCopies
from tensorpack.transfer.static_handoff import StaticFetch, StaticHandoff, check_into

__all__ = ["StaticTransfers"]


class StaticTransfers:
    """The transfers of one copy stream into static memory, to the device and back."""

    def __init__(self, owner: Any) -> None:
        """Make them.

        Args:
            owner: the copy stream, which holds this.
        """
        host = torch.device("cpu")
        streams, device = owner._streams, owner.device
        self._puts = StaticCopies(owner, host, device, streams)
        self._fetches = StaticCopies(owner, device, host, streams)

    def start(
        self,
        owner: Any,
        value: Any,
        *,
        into: Any,
        sizes: Mapping[str, int] | None,
        keys: Iterable[str] | None,
        after: torch.Stream | None,
    ) -> Handoff[Any]:
        """Queue the copies of a payload, and enter it as in flight."""
        check_into(into, sizes, keys)
        value, found = prepared(value)
        check_leaves(found.leaves, found.key_of)
        job = Job(into, value, found.leaves, sizes or {}, "start")
        streams = owner._streams
        if streams is None:
            written = self._puts.put(job)
            owner.counters.add(found.leaves, written.buffers, ())
            return StaticHandoff(written, owner._polls)
        if streams.capturing():
            raise CaptureError(call="start", stream="current")
        queue, flights = owner._queue, owner._flights
        queue.reap()
        with flights.entered() as flight:
            written = self._puts.queue(job, owner.stream, after)
            handoff: Handoff[Any] = StaticHandoff(
                written, owner._polls, owner._hand_out, streams, flight
            )
            ready = queue.keep(written.ready, written.sources)
            flight.set_off(ready, handoff, flights.dropped)
        owner.counters.blocked = flights.blocked
        owner.counters.add(found.leaves, written.buffers, ())
        return handoff

    def fetch(
        self,
        owner: Any,
        value: Any,
        into: Any,
        keys: Iterable[str] | None,
        found: Walk,
        *,
        after: torch.Stream | None = None,
    ) -> Fetch[Any]:
        """Queue the copies of a walked payload back to the host."""
        check_into(into, None, keys)
        check_leaves(found.leaves, found.key_of)
        job = Job(into, value, found.leaves, {}, "fetch")
        if after is None:
            written = self._fetches.put(job)
        else:
            stream = owner._fetcher.stream
            # The sources are read by the fetch stream: the allocator must know.
            record(found.leaves, stream, where=found.where)
            written = self._fetches.queue(job, stream, after)
            owner._fetcher.last = written.ready
        return StaticFetch(written, owner._polls)
