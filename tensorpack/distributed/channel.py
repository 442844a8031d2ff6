"""What two ends of a group remember of each other: layouts, by number."""

# Note [layouts by number]
# Only the sender gives numbers and only the sender forgets. Each header carries the
# number of its layout and, once the memory is full, the number that both ends forget
# now. So the two memories cannot get out of step: what the sender refers to by number
# alone, it has sent whole before, in the same order of messages. The digest in the
# header is there to find a bug in this, not to work around one.

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from tensorpack.distributed.wire import SMALL, WireLayout, layout_of
from tensorpack.errors import RankError

__all__ = ["BOUND", "Known", "Receiving", "Sending", "receiving", "sending"]

BOUND = 64
"""Layouts that the two ends of a channel remember."""


@attrs.define(eq=False)
class Known:
    """What a sender knows of leaves with one layout.

    Attributes:
        key: what decides the layout.
        layout: of the leaves.
        holes: a meta tensor for each leaf, that holds its place.
        number: by which the receivers know the layout; -1 before they do.
    """

    key: Hashable
    layout: WireLayout
    holes: list[Tensor]
    number: int = -1


class Sending:
    """The sender's end: finds the layout of leaves, and gives each a number."""

    def __init__(self, small: int = SMALL, bound: int = BOUND) -> None:
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._small = small
        self._bound = bound
        self._next = 0

    def __len__(self) -> int:
        """Return how many layouts are remembered."""
        return len(self._known)

    def find(self, leaves: Sequence[Tensor]) -> Known:
        """Return what is known of leaves with this layout; nothing is promised yet."""
        key = tuple([(x.shape, x.dtype, x.stride()) for x in leaves])
        known = self._known.get(key)
        if known is None:
            holes = [torch.empty_like(leaf, device="meta") for leaf in leaves]
            known = Known(key, layout_of(leaves, small=self._small), holes)
        return known

    def promise(self, known: Known) -> tuple[bool, int]:
        """Note that a layout is sent now.

        Returns:
            Whether the receivers know it already, and the number that both ends forget
            with this message; -1 for none.
        """
        if known.number >= 0:
            self._known.move_to_end(known.key)
            return True, -1
        known.number = self._next
        self._next += 1
        self._known[known.key] = known
        if len(self._known) <= self._bound:
            return False, -1
        _, oldest = self._known.popitem(last=False)
        return False, oldest.number


class Receiving:
    """The receiver's end: knows layouts by the numbers that the sender gave."""

    def __init__(self) -> None:
        self._layouts: dict[int, WireLayout] = {}

    def __len__(self) -> int:
        """Return how many layouts are remembered."""
        return len(self._layouts)

    def layout(
        self, number: int, text: bytes, digest: bytes, forget: int
    ) -> WireLayout:
        """Return the layout of a message, and forget what the sender forgets.

        Raises:
            RankError: the number is not known, as after an error in the middle.
        """
        if text:
            self._layouts[number] = WireLayout.decode(text)
        self._layouts.pop(forget, None)
        found = self._layouts.get(number)
        if found is None or found.digest != digest:
            raise RankError(
                problem=f"the sender refers to layout {number}, which this rank does "
                "not know",
                remedy="Every rank of the group must take part in every call, in the "
                "same order.",
            )
        return found


_Ends = dict[object, Any]
_ends: "weakref.WeakKeyDictionary[dist.ProcessGroup, _Ends]" = (
    weakref.WeakKeyDictionary()
)


def sending(group: dist.ProcessGroup, to: object, *, small: int = SMALL) -> Sending:
    """Return this rank's sending end towards one peer, or towards the whole group."""
    ends = _ends.setdefault(group, {})
    found: Sending = ends.setdefault(("to", to), Sending(small))
    return found


def receiving(group: dist.ProcessGroup, source: object) -> Receiving:
    """Return this rank's receiving end of one source."""
    ends = _ends.setdefault(group, {})
    found: Receiving = ends.setdefault(("from", source), Receiving())
    return found
