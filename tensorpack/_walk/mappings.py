"""Mappings of which some entries travel: which ones, and the copy with new entries."""

import collections
import copy
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, TypeVar

from tensorpack._walk.values import a_class, has_leaves
from tensorpack.errors import LeafError

__all__ = ["Selection", "check_replaceable", "entries_of", "merged"]

T = TypeVar("T")


class Selection(dict[str, object]):
    """Some entries of a mapping, walked together: their names begin the keys."""


def entries_of(value: Any, keys: Iterable[str]) -> Any:
    """Return the entries of a mapping that travel, as a `Selection`.

    Raises:
        LeafError: an entry has no lifetime support.
        TypeError: the value is not a mapping.
    """
    if not isinstance(value, Mapping):
        msg = (
            f"`keys=` goes with a mapping, and this is a `{type(value).__name__}`. "
            "Leave `keys=` out, or pass the mapping."
        )
        raise TypeError(msg)
    if isinstance(keys, str):
        msg = f"`keys=` is one text, {keys!r}. Write `keys=({keys!r},)`."
        raise TypeError(msg)
    found = Selection({k: value[k] for k in keys if value.get(k) is not None})
    for key, entry in found.items():
        if not has_leaves(entry):
            raise LeafError(
                key=str(key),
                found=a_class(type(entry)),
                problem="is under a key that travels, but has no lifetime support",
                remedy=f"Decorate its class with `@payload`, or take {key!r} out of "
                "the keys.",
            )
    return found


def check_replaceable(around: object) -> None:
    """Raise for a mapping that cannot be copied with other entries.

    `copy.copy` of a class that only wraps a dictionary would share that dictionary.

    Raises:
        TypeError: the mapping is not a `dict` and does not say how it is copied.
    """
    known = isinstance(around, (dict, collections.UserDict, collections.ChainMap))
    own = hasattr(type(around), "__copy__") and isinstance(around, MutableMapping)
    if isinstance(around, Mapping) and not (known or own):
        msg = (
            f"{a_class(type(around))} cannot be copied with other entries. "
            "Pass `dict(mapping)`."
        )
        raise TypeError(msg)


def merged(around: T, entries: Mapping[str, object]) -> T:
    """Copy a mapping with some of its entries replaced; the others pass through."""
    # `torch.compile` cannot look into `copy.copy` of a plain dictionary.
    new: Any = around
    new = dict(new) if type(around) is dict else copy.copy(new)
    new.update(entries)
    found: T = new
    return found
