"""Generic classes: what their type variables, and those of their bases, stand for."""

import typing
from collections.abc import Mapping
from typing import Any

import attrs

from tensorpack._plan.namespace import Context

__all__ = ["Bindings", "bindings_of"]

Bindings = Mapping[object, tuple[object, Context]]
"""The type of each type variable, with the context in which it was written."""


def bindings_of(tp: object, ctx: Context) -> dict[type, Bindings]:
    """Tell what the type variables of a class and of its bases are bound to.

    Args:
        tp: the class, with or without parameters: `Batch`, `Batch[Tensor]`.
        ctx: where `tp` was written.

    Returns:
        For the class and for each base, its variables. Where two paths lead to a base,
        the first one counts, as in the order of the bases.
    """
    found: dict[type, Bindings] = {}
    _visit(tp, ctx, found)
    return found


def _visit(tp: Any, ctx: Context, found: dict[type, Bindings]) -> None:
    """Collect the bindings of a class, then those of its bases."""
    cls = typing.get_origin(tp) or tp
    if not isinstance(cls, type) or cls in found or cls in _PLAIN:
        return
    arguments = typing.get_args(tp)
    parameters = getattr(cls, "__parameters__", ()) if arguments else ()
    pairs = zip(parameters, arguments, strict=False)
    # `Base[T]` in a class with the same `T` binds it to what the class is given.
    found[cls] = {p: (a, ctx) for p, a in pairs if a is not p or a in ctx.bound}
    if "__orig_bases__" in vars(cls):
        names = ctx.namespace.beside(cls)
        inner = attrs.evolve(ctx, namespace=names, bound=found[cls])
        for base in vars(cls)["__orig_bases__"]:
            _visit(base, inner, found)
    for base in cls.__bases__:
        _visit(base, ctx, found)


_PLAIN = (object, typing.Generic, typing.Protocol)
