"""What lets `torch.compile` trace what it could not: among it attrs' `__init__`."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

__all__ = ["TRACES_ALL", "has_extra", "kept", "let_trace_as", "let_trace_init"]

TRACES_ALL: bool = torch.__version__ >= "2.13"
"""Whether torch traces `id` of anything, and the `__dict__` of an instance."""

_NAME = "_cached_setattr_get"  # what attrs calls `object.__setattr__.__get__`
_bind: Callable[[object], Callable[[str, Any], None]] = object.__setattr__.__get__


def let_trace_init(cls: type) -> None:
    """Let `torch.compile` trace the `__init__` of a class that attrs has made.

    Where the class is frozen or has converters or hooks, attrs sets the fields by
    `object.__setattr__.__get__(self)`, which is not traced. The names of the function
    are its own, so another name for it changes no other class.
    """
    init = vars(cls).get("__init__")
    code = getattr(init, "__code__", None)
    if code is None or not code.co_filename.startswith("<attrs generated"):
        return
    names = init.__globals__  # type: ignore[union-attr]  # it has code, so it has names
    # Tracing would look names up in the module that this names: `NOTHING`, for one,
    # which the constructor asks for where a default is made by a function.
    names.pop("__name__", None)
    if names.get(_NAME) == _bind:
        names[_NAME] = _bound_setter


def _bound_setter(instance: object) -> Callable[[str, Any], None]:
    """Bind `object.__setattr__` to an instance, in a form that can be traced."""
    if is_dynamo_compiling():
        return functools.partial(object.__setattr__, instance)
    return _bind(instance)


def let_trace_as(function: Any, other: Any) -> None:
    """Let `torch.compile` trace another function in the place of one."""
    function._torchdynamo_inline = other


def has_extra(value: Any, stores: frozenset[str]) -> bool:
    """Tell whether an instance has attributes that are no fields."""
    return not stores.issuperset(value.__dict__)


def _has_none(value: Any, stores: frozenset[str]) -> bool:  # noqa: ARG001  # the same
    return False


if not TRACES_ALL:
    let_trace_as(has_extra, _has_none)


def kept(slot: Any, owner: object) -> Any:
    """Give what a slot holds, or None: to read the attribute could compute it."""
    try:
        return slot.__get__(owner)
    except AttributeError:
        return None


def _nothing_kept(slot: Any, owner: object) -> None:
    """Stand for `kept` in code that is traced: it records nothing."""


let_trace_as(kept, _nothing_kept)
