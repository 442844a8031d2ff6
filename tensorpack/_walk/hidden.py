"""Whether a tensor could be inside an object of unknown class: searched, not trusted.

Nothing of the object's own code runs: the garbage collector tells what it refers to.
"""

# Note [what cannot be searched]
# The collector sees all that Python code can store: attributes, slots, items, captured
# variables. It does not see what compiled code keeps in memory of its own, and that may
# be device memory: torch's graphs and storages, the objects of an extension. Only the
# standard library, and some of numpy's and torch's own, are trusted to keep none there.
# A class that calls itself one of Python's has to be one: torch's graph nodes have no
# module, and look as if they were. A lock has nothing inside.

import builtins
import collections
import gc
import logging
import sys
import types
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tensorpack._leaves.host_types import is_host_class, is_plain
from tensorpack._leaves.stored import array_items, items_in

__all__ = ["FAR", "hidden_in"]

# What leads out of the object: it belongs to a module, or to the process.
_ENDS = (
    *(type, types.ModuleType, types.CodeType, torch._ops.OperatorBase),
    # Through these any logger leads to every handler, and to what others have logged.
    *(logging.Filterer, logging.Manager, logging.LoggerAdapter, logging.LogRecord),
)
_FAR = 10_000
"""Objects after which a search is given up: it would take this long at each step."""
# What says something of a device, or of memory, but has neither; and has no attributes.
_BARE = frozenset(
    {
        torch.finfo,
        torch.iinfo,
        torch.qscheme,
        torch.Tag,
        torch._C.DispatchKey,
        torch._C.DispatchKeySet,
        torch._C.FunctionSchema,
    }
)
# Compiled by torch, but owns no block of its device. Subclasses may have attributes.
_OWN_NOTHING = frozenset(
    base
    for kind in (
        torch.Stream,
        torch.cuda.Stream,
        torch.Event,
        torch.cuda.Event,
        torch.Generator,
        torch.Size,
    )
    for base in kind.__mro__
    if base.__module__.partition(".")[0] == "torch"
)


class Far:
    """Says that a search was given up."""


FAR = Far()


class _Sequence:
    """Has an iterator of Python's oldest kind."""

    def __getitem__(self, index: int) -> int:
        raise IndexError(index)


_MAPPINGS: tuple[Any, ...] = ({}, collections.OrderedDict())
_VIEWS: tuple[Any, ...] = tuple(
    view
    for mapping in _MAPPINGS
    for view in (mapping, mapping.keys(), mapping.values(), mapping.items())
)
_ITERATED: tuple[Any, ...] = (
    *("", "é", b"", bytearray(), memoryview(b""), (), [], set(), list[int]),
    *(range(0), range(1 << 99), _Sequence(), *_VIEWS),
)
_NAMED = (*vars(builtins).values(), *vars(types).values())
_PYTHON_S = frozenset(
    {
        *(x for x in _NAMED if isinstance(x, type) and x.__name__ != "PyCapsule"),
        *(type(x) for x in _VIEWS),
        *(type(iter(x)) for x in _ITERATED),
        *(type(reversed(x)) for x in ([], *_VIEWS)),
        type(iter(int, 0)),
    }
)
"""The classes of the interpreter itself. A capsule may hold a block of any owner."""

# What Python makes of them is in no module, and nothing but they leads to it.
_UNNAMED = frozenset(
    {
        *("hamt", "hamt_array_node", "hamt_bitmap_node", "hamt_collision_node"),
        *("async_generator_asend", "async_generator_athrow", "coroutine_wrapper"),
        *("anext_awaitable", "async_generator_wrapped_value", "managedbuffer"),
    }
)
# The base of structs, whose members the collector sees.
_STRUCTS = frozenset({("msgspec", "Struct"), ("msgspec._core", "_StructMixin")})
_STANDARD = frozenset(sys.stdlib_module_names)
_NUMPY_S = frozenset(
    {"dtype", "generic", "ndarray", "busdaycalendar", "_ArrayFunctionDispatcher"}
)
_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class statement, or compiled code
_COMPILED = (
    1 << 8 | 1 << 7
)  # Py_TPFLAGS_IMMUTABLETYPE, Py_TPFLAGS_DISALLOW_INSTANTIATION


def hidden_in(value: object, known: Collection[int]) -> object | None:
    """Find a tensor inside an object, or what keeps everybody from looking for one.

    Args:
        value: the object, of any class.
        known: ids of objects that are walked already: what is in them counts not.

    Returns:
        The tensor, or an object that cannot be searched, or `FAR` where there are too
        many objects to look at each time.
    """
    seen: dict[int, object] = {}  # which keeps the objects, so that no id comes again
    rest = [value]
    while rest:
        one = rest.pop()
        cls: Any = type(one)
        if is_plain(cls) or cls in _BARE or issubclass(cls, _ENDS):
            continue
        if cls.__module__.startswith("numpy.random"):  # numbers, behind a capsule
            continue
        if id(one) in seen or id(one) in known:
            continue
        seen[id(one)] = one
        if len(seen) > _FAR:
            return FAR
        if issubclass(cls, Tensor):
            return one
        if _is_compiled_elsewhere(cls) and not _is_global(one):
            return one
        rest += _held_by(one)
    return None


def _held_by(value: Any) -> list[object]:
    """List what an object refers to; of a function, not its module's variables."""
    cls = type(value)
    if cls is types.FunctionType:
        cells = value.__closure__, value.__defaults__, value.__kwdefaults__
        return [*cells, value.__dict__]
    if cls is types.BuiltinFunctionType:
        # That of a module may have its own record there, in a capsule.
        return [] if value.__module__ is not None else [value.__self__]
    held = [*gc.get_referents(value), *(items_in(value) or ())]
    return held + array_items(value) if is_host_class(cls) and _has_items(cls) else held


def _has_items(cls: type) -> bool:
    """Tell whether a host class is numpy's, whose items the collector does not see."""
    return any(base.__module__ == "numpy" for base in cls.__mro__)


def _is_global(value: Any) -> bool:
    """Tell whether a value is a function of numpy's, which belongs to its module."""
    cls = type(value)
    if (cls.__module__, cls.__name__) != ("numpy", "ufunc"):
        return False
    return getattr(sys.modules["numpy"], value.__name__, None) is value


@lru_cache(maxsize=256)
def _is_compiled_elsewhere(cls: type) -> bool:
    """Tell whether compiled code that is not trusted lays instances of a class out."""
    if _is_named_number(cls):
        return False
    return any(_is_compiled(base) and not _is_trusted(base) for base in cls.__mro__)


def _is_compiled(cls: type) -> bool:
    """Tell whether a class was made by compiled code, not by a class statement."""
    return (
        not cls.__flags__ & _MADE_AT_RUN_TIME
        or bool(cls.__flags__ & _COMPILED)
        or getattr(vars(cls).get("__new__"), "__self__", None) is cls
    )


def _is_named_number(cls: type) -> bool:
    """Tell whether a class is an enumeration of compiled code: numbers with names."""
    return cls.__dict__.get("__entries") is not None and hasattr(cls, "__members__")


def _is_trusted(cls: type) -> bool:
    """Tell whether a compiled class keeps all that it holds where it can be seen."""
    module = str(cls.__module__)
    if cls in _PYTHON_S or cls in _OWN_NOTHING:
        return True
    if (module, cls.__name__) in _STRUCTS:
        return True
    if module.partition(".")[0] == "numpy":
        return (
            module == "numpy.dtypes" or cls.__name__ in _NUMPY_S or is_host_class(cls)
        )
    if module == "builtins":
        return cls.__name__ in _UNNAMED
    return module.partition(".")[0] in _STANDARD
