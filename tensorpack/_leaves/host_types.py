"""Host types: values that own no device memory and stay where they are."""

import datetime as dt
import enum
import pathlib
import sys
import uuid

import torch

__all__ = ["PLAIN", "STAYING", "is_array", "is_host_class", "is_plain"]

PLAIN: frozenset[type] = frozenset(
    {
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        range,
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

STAYING = PLAIN | {list, tuple, dict, set, frozenset, slice}
"""Classes of which no value is a leaf itself. What is inside is not asked."""

# numpy is no dependency: its types are known by name.
_BY_NAME = frozenset({("numpy", "ndarray"), ("numpy", "generic")})
# Scalars of numpy's that may hold objects: a row of a structured array.
_ROWS = frozenset({"void", "record", "object_"})


def is_array(value: object) -> bool:
    """Tell whether a value is an array of numpy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(value), numpy.ndarray)


def is_plain(cls: type) -> bool:
    """Tell whether no value of a class has room for an object of another kind."""
    if cls in PLAIN:
        return True
    module = cls.__module__
    if module == "numpy" and cls.__name__ not in _ROWS:
        return issubclass(cls, sys.modules[module].generic)
    return module.startswith("pathlib") and _is_path(cls)


def _is_path(cls: type) -> bool:
    """Tell whether a class is one of Python's paths, in 3.13 of a package of them."""
    return cls.__module__.partition(".")[0] == "pathlib" and issubclass(
        cls, pathlib.PurePath
    )


def is_host_class(cls: type) -> bool:
    """Tell whether a class is a host type where it is written as an annotation.

    A value of it may have room for more all the same: the attributes of a subclass, the
    objects in an array, the parts of a slice. Who goes by values asks of each.
    """
    if cls in PLAIN or cls is slice or issubclass(cls, (enum.Enum, pathlib.PurePath)):
        return True
    return any((b.__module__, b.__qualname__) in _BY_NAME for b in cls.__mro__)
