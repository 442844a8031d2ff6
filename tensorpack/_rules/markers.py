"""The markers that say of a field what its type does not, and the marks of a class."""

import enum
from typing import Annotated, TypeVar

__all__ = [
    "BASE",
    "PLAN",
    "REFUSED",
    "Borrowed",
    "Derived",
    "Dynamic",
    "HostOnly",
    "Marker",
    "Resident",
    "borrowed",
    "derived",
    "dynamic",
    "host_only",
    "resident",
]

PLAN = "__tensorpack_plan__"
"""The mark of a payload class: where its plan is kept. Counts in its own `__dict__`."""

REFUSED = "__tensorpack_refused__"
"""The mark of a class that `@payload` has refused while `check` collects refusals."""

BASE = "__tensorpack_base__"
"""Marks the typed base: what derives from it is a payload, or should have been one."""

T = TypeVar("T")


class Marker(enum.Enum):
    """What a field's author says about it, against what its type says."""

    HOST_ONLY = "HostOnly"
    BORROWED = "Borrowed"
    DERIVED = "Derived"
    RESIDENT = "Resident"
    DYNAMIC = "Dynamic"

    def __repr__(self) -> str:
        """Return the name that the user writes."""
        return self.value


host_only = Marker.HOST_ONLY
borrowed = Marker.BORROWED
derived = Marker.DERIVED
resident = Marker.RESIDENT
dynamic = Marker.DYNAMIC

HostOnly = Annotated[T, host_only]
"""The value stays on the host, the very same object; a device tensor in it raises."""

Borrowed = Annotated[T, borrowed]
"""Owned and recorded elsewhere: the same object, neither moved nor recorded."""

Resident = Annotated[T, resident]
"""Stays on its device and is recorded there; a new object keeps the same object."""

Derived = Annotated[T, derived]
"""A cache of other fields: recorded, never moved; a twin gets the default."""

Dynamic = Annotated[T, dynamic]
"""Walked at run time by the types of its values; a value without support raises."""
