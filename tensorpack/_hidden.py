"""Whether a tensor could be inside an object of unknown class: searched, not trusted.

Nothing of the object's own code runs: the garbage collector tells what it refers to.
"""

# Note [what cannot be searched]
# The collector sees all that Python code can store: attributes, slots, items, captured
# variables. It does not see what compiled code keeps in memory of its own, and that may
# be device memory: torch's graphs and storages, the objects of an extension. Only the
# standard library and numpy are trusted to keep none there. A lock has nothing inside.

import gc
import sys
import types
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tensorpack._hosts import is_host_class

__all__ = ["hidden_in"]

# What leads out of the object, and what owns no block of its device.
_ENDS = (
    type,
    types.ModuleType,
    types.CodeType,
    torch.Stream,
    torch.cuda.Stream,
    torch.Event,
    torch.cuda.Event,
    torch.Generator,
)
_TRUSTED = frozenset({*sys.stdlib_module_names, "numpy"})
_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class statement, or compiled code
_COMPILED = (
    1 << 8 | 1 << 7
)  # Py_TPFLAGS_IMMUTABLETYPE, Py_TPFLAGS_DISALLOW_INSTANTIATION


def hidden_in(value: object, known: Collection[int]) -> object | None:
    """Find a tensor inside an object, or what keeps everybody from looking for one.

    Args:
        value: the object, of any class.
        known: ids of objects that are walked already: what is in them counts not.
    """
    seen: dict[int, object] = {}  # which keeps the objects, so that no id comes again
    rest = [value]
    while rest:
        one = rest.pop()
        cls: Any = type(one)
        if id(one) in seen or id(one) in known or issubclass(cls, _ENDS):
            continue
        seen[id(one)] = one
        if issubclass(cls, Tensor):
            return one
        if not is_host_class(cls):
            if _is_compiled_elsewhere(cls):
                return one
            rest += _held_by(one)
    return None


def _held_by(value: object) -> list[object]:
    """List what an object refers to; of a function, not its module's variables."""
    if type(value) is types.FunctionType:
        cells = value.__closure__, value.__defaults__, value.__kwdefaults__
        return [*cells, value.__dict__]
    return gc.get_referents(value)


@lru_cache(maxsize=256)
def _is_compiled_elsewhere(cls: type) -> bool:
    """Tell whether compiled code that is not trusted lays instances of a class out."""
    return any(
        _is_compiled(base) and str(base.__module__).partition(".")[0] not in _TRUSTED
        for base in cls.__mro__
    )


def _is_compiled(cls: type) -> bool:
    """Tell whether a class was made by compiled code, not by a class statement."""
    return (
        not cls.__flags__ & _MADE_AT_RUN_TIME
        or bool(cls.__flags__ & _COMPILED)
        or getattr(vars(cls).get("__new__"), "__self__", None) is cls
    )
