"""The watch: turns what torch tells, and the operators that are run, into the model.

# Note [inbox]
torch's callbacks come on any thread, also in the middle of an operator and of a garbage
collection, and some of them while a lock of an allocator is held. So nothing here
waits for a lock: what happens is put into an inbox, and whoever can have the model
takes it from there in order. The order of the inbox is that of the program's calls.
"""

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack.guard.addresses import Addresses, Region
from tensorpack.guard.blocks import Access, Block, Shaped
from tensorpack.guard.extents import Extent
from tensorpack.guard.graphs import Graphs
from tensorpack.guard.hazards import Hazard
from tensorpack.guard.model import Model, Use
from tensorpack.guard.order import StreamKey
from tensorpack.guard.places import NOWHERE, Place, here
from tensorpack.guard.trace import Driver

__all__ = ["CUDA", "Touch", "Watch", "touch_of"]

CUDA = 1
"""torch's number for the device type of CUDA streams."""

_GHOSTS = 4096
"""Freed regions that are remembered."""
_GRANULE = 512
"""Bytes that the caching allocator rounds sizes up to."""


@attrs.frozen(eq=False)
class Touch:
    """A tensor that an operator reads or writes, by its addresses.

    Attributes:
        base: the address that its storage starts at.
        nbytes: bytes of the storage.
        use: what is done.
    """

    base: int
    nbytes: int
    use: Use


def touch_of(tensor: Tensor, operation: str, place: Place, *, writes: bool) -> Touch:
    """Describe a plain tensor that is used."""
    storage = tensor.untyped_storage()
    extent = None
    if tensor.layout is torch.strided:
        extent = Extent.of(
            int(tensor.storage_offset()),
            tensor.shape,
            tensor.stride(),
            tensor.itemsize,
        )
    what = Shaped(tensor.dtype, tuple(tensor.shape), tensor.device)
    use = Use(writes, operation, what, place, extent)
    return Touch(storage.data_ptr(), storage.nbytes(), use)


class Watch:
    """What is known of the device memory of this process.

    Attributes:
        model: the streams and blocks.
        driver: what is asked of CUDA.
        closed: whether the guard has ended; threads may outlive it.
    """

    def __init__(
        self,
        found: Callable[[Hazard], None],
        name: Callable[[StreamKey], str],
        driver: Driver,
    ) -> None:
        self.model: Model = Model(found, name)
        self.driver = driver
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._busy = threading.Lock()
        self._keys = itertools.count()
        self._memory: Addresses[int] = Addresses()
        self._ghosts: Addresses[tuple[Access, ...]] = Addresses()
        self._graphs = Graphs()
        self.closed: bool = False

    def close(self) -> None:
        """Take that the guard has ended."""
        self.closed = True

    # The inbox. See Note [inbox].

    def post(self, handle: Callable[..., None], *args: Any) -> None:
        """Put what has happened into the inbox, and look at it if that is possible."""
        self._inbox.append((handle, args))
        while self._inbox and self._busy.acquire(blocking=False):
            try:
                while self._inbox:
                    one, given = self._inbox.popleft()
                    one(*given)
            finally:
                self._busy.release()

    def key(self, stream: int) -> StreamKey:
        """Return what a stream of the current device is called in the model."""
        return (CUDA, self.driver.device(), stream)

    def current(self, device: int) -> StreamKey:
        """Return the calling thread's current stream on a device."""
        return (CUDA, device, self.driver.current_stream(device))

    # What torch tells. The device is set while it does.

    def event_deleted(self, event: int) -> None:
        """Take that an event is gone."""
        self.post(self.model.drop_event, event)

    def event_recorded(self, event: int, stream: int) -> None:
        """Take that an event is recorded on a stream."""
        self.post(self._record, event, self.key(stream))

    def event_awaited(self, event: int, stream: int) -> None:
        """Take that a stream waits for an event."""
        self.post(self._wait, event, self.key(stream))

    def event_synchronized(self, event: int) -> None:
        """Take that the host waits for an event, or knows that it is done."""
        self.post(self.model.finish_event, event)

    def stream_synchronized(self, stream: int) -> None:
        """Take that the host waits for a stream."""
        self.post(self.model.finish_stream, self.key(stream))

    def device_synchronized(self) -> None:
        """Take that the host waits for the current device."""
        self.post(self.model.finish_device, self.driver.device())

    def allocated(self, address: int) -> None:
        """Take that the calling thread has got a block on its current stream."""
        home = self.current(self.driver.device())
        self.post(self._allocate, address, home, here())

    def freed(self, address: int) -> None:
        """Take that a block is given back."""
        self.post(self._free, address, here())

    # What operators do.

    def ran(
        self, stream: StreamKey, touches: Iterable[Touch], *, foreign: Any = None
    ) -> None:
        """Take that a stream was given an operator.

        Args:
            stream: who runs it.
            touches: the tensors that it reads and writes.
            foreign: finds the storage at an address, to see when it dies.
        """
        self.post(self._run, stream, tuple(touches), foreign)

    def recorded(self, base: int, stream: StreamKey, place: Place) -> None:
        """Take that a stream is recorded on the block at an address."""
        self.post(self._record_stream, base, stream, place)

    def known(self, base: int, nbytes: int, home: StreamKey | None) -> None:
        """Take that a block was there before the watch began."""
        self.post(self._know, base, nbytes, home)

    # Graphs.

    def capture_began(self) -> None:
        """Take that the current stream captures from now on."""
        self.post(self._graphs.begin, self.current(self.driver.device()))

    def capture_ended(self, graph: int) -> None:
        """Take that the capture has ended, and what has come of it."""
        self.post(self._graphs.end, graph)

    def replayed(self, graph: int) -> None:
        """Take that the current stream is given all work of a graph."""
        stream = self.current(self.driver.device())
        self.post(self._replay, graph, stream, here())

    # Handlers: one at a time.

    def _record(self, event: int, stream: StreamKey) -> None:
        if not self._graphs.record(event, stream):
            self.model.record_event(event, stream)

    def _wait(self, event: int, stream: StreamKey) -> None:
        if not self._graphs.wait(event, stream):
            self.model.wait_event(event, stream)

    def _allocate(self, address: int, home: StreamKey, place: Place) -> None:
        region = self._memory.pop(address)
        if region is not None:
            self.model.blocks.pop(region.value, None)
        key = next(self._keys)
        self._memory.add(address, None, key)
        if self._graphs.is_capturing(home):
            self.model.blocks[key] = Block(key, None, allocated=place)
            return
        block = self.model.allocate(key, home, place)
        block.born = self._before(address, address + 1)

    def _before(self, start: int, stop: int) -> tuple[Access, ...]:
        """Return what used the memory in its life before, and forget that."""
        regions = list(self._ghosts.overlapping(start, stop))
        for region in regions:
            self._ghosts.pop(region.start)
        return tuple(access for region in regions for access in region.value)

    def _free(self, address: int, place: Place) -> None:
        region = self._memory.pop(address)
        if region is None:
            return
        self._graphs.forget(region.value)
        block = self.model.free(region.value, place)
        if block is None or block.home is None:
            return
        order, home = self.model.order, block.home
        before = tuple(
            attrs.evolve(use, did="used in the memory's life before", writes=True)
            for use in block.last.values()
            if use.stream not in block.recorded
            and order.is_behind(home, use.stream, use.number)
            and not order.is_done(use.stream, use.number)
        )
        if before:
            stop = region.stop or region.start + _GRANULE
            self._ghosts.add(region.start, stop, before)
            if len(self._ghosts) > _GHOSTS:
                for start in self._ghosts.oldest(_GHOSTS // 4):
                    self._ghosts.pop(start)

    def _know(self, base: int, nbytes: int, home: StreamKey | None) -> None:
        key = next(self._keys)
        self._memory.add(base, base + nbytes, key)
        self.model.blocks[key] = Block(key, home)

    def _region(self, touch: Touch, foreign: Any) -> Region[int]:
        """Return the block that a tensor lies in; make one where torch told of none."""
        region = self._memory.at(touch.base)
        if region is None:
            key = next(self._keys)
            region = self._memory.add(touch.base, touch.base + touch.nbytes, key)
            self.model.blocks[key] = Block(key, None)
            storage = None if foreign is None else foreign(touch.base)
            if storage is not None:
                forget = weakref.finalize(
                    storage, self.post, self._free, touch.base, NOWHERE
                )
                forget.atexit = False
        elif region.stop is None:
            region.stop = region.start + max(touch.nbytes, 1)
            block = self.model.blocks.get(region.value)
            if block is not None and block.home is not None:
                block.born += self._before(region.start, region.stop)
        return region

    def _run(self, stream: StreamKey, touches: tuple[Touch, ...], foreign: Any) -> None:
        capturing = self._graphs.is_capturing(stream)
        number = None if capturing else self.model.tick(stream)
        for touch in touches:
            if not touch.base or not touch.nbytes:
                continue
            region = self._region(touch, foreign)
            use = _moved(touch.use, touch.base - region.start)
            if capturing:
                self._graphs.use(stream, region.value, use)
            else:
                self.model.use(region.value, stream, use, number)

    def _record_stream(self, base: int, stream: StreamKey, place: Place) -> None:
        region = self._memory.at(base)
        if region is not None:
            self.model.record(region.value, stream, place)

    def _replay(self, graph: int, stream: StreamKey, place: Place) -> None:
        number = self.model.tick(stream)
        for key, use in self._graphs.uses_of(graph):
            if key in self.model.blocks:
                told = attrs.evolve(use, operation="CUDAGraph.replay", place=place)
                self.model.use(key, stream, told, number)

    # Host memory.

    def host_copied(
        self, storage: torch.UntypedStorage, stream: StreamKey, touch: Touch
    ) -> None:
        """Take that a copy from pinned memory, or to it, is under way."""
        owned = not storage.is_shared()
        self.post(self._copy_host, weakref.ref(storage), owned, stream, touch)

    def host_used(self, touches: Iterable[Touch]) -> None:
        """Take that the host itself reads or writes."""
        self.post(self._use_host, tuple(touches))

    @property
    def has_copies(self) -> bool:
        """Return whether copies to or from the host may be under way."""
        return bool(self._inbox) or self.model.has_copies

    def _copy_host(
        self,
        storage: "weakref.ref[torch.UntypedStorage]",
        owned: bool,
        stream: StreamKey,
        touch: Touch,
    ) -> None:
        key, alive = ("host", touch.base), storage()
        if key not in self.model.host_keys and alive is not None:
            gone = weakref.finalize(alive, self._host_freed, key, owned)
            gone.atexit = False
        number = self.model.order.last(stream)
        self.model.host_copy(key, stream, touch.use, number)

    def _host_freed(self, key: tuple[str, int], owned: bool) -> None:
        self.post(self._free_host, key, here(), owned)

    def _free_host(self, key: tuple[str, int], place: Place, owned: bool) -> None:
        self.model.host_free(key, place, owned=owned)

    def _use_host(self, touches: tuple[Touch, ...]) -> None:
        for touch in touches:
            self.model.host_use(("host", touch.base), touch.use)


def _moved(use: Use, offset: int) -> Use:
    """Count the bytes of a use from the start of its block, not of its storage."""
    extent = use.extent
    if not offset or extent is None:
        return use
    return attrs.evolve(
        use,
        extent=attrs.evolve(
            extent, start=extent.start + offset, stop=extent.stop + offset
        ),
    )
