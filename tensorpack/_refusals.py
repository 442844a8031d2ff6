"""Refusals that are collected instead of raised, so that `check` hears of all."""

# Note [refused classes that are made]
# A module goes on after a refusal only if the refused class is there, since others name
# it in a field, derive from it and make instances. So where refusals are collected, a
# refused class is made all the same, as a stand-in: a payload whose every use raises
# its refusal. Whoever gets hold of it, nothing is moved or recorded in part.

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import attrs

from tensorpack.errors import DefinitionError, LifetimeError

__all__ = ["Refused", "collected", "collecting"]


@attrs.frozen
class Refused:
    """A class that was refused, or its stand-in, and why."""

    cls: object
    error: DefinitionError | LifetimeError


_found: ContextVar[list[Refused] | None] = ContextVar("refusals", default=None)


@contextmanager
def collected() -> Iterator[list[Refused]]:
    """Collect the refusals of all classes that this thread decorates in the body."""
    found: list[Refused] = []
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


def collecting() -> list[Refused] | None:
    """Give the list that refusals go into; None where they are raised, as ever."""
    return _found.get()
