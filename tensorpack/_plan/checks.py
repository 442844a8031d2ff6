"""What cannot be a payload: every check of a class, its names and its storage.

`check_*` raise a `DefinitionError` about the class; the others yield the refusals of
single fields, which `LifetimeError` lists together. What an annotation means is no
concern of this module.
"""

import dataclasses
import enum
import keyword
import types
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Never

import torch
from torch import Tensor

from tensorpack._plan.cached import cached_names, is_attrs_method
from tensorpack._plan.makers import declared_fields
from tensorpack._plan.namespace import own_annotations
from tensorpack._plan.spelling import spell
from tensorpack._rules.markers import PLAN
from tensorpack._rules.methods import COURTESIES, METHODS
from tensorpack._rules.refusals import refuse
from tensorpack.errors import DefinitionError, Refusal, its_fields

__all__ = [
    "check_body",
    "check_class",
    "check_content",
    "check_descriptor",
    "check_field_names",
    "check_hash",
    "check_names",
    "check_post_init",
    "has_own_init",
    "is_class_variable",
    "is_dunder",
    "listed",
    "shared_leaves",
    "slots_apart",
    "unusable_defaults",
]


def listed(names: Iterable[str]) -> str:
    """Return names one after the other."""
    return ", ".join(f"`{name}`" for name in names)


def _refuse(cls: Any, problem: str, remedy: str) -> Never:
    """Refuse a class as a whole."""
    name = getattr(cls, "__qualname__", repr(cls))
    raise DefinitionError(cls=name, problem=problem, remedy=remedy)


# The class


def check_class(cls: Any) -> None:
    """Refuse what cannot be a payload, before anything is done to it.

    Raises:
        DefinitionError: it is not a class, or its content is not in its fields.
    """
    if not isinstance(cls, type):
        kind = type(cls).__name__
        _refuse(
            cls, f"expected a class, got an instance of `{kind}`", "Decorate a class."
        )
    for belongs, problem, remedy in _UNFIT:
        if belongs(cls):
            _refuse(cls, problem, remedy)
    for base in cls.__mro__[:-1]:
        # A base in C makes its own instances: `object.__new__` cannot.
        if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
            _refuse(
                cls,
                f"it derives from `{base.__name__}`, whose own content is not "
                "in a field, so a moved copy would lose it",
                f"Hold the `{base.__name__}` in a field, or write a "
                f"`LifetimeAdapter[{cls.__name__}]`.",
            )


_UNFIT: tuple[tuple[Callable[[type], bool], str, str], ...] = (
    (
        lambda cls: issubclass(cls, tuple) and hasattr(cls, "_fields"),
        "it is a named tuple, which travels without being a payload",
        "Use it as the type of a field.",
    ),
    (
        lambda cls: hasattr(cls, "__required_keys__") and issubclass(cls, dict),
        "it is a typed dictionary, which travels without being a payload",
        "Use it as the type of a field.",
    ),
    (
        lambda cls: issubclass(cls, enum.Enum),
        "it is an enumeration, which stays on the host",
        "Use it as the type of a field.",
    ),
    (
        lambda cls: issubclass(cls, torch.Tensor),
        "it is a tensor, which travels without being a payload",
        "Use it as the type of a field.",
    ),
    (
        lambda cls: issubclass(cls, torch.nn.Module),
        "it is a module, whose parameters are not in fields",
        "Hold its tensors in a class of their own.",
    ),
    (
        lambda cls: bool(vars(cls).get("_is_protocol")),
        "it is a protocol, which has no instances",
        "Decorate the classes that implement it.",
    ),
    (
        lambda cls: PLAN in vars(cls),
        "it is a payload already",
        "Decorate it once.",
    ),
    (
        lambda cls: _caches_hash(cls),  # noqa: PLW0108  # it is defined below
        "it caches its hash, which a moved copy would keep",
        "Remove `cache_hash=True`.",
    ),
)


def check_hash(cls: type) -> None:
    """Refuse a class that attrs has made with a cached hash."""
    if _caches_hash(cls):
        _refuse(cls, *_UNFIT[-1][1:])


def _caches_hash(cls: type) -> bool:
    """Return whether msgspec or attrs keeps a hash in each instance."""
    if hasattr(cls, "__msgspec_cached_hash__"):
        return True
    method = cls.__hash__
    return is_attrs_method(method) and "_attrs_cached_hash" in method.__code__.co_names


def has_own_init(cls: type) -> bool:
    """Return whether the author of a class or of a base has written its `__init__`."""
    init = next(
        (vars(c)["__init__"] for c in cls.__mro__ if "__init__" in vars(c)), None
    )
    return isinstance(init, types.FunctionType) and not (
        is_attrs_method(init) or init.__code__.co_filename == "<string>"
    )


def check_content(cls: type, declared: Mapping[str, object]) -> None:
    """Refuse a class that fills its instances by hand, and declares nothing of them.

    Raises:
        DefinitionError: it has an `__init__` of its own and no field.
    """
    if not declared and has_own_init(cls):
        _refuse(
            cls,
            "it has its own `__init__` and no fields, so tensorpack cannot tell "
            "what its instances hold",
            "Annotate its attributes in the class (`ids: Tensor`), or declare "
            "them: `payload(cls, fields={'ids': Tensor})`.",
        )


def check_post_init(cls: type) -> None:
    """Refuse a plain class whose `__post_init__` would never be called.

    Raises:
        DefinitionError: attrs, which makes the class, calls another method.
    """
    has_hook = callable(getattr(cls, "__post_init__", None))
    if has_hook and not (hasattr(cls, "__attrs_post_init__") or has_own_init(cls)):
        _refuse(
            cls,
            "it has a `__post_init__`, which only `dataclasses` calls",
            "Rename it to `__attrs_post_init__`, or write "
            "`@dataclasses.dataclass` under `@payload`.",
        )


# The names


def check_body(cls: type, keep: Sequence[str], generated: Mapping[str, object]) -> None:
    """Refuse hand-written versions of generated methods, which would live on.

    Args:
        cls: the class, before anything is done to it.
        keep: names that shall stay the class's own.
        generated: the methods by their names.
    """
    _check_keep(cls, keep)
    clash = [
        name
        for name in METHODS
        if name not in keep
        and vars(cls).get(name, generated[name]) is not generated[name]
    ]
    if clash:
        _refuse(
            cls,
            f"its body defines {listed(clash)}, which `@payload` generates",
            f"Delete {listed(clash)}, or write `@payload(keep="
            f"{tuple(clash)!r})` to keep your own.",
        )


def _check_keep(cls: type, keep: Sequence[str]) -> None:
    """Refuse names in `keep=` that keep nothing."""
    if isinstance(keep, str):
        _refuse(cls, f"`keep=` is one string, {keep!r}", f"Write `keep=({keep!r},)`.")
    odd = [n for n in keep if n not in (*METHODS, *COURTESIES) or n not in vars(cls)]
    if odd:
        _refuse(
            cls,
            f"`keep=` names {listed(odd)}, which the class body does not "
            "define or `@payload` does not generate",
            f"Remove {listed(odd)} from `keep=`.",
        )


def check_field_names(cls: type) -> None:
    """Refuse fields whose names the generated methods need."""
    fields = {field.name for field in declared_fields(cls)}
    clash = [name for name in METHODS if name in fields]
    if clash:
        _refuse(
            cls,
            f"{listed(clash)} would be a field and a generated method",
            "Rename the field.",
        )


def check_names(
    cls: type, declared: Mapping[str, object], corrections: Mapping[str, object]
) -> None:
    """Refuse names that no attribute can have, and corrections of unknown names.

    A cached property is not a field, but what it returns may be corrected too.
    """
    for name in declared:
        if not _is_name(name):
            _refuse(
                cls,
                f"the field name {name!r} is not an identifier",
                "Rename the field.",
            )
        if is_dunder(name):
            _refuse(
                cls,
                f"the field name `{name}` is one of Python's own",
                "Rename the field.",
            )
    known = {*declared, *cached_names(cls)}
    unknown = [name for name in corrections if name not in known]
    if unknown:
        _refuse(
            cls,
            f"`fields=` names {listed(unknown)}, which it does not have",
            its_fields(declared),
        )


def _is_name(name: str) -> bool:
    """Return whether a name can be written in source text and means itself there."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and unicodedata.normalize("NFKC", name) == name
    )


def is_dunder(name: str) -> bool:
    """Return whether Python itself gives a name its meaning."""
    return name.startswith("__") and name.endswith("__")


# The storage


def check_descriptor(name: str, attribute: object) -> None:
    """Refuse a field whose reading would run code."""
    kind = type(attribute)
    if hasattr(kind, "__set__") and not isinstance(
        attribute, (types.MemberDescriptorType, types.GetSetDescriptorType)
    ):
        refuse(
            name,
            f"is a descriptor (`{kind.__name__}`), so reading it runs code",
            "Keep the value in a plain field.",
        )


def is_class_variable(annotation: object) -> bool:
    """Return whether an annotation in a class body declares a class variable."""
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return text.strip("\"'").split("[")[0].rpartition(".")[2] == "ClassVar"


def unusable_defaults(cls: type) -> Iterator[Refusal]:
    """Yield the fields in the body of a plain class whose default all would share."""
    for name, annotation in own_annotations(cls).items():
        if name not in vars(cls) or is_class_variable(annotation):
            continue
        text, value = spell(annotation), vars(cls)[name]
        if isinstance(value, dataclasses.Field):
            yield Refusal(
                name,
                text,
                name,
                "has a default made by `dataclasses.field`, which is not read here",
                (
                    "Write `attrs.field`, whose `default_factory` is called `factory`.",
                    "Or write `@dataclasses.dataclass` under `@payload`.",
                ),
            )
            continue
        value = getattr(value, "_default", value)  # of an `attrs.field`
        if type(value).__hash__ is None:
            kind = type(value).__name__
            yield Refusal(
                name,
                text,
                name,
                f"has a `{kind}` as its default, which all instances would share",
                (f"Write `{name}: {text} = attrs.field(factory={_factory(value)})`.",),
            )


def _factory(value: object) -> str:
    """Write what makes a mutable default anew."""
    is_empty = isinstance(value, (list, dict, set)) and not value
    return type(value).__name__ if is_empty else "lambda: ..."


def shared_leaves(cls: type, declared: Mapping[str, object]) -> Iterator[Refusal]:
    """Yield tensors and payloads that the class itself holds, unannotated."""
    for base in cls.__mro__:
        annotated = own_annotations(base) if base is not object else {}
        for name, value in vars(base).items():
            kind = type(value)
            leaf = issubclass(kind, Tensor) or PLAN in vars(kind)
            if leaf and name not in declared and name not in annotated:
                cls_name = kind.__name__
                yield Refusal(
                    name,
                    name,
                    name,
                    f"is a `{cls_name}` of the class and not a field, so it would be "
                    "neither moved nor recorded",
                    (
                        f"Write `{name}: {cls_name} = ...` for a field.",
                        f"Or write `ClassVar[{cls_name}]` if it belongs to the class.",
                    ),
                )


def slots_apart(cls: type, declared: Mapping[str, object]) -> Iterator[Refusal]:
    """Yield slots that are not fields: what they hold would be lost."""
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
                    f"is a slot of `{base.__name__}` but not a field, so its value "
                    "would be lost",
                    ("Make it a field.",),
                )
