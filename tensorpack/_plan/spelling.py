"""Writes an annotation as its author did."""

import re
import types
import typing
from typing import Any

from tensorpack._rules.markers import Marker

__all__ = ["WrittenOnly", "spell"]

_PREFIXES = re.compile(r"\b(?:[A-Za-z_][\w]*\.|<locals>\.)+(?=[A-Za-z_])")


class WrittenOnly:
    """A part of an annotation that is known by its text alone."""

    text: str


def spell(annotation: object) -> str:
    """Write an annotation as its author would have."""
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    if isinstance(annotation, WrittenOnly):
        return annotation.text
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    return _spell_generic(annotation)


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def _spell_generic(annotation: object) -> str:
    """Write a type, a union or a parametrized type."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _spell_annotated(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(spell(a) for a in args)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if isinstance(annotation, list):
        return f"[{', '.join(map(spell, annotation))}]"
    if origin is not None and args:
        name = getattr(annotation, "__name__", None) or spell(origin)
        name = origin.__name__ if isinstance(origin, type) else name
        unpacked = "*" if getattr(annotation, "__unpacked__", False) is True else ""
        return f"{unpacked}{name}[{', '.join(map(spell, args))}]"
    if isinstance(annotation, (type, typing.TypeVar, *_FUNCTIONS)):
        return annotation.__name__
    return _PREFIXES.sub("", repr(annotation))


def _spell_annotated(annotation: Any) -> str:
    """Write `Annotated[T, marker]` as its alias: `HostOnly[T]`."""
    inner, *metadata = typing.get_args(annotation)
    for note in metadata:
        if isinstance(note, Marker):
            return f"{note!r}[{spell(inner)}]"
    return spell(inner)
