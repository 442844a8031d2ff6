"""Host values: what a value is, whatever its class says."""

import enum
from collections.abc import Iterable
from typing import Any

from tensorpack._leaves.host_types import is_array, is_host_class, is_plain
from tensorpack._leaves.stored import items_in, stored
from tensorpack._plan.makers import is_struct
from tensorpack._walk.hidden import hidden_in

__all__ = ["is_host_value"]


def is_host_value(value: object) -> bool:
    """Tell whether a value is a host value, its items included."""
    if is_plain(type(value)):
        return True
    seen: dict[int, object] = {}  # what is shared, or leads back, is looked at once
    rest = [value]
    while rest:
        one = rest.pop()
        if is_plain(type(one)) or id(one) in seen:
            continue
        seen[id(one)] = one
        inside = _inside(one)
        if inside is None:
            return False
        rest += inside
    return True


def _inside(value: object) -> Iterable[object] | None:
    """Give what has to be of the host for a value to be; None if it cannot be."""
    cls = type(value)
    items = items_in(value)
    if items is not None:
        return None if stored(value) else items
    if is_host_class(cls):
        # An enum's member, an array of objects or a subclass: searched, since there is
        # no telling what it keeps.
        return () if _is_common(value) or hidden_in(value, ()) is None else None
    if is_struct(cls):
        # What its cached properties keep, and what is no field, counts as well.
        return list(stored(value).values()) or None
    return None


def _is_common(value: Any) -> bool:
    """Tell without a search whether a value of a host class keeps nothing of interest.

    Most are arrays of numbers, and members that have a number or a text.
    """
    cls = type(value)
    if (cls.__module__, cls.__name__) == ("numpy", "ndarray"):
        return not value.dtype.hasobject and not is_array(value.base)
    slots = any("__slots__" in base.__dict__ for base in cls.__mro__)
    if issubclass(cls, enum.Enum) and not slots:
        kept = object.__getattribute__(value, "__dict__").values()
        return all(is_plain(type(x)) or x is cls for x in kept)
    return False
