"""Class -> `ClassPlan`: the fields, who declared each, and what it means."""

import dataclasses
import functools
import inspect
import keyword
import types
import typing
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from tensorpack._generics import bindings_of
from tensorpack._lifetime import PLAN, Marker
from tensorpack._nodes import ClassPlan, FieldPlan, Reset, Shadowed
from tensorpack._plan import Context, node_of
from tensorpack._remedies import RefusedError, refuse
from tensorpack._resolve import Namespace, Unresolved, own_annotations, spell
from tensorpack.errors import DefinitionError, LifetimeError, Refusal

__all__ = ["plan_class"]


@attrs.frozen
class _Declared:
    """A field as the class's own decorator knows it."""

    name: str
    type: object
    default: Callable[[object], object] | None
    given: bool


def plan_class(
    cls: type,
    enclosing: Mapping[str, object],
    corrections: Mapping[str, object],
    notes: tuple[str, ...],
) -> ClassPlan:
    """Describe a class that attrs or `dataclasses` has made.

    Args:
        cls: the class.
        enclosing: names of the function around the class, if any.
        corrections: annotations that replace those of the class, by field.
        notes: what a reader of the plan should know.

    Raises:
        LifetimeError: some fields have no lifetime support; it lists all of them.
        DefinitionError: a field's name cannot be used, or a correction names none.
    """
    declared = {field.name: field for field in _declared(cls)}
    _check_names(cls, declared, corrections)
    namespace = Namespace.of(cls, enclosing)
    bindings = bindings_of(cls)
    fields: list[FieldPlan] = []
    refusals: list[Refusal] = []
    for field in declared.values():
        owner = _owner(cls, field.name)
        annotation = _annotation(cls, owner, field, corrections)
        try:
            if field.name not in corrections:
                inherited = _inherited(cls, owner, field, bindings)
                if inherited is not None:
                    fields.append(inherited)
                    continue
            ctx = Context(
                _namespace_of(cls, owner, namespace), cls, bindings.get(owner, {})
            )
            fields.append(_read(cls, field, annotation, ctx))
        except RefusedError as error:
            refusals.append(error.at(field.name, spell(annotation)))
    refusals.extend(_orphans(cls, declared, namespace))
    if refusals:
        raise LifetimeError(cls=cls.__qualname__, refusals=refusals)
    return ClassPlan(
        cls=cls,
        fields=tuple(fields),
        assigns=getattr(cls, "__setattr__") is object.__setattr__,  # noqa: B009  # typed apart
        stores=_stores(cls, declared),
        hooked=hasattr(cls, "__payload_prepare__"),
        notes=notes,
        namespace=namespace,
    )


def _declared(cls: type) -> Iterator[_Declared]:
    """Iterate the fields of a class in definition order."""
    if "__attrs_attrs__" in vars(cls):
        for a in attrs.fields(cls):
            yield _Declared(a.name, a.type, _attrs_default(a), given=a.init)
        return
    for f in dataclasses.fields(cls):
        yield _Declared(f.name, f.type, _dataclass_default(f), given=f.init)


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


def _check_names(
    cls: type, declared: Mapping[str, object], corrections: Mapping[str, object]
) -> None:
    """Refuse names that are no attribute names, and corrections of no field."""
    for name in declared:
        if not _is_name(name):
            raise DefinitionError(
                cls=cls.__qualname__,
                problem=f"the field name {name!r} is no identifier",
                remedy="Rename the field.",
            )
    unknown = [repr(name) for name in corrections if name not in declared]
    if unknown:
        raise DefinitionError(
            cls=cls.__qualname__,
            problem=f"`fields=` names {', '.join(unknown)}, which it does not have",
            remedy=f"Its fields are {', '.join(map(repr, declared))}.",
        )


def _is_name(name: str) -> bool:
    """Tell whether a name may stand in source text and means itself there."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and unicodedata.normalize("NFKC", name) == name
    )


def _owner(cls: type, name: str) -> type:
    """Find the class whose annotation of a field counts."""
    for base in cls.__mro__:
        if name in own_annotations(base):
            return base
    return cls


def _annotation(
    cls: type, owner: type, field: _Declared, corrections: Mapping[str, object]
) -> object:
    """Give the annotation that counts for a field."""
    if field.name in corrections:
        return corrections[field.name]
    if owner is not cls and PLAN in vars(owner):
        plan: ClassPlan = vars(owner)[PLAN]
        inherited = plan.by_name.get(field.name)
        if inherited is not None and field.name not in own_annotations(owner):
            return inherited.annotation
    return own_annotations(owner).get(field.name, field.type)


def _inherited(
    cls: type, owner: type, field: _Declared, bindings: Mapping[type, object]
) -> FieldPlan | None:
    """Take a field from the plan of the base that declared it.

    The base has read its annotation where its names were known. It is read again only
    where this class binds type variables of the base.
    """
    if owner is cls or bindings.get(owner):
        return None
    for base in cls.__mro__[1:]:
        plan: ClassPlan | None = vars(base).get(PLAN)
        if plan is not None and issubclass(base, owner) and field.name in plan.by_name:
            return attrs.evolve(plan.by_name[field.name], default=field.default)
    return None


def _namespace_of(cls: type, owner: type, namespace: Namespace) -> Namespace:
    """Give the namespace in which the owner of an annotation wrote it."""
    if owner is cls:
        return namespace
    plan: ClassPlan | None = vars(owner).get(PLAN)
    if plan is not None:
        return plan.namespace
    return Namespace.of(owner, namespace.enclosing)


def _read(cls: type, field: _Declared, annotation: object, ctx: Context) -> FieldPlan:
    """Read one field."""
    lacks = not field.given and field.default is None
    tp = ctx.namespace.evaluate(annotation)
    text = spell(annotation)
    if tp is None and annotation is None:
        refuse(field.name, "has no annotation", f"Write `{field.name}: Tensor`, say.")
    attribute = inspect.getattr_static(cls, field.name, None)
    if isinstance(attribute, (property, functools.cached_property)):
        return FieldPlan(field.name, Shadowed(), text)
    _check_descriptor(field.name, attribute)
    inner = _derived_from(tp)
    if inner is not None:
        if field.default is None:
            refuse(
                text,
                "needs a default, which a twin gets in its place",
                f"Write `{field.name}: {text} = None`.",
            )
        node = Reset(node_of(inner, ctx))
        return FieldPlan(field.name, node, text, lacks, field.default)
    return FieldPlan(field.name, node_of(annotation, ctx), text, lacks, field.default)


def _check_descriptor(name: str, attribute: object) -> None:
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


def _derived_from(tp: object) -> object | None:
    """Give `T` of `Derived[T]`, else None."""
    if typing.get_origin(tp) is typing.Annotated:
        inner, *metadata = typing.get_args(tp)
        if [m for m in metadata if isinstance(m, Marker)] == [Marker.DERIVED]:
            found: object = inner
            return found
    return None


def _stores(cls: type, declared: Mapping[str, object]) -> frozenset[str] | None:
    """Name what an instance's `__dict__` may hold; None if it has none."""
    if cls.__dictoffset__ == 0:
        return None
    return frozenset({*declared, *_cached(cls), "__orig_class__"})


def _cached(cls: type) -> Iterator[str]:
    """Name the cached properties of a class, also those that attrs keeps in slots."""
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, functools.cached_property):
                yield name
        getter: Any = vars(base).get("__getattr__")
        code = getattr(getter, "__code__", None)
        if code is not None and "cached_properties" in code.co_varnames:
            # attrs keeps them as the first default of the `__getattr__` it makes.
            yield from getter.__defaults__[0]


_NO_FIELDS = (object, typing.Generic, typing.Protocol)


def _orphans(
    cls: type, declared: Mapping[str, object], namespace: Namespace
) -> Iterator[Refusal]:
    """Refuse storage in the class's bases that is no field of it: it would be lost."""
    for base in reversed(cls.__mro__):
        if base in _NO_FIELDS or vars(base).get("_is_protocol"):
            continue
        for name, annotation in own_annotations(base).items():
            if name not in declared and not _is_dunder(name):
                refusal = _orphan(cls, base, name, annotation, namespace)
                if refusal is not None:
                    yield refusal
        slots = vars(base).get("__slots__", ())
        known = {*declared, *_cached(cls), *own_annotations(base)}
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{base.__name__.lstrip('_')}{name}"
            if not known & {name, mangled} and not _is_dunder(name):
                yield Refusal(
                    name,
                    "a slot",
                    "a slot",
                    f"of `{base.__name__}` is no field, so its value would be lost",
                    ("Make it a field.",),
                )


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _orphan(
    cls: type, base: type, name: str, annotation: object, namespace: Namespace
) -> Refusal | None:
    """Refuse an annotation that is no field, unless it is a class variable's."""
    tp = _namespace_of(cls, base, namespace).evaluate(annotation)
    if typing.ClassVar in (tp, typing.get_origin(tp)) or tp is dataclasses.KW_ONLY:
        return None
    text = spell(annotation)
    if isinstance(tp, Unresolved) and "ClassVar" in tp.text:
        return None
    if isinstance(tp, dataclasses.InitVar):
        try:
            node_of(tp, Context(namespace, cls))
        except RefusedError as error:
            return error.at(name, text)
    maker = "dataclasses.dataclass" if "__dataclass_fields__" in vars(base) else ""
    how = (
        f"Decorate `{cls.__name__}` with `@{maker}` under `@payload`."
        if maker
        else f"Decorate `{base.__name__}` with `@attrs.define` or `@payload`."
    )
    return Refusal(
        name,
        text,
        text,
        f"is annotated in `{base.__name__}` but is no field of `{cls.__name__}`, "
        "so its value would be lost",
        (how, f"Or write `ClassVar[{text}]` if it belongs to the class."),
    )
