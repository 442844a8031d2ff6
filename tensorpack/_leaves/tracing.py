"""What `torch.compile` has to be told to trace payloads whole, from torch 2.11 on."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

__all__ = ["let_trace_as", "let_trace_init"]

_TRACES_INSTANCES = torch.__version__ >= "2.13"  # their `__dict__`, and their slots

_NAME = "_cached_setattr_get"  # what attrs calls `object.__setattr__.__get__`
_bind: Callable[[object], Callable[[str, Any], None]] = object.__setattr__.__get__


def let_trace_as(function: Any, other: Any) -> None:
    """Let a torch that cannot trace a function trace another in its place."""
    if not _TRACES_INSTANCES:
        function._torchdynamo_inline = other


def let_trace_init(cls: type) -> None:
    """Let `torch.compile` trace the `__init__` of a class that attrs has made.

    Where the class is frozen or has converters or hooks, attrs sets the fields by
    `object.__setattr__.__get__(self)`, which is not traced. The globals of the function
    are its own, so another value for the name changes no other class.
    """
    init = vars(cls).get("__init__")
    code = getattr(init, "__code__", None)
    if code is None or not code.co_filename.startswith("<attrs generated"):
        return
    names = init.__globals__  # type: ignore[union-attr]  # it has code, so it has names
    if names.get(_NAME) == _bind:
        names[_NAME] = _bound_setter
        # Tracing would look the name up in the module that this names.
        names.pop("__name__", None)


def _bound_setter(instance: object) -> Callable[[str, Any], None]:
    """Bind `object.__setattr__` to an instance, in a form that can be traced."""
    if is_dynamo_compiling():
        return functools.partial(object.__setattr__, instance)
    return _bind(instance)
