"""Host types: values that own no device memory and stay where they are."""

import collections
import datetime as dt
import enum
import pathlib
import uuid

import torch

__all__ = ["is_array", "is_host_class", "is_host_value"]

_EXACT: frozenset[type] = frozenset(
    {
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        range,
        slice,
        dt.datetime,
        dt.date,
        dt.time,
        dt.timedelta,
        dt.timezone,
        uuid.UUID,
        torch.dtype,
        torch.device,
        torch.Size,
        torch.layout,
        torch.memory_format,
    }
)

# numpy is no dependency: its types are known by name.
_BY_NAME = frozenset({("numpy", "ndarray"), ("numpy", "generic")})


def is_array(value: object) -> bool:
    """Tell whether a value is an array of numpy's."""
    kinds = {(b.__module__, b.__qualname__) for b in type(value).__mro__}
    return ("numpy", "ndarray") in kinds


def is_host_class(cls: type) -> bool:
    """Tell whether every value of a class is a host value.

    Subclasses of the plain types are not: they may carry attributes of their own.
    """
    if cls in _EXACT or issubclass(cls, (enum.Enum, pathlib.PurePath)):
        return True
    return any((b.__module__, b.__qualname__) in _BY_NAME for b in cls.__mro__)


def is_host_value(value: object) -> bool:
    """Tell whether a value is a host value, its items included."""
    if is_host_class(type(value)):
        return True
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return _is_bare(value) and all(map(is_host_value, value))
    if isinstance(value, dict):
        inside = (*value, *value.values())
        return _is_bare(value) and all(map(is_host_value, inside))
    return _is_host_struct(value)


def _is_bare(value: object) -> bool:
    """Tell whether a container has nothing beside its items: no attributes."""
    slots = (vars(base).get("__slots__", ()) for base in type(value).__mro__)
    return not any(slots) and not getattr(value, "__dict__", None)


def _is_host_struct(value: object) -> bool:
    """Tell whether a struct's instance holds host values and nothing else."""
    cls = type(value)
    names = [
        field if isinstance(field, str) else field.name
        for known in ("__attrs_attrs__", "__dataclass_fields__", "__struct_fields__")
        for field in getattr(cls, known, ())
    ]
    values = [getattr(value, name, None) for name in names]
    extra = set(getattr(value, "__dict__", ())) - set(names)
    return bool(names) and not extra and all(map(is_host_value, values))
