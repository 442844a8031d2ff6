"""Struct-like classes as they are found: their members, without judging them."""

import dataclasses
from typing import Any

import attrs

from tensorpack._resolve import own_annotations

__all__ = ["declared_keys", "is_named_tuple", "struct_fields"]


def is_named_tuple(cls: type) -> bool:
    """Tell whether a class is a named tuple itself, with typed members."""
    return cls.__bases__ == (tuple,) and hasattr(cls, "_fields")


def declared_keys(cls: Any) -> tuple[str, ...]:
    """Give the keys of a typed dictionary as they were written, bases first."""
    keys: frozenset[str] = cls.__required_keys__ | cls.__optional_keys__
    names = list(cls.__annotations__)
    return tuple(sorted(keys, key=lambda k: names.index(k) if k in names else -1))


def struct_fields(cls: type) -> dict[str, object] | None:
    """Give a dataclass's, attrs class's or msgspec struct's fields, with types."""
    if attrs.has(cls):
        return {a.name: a.type for a in attrs.fields(cls)}
    if dataclasses.is_dataclass(cls):
        return {f.name: f.type for f in dataclasses.fields(cls)}
    if hasattr(cls, "_struct_fields__"):
        every = {
            n: a for b in reversed(cls.__mro__) for n, a in own_annotations(b).items()
        }
        return {name: every.get(name) for name in cls._struct_fields__}
    return None
