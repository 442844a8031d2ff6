"""What travels in one transfer: a value, or the chosen entries of a mapping."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from tensorpack._build import prepared, rebuild
from tensorpack._functions import entries_of
from tensorpack._walk import walk

__all__ = ["Trip", "trip_of"]


@attrs.define
class Trip:
    """The leaves of a transfer, and what puts new ones in their place.

    Attributes:
        leaves: all leaves, in plan order.
        root: name of the payload's class, or "".
        key_of: finds the key of a leaf.
    """

    leaves: Sequence[Any]
    root: str
    key_of: Callable[[object], str]
    _value: Any
    _around: Any = None

    def rebuild(self, new: Sequence[Any]) -> Any:
        """Make the twin of what travels from new leaves."""
        twin = rebuild(self._value, new)
        if self._around is None:
            return twin
        whole = copy.copy(self._around)
        whole.update(twin)
        return whole


def trip_of(
    value: Any, keys: Iterable[str] | None = None, *, prepare: bool = True
) -> Trip:
    """Walk a value, or the entries of a mapping that travel.

    Args:
        value: a payload, a tensor, a container, or with `keys` a mapping.
        keys: the entries that travel.
        prepare: whether `__payload_prepare__` is asked.

    Raises:
        LeafError: a value has no lifetime support.
    """
    around = value if keys is not None else None
    travelling = value if keys is None else entries_of(value, keys)
    if prepare:
        travelling, found = prepared(travelling)
    else:
        found = walk(travelling)
    return Trip(found.leaves, found.root, found.key_of, travelling, around)
