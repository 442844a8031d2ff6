"""Type -> node: reads mypy's types, and asks the rules what they mean."""

from typing import NoReturn

from mypy.nodes import TypeInfo
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    ProperType,
    TupleType,
    Type,
    TypeAliasType,
    TypedDictType,
    TypeOfAny,
    TypeType,
    TypeVarType,
    UnionType,
    UnpackType,
    get_proper_type,
)

from tensorpack._rules import refusals
from tensorpack._rules.containers import BY_FULL_NAME, Container, classes_of
from tensorpack._rules.markers import Marker
from tensorpack._rules.nodes import (
    NONE,
    BorrowedNode,
    DynamicNode,
    HostNode,
    HostOnlyNode,
    MappingNode,
    PayloadNode,
    SequenceNode,
    TupleNode,
    UnseenNode,
)
from tensorpack._rules.unions import fold, is_host, union_of
from tensorpack.mypy_plugin.names import ALIASES
from tensorpack.mypy_plugin.spelling import is_omitted, spell
from tensorpack.mypy_plugin.type_table import EXACT, Inside, Node, node_of_class

__all__ = ["markers_of", "node_of"]


def node_of(tp: Type, at: Inside) -> Node:
    """Read a type.

    Raises:
        RefusedError: some part of it has no lifetime support.
    """
    if isinstance(tp, TypeAliasType):
        return _node_of_alias(tp, at)
    tp = get_proper_type(tp)
    match tp:
        case AnyType():
            return _node_of_any(tp)
        case NoneType():
            return HostNode(NONE.types)
        case UnionType(items=items):
            return union_of([node_of(item, at) for item in items], spell(tp))
        case LiteralType():
            return HostNode(("Literal",))
        case TypeVarType():
            return _node_of_variable(tp, at)
        case TupleType():
            return _node_of_tuple(tp, at)
        case TypedDictType():
            return node_of_class(tp.fallback.type, tp, at, node_of)
        case Instance():
            return _node_of_instance(tp, at)
        case _:
            _refuse_form(tp)


def _refuse_form(tp: ProperType) -> NoReturn:
    """Refuse what is not a class: a function, a class object, a form of `typing`."""
    name = spell(tp)
    if isinstance(tp, CallableType):
        refusals.CALLABLE.refuse(name)
    if isinstance(tp, TypeType):
        raise refusals.unsupported(name, "type", is_annotated=False)
    refusals.NOT_A_TYPE.refuse(name)


def markers_of(tp: Type) -> tuple[list[Marker], Type]:
    """Return the markers around a type, from the inside out, and the type itself."""
    found: list[Marker] = []
    while isinstance(tp, TypeAliasType) and tp.alias and not tp.is_recursive:
        marker = ALIASES.get(tp.alias.fullname)
        if marker is not None:
            found.insert(0, marker)
        tp = tp._expand_once()
    return found, tp


def _node_of_alias(tp: TypeAliasType, at: Inside) -> Node:
    """Read an alias: a marker, or its value; a recursive one is walked."""
    alias = tp.alias
    if alias is None:
        return UnseenNode()
    if alias.fullname in ALIASES:
        return _node_of_marked(tp)
    target = get_proper_type(tp)
    if isinstance(target, (TupleType, TypedDictType)) and _named(target) is not None:
        return node_of(target, at)  # a class, which cannot be without end
    if at.expands(tp):
        return DynamicNode()
    return node_of(tp._expand_once(), at.deeper(tp))


def _named(tp: TupleType | TypedDictType) -> TypeInfo | None:
    """Return the class of a named tuple or typed dictionary; None of a plain tuple."""
    fallback = tp.partial_fallback if isinstance(tp, TupleType) else tp.fallback
    return None if fallback.type.fullname == "builtins.tuple" else fallback.type


def _node_of_marked(tp: TypeAliasType) -> Node:
    """Read `HostOnly[T]` and the other markers."""
    markers, inner = markers_of(tp)
    if len(markers) > 1:
        names = ", ".join(f"`{marker!r}`" for marker in markers)
        name = f"{markers[0]!r}[{spell(inner)}]"
        refusals.MARKERS.refuse(name, count=len(markers), markers=names)
    match markers[0]:
        case Marker.DYNAMIC:
            return DynamicNode()
        case Marker.HOST_ONLY:
            return HostOnlyNode()
        case Marker.BORROWED:
            return BorrowedNode()
        case Marker.DERIVED:
            refusals.INNER_DERIVED.refuse(spell(tp))
        case Marker.RESIDENT:
            refusals.INNER_RESIDENT.refuse(spell(tp))


def _node_of_any(tp: AnyType) -> Node:
    """Read `Any`: the user's own is refused, mypy's own for want of a type is not."""
    origin = tp.source_any or tp
    if origin.type_of_any in _OPEN:
        refusals.OPEN.refuse("Any")
    return UnseenNode()


_OPEN = (TypeOfAny.explicit, TypeOfAny.from_omitted_generics, TypeOfAny.unannotated)


def _node_of_variable(tp: TypeVarType, at: Inside) -> Node:
    """Read a type variable: `Self`, its bound, or its values."""
    if tp.id.is_self():
        return PayloadNode(at.checked.info.fullname)
    if tp.values:
        return union_of([node_of(value, at) for value in tp.values], spell(tp))
    bound = get_proper_type(tp.upper_bound)
    if isinstance(bound, Instance) and bound.type.fullname == "builtins.object":
        refusals.UNBOUND.refuse(tp.name)
    return node_of(bound, at)


def _node_of_tuple(tp: TupleType, at: Inside) -> Node:
    """Read a tuple of fixed length, or a named tuple."""
    named = _named(tp)
    if named is not None:
        return node_of_class(named, tp, at, node_of)
    if any(isinstance(item, UnpackType) for item in tp.items):
        refusals.UNPACKED.refuse(spell(tp))
    written = tuple(map(spell, tp.items))
    return fold(TupleNode(tuple(node_of(item, at) for item in tp.items), written))


def _node_of_instance(tp: Instance, at: Inside) -> Node:
    """Read containers with parameters, then classes."""
    exact = EXACT.get(tp.type.fullname)
    if exact is not None:
        return exact
    row = BY_FULL_NAME.get(tp.type.fullname)
    if row is not None:
        return _node_of_container(tp, row, at)
    return node_of_class(tp.type, tp, at, node_of)


def _node_of_container(tp: Instance, row: Container, at: Inside) -> Node:
    """Read a container by how its items are addressed."""
    if any(is_omitted(argument, tp) for argument in tp.args):
        refusals.OPEN.refuse(tp.type.name)
    written = tuple(map(spell, tp.args))
    if row.holds == "key":
        if not is_host(node_of(tp.args[0], at)):
            refusals.KEY.refuse(written[0])
        return fold(MappingNode(row.name, node_of(tp.args[1], at), written))
    if row.holds == "set":
        if not is_host(node_of(tp.args[0], at)):
            refusals.SET.refuse(spell(tp), item=written[0])
        return HostNode(classes_of(row.name))
    return fold(SequenceNode(row.name, node_of(tp.args[0], at), written))
