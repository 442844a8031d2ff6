"""A class as its maker left it: its fields, its storage, its fitness.

The makers that are known are attrs, `dataclasses` and msgspec.
"""

import dataclasses
import enum
import functools
import keyword
import types
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch

from tensorpack._plan.msgspec_structs import is_struct, struct_defaults
from tensorpack._plan.namespace import own_annotations
from tensorpack._rules.refusals import UNFIT
from tensorpack.errors import DefinitionError, Refusal, its_fields

__all__ = [
    "CachedProperty",
    "Declared",
    "cached_names",
    "cached_properties",
    "check_class",
    "check_names",
    "declared_fields",
    "is_attrs_method",
    "is_dunder",
    "is_made",
    "slots_apart",
    "stores_of",
]


@attrs.frozen
class Declared:
    """A field as the class's own decorator knows it.

    Attributes:
        name: the attribute's name.
        type: its annotation, as the decorator kept it.
        default: makes its default, if it has one.
        may_lack: whether an instance may be without it.
        unannotated: whether nobody has said what it holds.
        reads_self: whether its default is made from the instance.
    """

    name: str
    type: object
    default: Callable[[object], object] | None
    may_lack: bool
    unannotated: bool = False
    reads_self: bool = False


def is_made(cls: type) -> bool:
    """Tell whether attrs, `dataclasses` or msgspec has made a class."""
    by_python = ("__attrs_attrs__", "__dataclass_fields__")
    return any(name in vars(cls) for name in by_python) or is_struct(cls)


def declared_fields(cls: type) -> Iterator[Declared]:
    """Iterate the fields of a class in definition order."""
    if is_struct(cls):
        for name, default in struct_defaults(cls):
            yield Declared(name, None, default, may_lack=False)
        return
    own_init = not _has_made_init(cls)
    if "__attrs_attrs__" in vars(cls):
        for a in attrs.fields(cls):
            default = _attrs_default(a)
            lacks = default is None and (own_init or not a.init)
            untyped = a.type is None and not _is_annotated(cls, a.name)
            reads = bool(getattr(a.default, "takes_self", False))
            yield Declared(a.name, a.type, default, lacks, untyped, reads)
        return
    for f in dataclasses.fields(cls):
        default = _dataclass_default(f)
        lacks = default is None and (own_init or not f.init)
        yield Declared(f.name, f.type, default, lacks)


def _is_annotated(cls: type, name: str) -> bool:
    """Tell whether a class or one of its bases annotates a name."""
    return any(name in own_annotations(base) for base in cls.__mro__)


def _caches_hash(cls: type) -> bool:
    """Return whether attrs keeps a hash in each instance of a class."""
    method = cls.__hash__
    names = method.__code__.co_names if is_attrs_method(method) else ()
    return "_attrs_cached_hash" in names


def _has_made_init(cls: type) -> bool:
    """Tell whether the class's `__init__` sets every field, having been generated."""
    parameters: Any = vars(cls).get("__dataclass_params__")
    if parameters is not None and "__attrs_attrs__" not in vars(cls):
        return bool(parameters.init)
    return is_attrs_method(vars(cls).get("__init__"))


def is_attrs_method(method: object) -> bool:
    """Tell whether attrs has generated a method."""
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename.startswith("<attrs generated")


def _attrs_default(field: "attrs.Attribute[Any]") -> Callable[[object], object] | None:
    """Make the function that gives an attrs field's default."""
    default: Any = field.default
    if default is attrs.NOTHING:
        return None
    if type(default).__name__ != "Factory":  # typed as a function, but a class
        return lambda _: default
    factory: Callable[..., object] = default.factory
    return factory if default.takes_self else lambda _: factory()


def _dataclass_default(
    field: "dataclasses.Field[Any]",
) -> Callable[[object], object] | None:
    """Make the function that gives a dataclass field's default."""
    if field.default is not dataclasses.MISSING:
        default = field.default
        return lambda _: default
    if field.default_factory is not dataclasses.MISSING:
        factory = field.default_factory
        return lambda _: factory()
    return None


def check_class(cls: Any) -> None:
    """Refuse what cannot be a payload, before anything is done to it.

    Raises:
        DefinitionError: it is no class, or a class whose content is not in its fields.
    """
    if not isinstance(cls, type):
        raise DefinitionError(
            cls=getattr(cls, "__qualname__", repr(cls)),
            problem=f"an instance of `{type(cls).__name__}` is no class",
            remedy="Decorate a class.",
        )
    for belongs, problem, remedy in _UNFIT:
        if belongs(cls):
            raise DefinitionError(cls=cls.__qualname__, problem=problem, remedy=remedy)
    for base in cls.__mro__[:-1]:
        # A base in C makes its own instances: `object.__new__` cannot.
        if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
            raise DefinitionError(
                cls=cls.__qualname__,
                problem=f"it derives from `{base.__name__}`, whose own content is in "
                "no field, so a moved copy would lose it",
                remedy=f"Hold the `{base.__name__}` in a field, or write a "
                f"`LifetimeAdapter[{cls.__name__}]`.",
            )


_UNFIT: tuple[tuple[Callable[[type], bool], str, str], ...] = (
    (
        lambda cls: issubclass(cls, tuple) and hasattr(cls, "_fields"),
        *UNFIT["named tuple"],
    ),
    (
        lambda cls: hasattr(cls, "__required_keys__") and issubclass(cls, dict),
        *UNFIT["typed dictionary"],
    ),
    (lambda cls: issubclass(cls, enum.Enum), *UNFIT["enumeration"]),
    (lambda cls: issubclass(cls, torch.Tensor), *UNFIT["tensor"]),
    (lambda cls: issubclass(cls, torch.nn.Module), *UNFIT["module"]),
    (lambda cls: bool(vars(cls).get("_is_protocol")), *UNFIT["protocol"]),
    (
        _caches_hash,
        "it is an attrs class that caches its hash, which a moved copy would keep",
        "Take `cache_hash=True` out.",
    ),
    (
        lambda cls: hasattr(cls, "__msgspec_cached_hash__"),
        "it is a msgspec struct that caches its hash, which a moved copy would keep",
        "Take `cache_hash=True` out.",
    ),
)


def check_names(
    cls: type, declared: Mapping[str, object], corrections: Mapping[str, object]
) -> None:
    """Refuse names that are no attribute names, and corrections of what is not there.

    A cached property is no field, but what it returns may be corrected too.
    """
    for name in declared:
        if not _is_name(name):
            raise DefinitionError(
                cls=cls.__qualname__,
                problem=f"the field name {name!r} is no identifier",
                remedy="Rename the field.",
            )
        if is_dunder(name):
            raise DefinitionError(
                cls=cls.__qualname__,
                problem=f"the field name `{name}` is one of Python's own",
                remedy="Rename the field.",
            )
    known = {*declared, *cached_names(cls)}
    unknown = [f"`{name}`" for name in corrections if name not in known]
    if unknown:
        raise DefinitionError(
            cls=cls.__qualname__,
            problem=f"`fields=` names {', '.join(unknown)}, which it does not have",
            remedy=its_fields(declared),
        )


def _is_name(name: str) -> bool:
    """Tell whether a name may stand in source text and means itself there."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and unicodedata.normalize("NFKC", name) == name
    )


def stores_of(cls: type, declared: Mapping[str, object]) -> frozenset[str] | None:
    """Name what an instance's `__dict__` may hold; None if it has none."""
    if cls.__dictoffset__ == 0:
        return None
    return frozenset({*declared, *cached_names(cls), "__orig_class__"})


@attrs.frozen
class CachedProperty:
    """A cached property of a class.

    Attributes:
        name: the name under which its value is kept.
        owner: the class that defines it.
        function: computes the value.
        slot: the slot that keeps the value; None if the instance `__dict__` does.
    """

    name: str
    owner: type
    function: Callable[..., object]
    slot: object = None


def cached_properties(cls: type) -> Iterator[CachedProperty]:
    """Iterate the cached properties of a class, and those of its bases after it."""
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, functools.cached_property):
                yield CachedProperty(value.attrname or name, base, value.func)
        getter: Any = vars(base).get("__getattr__")
        if (
            is_attrs_method(getter)
            and "cached_properties" in getter.__code__.co_varnames
        ):
            # attrs keeps them as the first default of the `__getattr__` it makes.
            for name, function in getter.__defaults__[0].items():
                yield CachedProperty(name, base, function, _slot_of(base, name))


def _slot_of(cls: type, name: str) -> object:
    """Find the slot that keeps an attribute, its own or a base's."""
    found = (vars(base).get(name) for base in cls.__mro__)
    return next((x for x in found if isinstance(x, types.MemberDescriptorType)), None)


def cached_names(cls: type) -> set[str]:
    """Name the cached properties of a class."""
    return {cached.name for cached in cached_properties(cls)}


def slots_apart(cls: type, declared: Mapping[str, object]) -> Iterator[Refusal]:
    """Refuse slots that are no fields: what they hold would be lost."""
    for base in reversed(cls.__mro__):
        slots = vars(base).get("__slots__", ())
        known = {*declared, *cached_names(cls), *own_annotations(base)}
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{base.__name__.lstrip('_')}{name}"
            if not known & {name, mangled} and not is_dunder(name):
                yield Refusal(
                    name,
                    name,
                    name,
                    f"is a slot of `{base.__name__}` but no field, so its value would "
                    "be lost",
                    ("Make it a field.",),
                )


def is_dunder(name: str) -> bool:
    """Tell whether Python itself gives a name its meaning."""
    return name.startswith("__") and name.endswith("__")
