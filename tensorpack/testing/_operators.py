"""What is known about an operator, whatever it is given."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

__all__ = [
    "COPIES",
    "READ_BY_HOST",
    "asks_for_library",
    "is_composite",
    "is_view",
    "spelled",
    "takes_any",
    "touches_nothing",
    "written_by",
]

_aten = torch.ops.aten

COPIES = (_aten._to_copy.default, _aten.copy_.default, _aten._foreach_copy_.default)

_SAME_MEMORY = (
    "resize_",
    "resize_as_",
    "_unsafe_view",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
)
"""Operators that give the memory that they got, though their schema does not say so."""

READ_BY_HOST = (
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.equal.default,
    _aten.masked_select.default,
)


@functools.cache
def is_composite(func: Any) -> bool:
    """Return whether an operator is only made of others."""
    return isinstance(
        func, torch._ops.OpOverload
    ) and torch._C._dispatch_has_kernel_for_dispatch_key(
        _name(func), "CompositeImplicitAutograd"
    )


@functools.cache
def asks_for_library(func: Any) -> bool:
    """Return whether an operator asks if a library of the device can do something."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    return "aten::_use_" in _name(func)


@functools.cache
def touches_nothing(func: Any) -> bool:
    """Return whether an operator reads and writes no numbers."""
    if torch.Tag.inplace_view in getattr(func, "tags", ()):
        return True
    name = str(func).removeprefix("aten.").partition(".")[0]
    return name.startswith(("empty", "new_empty")) or name in ("set_", "is_same_size")


@functools.cache
def is_view(func: Any) -> bool:
    """Return whether an operator gives other views of the memory that it is given."""
    if str(func).removeprefix("aten.").partition(".")[0] in _SAME_MEMORY:
        return True
    schema = getattr(func, "_schema", None)
    returns = [] if schema is None else [r.alias_info for r in schema.returns]
    return any(info is not None and not info.is_write for info in returns)


@functools.cache
def takes_any(func: Any) -> bool:
    """Return whether an operator takes tensors of several devices."""
    if not isinstance(func, torch._ops.OpOverload):
        return True
    return any(part in _name(func) for part in ("index", "set_", "ctc_loss"))


def _name(func: Any) -> str:
    name: str = func.name()
    return name


def spelled(func: Any) -> str:
    """Name an operator, or a function that stands for one."""
    is_operator = isinstance(func, torch._ops.OpOverload)
    return str(func) if is_operator else str(getattr(func, "__name__", func))


def written_by(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Iterate the arguments that an operator writes to."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        if func.__name__ == "setitem":
            yield args[0]
        return
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else None
            given = kwargs.get(argument.name, given)
            yield from (x for x in tree_leaves(given) if isinstance(x, Tensor))
