"""Host types as classes: values that own no device memory and stay where they are."""

import importlib
import sys

from tensorpack._rules import host_types as names

__all__ = ["PLAIN", "STAYING", "is_array", "is_host_class", "is_plain"]


def _named(name: str) -> type:
    """Return the class of a full name."""
    module, _, own = name.rpartition(".")
    found: type = getattr(importlib.import_module(module), own)
    return found


PLAIN: frozenset[type] = frozenset(map(_named, names.PLAIN))
"""Classes whose values have no room for an object of another kind."""

_EXACT = frozenset(map(_named, names.EXACT))

STAYING = PLAIN | {list, tuple, dict, set, frozenset, slice}
"""Classes of which no value is a leaf itself. What is inside is not asked."""

# Scalars of numpy that may hold objects: a row of a structured array.
_ROWS = frozenset({"void", "record", "object_"})


def is_array(value: object) -> bool:
    """Return whether a value is an array of numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(value), numpy.ndarray)


def is_plain(cls: type) -> bool:
    """Return whether no value of a class has room for an object of another kind."""
    if cls in PLAIN:
        return True
    module = cls.__module__
    if module == "numpy" and cls.__name__ not in _ROWS:
        return issubclass(cls, sys.modules[module].generic)
    # In Python 3.13 `pathlib` is a package.
    return module.partition(".")[0] == "pathlib" and is_host_class(cls)


def is_host_class(cls: type) -> bool:
    """Return whether a class is a host type where it is written as an annotation.

    A value of it may have room for more all the same: the attributes of a subclass, the
    objects in an array, the parts of a slice. The walk asks each value.
    """
    return cls in _EXACT or any(
        f"{base.__module__}.{base.__qualname__}" in names.BASES for base in cls.__mro__
    )
