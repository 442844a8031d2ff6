"""How a shape is declared both ways, filled, and looked through by hand."""

import collections
import dataclasses
import enum
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from tensorpack._rules.markers import Marker

__all__ = [
    "ATTRS",
    "DATACLASS",
    "Shape",
    "Stay",
    "Tool",
    "filled",
    "leaves_by_hand",
    "sample",
]


@attrs.frozen
class Tool:
    """One of the two ways to make a class of annotations."""

    name: str
    decorate: Callable[..., Callable[[type], type]]
    field: Callable[..., Any]


def _attrs_field(*, compare: bool = True, **options: Any) -> Any:
    """Make a field of attrs with the options of `dataclasses`."""
    return attrs.field(eq=compare, **options)


def _dataclass_field(*, factory: Any = dataclasses.MISSING, **options: Any) -> Any:
    """Make a field of `dataclasses`, with the short name for a factory."""
    if factory is not dataclasses.MISSING:
        options["default_factory"] = factory
    return dataclasses.field(**options)


DATACLASS = Tool("dataclass", dataclasses.dataclass, _dataclass_field)
ATTRS = Tool("attrs", lambda **o: attrs.define(slots=False, **o), _attrs_field)


@attrs.frozen
class Shape:
    """A class as it stands in somebody's code, and what becomes of it.

    Attributes:
        declare: declares the class by a tool.
        refused: the fields that are refused as they stand, each with its culprit.
        remedies: annotations that correct them, or say what they are.
        values: values for fields whose type says too little to make one.
        stored: fields whose value another field keeps.
        asides: fields that are recorded, never moved.
    """

    declare: Callable[[Tool], type]
    refused: Mapping[str, str] = attrs.field(factory=dict)
    remedies: Mapping[str, Any] = attrs.field(factory=dict)
    values: Mapping[str, Callable[[Callable[[], Tensor]], Any]] = attrs.field(
        factory=dict
    )
    stored: frozenset[str] = frozenset()
    asides: frozenset[str] = frozenset()


class Stay:
    """A value that no traversal may look into."""

    def __init__(self, hidden: Tensor | None = None) -> None:
        self.hidden = hidden


def sample(annotation: Any, leaf: Callable[[], Tensor]) -> Any:
    """Make a value of a type, by what the type says alone."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _sample_marked(annotation, leaf)
    if origin in (typing.Union, types.UnionType):
        return sample(args[0] if args[0] is not type(None) else args[1], leaf)
    if origin is list:
        return [sample(args[0], leaf), sample(args[0], leaf)]
    if origin is tuple and args[-1:] == (...,):
        return (sample(args[0], leaf), sample(args[0], leaf))
    if origin is tuple:
        return tuple(sample(arg, leaf) for arg in args)
    if origin is dict:
        return {sample(args[0], leaf): sample(args[1], leaf)}
    if origin is set:
        return {sample(args[0], leaf)}
    if isinstance(annotation, type) and isinstance(leaf(), Tensor):
        return _sample_class(annotation, leaf)
    return leaf() if "Tensor" in repr(annotation) else Stay()


def _sample_marked(annotation: Any, leaf: Callable[[], Tensor]) -> Any:
    inner, *metadata = typing.get_args(annotation)
    match [note for note in metadata if isinstance(note, Marker)]:
        case [Marker.DYNAMIC]:
            return {"x": leaf(), "y": [leaf(), 3]}
        case [Marker.BORROWED]:
            return Stay(leaf())
        case [Marker.HOST_ONLY]:
            return Stay()
        case _:
            return sample(inner, leaf)


_HOST: dict[type, Any] = {
    int: 3,
    str: "text",
    bool: True,
    float: 0.5,
    torch.device: torch.device("cpu"),
    torch.dtype: torch.float32,
}


def _sample_class(cls: Any, leaf: Callable[[], Tensor]) -> Any:
    if issubclass(cls, Tensor) or isinstance(cls, type(torch.LongTensor)):
        return leaf()
    if cls in _HOST:
        return _HOST[cls]
    if issubclass(cls, np.ndarray):
        return np.ones(2)
    if issubclass(cls, enum.Enum):
        return next(iter(cls))
    if hasattr(cls, "sample"):
        return cls.sample(leaf)
    return filled(cls, leaf, Shape(lambda _: cls))


def filled(cls: Any, leaf: Callable[[], Tensor], shape: Shape) -> Any:
    """Make an instance in which every field has a value."""
    fields = (
        [(a.name, a.alias, a.init) for a in attrs.fields(cls)]
        if attrs.has(cls)
        else [(f.name, f.name, f.init) for f in dataclasses.fields(cls)]
    )
    values = {
        name: _value(cls, name, leaf, shape)
        for name, _, _ in fields
        if name not in shape.stored
    }
    given = {
        alias: values[name] for name, alias, init in fields if init and name in values
    }
    made = cls(**given)
    for name, _, init in fields:
        if not init and name in values:
            object.__setattr__(made, name, values[name])
    return made


def _value(cls: type, name: str, leaf: Callable[[], Tensor], shape: Shape) -> Any:
    if name in shape.values:
        return shape.values[name](leaf)
    if name in shape.remedies:
        return sample(shape.remedies[name], leaf)
    return sample(hint(cls, name), leaf)


def hint(cls: type, name: str) -> Any:
    """Read the annotation of a field where it was written."""
    for base in cls.__mro__:
        written = vars(base).get("__annotations__", {})
        if name in written:
            scope = vars(sys.modules[base.__module__])
            text = written[name]
            return typing._eval_type(
                typing.ForwardRef(text) if isinstance(text, str) else text, scope, scope
            )
    raise KeyError(name)


def leaves_by_hand(value: Any, skipped: frozenset[str]) -> Iterator[Tensor]:
    """Iterate every tensor that an object holds, by looking at all it has."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves_by_hand(item, skipped)
    elif isinstance(value, (list, tuple, set, collections.deque)):
        for item in value:
            yield from leaves_by_hand(item, skipped)
    elif not isinstance(value, (Stay, torch.dtype, torch.device, type, enum.Enum)):
        for name, item in getattr(value, "__dict__", {}).items():
            if name not in skipped:
                yield from leaves_by_hand(item, skipped)
