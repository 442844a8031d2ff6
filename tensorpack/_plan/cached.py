"""The cached properties of a class, and where each keeps its value."""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import attrs

__all__ = ["CachedProperty", "cached_names", "cached_properties", "is_attrs_method"]


@attrs.frozen
class CachedProperty:
    """A cached property of a class.

    Attributes:
        name: the name under which its value is kept.
        owner: the class that defines it.
        function: computes the value.
        slot: the slot that keeps the value; None if the instance `__dict__` does.
    """

    name: str
    owner: type
    function: Callable[..., object]
    slot: object = None


def cached_properties(cls: type) -> Iterator[CachedProperty]:
    """Yield the cached properties of a class, and those of its bases after it."""
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, functools.cached_property):
                yield CachedProperty(value.attrname or name, base, value.func)
        getter: Any = vars(base).get("__getattr__")
        if (
            is_attrs_method(getter)
            and "cached_properties" in getter.__code__.co_varnames
        ):
            # attrs keeps them as the first default of the `__getattr__` it makes.
            for name, function in getter.__defaults__[0].items():
                yield CachedProperty(name, base, function, _slot_of(base, name))


def _slot_of(cls: type, name: str) -> object:
    """Return the slot that keeps an attribute, its own or a base's."""
    found = (vars(base).get(name) for base in cls.__mro__)
    return next((x for x in found if isinstance(x, types.MemberDescriptorType)), None)


def cached_names(cls: type) -> set[str]:
    """Return the names of the cached properties of a class."""
    return {cached.name for cached in cached_properties(cls)}


def is_attrs_method(method: object) -> bool:
    """Return whether attrs has generated a method."""
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename.startswith("<attrs generated")
