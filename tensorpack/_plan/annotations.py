"""Annotation -> node: reads forms of `typing` and asks the rules what they mean."""

import dataclasses
import types
import typing
from typing import Any, Never

import attrs

from tensorpack._plan.namespace import Context, Placeholder, Unresolved
from tensorpack._plan.spelling import spell
from tensorpack._plan.type_table import node_of_class
from tensorpack._rules import refusals
from tensorpack._rules.axes import AxisMark
from tensorpack._rules.containers import BY_ANNOTATION, Container
from tensorpack._rules.markers import Marker
from tensorpack._rules.marks import attached, with_axes
from tensorpack._rules.nodes import (
    NONE,
    BorrowedNode,
    DynamicNode,
    HostNode,
    HostOnlyNode,
    MappingNode,
    Node,
    PayloadNode,
    SequenceNode,
    TupleNode,
)
from tensorpack._rules.unions import fold, is_host, union_of

__all__ = ["node_of"]

_TRANSPARENT = ("Final", "Required", "NotRequired", "ReadOnly")


def node_of(annotation: object, ctx: Context) -> Node:
    """Read an annotation.

    Raises:
        RefusedError: some part of it has no lifetime support.
    """
    tp = ctx.namespace.evaluate(annotation)
    if isinstance(tp, Unresolved):
        if tp.error:
            refusals.UNREADABLE.refuse(tp.text, error=tp.error)
        refusals.REFERS_TO_ITSELF.refuse(tp.text)
    if isinstance(tp, Placeholder):
        refusals.UNKNOWN_NAME.refuse(tp.text)
    if isinstance(tp, (list, dict, set)):  # which have no hash
        _refuse_form(tp)
    if tp is None or tp is type(None):
        return NONE
    if tp is Any or tp is object:
        refusals.OPEN.refuse(spell(tp))
    if isinstance(annotation, (str, typing.ForwardRef)) and not isinstance(tp, type):
        if ctx.expands(tp):
            return DynamicNode()
        ctx = ctx.inside(tp)
    return _node_of_form(tp, ctx)


def _node_of_form(tp: Any, ctx: Context) -> Node:
    """Read the special forms: markers, aliases, variables, unions, literals."""
    origin = typing.get_origin(tp)
    if origin is typing.Annotated:
        return _node_of_annotated(tp, ctx)
    if getattr(origin, "_name", None) in _TRANSPARENT:
        return node_of(typing.get_args(tp)[0], ctx)
    if type(tp).__name__ == "TypeAliasType" or type(origin).__name__ == "TypeAliasType":
        return _node_of_alias(tp, ctx)
    if isinstance(tp, typing.TypeVar):
        return _node_of_variable(tp, ctx)
    if isinstance(tp, typing.NewType):
        return node_of(tp.__supertype__, ctx)
    if tp is typing.Self:
        return PayloadNode(ctx.own)
    if origin in (typing.Union, types.UnionType):
        return _node_of_union(tp, ctx)
    if origin is typing.Literal:
        kinds = dict.fromkeys(type(value) for value in typing.get_args(tp))
        return HostNode(tuple(kinds))
    if tp is typing.LiteralString:
        return HostNode((str,))
    return _node_of_generic(tp, origin, ctx)


def _node_of_annotated(tp: object, ctx: Context) -> Node:
    """Read `Annotated[T, ...]`: a marker decides, then axes join what it says."""
    _, *metadata = typing.get_args(tp)
    marks = tuple(note for note in metadata if isinstance(note, AxisMark))
    node = _node_of_marked(tp, ctx)
    return attached(node, marks, spell(tp)) if marks else node


def _node_of_marked(tp: object, ctx: Context) -> Node:
    """Read the markers in `Annotated[T, ...]`; anything else is ignored."""
    inner, *metadata = typing.get_args(tp)
    markers = [note for note in metadata if isinstance(note, Marker)]
    if len(markers) > 1:
        names = ", ".join(f"`{marker!r}`" for marker in markers)
        refusals.MARKERS.refuse(spell(tp), count=len(markers), markers=names)
    if not markers:
        return node_of(inner, ctx)
    match markers[0]:
        case Marker.DYNAMIC:
            return DynamicNode()
        case Marker.DERIVED:
            refusals.INNER_DERIVED.refuse(spell(tp))
        case Marker.RESIDENT:
            refusals.INNER_RESIDENT.refuse(spell(tp))
        case Marker.HOST_ONLY:
            return HostOnlyNode()
        case Marker.BORROWED:
            return BorrowedNode()


def _node_of_alias(tp: Any, ctx: Context) -> Node:
    """Read the value of an alias `type X = ...`; a recursive one is walked."""
    if ctx.expands(tp):
        return DynamicNode()
    alias = typing.get_origin(tp) or tp
    try:
        value = alias.__value__
    except NameError as error:
        refusals.ALIAS_TOO_EARLY.refuse(spell(tp), error=error)
    pairs = zip(alias.__type_params__, typing.get_args(tp), strict=False)
    bound = {**ctx.bound, **{p: (a, ctx) for p, a in pairs}}
    return node_of(value, attrs.evolve(ctx.inside(tp), bound=bound))


def _node_of_variable(tp: Any, ctx: Context) -> Node:
    """Read a type variable: what it is bound to here, its bound, or its values."""
    if tp in ctx.bound:
        argument, outer = ctx.bound[tp]
        return node_of(argument, attrs.evolve(outer, above=ctx.above))
    if tp.__bound__ is not None:
        return node_of(tp.__bound__, ctx)
    if tp.__constraints__:
        return node_of(typing.Union[tp.__constraints__], ctx)  # noqa: UP007
    refusals.UNBOUND.refuse(tp.__name__)


def _node_of_union(tp: object, ctx: Context) -> Node:
    """Read a union: each arm by itself, then what the value has to decide."""
    arms = [node_of(arm, ctx) for arm in typing.get_args(tp)]
    return with_axes(union_of(arms, spell(tp)), arms, spell(tp))


def _node_of_generic(tp: Any, origin: Any, ctx: Context) -> Node:
    """Read containers with parameters, then classes."""
    args = typing.get_args(tp)
    outer = tuple if tp is typing.Tuple else origin or tp  # noqa: UP006
    row = BY_ANNOTATION.get(outer)
    if outer is tuple:
        return _node_of_tuple(tp, args, ctx)
    if row is not None:
        return _node_of_container(tp, row, args, ctx)
    if origin is not None and isinstance(origin, type):
        return node_of_class(origin, tp, ctx, node_of)
    if isinstance(tp, type):
        return node_of_class(tp, tp, ctx, node_of)
    _refuse_form(tp)


def _node_of_container(
    tp: object, row: Container, args: tuple[Any, ...], ctx: Context
) -> Node:
    """Read a container by how its items are addressed."""
    if not args:
        refusals.OPEN.refuse(spell(tp))
    written = tuple(map(spell, args))
    if row.holds == "key":
        if not is_host(node_of(args[0], ctx)):
            refusals.KEY.refuse(written[0])
        return fold(MappingNode(row.name, node_of(args[1], ctx), written))
    if row.holds == "set":
        if not is_host(node_of(args[0], ctx)):
            refusals.SET.refuse(spell(tp), item=written[0])
        return HostNode((set, frozenset))
    if len(args) != 1:
        refusals.ONE_PARAMETER.refuse(spell(tp), kind=row.name, item=written[0])
    return fold(SequenceNode(row.name, node_of(args[0], ctx), written))


def _node_of_tuple(tp: object, args: tuple[Any, ...], ctx: Context) -> Node:
    """Read a tuple, of fixed length or variadic."""
    if not args:
        if tp in (tuple[()], typing.Tuple[()]):  # noqa: UP006  # two spellings
            return fold(TupleNode(()))
        refusals.OPEN.refuse(spell(tp))
    if any(map(_is_unpacked, args)):
        refusals.UNPACKED.refuse(spell(tp))
    written = tuple(map(spell, args))
    if args[-1] is Ellipsis:
        return fold(SequenceNode("tuple", node_of(args[0], ctx), written[:1]))
    return fold(TupleNode(tuple(node_of(arg, ctx) for arg in args), written))


def _is_unpacked(arg: object) -> bool:
    """Return whether the item of a tuple is `*X`: a tuple inside."""
    unpacked = getattr(arg, "__unpacked__", False) is True
    return unpacked or typing.get_origin(arg) is typing.Unpack


def _refuse_form(tp: object) -> Never:
    """Refuse what is not a class."""
    name = spell(tp)
    if isinstance(tp, (types.FunctionType, types.BuiltinFunctionType)):
        refusals.FUNCTION.refuse(name)
    if isinstance(tp, (list, dict, set)):
        refusals.CONTAINER_VALUE.refuse(name, kind=type(tp).__name__)
    if isinstance(tp, dataclasses.InitVar):
        refusals.INIT_ONLY.refuse(name)
    refusals.NOT_A_TYPE.refuse(name)
