"""What an operator does with the tensors that it gets and gives."""

import functools
import re
from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch import Tensor

__all__ = [
    "COPIES",
    "Recipe",
    "copied",
    "given",
    "is_asynchronous",
    "is_composite",
    "recipe_of",
    "tensors_in",
]

_aten = torch.ops.aten

COPIES = (_aten._to_copy.default, _aten.copy_.default, _aten._foreach_copy_.default)
"""The operators that may go from the host to a device, or back."""

_NOTHING = re.compile(
    r"aten::(empty|new_empty|set_|resize_|resize_as_|is_same_size|is_pinned|"
    r"_version|_assert)"
)
_METADATA = re.compile(r"aten::(new_.*|.*_like)$")
_SAME_MEMORY = re.compile(
    r"aten::(_unsafe_view|_reshape_alias|unsafe_split|unsafe_chunk)"
)
_ELSEWHERE = re.compile(r"(_?c10d|symm_mem)")
"""Namespaces whose kernels run on streams of their own."""


@attrs.frozen
class Recipe:
    """What is done with each argument.

    Attributes:
        name: the operator, as it is written in reports.
        reads: positions and names of the arguments that are read.
        writes: those of the arguments that are written.
        makes: whether what it gives is new memory that it has filled.
    """

    name: str
    reads: tuple[tuple[int, str], ...] = ()
    writes: tuple[tuple[int, str], ...] = ()
    makes: bool = False


@functools.cache
def recipe_of(func: Any) -> Recipe | None:
    """Return what an operator does with memory; None if it does nothing with it."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return None
    name = schema.name
    if _NOTHING.match(name) or _SAME_MEMORY.match(name) or _ELSEWHERE.match(name):
        return None
    if torch.Tag.inplace_view in func.tags:
        return None
    reads, writes = [], []
    for position, argument in enumerate(schema.arguments):
        info = argument.alias_info
        if info is not None and info.is_write:
            writes.append((position, argument.name))
        elif info is None and not _METADATA.match(name):
            reads.append((position, argument.name))
    infos = [result.alias_info for result in schema.returns]
    if any(info is not None and not info.is_write for info in infos):
        return None  # another view
    makes = any(info is None for info in infos)
    return Recipe(str(func), tuple(reads), tuple(writes), makes)


@functools.cache
def is_composite(func: Any) -> bool:
    """Return whether an operator is only made of others."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    name: str = func.name()  # type: ignore[no-untyped-call]  # torch's
    key = "CompositeImplicitAutograd"
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Iterate the tensors of an argument or a result: one, or some in a sequence."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def given(
    places: tuple[tuple[int, str], ...], args: Any, kwargs: Any
) -> Iterator[Tensor]:
    """Iterate the tensors of some arguments."""
    for position, name in places:
        value = args[position] if position < len(args) else kwargs.get(name)
        if value is not None:
            yield from tensors_in(value)


def copied(func: Any, args: Any, out: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate the pairs that a copy copies, the target first."""
    if func is _aten._to_copy.default:
        yield out, args[0]
    elif func is _aten.copy_.default:
        yield args[0], args[1]
    else:
        yield from zip(args[0], args[1], strict=True)


def is_asynchronous(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a copy lets the host go on."""
    if func is _aten._to_copy.default:
        return bool(kwargs.get("non_blocking"))
    return bool(args[2] if len(args) > 2 else kwargs.get("non_blocking"))  # noqa: PLR2004
