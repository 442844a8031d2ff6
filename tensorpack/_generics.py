"""Generic bases: what a class binds their type variables to."""

import typing
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["bindings_of"]


def bindings_of(cls: type) -> dict[type, dict[object, object]]:
    """Tell what each generic base's type variables are bound to in a class."""
    found: dict[type, dict[object, object]] = {}
    _visit(cls, {}, found)
    return found


def _visit(
    cls: type,
    bound: Mapping[object, object],
    found: dict[type, dict[object, object]],
) -> None:
    """Collect the bindings of a class's bases; the first path to a base counts."""
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = typing.get_origin(base) or base
        if not isinstance(origin, type) or origin in (typing.Generic, typing.Protocol):
            continue
        parameters = getattr(origin, "__parameters__", ())
        arguments = [_substitute(a, bound) for a in typing.get_args(base)]
        pairs = zip(parameters, arguments, strict=False)
        inner = {p: a for p, a in pairs if p is not a}
        found.setdefault(origin, inner)
        _visit(origin, inner, found)


def _substitute(tp: Any, bound: Mapping[object, object]) -> object:
    """Replace type variables inside a type by what they are bound to."""
    if tp in bound:
        return bound[tp]
    parameters = getattr(tp, "__parameters__", ())
    if parameters and not isinstance(tp, type):
        return cast("object", tp[tuple(bound.get(p, p) for p in parameters)])
    return cast("object", tp)
