"""Where the leaves of an object go in static memory, and through which pinned rows.

# Note [layout of a slot]
The small leaves of a static lie in one buffer. A slot is memory of the same layout on
the other side: each leaf and its padding is written into the rows that are used, and
the whole is one copy. A leaf that is in no such buffer has a copy of its own.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack._walk.build import rebuild
from tensorpack._walk.walk import walk
from tensorpack.axes.fitting import Fit, Fits, fit, placed
from tensorpack.axes.form import form_of
from tensorpack.axes.static import shared_buffer
from tensorpack.errors import AxisError
from tensorpack.transfer.static_memory import StaticMemory, memory_of
from tensorpack.transfer.static_rows import Rows, rows_of

__all__ = ["Part", "Route", "Routes", "Slot"]

_ROUTES = 512
"""Routes that are kept for each static: one for each form, shapes and sizes."""
_STATICS = 16
"""Statics whose routes are kept, and which stay alive with them."""


@attrs.define(eq=False)
class Slot:
    """Memory in the layout of one buffer, on the other side of a copy.

    Attributes:
        memory: the bytes.
        free_after: recorded after the copy that reads it.
        rows: the rows of each route, by its number.
    """

    memory: Tensor
    free_after: torch.Event | None = None
    rows: "OrderedDict[int, Rows]" = attrs.field(factory=OrderedDict)


class Slots:
    """The slots of one buffer: used again once their copy is done."""

    def __init__(self, make: Callable[[int], Tensor], buffer: Tensor) -> None:
        self._make = make
        self.buffer = buffer
        self._free: deque[Slot] = deque()

    def take(self) -> Slot:
        """Return a slot that no copy reads any more."""
        if self._free:
            event = self._free[0].free_after
            if event is None or event.query():
                return self._free.popleft()
        return Slot(self._make(self.buffer.nbytes))

    def give_back(self, slot: Slot, event: torch.Event | None) -> None:
        """Keep a slot for later; without an event it is free at once."""
        slot.free_after = event
        self._free.append(slot)


@attrs.frozen(eq=False)
class Part:
    """The leaves that travel in one buffer.

    Attributes:
        indexes: which leaves of the object they are.
        starts: where the static leaf of each starts in the buffer, in bytes.
        slots: the other side of the buffer.
    """

    indexes: tuple[int, ...]
    starts: tuple[int, ...]
    slots: Slots


@attrs.frozen(eq=False)
class Route:
    """How objects of one form, shapes and sizes go into one static.

    Attributes:
        number: tells it from the others.
        memory: the memory of the static.
        fits: where each leaf goes; it holds no leaf of an object.
        views: the first rows of each static leaf, which are handed out.
        parts: the leaves that travel in buffers.
        alone: the indexes of the others.
        own: how many items each axis of the objects has.
        sizes: how many they have in the static, for those that differ.
        plain: whether every host field stays as it is.
        dtypes: of the leaves.
        on_host: whether each leaf comes from the host.
    """

    number: int
    memory: StaticMemory
    fits: Sequence[Fit]
    views: list[Tensor]
    parts: tuple[Part, ...]
    alone: tuple[int, ...]
    own: Mapping[str, int]
    sizes: Mapping[str, int]
    plain: bool
    dtypes: list[torch.dtype]
    on_host: list[bool]

    def handed_out(self, value: Any) -> Any:
        """Return the object whose leaves are the first rows of the static."""
        if self.plain:
            return rebuild(value, self.views)
        return placed(value, self.own, self.sizes, self.views)

    def rows(self, slot: Slot, part: Part) -> Rows:
        """Return the rows of a slot that the leaves of a part use."""
        known = slot.rows.get(self.number)
        if known is None:
            pairs = zip(part.indexes, part.starts, strict=True)
            leaves = [(index, start, self.fits[index]) for index, start in pairs]
            known = rows_of(slot.memory, part.slots.buffer, leaves)
            slot.rows[self.number] = known
            if len(slot.rows) > _ROUTES:
                slot.rows.popitem(last=False)
        return known

    def is_for(self, leaves: Sequence[Any]) -> bool:
        """Return whether leaves of the right shapes have the right dtypes and sides."""
        return [x.dtype for x in leaves] == self.dtypes and [
            x.is_cpu for x in leaves
        ] == self.on_host


class Routes:
    """Finds the route of an object into a static; those that recur are kept."""

    def __init__(
        self,
        make: Callable[[int], Tensor],
        travels: Callable[[Tensor], bool],
        device: torch.device,
        *,
        pinned: bool,
    ) -> None:
        """Make a finder.

        Args:
            make: makes a slot of so many bytes.
            travels: tells whether a leaf is on the side of the slots.
            device: where the static has to be.
            pinned: whether it has to be pinned there.
        """
        self._device = device
        self._pinned = pinned
        self._make = make
        self._travels = travels
        self._known: OrderedDict[Hashable, OrderedDict[Hashable, Route]] = OrderedDict()
        self._slots: dict[int, Slots] = {}
        self._numbers = 0
        self._lock = threading.Lock()

    def find(
        self, static: Any, value: Any, leaves: Sequence[Any], sizes: Mapping[str, int]
    ) -> Route:
        """Return the route of a walked object.

        Raises:
            AxisError: the object does not fit into the static; nothing was written.
        """
        targets = walk(static).leaves
        # The routes keep the static's leaves, so that no number comes to others.
        whose = (type(static), tuple(map(id, targets)))
        try:
            key: Hashable = (
                form_of(value),
                tuple([x.shape for x in leaves]),
                tuple(sizes.items()),
            )
        except AttributeError:  # not all are tensors, which is refused below
            key = None
        with self._lock:
            routes = self._known.setdefault(whose, OrderedDict())
            route = routes.get(key)
        if route is not None and route.is_for(leaves):
            return route
        found = fit(static, value, sizes)
        for x in found.fits:
            self._check(type(static).__qualname__, x)
        with self._lock:
            route = routes[key] = self._made(targets, found, sizes)
            self._known[whose] = routes
            if len(routes) > _ROUTES:
                routes.popitem(last=False)
            if len(self._known) > _STATICS:
                self._known.popitem(last=False)
                self._forget_slots()
        return route

    def _check(self, cls: str, found: Fit) -> None:
        """Raise for a static leaf that the copies cannot land in."""
        where, problem = found.target.device, ""
        if where != self._device:
            problem = f"its static is on `{where}`, and copies go to `{self._device}`"
        elif self._pinned and not found.target.is_pinned():
            problem = "its static is not pinned, so the host would wait for the copy"
        if problem:
            given = ", pinned=True" if self._pinned else ""
            raise AxisError(
                cls=cls,
                key=found.key,
                problem=problem,
                remedy=f'Make the static by `empty_like(..., device="{self._device}"'
                f"{given})`.",
            )

    def _made(
        self, targets: Sequence[Tensor], found: Fits, sizes: Mapping[str, int]
    ) -> Route:
        """Make a route."""
        self._numbers += 1
        parts: dict[int, tuple[list[int], list[int]]] = {}
        alone: list[int] = []
        for index, x in enumerate(found.fits):
            shared = shared_buffer(x.target)
            if shared is None or not self._travels(x.leaf):
                alone.append(index)
                continue
            buffer, start = shared
            self._slots.setdefault(id(buffer), Slots(self._make, buffer))
            indexes, starts = parts.setdefault(id(buffer), ([], []))
            indexes.append(index)
            starts.append(start)
        return Route(
            self._numbers,
            memory_of(targets),
            [attrs.evolve(x, leaf=x.target) for x in found.fits],
            [x.target[x.bucket] for x in found.fits],
            tuple(
                Part(tuple(i), tuple(s), self._slots[n]) for n, (i, s) in parts.items()
            ),
            tuple(alone),
            found.own,
            sizes,
            found.plain,
            [x.leaf.dtype for x in found.fits],
            [x.leaf.is_cpu for x in found.fits],
        )

    def _forget_slots(self) -> None:
        """Forget the slots that no route uses any more."""
        used = {
            id(part.slots.buffer)
            for routes in self._known.values()
            for route in routes.values()
            for part in route.parts
        }
        self._slots = {n: slots for n, slots in self._slots.items() if n in used}
