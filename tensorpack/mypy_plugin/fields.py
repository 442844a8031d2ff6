"""The fields of a payload class: their types, and the line to report each on."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import (
    AssignmentStmt,
    CallExpr,
    Context,
    Decorator,
    Expression,
    FuncDef,
    MemberExpr,
    NameExpr,
    OverloadedFuncDef,
    TypeInfo,
    Var,
)
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    TupleType,
    Type,
    TypeOfAny,
    TypeVarType,
    get_proper_type,
)
from mypy.typevars import fill_typevars
from mypy.util import unmangle

from tensorpack.mypy_plugin.checked_class import CheckedClass
from tensorpack.mypy_plugin.classes import annotated, announced, cached_in, is_separator
from tensorpack.mypy_plugin.names import TAG

__all__ = ["Field", "cached_properties", "fields_of", "lost_fields"]

_NO_FIELDS = ("builtins.object", "typing.Generic", "typing.Protocol")


class Field(NamedTuple):
    """A field of a class.

    Attributes:
        name: the attribute's name.
        type: its type; None if it has no annotation.
        written: the annotation before mypy analyzed it, if it stands in this class.
        context: where to report.
        has_default: whether it has a default.
        is_kept: whether it is stored, unlike an `InitVar`.
        reads_self: whether its default is made from the instance.
    """

    name: str
    type: Type | None
    written: Type | None
    context: Context
    has_default: bool
    is_kept: bool = True
    reads_self: bool = False


def fields_of(checked: CheckedClass) -> Iterator[Field]:
    """Iterate the fields that the class itself has to answer for, in their order.

    A field that a payload above has declared is that one's, unless this class binds a
    type variable in it.
    """
    statements = dict(_statements(checked))
    for made in _made(checked.info):
        name, default = made["name"], bool(made["has_default"])
        statement = statements.get(name)
        if statement is not None:
            symbol = checked.info.names.get(name)
            var = symbol.node if symbol and isinstance(symbol.node, Var) else None
            if var is None or not is_separator(var):
                tp, written = var.type if var else None, statement.unanalyzed_type
                kept = not made.get("is_init_var")
                reads = _reads_self(checked, name, statement.rvalue)
                yield Field(name, tp, written, statement, default, kept, reads)
            continue
        owner = _owner(checked.info, name)
        if owner is None or _is_property(checked.info, name):
            continue
        if not _is_settled(checked.info, owner, name):
            tp = _inherited(checked.info, owner, name)
            yield Field(name, tp, None, checked.cls, default)


def _reads_self(checked: CheckedClass, name: str, value: Expression) -> bool:
    """Return whether a default takes the instance: `@x.default`, `takes_self=True`."""
    for statement in checked.cls.defs.body:
        if isinstance(statement, Decorator):
            for decorator in statement.original_decorators:
                if isinstance(decorator, MemberExpr) and decorator.name == "default":
                    owner = decorator.expr
                    if isinstance(owner, NameExpr) and owner.name == name:
                        return True
    return _takes_self(value)


def _takes_self(value: Expression) -> bool:
    """Return whether a call, or one in its arguments, says `takes_self=True`."""
    if not isinstance(value, CallExpr):
        return False
    for name, argument in zip(value.arg_names, value.args, strict=True):
        given = isinstance(argument, NameExpr) and argument.name == "True"
        if (name == "takes_self" and given) or _takes_self(argument):
            return True
    return False


def cached_properties(checked: CheckedClass) -> Iterator[Field]:
    """Yield the cached properties that the class has to answer for, as fields.

    They are read by their return annotations; those of a payload above are that one's.
    """
    info = checked.info
    seen = {made["name"] for made in _made(info)}
    settled: set[TypeInfo] = set()
    for base in info.mro[:-1]:
        if base is not info and TAG in base.metadata:
            settled.update(base.mro)
    for name, base, returned in cached_in(info):
        if name in seen or base in settled:
            continue
        seen.add(name)
        node = base.names[name].node
        own = base is info and isinstance(node, Decorator)
        written = context = None
        if own and isinstance(node, Decorator):
            context = node.func
            if isinstance(node.func.unanalyzed_type, CallableType):
                written = node.func.unanalyzed_type.ret_type
        tp = returned or AnyType(TypeOfAny.unannotated)
        if not own:
            tp = expand_type_by_instance(tp, _seen_from(info, base))
        yield Field(name, tp, written, context or checked.cls, has_default=True)


def _made(info: TypeInfo) -> list[dict[str, Any]]:
    """Give what attrs' or the dataclasses' plugin has kept of the fields."""
    kept = info.metadata.get("attrs") or info.metadata.get("dataclass") or {}
    made: list[dict[str, Any]] = kept.get("attributes", [])
    return made


def _statements(checked: CheckedClass) -> Iterator[tuple[str, AssignmentStmt]]:
    """Iterate the assignments of the class body, by the name that each assigns."""
    for statement in checked.cls.defs.body:
        if isinstance(statement, AssignmentStmt):
            for target in statement.lvalues:
                if isinstance(target, NameExpr):
                    yield unmangle(target.name), statement


def _owner(info: TypeInfo, name: str) -> TypeInfo | None:
    """Find the base whose annotation of a field counts."""
    for base in info.mro[1:]:
        if any(name == declared for declared, _ in annotated(base)):
            return base
    return None


def _is_property(info: TypeInfo, name: str) -> bool:
    """Tell whether a property has a field's name: then the field has no storage.

    attrs takes such a property away when it makes a class with slots.
    """
    if "dataclass" not in info.metadata:
        return False
    symbol = info.get(name)
    node = symbol.node if symbol else None
    func = node.func if isinstance(node, Decorator) else node
    return isinstance(func, (FuncDef, OverloadedFuncDef)) and func.is_property


def _is_settled(info: TypeInfo, owner: TypeInfo, name: str) -> bool:
    """Tell whether a payload above has judged an inherited field, for good."""
    for base in info.mro[1:]:
        if TAG in base.metadata and base.has_base(owner.fullname):
            names = [made["name"] for made in _made(base)]
            return name in names and not _binds(info, owner)
    return False


def _binds(info: TypeInfo, owner: TypeInfo) -> bool:
    """Tell whether a class binds type variables of a base to types."""
    bound = map(get_proper_type, _seen_from(info, owner).args)
    return any(not isinstance(tp, (TypeVarType, AnyType)) for tp in bound)


def _seen_from(info: TypeInfo, owner: TypeInfo) -> Instance:
    own = fill_typevars(info)
    if isinstance(own, TupleType):
        own = own.partial_fallback
    return map_instance_to_supertype(own, owner)


def _inherited(info: TypeInfo, owner: TypeInfo, name: str) -> Type | None:
    """Give the type that an inherited field has in this class."""
    node = owner.names[name].node
    if not isinstance(node, Var) or node.type is None:
        return None
    return expand_type_by_instance(node.type, _seen_from(info, owner))


def lost_fields(checked: CheckedClass) -> Iterator[tuple[TypeInfo, str, Var, Context]]:
    """Iterate annotations in the bases, and the class, that are no fields of it."""
    names = {made["name"] for made in _made(checked.info)}
    statements = dict(_statements(checked))
    for base in reversed(checked.info.mro):
        if base.fullname in _NO_FIELDS or base.is_protocol:
            continue
        for name, var in announced(base, checked.api.modules):
            if name not in names:
                own = statements.get(name) if base is checked.info else None
                yield base, name, var, own or checked.cls
