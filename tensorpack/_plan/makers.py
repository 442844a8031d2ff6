"""What made a class, and what its maker knows of it: one row of `MAKERS` for each.

A class is read through the row of its maker only: whether it has made the class, which
fields it knows, how a field of any instance is set, and how an instance comes to be
without its constructor. msgspec is not imported.
"""

# Note [copies of structs]
# A msgspec struct is laid out and filled in C: `object.__new__` refuses it, and
# `object.__setattr__` does not know its fields. What msgspec offers is a shallow copy,
# which runs no `__post_init__`, and `force_setattr`, which frozen structs allow too.
# A copy keeps a cached hash, and it cannot be taken out again: so that is refused.

import dataclasses
import functools
import importlib
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from tensorpack._leaves.adapters import of_class
from tensorpack._plan.cached import cached_names, cached_properties, is_attrs_method
from tensorpack._plan.generics import bindings_of
from tensorpack._plan.namespace import Context, own_annotations, returned_by

__all__ = [
    "MAKERS",
    "Declared",
    "Maker",
    "Member",
    "cached_members",
    "copied_by",
    "declared_fields",
    "declared_keys",
    "is_made",
    "is_named_tuple",
    "is_struct",
    "is_typed_dict",
    "maker_of",
    "members_of",
    "setter_of",
    "struct_fields",
]

Setter = Callable[[Any, str, Any], None]


@attrs.frozen
class Declared:
    """A field as the maker of its class knows it.

    Attributes:
        name: the attribute's name.
        type: its annotation, as the maker kept it.
        default: makes its default, if it has one; it is given the instance.
        may_lack: whether an instance may be without it.
        unannotated: whether neither the class nor the field says what it holds.
        computed: whether the class body has a cached property of its name.
        reads_self: whether the default is computed from the instance.
    """

    name: str
    type: object
    default: Callable[[object], object] | None = None
    may_lack: bool = False
    unannotated: bool = False
    computed: bool = False
    reads_self: bool = False


@attrs.frozen
class Maker:
    """What makes classes with fields.

    Attributes:
        name: what users call it.
        has_made: whether it has made a class itself, not only a base of it.
        is_above: whether it has made a class or a base of it.
        fields: the fields of a class in definition order.
        setter: what sets a field of any instance, frozen or not; None if nothing does.
        copier: the class whose `__copy__` makes a new instance; None if
            `object.__new__` does.
        is_struct: whether its classes may be payloads.
    """

    name: str
    has_made: Callable[[type], bool]
    is_above: Callable[[type], bool]
    fields: Callable[[Any], Iterator[Declared]]
    setter: Callable[[type], Setter] = lambda _: object.__setattr__
    copier: Callable[[type], type | None] = lambda _: None
    is_struct: bool = True


def maker_of(cls: type) -> Maker | None:
    """Return what has made a class itself."""
    return next((maker for maker in MAKERS if maker.has_made(cls)), None)


def _maker_above(cls: type) -> Maker | None:
    """Return what has made a class or a base of it."""
    return next((maker for maker in MAKERS if maker.is_above(cls)), None)


def is_made(cls: type) -> bool:
    """Return whether attrs, `dataclasses` or msgspec has made a class itself."""
    maker = maker_of(cls)
    return maker is not None and maker.is_struct


def is_struct(cls: type) -> bool:
    """Return whether attrs, `dataclasses` or msgspec has made a class or a base."""
    maker = _maker_above(cls)
    return maker is not None and maker.is_struct


def is_named_tuple(cls: type) -> bool:
    """Return whether a class is a named tuple itself, not derived from one."""
    bases = tuple(base for base in cls.__bases__ if base is not typing.Generic)
    return bases == (tuple,) and "_fields" in vars(cls)


def is_typed_dict(cls: type) -> bool:
    """Return whether a class is a typed dictionary, of `typing` or its extensions."""
    return typing.is_typeddict(cls) or (
        type(cls).__name__ == "_TypedDictMeta" and hasattr(cls, "__required_keys__")
    )


def declared_fields(cls: type) -> Iterator[Declared]:
    """Yield the fields of a class in definition order; none of a plain class."""
    maker = maker_of(cls)
    return maker.fields(cls) if maker is not None else iter(())


def setter_of(cls: type) -> Setter:
    """Return the function that sets a field of any instance, frozen or not."""
    maker = _maker_above(cls)
    return maker.setter(cls) if maker is not None else object.__setattr__


def copied_by(cls: type) -> type | None:
    """Return the class whose `__copy__` makes an instance: see [copies of structs].

    It is None where `object.__new__` makes one.
    """
    maker = _maker_above(cls)
    return maker.copier(cls) if maker is not None else None


def _attrs_fields(cls: Any) -> Iterator[Declared]:
    """Yield the fields of an attrs class."""
    own_init = not is_attrs_method(vars(cls).get("__init__"))
    for field in attrs.fields(cls):
        default, reads_self = _attrs_default(field)
        yield Declared(
            field.name,
            field.type,
            default,
            may_lack=own_init or (default is None and not field.init),
            unannotated=field.type is None
            and not any(field.name in own_annotations(base) for base in cls.__mro__),
            computed=isinstance(field.default, functools.cached_property),
            reads_self=reads_self,
        )


def _attrs_default(
    field: "attrs.Attribute[Any]",
) -> tuple[Callable[[object], object] | None, bool]:
    """Return what makes a field's default, and whether it reads the instance."""
    default: Any = field.default
    if default is attrs.NOTHING:
        return None, False
    if type(default).__name__ != "Factory":  # typed as a function, but a class
        return lambda _: default, False
    factory: Callable[..., object] = default.factory
    return (factory, True) if default.takes_self else (lambda _: factory(), False)


def _dataclass_fields(cls: Any) -> Iterator[Declared]:
    """Yield the fields of a dataclass; `InitVar` is not one."""
    parameters: Any = vars(cls).get("__dataclass_params__")
    own_init = parameters is None or not parameters.init
    for field in dataclasses.fields(cls):
        default = _dataclass_default(field)
        yield Declared(
            field.name,
            field.type,
            default,
            may_lack=own_init or (default is None and not field.init),
            computed=isinstance(field.default, functools.cached_property),
        )


def _dataclass_default(
    field: "dataclasses.Field[Any]",
) -> Callable[[object], object] | None:
    """Return what makes a field's default."""
    if field.default is not dataclasses.MISSING:
        default = field.default
        return lambda _: default
    if field.default_factory is not dataclasses.MISSING:
        factory = field.default_factory
        return lambda _: factory()
    return None


def _struct_base(cls: type) -> type | None:
    """Return `msgspec.Struct` if a class derives from it."""
    for base in cls.__mro__:
        if (base.__module__, base.__qualname__) == ("msgspec", "Struct"):
            return base
    return None


def _msgspec_fields(cls: Any) -> Iterator[Declared]:
    """Yield the fields of a msgspec struct."""
    every = _annotated(cls)
    names: tuple[str, ...] = cls.__struct_fields__
    defaults: tuple[Any, ...] = cls.__struct_defaults__
    required = (None,) * (len(names) - len(defaults))
    made = (*required, *map(_msgspec_default, defaults))
    for name, default in zip(names, made, strict=True):
        yield Declared(name, every.get(name), default)


def _msgspec_default(default: Any) -> Callable[[object], object] | None:
    """Return what makes a default, as msgspec keeps it."""
    cls = type(default)
    match f"{cls.__module__}.{cls.__name__}":
        case "msgspec._core.NoDefaultType":
            return None
        case "msgspec._core.Factory":
            return lambda _: default.factory()
        case _:
            return lambda _: default


def _msgspec_setter(cls: type) -> Setter:
    """Return msgspec's own setter."""
    base: Any = _struct_base(cls)
    setter: Setter = importlib.import_module(f"{base.__module__}.structs").force_setattr
    return setter


def _named_fields(cls: Any) -> Iterator[Declared]:
    """Yield the fields of a named tuple, as far as they have annotations."""
    annotations = own_annotations(cls)
    return (Declared(n, annotations[n]) for n in cls._fields if n in annotations)


def _typed_keys(cls: Any) -> Iterator[Declared]:
    """Yield the keys of a typed dictionary in the order written."""
    return (Declared(name, tp) for name, tp in own_annotations(cls).items())


MAKERS = (
    Maker(
        "msgspec",
        has_made=lambda cls: _struct_base(cls) is not None,
        is_above=lambda cls: _struct_base(cls) is not None,
        fields=_msgspec_fields,
        setter=_msgspec_setter,
        copier=_struct_base,
    ),
    Maker(
        "attrs",
        has_made=lambda cls: "__attrs_attrs__" in vars(cls),
        is_above=lambda cls: isinstance(of_class(cls, "__attrs_attrs__"), tuple),
        fields=_attrs_fields,
    ),
    Maker(
        "dataclasses",
        has_made=lambda cls: "__dataclass_fields__" in vars(cls),
        is_above=lambda cls: isinstance(of_class(cls, "__dataclass_fields__"), dict),
        fields=_dataclass_fields,
    ),
    Maker(
        "NamedTuple",
        has_made=is_named_tuple,
        is_above=is_named_tuple,
        fields=_named_fields,
        is_struct=False,
    ),
    Maker(
        "TypedDict",
        has_made=is_typed_dict,
        is_above=is_typed_dict,
        fields=_typed_keys,
        is_struct=False,
    ),
)
"""What makes classes with fields; of two that apply, the first one counts."""


@attrs.frozen
class Member:
    """One field of a class that is not a payload, as its author wrote it.

    Attributes:
        name: its name.
        annotation: its annotation.
        ctx: where that was written.
    """

    name: str
    annotation: object
    ctx: Context


def _annotated(cls: type) -> dict[str, object]:
    """Return the annotations of a class and its bases."""
    return {n: a for b in reversed(cls.__mro__) for n, a in own_annotations(b).items()}


def declared_keys(cls: type) -> dict[str, object]:
    """Return the keys of a typed dictionary with their types, in the order written."""
    return {key.name: key.type for key in _typed_keys(cls)}


_NOT_KEPT = ("ClassVar", "InitVar", "KW_ONLY")


def struct_fields(cls: type) -> dict[str, object] | None:
    """Return the fields of a struct with their types; None of any other class.

    A class that annotates more than its fields is not one: what these hold is unknown.
    """
    maker = _maker_above(cls)
    if maker is None or not maker.is_struct:
        return None
    fields = {field.name: field.type for field in maker.fields(cls)}
    known = {*fields, *cached_names(cls)}  # attrs annotates what it caches
    beside = (str(a) for n, a in _annotated(cls).items() if n not in known)
    kept = all(any(word in text for word in _NOT_KEPT) for text in beside)
    return fields if kept else None


def members_of(
    cls: type, tp: object, declared: Mapping[str, object], ctx: Context
) -> Iterator[Member]:
    """Yield the members of a struct, each as the class that declares it wrote it.

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
    """Yield the cached properties of a struct that have a place to keep a value.

    Args:
        cls: the class.
        ctx: where the struct was named.
    """
    for cached in cached_properties(cls):
        if cached.slot is not None or cls.__dictoffset__ != 0:
            namespace = ctx.namespace.beside(cached.owner)
            inside = attrs.evolve(ctx.inside(cls), namespace=namespace)
            yield Member(cached.name, returned_by(cached.function), inside)
