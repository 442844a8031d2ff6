"""What a value is, as far as its lifetime goes: asked of values, not of annotations."""

import collections
import contextlib
import enum
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tensorpack._leaves.adapters import (
    adapter_of,
    of_class,
    owns_lifetime,
    supports_lifetime,
)
from tensorpack._leaves.host_types import PLAIN, is_array, is_host_class, is_plain
from tensorpack._plan.makers import is_named_tuple, is_struct
from tensorpack._plan.namespace import own_annotations
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.containers import MAPPING_CLASSES, SEQUENCE_CLASSES
from tensorpack._rules.markers import BASE, PLAN, REFUSED
from tensorpack.errors import UndecoratedError

__all__ = [
    "Kind",
    "a_class",
    "has_leaves",
    "is_builtin",
    "is_host_value",
    "is_leaf_class",
    "is_of_payload",
    "is_payload",
    "items_of",
    "kind_of",
    "payload_plan",
    "slot_value",
]

_MARKS = frozenset({PLAN, BASE, REFUSED})


class Kind(enum.Enum):
    """What a value is; the walk and the build both go by it."""

    LEAF = enum.auto()
    PAYLOAD = enum.auto()
    ADAPTED = enum.auto()
    CONTAINER = enum.auto()
    HOST = enum.auto()
    UNKNOWN = enum.auto()


def kind_of(value: object) -> Kind:
    """Return what a value is."""
    kind = _kind_of_class(type(value))
    if kind is not None:
        return kind
    if isinstance(value, Tensor):  # a mock that only says it is a tensor
        return Kind.LEAF
    if is_compiling() and _is_host_by_class(type(value)):  # tracing cannot look inside
        return Kind.HOST
    return Kind.HOST if is_host_value(value) else Kind.UNKNOWN


def _kind_of_class(cls: type) -> Kind | None:
    """Return what every value of a class is; None if that depends on the value."""
    if issubclass(cls, Tensor):
        return Kind.LEAF
    if is_plain(cls):
        return Kind.HOST
    if cls in MAPPING_CLASSES or cls in SEQUENCE_CLASSES:
        return Kind.CONTAINER
    if is_of_payload(cls):
        return Kind.PAYLOAD
    if adapter_of(cls) is not None:
        return Kind.ADAPTED
    if is_named_tuple(cls):
        return Kind.CONTAINER
    return Kind.LEAF if owns_lifetime(cls) or supports_lifetime(cls) else None


def _is_host_by_class(cls: type) -> bool:
    """Return whether a class is a host type."""
    return is_host_class(cls)


# `torch.compile` asks these once for each class, and does not look inside.
for _asked in (_kind_of_class, _is_host_by_class):
    setattr(_asked, "_dynamo_marked_constant", True)  # noqa: B010  # no attribute


def has_leaves(value: object) -> bool:
    """Return whether a value is a leaf, a payload or a container."""
    return kind_of(value) not in (Kind.HOST, Kind.UNKNOWN)


def is_leaf_class(cls: type) -> bool:
    """Return whether values of a class can be moved and recorded as leaves.

    A payload cannot: it travels by its plan, and only where one is annotated.
    """
    if issubclass(cls, Tensor):
        return True
    moves = of_class(cls, "to_device") or of_class(cls, "to")
    records = callable(of_class(cls, "record_stream"))
    return moves is not None and records and not is_of_payload(cls)


def is_of_payload(cls: type) -> bool:
    """Return whether a class is a payload, or derives from one or from the base.

    One that was refused, which `check` gives back unmade, counts too: it is an error.
    """
    return any(not _MARKS.isdisjoint(base.__dict__) for base in cls.__mro__)


def is_payload(value: object) -> bool:
    """Return whether a value is an instance of a payload, or of a subclass of one."""
    # Not `is not None`: a metaclass with a `__getattr__` may give anything.
    return getattr(type(value), PLAN, None).__class__ is ClassPlan


def payload_plan(cls: type, key: str = "") -> Any:
    """Return the plan of a payload class.

    Raises:
        UndecoratedError: the class itself is not a payload. A base's plan does not
            count: it would lose the fields of the class.
    """
    plan = of_class(cls, PLAN)
    if plan is not None and plan.cls is cls:
        return plan
    base = plan.cls if plan is not None else None
    known = {field.name for field in plan.fields} if plan is not None else set()
    above = cls.__mro__[: cls.__mro__.index(base)] if base in cls.__mro__ else ()
    lost = [n for c in reversed(above) for n in own_annotations(c) if n not in known]
    raise UndecoratedError(
        cls=cls.__qualname__,
        base=base.__qualname__ if base else "",
        lost=lost,
        remade=base is not None and not above,
        key=key,
    )


# Host values: what has no room for a leaf, however deep one looks.

_CONTAINERS: tuple[tuple[type, Any], ...] = (
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
    (collections.deque, collections.deque.__iter__),
)
_WITHOUT_SLOTS = frozenset(
    {
        *(slice, dict, collections.OrderedDict, collections.defaultdict),
        *(base for base, _ in _CONTAINERS),
    }
)
"""Builtin classes: what they have as members is not a slot of an instance."""


_PLAIN = (*PLAIN, torch.SymInt, torch.SymFloat, torch.SymBool)


def is_host_value(value: object) -> bool:
    """Return whether a value is a host value, with all that it holds."""
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


def _inside(value: Any) -> Iterable[object] | None:
    """Return what must be host values for a value to be one; None if it cannot be."""
    cls = type(value)
    if issubclass(cls, type):  # it belongs to its module
        return ()
    items = _items_in(value)
    if items is not None:
        return [*items, *_stored(value)]
    if is_host_class(cls) or issubclass(cls, _PLAIN):
        if is_array(value) or hasattr(cls, "dtype"):  # a row of an array has one too
            return None if value.dtype.hasobject else _stored(value)
        return _stored(value)
    made = ("__attrs_attrs__", "__dataclass_fields__")
    if any(of_class(cls, name) is not None for name in made) or is_struct(cls):
        # What its cached properties keep, and what is not a field, counts as well.
        return _stored(value) or None
    return None


def _items_in(value: Any) -> Iterable[object] | None:
    """Return what is in a container, a mapping or a slice; None for another value."""
    cls = type(value)
    if cls is slice:
        return value.start, value.stop, value.step
    for base, iterate in _CONTAINERS:
        if issubclass(cls, base):
            found: Iterable[object] = iterate(value)
            return found
    if issubclass(cls, dict):
        return (*dict.keys(value), *dict.values(value))
    return None


def _stored(value: object) -> list[object]:
    """List what an instance keeps in slots and in its `__dict__`, but for classes.

    None of its own code runs.
    """
    found: list[object] = []
    for base in type(value).__mro__:
        if base in _WITHOUT_SLOTS:
            continue
        found += (slot_value(member, value) for member in base.__dict__.values())
    with contextlib.suppress(AttributeError):  # of slots alone
        found += object.__getattribute__(value, "__dict__").values()
    return [one for one in found if not issubclass(type(one), type)]


def slot_value(slot: object, owner: object) -> Any:
    """Return what a slot holds, or None: reading the attribute could compute it."""
    if isinstance(slot, types.MemberDescriptorType):
        with contextlib.suppress(AttributeError):  # nothing is there
            return slot.__get__(owner)
    return None


def is_builtin(value: object) -> bool:
    """Return whether the class of a value cannot be decorated by its user."""
    of_others = type(value).__module__ in ("builtins", "numpy")
    return of_others or isinstance(value, Tensor)


def items_of(value: Any) -> Iterator[tuple[str, object]]:
    """Iterate the items of a container with the text that addresses each."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"[{name!r}]", item
    elif hasattr(type(value), "_fields"):
        yield from zip((f".{n}" for n in value._fields), value, strict=True)
    else:
        for index, item in enumerate(value):
            yield f"[{index}]", item


def a_class(cls: type) -> str:
    """Return the name of a class with its article: "an `int`"."""
    name = cls.__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} `{name}`"
