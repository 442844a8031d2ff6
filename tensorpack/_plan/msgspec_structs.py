"""msgspec structs: their fields, and how a twin is filled. msgspec is not imported."""

# Note [twins of structs]
# A struct is laid out and filled in C: `object.__new__` refuses it, and
# `object.__setattr__` does not know its fields. What msgspec offers is a shallow copy,
# which runs no `__post_init__`, and `force_setattr`, which frozen structs allow too.
# A copy keeps a cached hash, and nobody can take it out again.

import importlib
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["is_struct", "setter_of", "struct_base", "struct_defaults"]

Setter = Callable[[Any, str, Any], None]


def struct_base(cls: type) -> type | None:
    """Give `msgspec.Struct` if a class derives from it."""
    for base in cls.__mro__:
        if (base.__module__, base.__qualname__) == ("msgspec", "Struct"):
            return base
    return None


def is_struct(cls: type) -> bool:
    """Tell whether msgspec has made a class."""
    return struct_base(cls) is not None


def setter_of(cls: type) -> Setter:
    """Give the function that sets a field of any instance, frozen or not."""
    base = struct_base(cls)
    if base is None:
        return object.__setattr__
    setter: Setter = importlib.import_module(f"{base.__module__}.structs").force_setattr
    return setter


def struct_defaults(
    cls: Any,
) -> Iterator[tuple[str, Callable[[object], object] | None]]:
    """Iterate the fields of a struct, each with what makes its default."""
    names: tuple[str, ...] = cls.__struct_fields__
    defaults: tuple[Any, ...] = cls.__struct_defaults__
    required = (None,) * (len(names) - len(defaults))
    yield from zip(names, (*required, *map(_default, defaults)), strict=True)


def _default(default: Any) -> Callable[[object], object] | None:
    """Make the function that gives a default, as msgspec keeps it."""
    cls = type(default)
    match f"{cls.__module__}.{cls.__name__}":
        case "msgspec._core.NoDefaultType":
            return None
        case "msgspec._core.Factory":
            return lambda _: default.factory()
        case _:
            return lambda _: default
