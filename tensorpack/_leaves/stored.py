"""What an object keeps, read without running any code of its own."""

import collections
import contextlib
import types
from collections.abc import Iterable
from typing import Any

from tensorpack._leaves.host_types import is_array

__all__ = ["array_items", "items_in", "of_class", "stored"]

_ITEMS: tuple[tuple[type, Any], ...] = (
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
    (collections.deque, collections.deque.__iter__),
)
_BUILT_IN = frozenset(
    {
        *(slice, dict, collections.OrderedDict, collections.defaultdict),
        *(base for base, _ in _ITEMS),
    }
)
_OBJECTS_IN = frozenset({("numpy", "ndarray"), ("numpy", "void")})


def of_class(cls: type, name: str) -> Any:
    """Give what a class or a base of it defines under a name; None if none does.

    `getattr` would ask the metaclass too, and one with a `__getattr__` has any name.
    """
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def stored(value: object) -> dict[str, object]:
    """Give what an instance keeps in slots and in its `__dict__`."""
    found: dict[str, object] = {}
    for base in type(value).__mro__:
        if base in _BUILT_IN:  # what those have as members is no slot
            continue
        for name, member in base.__dict__.items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:  # nothing is there
                    continue
    with contextlib.suppress(AttributeError):  # of slots alone
        found |= object.__getattribute__(value, "__dict__")
    return found


def items_in(value: Any) -> Iterable[object] | None:
    """Give what is in a container, a mapping or a slice; None for another value."""
    cls = type(value)
    if cls is slice:
        return value.start, value.stop, value.step
    for base, iterate in _ITEMS:
        if issubclass(cls, base):
            found: Iterable[object] = iterate(value)
            return found
    if issubclass(cls, dict):
        return (*dict.keys(value), *dict.values(value))
    return None


def array_items(value: Any) -> list[object]:
    """List the objects in an array or a scalar of numpy's, and the array it is part of.

    What that is part of in turn is of no matter: memory of the host.
    """
    for base in type(value).__mro__:
        array: Any = base
        if (base.__module__, base.__name__) in _OBJECTS_IN:
            items = []
            if array.dtype.__get__(value).hasobject:
                items = [array.tolist(value)]
            whole = array.base.__get__(value)
            return [*items, whole] if is_array(whole) else items
    return []
