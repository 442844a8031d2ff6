"""Class -> `ClassPlan`: the fields, who declared each, and what it means."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping

import attrs

from tensorpack._plan.annotations import node_of
from tensorpack._plan.cached import CachedProperty, cached_names, cached_properties
from tensorpack._plan.checks import (
    check_content,
    check_descriptor,
    check_names,
    is_dunder,
    shared_leaves,
    slots_apart,
)
from tensorpack._plan.generics import Bindings, bindings_of
from tensorpack._plan.makers import Declared, declared_fields, maker_of
from tensorpack._plan.namespace import (
    Context,
    Namespace,
    Unresolved,
    own_annotations,
    returned_by,
)
from tensorpack._plan.plan import ClassPlan, FieldPlan
from tensorpack._plan.spelling import spell
from tensorpack._rules import refusals as reasons
from tensorpack._rules.markers import PLAN, Marker
from tensorpack._rules.marks import wrong_lengths
from tensorpack._rules.nodes import (
    CachedNode,
    DerivedNode,
    Node,
    PropertyNode,
    ResidentNode,
    children,
)
from tensorpack._rules.refusals import RefusedError, refuse
from tensorpack.errors import LifetimeError, Refusal

__all__ = ["plan_class"]


def plan_class(
    cls: type,
    namespace: Namespace,
    corrections: Mapping[str, object],
    notes: tuple[str, ...],
) -> ClassPlan:
    """Return the plan of a class that attrs, `dataclasses` or msgspec has made.

    Args:
        cls: the class.
        namespace: where its own annotations are looked up.
        corrections: annotations that replace those of the class, by field.
        notes: what a reader of the plan should know.

    Raises:
        LifetimeError: some fields have no lifetime support; it lists all of them.
        DefinitionError: a field's name cannot be used, or a correction names none.
    """
    declared = {field.name: field for field in declared_fields(cls)}
    check_names(cls, declared, corrections)
    check_content(cls, declared)
    bases = _Bases.of(cls, namespace, corrections)
    fields: list[FieldPlan] = []
    refusals: list[Refusal] = []
    for field in declared.values():
        try:
            fields.append(_field_plan(field, bases))
        except RefusedError as error:
            text = spell(_written(field, bases)[1])
            refusals.append(error.at(field.name, text))
    caches: list[FieldPlan] = []
    for cached in _cached(cls, declared):
        try:
            caches.append(_cached_plan(cached, bases))
        except RefusedError as error:
            refusals.append(error.at(cached.name, spell(_returned(cached, bases)[1])))
    read = {field.name: (field.node, field.annotation) for field in fields}
    wrong = wrong_lengths(read)
    refusals.extend(refused.at(name, read[name][1]) for name, refused in wrong)
    refusals.extend(_orphans(cls, declared, bases.context))
    refusals.extend(shared_leaves(cls, declared))
    refusals.extend(slots_apart(cls, declared))
    namespace.forget()
    if refusals:
        raise LifetimeError(cls=cls.__qualname__, refusals=refusals)
    return ClassPlan(
        cls=cls,
        namespace=namespace,
        corrections=corrections,
        notes=notes,
        made_by=plan_class,
        fields=tuple(fields),
        cached=tuple(caches),
        assigns=getattr(cls, "__setattr__") is object.__setattr__,  # noqa: B009  # typed apart
        stores=_stores_of(cls, declared),
        hooked=hasattr(cls, "__payload_prepare__"),
    )


def _stores_of(cls: type, declared: Mapping[str, object]) -> frozenset[str] | None:
    """Return the names that an instance's `__dict__` may have; None without one."""
    if cls.__dictoffset__ == 0:
        return None
    return frozenset({*declared, *cached_names(cls), "__orig_class__"})


@attrs.frozen
class _Bases:
    """Who wrote the annotations of a class, and what is known where they wrote them."""

    cls: type
    owners: Mapping[str, type]
    corrections: Mapping[type, Mapping[str, object]]
    bindings: Mapping[type, Bindings]
    contexts: dict[type, Context]

    @classmethod
    def of(
        cls,
        decorated: type,
        namespace: Namespace,
        corrections: Mapping[str, object],
    ) -> "_Bases":
        """Look through a class and its bases; the first in their order counts."""
        owners: dict[str, type] = {}
        corrected: dict[type, Mapping[str, object]] = {}
        for base in reversed(decorated.__mro__):
            plan: ClassPlan | None = vars(base).get(PLAN)
            corrected[base] = plan.corrections if plan else {}
            if base is decorated:
                corrected[base] = corrections
            owners |= dict.fromkeys((*own_annotations(base), *corrected[base]), base)
        own = Context(namespace, decorated)
        bindings = bindings_of(decorated, own)
        return cls(decorated, owners, corrected, bindings, {decorated: own})

    def context(self, owner: type) -> Context:
        """Return the context for reading the annotations of a base."""
        if owner not in self.contexts:
            plan: ClassPlan | None = vars(owner).get(PLAN)
            own = self.contexts[self.cls]
            self.contexts[owner] = attrs.evolve(
                own,
                namespace=plan.namespace if plan else own.namespace.beside(owner),
                bound=self.bindings.get(owner, {}),
            )
        return self.contexts[owner]


def _written(field: Declared, bases: _Bases) -> tuple[type, object]:
    """Return the class whose annotation of a field counts, and the annotation."""
    owner = bases.owners.get(field.name, bases.cls)
    corrections = bases.corrections[owner]
    if field.name in corrections:
        return owner, corrections[field.name]
    return owner, own_annotations(owner).get(field.name, field.type)


def _field_plan(field: Declared, bases: _Bases) -> FieldPlan:
    """Return the plan of one field."""
    owner, annotation = _written(field, bases)
    attribute = inspect.getattr_static(bases.cls, field.name, None)
    _check_cached(field, owner, annotation, bases.cls)
    if attribute is field.body:
        attribute = None
    if isinstance(attribute, property):
        return FieldPlan(field.name, PropertyNode(), spell(annotation))
    check_descriptor(field.name, attribute)
    inherited = _inherited(field, owner, bases)
    if inherited is None:
        return _read(field, annotation, bases.context(owner))
    return attrs.evolve(inherited, may_lack=field.may_lack, default=field.default)


def _check_cached(field: Declared, owner: type, annotation: object, cls: type) -> None:
    """Refuse a field whose place a cached property takes: `__init__` fills that.

    The property of a base does not take it: the class that has the field comes first.
    """
    above = cls.__mro__[: cls.__mro__.index(owner) + 1]
    names = (c.name for c in cached_properties(cls) if c.owner in above)
    if field.name in names:
        refuse(
            spell(annotation),
            "is the type of a field, and a cached property has the same name, so a "
            "copy could keep only one of the two",
            "Keep one of them.",
        )


def _cached(cls: type, declared: Mapping[str, object]) -> Iterator[CachedProperty]:
    """Iterate the cached properties that have a place for a value, each place once."""
    done: set[tuple[str, object]] = set()
    stored = {
        name
        for name in declared
        if not isinstance(inspect.getattr_static(cls, name, None), property)
    }
    for cached in cached_properties(cls):
        place = cached.name, cached.slot
        nowhere = cached.slot is None and cls.__dictoffset__ == 0
        if place not in done and cached.name not in stored and not nowhere:
            done.add(place)
            yield cached


def _returned(cached: CachedProperty, bases: _Bases) -> tuple[type, object]:
    """Return the class whose annotation of a cached property counts, and that."""
    owner, annotation = cached.owner, returned_by(cached.function)
    for base in bases.cls.__mro__:
        if cached.name in bases.corrections[base]:
            return base, bases.corrections[base][cached.name]
        if base is cached.owner:
            break
    return owner, annotation


def _cached_plan(cached: CachedProperty, bases: _Bases) -> FieldPlan:
    """Describe a cached property by what it returns, as a `Derived` field."""
    owner, annotation = _returned(cached, bases)
    node = CachedNode(node_of(annotation, bases.context(owner)), cached.slot)
    return FieldPlan(cached.name, node, spell(annotation))


def _inherited(field: Declared, owner: type, bases: _Bases) -> FieldPlan | None:
    """Return a field from the plan of the base that declared it.

    The base has read its annotation where its names were known. It is read again only
    where this class binds type variables of the base.
    """
    if owner is bases.cls or bases.bindings.get(owner):
        return None
    for base in bases.cls.__mro__[1:]:
        plan: ClassPlan | None = vars(base).get(PLAN)
        if plan is not None and issubclass(base, owner):
            found = plan.by_name.get(field.name)
            if found is not None and not isinstance(found.node, PropertyNode):
                return found
    return None


def _read(field: Declared, annotation: object, ctx: Context) -> FieldPlan:
    """Read the annotation of one field."""
    text = spell(annotation)
    if annotation is None and field.unannotated:
        reasons.NO_ANNOTATION.refuse(field.name)
    tp = ctx.namespace.evaluate(annotation)
    inner = _marked_as(Marker.DERIVED, tp)
    resident = _marked_as(Marker.RESIDENT, tp)
    node: Node
    if resident is not None:
        node = ResidentNode(node_of(resident, ctx))
    elif inner is None:
        node = node_of(annotation, ctx)
        _check_depth(node, text)
    elif field.default is None:
        reasons.NO_DEFAULT.refuse(text, field=field.name)
    elif field.reads_self:
        reasons.COMPUTED_DEFAULT.refuse(text, field=field.name)
    else:
        node = DerivedNode(node_of(inner, ctx))
    return FieldPlan(field.name, node, text, field.may_lack, field.default)


_DEEPEST = 16  # Python compiles no more than 20 loops inside one another


def _check_depth(node: Node, text: str) -> None:
    """Refuse containers inside one another that are too many to be walked by loops."""
    level, depth = [node], 0
    while level:
        level = [child for one in level for child in children(one)]
        depth += 1
    if depth - 1 > _DEEPEST:
        refuse(
            text,
            f"has {depth - 1} types inside one another, and {_DEEPEST} are the most",
            "Give the inner ones a class of their own, decorated with `@payload`.",
            "Or write `Dynamic[...]` around the inner ones.",
        )


def _marked_as(marker: Marker, tp: object) -> object | None:
    """Return `T` of `Derived[T]` or `Resident[T]`, by the marker; else None."""
    if typing.get_origin(tp) is typing.Annotated:
        inner, *metadata = typing.get_args(tp)
        if [m for m in metadata if isinstance(m, Marker)] == [marker]:
            found: object = inner
            return found
    return None


_NO_FIELDS = (object, typing.Generic, typing.Protocol)


def _orphans(
    cls: type,
    declared: Mapping[str, Declared],
    context: Callable[[type], Context],
) -> Iterator[Refusal]:
    """Yield annotations in a class and its bases that are not fields of it.

    Args:
        cls: the class.
        declared: its fields.
        context: returns where the annotations of a base were written.
    """
    known = {*declared, *cached_names(cls)}  # attrs annotates what it caches
    for base in reversed(cls.__mro__):
        if base in _NO_FIELDS or vars(base).get("_is_protocol"):
            continue
        for name, annotation in own_annotations(base).items():
            if name in known or is_dunder(name):
                continue
            tp = context(base).namespace.evaluate(annotation)
            if not _is_no_attribute(tp):
                yield _orphan(cls, base, name, spell(annotation))


def _is_no_attribute(tp: object) -> bool:
    """Return whether an annotation declares something that instances do not keep."""
    if typing.ClassVar in (tp, typing.get_origin(tp)) or tp is dataclasses.KW_ONLY:
        return True
    if tp is dataclasses.InitVar or isinstance(tp, dataclasses.InitVar):
        return True  # a moved copy is made without `__init__`
    return isinstance(tp, Unresolved) and any(
        word in tp.text for word in ("ClassVar", "InitVar")
    )


def _orphan(cls: type, base: type, name: str, text: str) -> Refusal:
    """Return the refusal of an annotation that is not a field."""
    maker = maker_of(base)
    return reasons.lost_field(
        name,
        text,
        owner=base.__name__,
        cls=cls.__name__,
        is_own=base is cls,
        maker=maker.name if maker is not None else "",
    ).at(name, text)
