"""Struct-like classes as they are found: their members, without judging them."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from tensorpack._leaves.adapters import of_class
from tensorpack._plan.classes import cached_names, cached_properties
from tensorpack._plan.generics import bindings_of
from tensorpack._plan.msgspec_structs import is_struct
from tensorpack._plan.namespace import Context, own_annotations, returned_by

__all__ = [
    "Member",
    "cached_members",
    "declared_keys",
    "is_named_tuple",
    "is_typed_dict",
    "members_of",
    "struct_fields",
]


@attrs.frozen
class Member:
    """One member: its annotation, and the context in which that was written."""

    name: str
    annotation: object
    ctx: Context


def is_named_tuple(cls: type) -> bool:
    """Tell whether a class is a named tuple itself, not derived from one."""
    bases = tuple(base for base in cls.__bases__ if base is not typing.Generic)
    return bases == (tuple,) and "_fields" in vars(cls)


def is_typed_dict(cls: type) -> bool:
    """Tell whether a class is a typed dictionary, of `typing` or its extensions."""
    return typing.is_typeddict(cls) or (
        type(cls).__name__ == "_TypedDictMeta" and hasattr(cls, "__required_keys__")
    )


def declared_keys(cls: Any) -> dict[str, object]:
    """Give the keys of a typed dictionary with their types, in the order written."""
    return dict(own_annotations(cls))


def struct_fields(cls: Any) -> dict[str, object] | None:
    """Give a dataclass's, attrs class's or msgspec struct's fields, with types.

    A class that has annotations beside its fields is none: what they announce is in no
    field.
    """
    every = {n: a for b in reversed(cls.__mro__) for n, a in own_annotations(b).items()}
    fields: dict[str, object] | None = None
    if isinstance(of_class(cls, "__attrs_attrs__"), tuple):
        fields = {a.name: a.type for a in attrs.fields(cls)}
    elif isinstance(of_class(cls, "__dataclass_fields__"), dict):
        fields = {f.name: f.type for f in dataclasses.fields(cls)}
    elif is_struct(cls):
        fields = {name: every.get(name) for name in cls.__struct_fields__}
    if fields is None:
        return None
    known = {*fields, *cached_names(cls)}  # attrs annotates what it caches
    beside = (str(a) for n, a in every.items() if n not in known)
    return fields if all("ClassVar" in text for text in beside) else None


def members_of(
    cls: type, tp: object, declared: Mapping[str, object], ctx: Context
) -> Iterator[Member]:
    """Iterate the members of a struct, each as the class that declares it wrote it.

    Args:
        cls: the class.
        tp: the class as it was named, perhaps with parameters.
        declared: its members with their types.
        ctx: where `tp` was written.
    """
    owners = {n: b for b in reversed(cls.__mro__) for n in own_annotations(b)}
    bindings = bindings_of(tp, ctx)
    every = {v: bound for each in bindings.values() for v, bound in each.items()}
    contexts: dict[type, Context] = {}
    for name, annotation in declared.items():
        owner = owners.get(name, cls)
        if owner not in contexts:
            contexts[owner] = attrs.evolve(
                ctx.inside(cls),
                namespace=ctx.namespace.beside(owner),
                # A typed dictionary has its bases' annotations as its own.
                bound=every if is_typed_dict(cls) else bindings.get(owner, {}),
            )
        written = own_annotations(owner).get(name, annotation)
        yield Member(name, written, contexts[owner])


def cached_members(cls: type, ctx: Context) -> Iterator[Member]:
    """Iterate the cached properties of a struct that have a place to keep a value.

    Args:
        cls: the class.
        ctx: where the struct was named.
    """
    for cached in cached_properties(cls):
        if cached.slot is not None or cls.__dictoffset__ != 0:
            namespace = ctx.namespace.beside(cached.owner)
            inside = attrs.evolve(ctx.inside(cls), namespace=namespace)
            yield Member(cached.name, returned_by(cached.function), inside)
