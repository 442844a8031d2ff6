"""What a value is, as far as its lifetime goes: asked of values, not of annotations."""

import enum
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from tensorpack._leaves.adapters import adapter_of, owns_lifetime, supports_lifetime
from tensorpack._leaves.host_types import is_host_class, is_plain
from tensorpack._leaves.stored import of_class
from tensorpack._plan.namespace import own_annotations
from tensorpack._plan.plan import ClassPlan
from tensorpack._plan.structs import is_named_tuple
from tensorpack._rules.containers import MAPPING_CLASSES, SEQUENCE_CLASSES
from tensorpack._rules.markers import BASE, PLAN
from tensorpack._walk.host_values import is_host_value
from tensorpack.errors import UndecoratedError

__all__ = [
    "Kind",
    "a_class",
    "has_leaves",
    "is_builtin",
    "is_leaf_class",
    "is_of_payload",
    "is_payload",
    "items_of",
    "kind_by_class",
    "kind_of",
    "mappings",
    "payload_plan",
    "sequences",
]

sequences = SEQUENCE_CLASSES
mappings = MAPPING_CLASSES


class Kind(enum.Enum):
    """What a value is; the walk and the build both go by it."""

    LEAF = enum.auto()
    PAYLOAD = enum.auto()
    ADAPTED = enum.auto()
    CONTAINER = enum.auto()
    HOST = enum.auto()
    UNKNOWN = enum.auto()


def kind_of(value: object) -> Kind:
    """Tell what a value is."""
    return Kind.LEAF if isinstance(value, Tensor) else kind_by_class(value)


def kind_by_class(value: object) -> Kind:
    """Tell what a value is without running its code, not even its `__class__`."""
    kind = _kind_of_class(type(value))
    if kind is not None:
        return kind
    if is_compiling() and _is_host_by_class(type(value)):  # which cannot search it
        return Kind.HOST
    return Kind.HOST if is_host_value(value) else Kind.UNKNOWN


def _kind_of_class(cls: type) -> Kind | None:
    """Tell what every value of a class is; None if that depends on the value."""
    if issubclass(cls, Tensor):
        return Kind.LEAF
    if is_plain(cls):
        return Kind.HOST
    if cls in mappings or cls in sequences:
        return Kind.CONTAINER
    if is_of_payload(cls):
        return Kind.PAYLOAD
    if adapter_of(cls) is not None:
        return Kind.ADAPTED
    if is_named_tuple(cls):
        return Kind.CONTAINER
    return Kind.LEAF if owns_lifetime(cls) or supports_lifetime(cls) else None


def _is_host_by_class(cls: type) -> bool:
    """Tell whether a class is a host type."""
    return is_host_class(cls)


# `torch.compile` asks these once for each class, and does not look inside.
for _asked in (_kind_of_class, _is_host_by_class):
    setattr(_asked, "_dynamo_marked_constant", True)  # noqa: B010  # no attribute


def has_leaves(value: object) -> bool:
    """Tell whether a value is a leaf, a payload or a container: something to move."""
    return kind_of(value) not in (Kind.HOST, Kind.UNKNOWN)


def is_leaf_class(cls: type) -> bool:
    """Tell whether values of a class can be moved and recorded as leaves.

    A payload is none: it travels by its plan, and only where one is annotated.
    """
    if issubclass(cls, Tensor):
        return True
    moves = of_class(cls, "to_device") or of_class(cls, "to")
    records = callable(of_class(cls, "record_stream"))
    return moves is not None and records and not is_of_payload(cls)


def is_of_payload(cls: type) -> bool:
    """Tell whether a class is a payload, or derives from one or from the base."""
    return any(PLAN in base.__dict__ or BASE in base.__dict__ for base in cls.__mro__)


def is_payload(value: object) -> bool:
    """Tell whether a value is an instance of a payload, or of a subclass of one."""
    # Not `is not None`: a metaclass with a `__getattr__` may give anything.
    return getattr(type(value), PLAN, None).__class__ is ClassPlan


def payload_plan(cls: type, key: str = "") -> Any:
    """Give the plan of a payload class.

    Raises:
        UndecoratedError: the class is no payload itself. A base's plan does not count:
            it would lose the fields of the class.
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


def is_builtin(value: object) -> bool:
    """Tell whether nobody could decorate the class of a value."""
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
    """Name a class with its article: "an `int`"."""
    name = cls.__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} `{name}`"
