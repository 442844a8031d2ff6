"""Host values: what a value is, whatever its class says."""

from collections.abc import Iterable

from tensorpack._hidden import hidden_in
from tensorpack._hosts import is_host_class, is_plain
from tensorpack._stored import items_in, of_class, stored

__all__ = ["is_host_value"]

_FIELDS = ("__attrs_attrs__", "__dataclass_fields__", "__struct_fields__")


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
        return () if hidden_in(value, ()) is None else None
    if any(isinstance(of_class(cls, name), (tuple, dict)) for name in _FIELDS):
        # What its cached properties keep, and what is no field, counts as well.
        return list(stored(value).values()) or None
    return None
