"""Asking an event whether it is done, so that a guard hears of a true answer.

torch has a callback for what waits, and none for what asks; `torch.Event` is a class
that cannot be patched. So the transfer layer asks here.
"""

from collections.abc import Callable
from typing import Protocol

__all__ = ["is_done", "listeners"]


class Event(Protocol):
    """What is asked of an event."""

    def query(self) -> bool:
        """Return whether what it marks is done."""


listeners: list[Callable[[object], None]] = []
"""Called with each event that was found done."""


def is_done(event: Event) -> bool:
    """Return whether what an event marks is done.

    Streams:
        Asks the event; the host does not block.
    """
    done = event.query()
    if done and listeners:
        for listener in listeners:
            listener(event)
    return done
