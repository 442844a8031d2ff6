"""Annotation -> node: the validator. What cannot be moved and recorded is refused."""

import collections.abc
import types
import typing
from collections.abc import Mapping
from typing import Any

import attrs

from tensorpack._leaves.adapters import (
    SupportsLifetime,
    adapter_of,
    is_tensor_type,
    owns_lifetime,
)
from tensorpack._leaves.host_types import is_host_class
from tensorpack._plan.classes import slots_apart
from tensorpack._plan.marks import attached, with_axes
from tensorpack._plan.namespace import (
    Context,
    Placeholder,
    Unresolved,
    own_annotations,
    spell,
)
from tensorpack._plan.remedies import (
    RefusedError,
    refuse,
    refuse_cached,
    refuse_form,
    refuse_open,
    refuse_unknown,
)
from tensorpack._plan.structs import (
    Member,
    cached_members,
    declared_keys,
    is_named_tuple,
    is_typed_dict,
    members_of,
    struct_fields,
)
from tensorpack._plan.unions import choose, folded
from tensorpack._rules.axes import AxisMark, shape_axes
from tensorpack._rules.containers import MAPPINGS, SEQUENCES, is_unpacked
from tensorpack._rules.markers import PLAN, Marker
from tensorpack._rules.nodes import (
    AdapterNode,
    DynamicNode,
    Guard,
    KeptNode,
    MappingNode,
    NamedTupleNode,
    Node,
    PayloadNode,
    SelfMovingNode,
    SequenceNode,
    TensorNode,
    TupleNode,
    TypedDictNode,
)

__all__ = ["node_of"]

_KEPT_BY_MARKER = {
    Marker.HOST_ONLY: KeptNode(Guard.DEVICE_TENSOR),
    Marker.BORROWED: KeptNode(Guard.NOTHING),
}
_TRANSPARENT = ("Final", "Required", "NotRequired", "ReadOnly")


def node_of(annotation: object, ctx: Context) -> Node:
    """Read an annotation.

    Raises:
        RefusedError: some part of it has no lifetime support.
    """
    tp = ctx.namespace.evaluate(annotation)
    if isinstance(tp, Unresolved):
        refuse(tp.text, tp.reason, "Mend the annotation.")
    if isinstance(tp, Placeholder):
        refuse_unknown(tp)
    if isinstance(tp, (list, dict, set)):  # which have no hash
        refuse_form(tp)
    if tp is None or tp is type(None):
        return KeptNode(Guard.TENSOR, (type(None),))
    if tp is Any or tp is object:
        refuse_open(spell(tp))
    if isinstance(annotation, (str, typing.ForwardRef)) and not isinstance(tp, type):
        if tp in ctx.above:
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
        return KeptNode(Guard.TENSOR, tuple(kinds))
    if tp is typing.LiteralString:
        return KeptNode(Guard.TENSOR, (str,))
    return _node_of_generic(tp, origin, ctx)


def _node_of_annotated(tp: object, ctx: Context) -> Node:
    """Read `Annotated[T, ...]`: a marker decides, anything else is ignored."""
    inner, *metadata = typing.get_args(tp)
    markers = [note for note in metadata if isinstance(note, Marker)]
    marks = tuple(note for note in metadata if isinstance(note, AxisMark))
    if marks:
        return attached(_marked(tp, inner, markers, ctx), marks, spell(tp))
    return _marked(tp, inner, markers, ctx)


def _marked(tp: object, inner: object, markers: list[Marker], ctx: Context) -> Node:
    """Read what markers say of a type."""
    if len(markers) > 1:
        names = ", ".join(f"`{marker!r}`" for marker in markers)
        refuse(spell(tp), f"has {len(markers)} markers: {names}", "Keep one of them.")
    if not markers:
        return node_of(inner, ctx)
    match markers[0]:
        case Marker.DYNAMIC:
            return DynamicNode()
        case Marker.DERIVED:
            refuse(
                spell(tp),
                "stands inside another type, and only a whole field gets its default",
                "Mark the whole field `Derived`.",
            )
        case kept:
            return _KEPT_BY_MARKER[kept]


def _node_of_alias(tp: Any, ctx: Context) -> Node:
    """Read what a `type X = ...` alias stands for; a recursive one is walked."""
    if tp in ctx.above:
        return DynamicNode()
    alias = typing.get_origin(tp) or tp
    try:
        value = alias.__value__
    except NameError as error:
        refuse(
            spell(tp), f"cannot be read: {error}", "Define the name before the class."
        )
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
    refuse(
        tp.__name__,
        "is a type variable that nothing binds",
        "Bind it in a subclass (`class Child(Base[Tensor])`) and decorate that.",
        f"Or give it a bound: `TypeVar({tp.__name__!r}, bound=Tensor)`.",
    )


def _node_of_union(tp: object, ctx: Context) -> Node:
    """Read a union: each arm by itself, then what the value has to decide."""
    arms = [node_of(arm, ctx) for arm in typing.get_args(tp)]
    return with_axes(choose(arms, spell(tp)), arms, spell(tp))


def _node_of_generic(tp: Any, origin: Any, ctx: Context) -> Node:
    """Read containers with parameters, then classes."""
    args = typing.get_args(tp)
    if origin is tuple or tp is tuple or tp is typing.Tuple:  # noqa: UP006
        return _node_of_tuple(tp, args, ctx)
    for table, read in ((SEQUENCES, _node_of_items), (MAPPINGS, _node_of_entries)):
        outer = origin if origin is not None else tp
        if outer in table:
            return read(tp, table[outer], args, ctx)
    if (origin or tp) in (set, frozenset, collections.abc.Set):
        return _node_of_set(tp, args, ctx)
    if origin is not None and isinstance(origin, type):
        return _node_of_class(origin, tp, ctx)
    if isinstance(tp, type):
        return _node_of_class(tp, tp, ctx)
    refuse_form(tp)


def _node_of_items(tp: object, kind: str, args: tuple[Any, ...], ctx: Context) -> Node:
    """Read a sequence of any length."""
    if not args:
        refuse_open(spell(tp))
    if len(args) != 1:
        refuse(
            spell(tp),
            f"is no legal annotation: `{kind}` takes one type",
            f"Write `{kind}[{spell(args[0])}]`, or `tuple[{spell(args[0])}, ...]`.",
        )
    return folded(SequenceNode(kind, node_of(args[0], ctx)))


def _node_of_tuple(tp: object, args: tuple[Any, ...], ctx: Context) -> Node:
    """Read a tuple, of fixed length or variadic."""
    if not args:
        if tp in (tuple[()], typing.Tuple[()]):  # noqa: UP006  # two spellings
            return folded(TupleNode(()))
        refuse_open(spell(tp))
    if any(map(is_unpacked, args)):
        refuse(
            spell(tp),
            "unpacks a tuple inside",
            "Write `tuple[X | Y, ...]`, or a `NamedTuple` whose members say it.",
        )
    if args[-1] is Ellipsis:
        return folded(SequenceNode("tuple", node_of(args[0], ctx)))
    return folded(TupleNode(tuple(node_of(arg, ctx) for arg in args)))


def _node_of_entries(
    tp: object, kind: str, args: tuple[Any, ...], ctx: Context
) -> Node:
    """Read a mapping; its keys must be host values."""
    if not args:
        refuse_open(spell(tp))
    key = node_of(args[0], ctx)
    if not (isinstance(key, KeptNode) and key.guard is Guard.TENSOR):
        refuse(
            spell(args[0]),
            "is the key of a mapping, and keys stay on the host",
            "Use a host type as the key, or write a `LifetimeAdapter` for the mapping.",
        )
    return folded(MappingNode(kind, node_of(args[1], ctx)))


def _node_of_set(tp: object, args: tuple[Any, ...], ctx: Context) -> Node:
    """Read a set; its items must be host values, since moved ones would hash anew."""
    if not args:
        refuse_open(spell(tp))
    item = node_of(args[0], ctx)
    if not (isinstance(item, KeptNode) and item.guard is Guard.TENSOR):
        refuse(
            spell(tp),
            "holds leaves, and a leaf on another device has another hash",
            f"Write `list[{spell(args[0])}]`.",
        )
    return KeptNode(Guard.TENSOR, (set, frozenset))


def _node_of_class(cls: type, tp: object, ctx: Context) -> Node:
    """Read a class: the rows of the type table, in their order."""
    array = getattr(cls, "array_type", None)
    if array is not None and cls.__module__.startswith("jaxtyping"):
        node = node_of(array, ctx)
        shape = tuple(shape_axes(getattr(cls, "dim_str", "")))
        return attached(node, shape, spell(tp)) if shape else node
    if is_tensor_type(cls):
        return TensorNode()
    if cls is ctx.own or PLAN in vars(cls) or _is_base(cls):
        return PayloadNode(cls)
    if hasattr(cls, PLAN) or any(map(_is_base, cls.__mro__)):
        refuse(
            spell(tp),
            "derives from a payload but is not decorated itself",
            f"Decorate `{cls.__name__}` with `@payload`.",
        )
    if cls is SupportsLifetime:
        return DynamicNode()
    if adapter_of(cls) is not None:
        return AdapterNode(cls)
    if owns_lifetime(cls):
        return SelfMovingNode(cls)
    return _node_of_members(cls, tp, ctx)


def _is_base(cls: type) -> bool:
    """Tell whether a class is the base that any payload may have."""
    return (cls.__module__, cls.__qualname__) == ("tensorpack._payload", "Payload")


def _node_of_members(cls: type, tp: object, ctx: Context) -> Node:
    """Read named tuples, typed dictionaries, host types and host structs."""
    if is_named_tuple(cls):
        named = _members(cls, tp, _named_members(cls), ctx)
        return folded(NamedTupleNode(cls, named))
    if is_typed_dict(cls):
        return folded(TypedDictNode(cls, _members(cls, tp, declared_keys(cls), ctx)))
    if is_host_class(cls):
        return KeptNode(Guard.TENSOR, (cls,))
    fields = struct_fields(cls)  # none at all: a base, whose subclasses have them
    if fields and _is_host_struct(cls, tp, fields, ctx):
        return KeptNode(Guard.TENSOR, (cls,))
    raise RefusedError.of_class(cls, spell(tp), bool(fields))


def _named_members(cls: Any) -> dict[str, object]:
    """Give the members of a named tuple with their types."""
    annotations = own_annotations(cls)
    for name in cls._fields:
        if name not in annotations:
            refuse(
                cls.__name__,
                f"does not say what `{name}` is",
                f"Write `class {cls.__name__}(NamedTuple)` with typed members.",
            )
    return {name: annotations[name] for name in cls._fields}


def _members(
    cls: type, tp: object, declared: Mapping[str, object], ctx: Context
) -> tuple[tuple[str, Node], ...]:
    """Read the members of a named tuple or typed dictionary."""
    if cls in ctx.above:
        name = cls.__name__
        refuse(name, "contains itself without end", f"Write `Dynamic[{name}]`.")
    return tuple(
        (member.name, node_of(member.annotation, member.ctx))
        for member in members_of(cls, tp, declared, ctx)
    )


def _is_host_struct(
    cls: type, tp: object, fields: Mapping[str, object], ctx: Context
) -> bool:
    """Tell whether all fields of a struct are host types, its nested structs' too."""
    if cls in ctx.above:
        return True
    for member in members_of(cls, tp, fields, ctx):
        node = _node_of_member(member)
        if not (isinstance(node, KeptNode) and node.guard is Guard.TENSOR):
            return False
    for member in cached_members(cls, ctx):
        if not isinstance(_node_of_member(member), KeptNode):
            refuse_cached(cls, spell(tp), member.name)
    return not any(slots_apart(cls, fields))


def _node_of_member(member: Member) -> Node | None:
    """Read a member of a struct; None if it has no lifetime support."""
    try:
        return node_of(member.annotation, member.ctx)
    except RefusedError:
        return None
