"""Class -> node: which row of the type table a class belongs to at run time."""

import collections.abc
import types
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch

from tensorpack._leaves.adapters import (
    SupportsLifetime,
    adapter_of,
    is_tensor_type,
    owns_lifetime,
)
from tensorpack._leaves.host_types import PLAIN, is_host_class
from tensorpack._plan.checks import slots_apart
from tensorpack._plan.makers import (
    Member,
    cached_members,
    declared_keys,
    is_made,
    is_named_tuple,
    is_typed_dict,
    members_of,
    struct_fields,
)
from tensorpack._plan.namespace import Context, own_annotations
from tensorpack._plan.spelling import spell
from tensorpack._rules import refusals
from tensorpack._rules.axes import shape_axes
from tensorpack._rules.markers import BASE, PLAN, REFUSED
from tensorpack._rules.marks import attached
from tensorpack._rules.nodes import (
    AdapterNode,
    BorrowedNode,
    DynamicNode,
    HostNode,
    HostOnlyNode,
    NamedTupleNode,
    Node,
    PayloadNode,
    SelfMovingNode,
    TensorNode,
    TypedDictNode,
)
from tensorpack._rules.refusals import RefusedError
from tensorpack._rules.type_table import Row, first_row
from tensorpack._rules.unions import fold

__all__ = ["node_of_class"]


@attrs.frozen
class _Asked:
    """A class to be judged.

    Attributes:
        cls: the class.
        tp: the same as it was named, perhaps with parameters.
        ctx: where it was named.
        node_of: reads the annotations of its members.
        fields: its fields if it is a struct; empty for one without.
    """

    cls: type
    tp: object
    ctx: Context
    node_of: Callable[[object, Context], Node]
    fields: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        """The class as it was named."""
        return spell(self.tp)


def node_of_class(
    cls: type,
    tp: object,
    ctx: Context,
    node_of: Callable[[object, Context], Node],
) -> Node:
    """Read a class by the rows of the type table.

    Args:
        cls: the class.
        tp: the same as it was named, perhaps with parameters.
        ctx: where it was named.
        node_of: reads the annotations of its members.

    Raises:
        RefusedError: it has no lifetime support.
    """
    array = getattr(cls, "array_type", None)
    if array is not None and cls.__module__.startswith("jaxtyping"):
        shape = tuple(shape_axes(getattr(cls, "dim_str", "")))
        return attached(node_of(array, ctx), shape, spell(tp))
    asked = _Asked(cls, tp, ctx, node_of)
    node: Node | None = first_row(_ROWS, asked)
    if node is not None:
        return node
    asked = attrs.evolve(asked, fields=struct_fields(cls))
    refused = refusals.refusal_of_class(_REFUSED, asked, asked.name, cls.__name__)
    if refused is None:
        is_annotated = any(map(own_annotations, cls.__mro__)) and not _is_in_c(cls)
        refused = refusals.unsupported(
            asked.name, cls.__name__, is_annotated=is_annotated
        )
    raise refused


def _is_in_c(cls: type) -> bool:
    """Return whether a base in C makes the instances: then it cannot be a payload."""
    return any(
        isinstance(vars(base).get("__new__"), types.BuiltinFunctionType)
        for base in cls.__mro__[:-1]
    )


def _plain_host(asked: _Asked) -> Node | None:
    return HostNode((asked.cls,)) if asked.cls in PLAIN else None


def _tensor(asked: _Asked) -> Node | None:
    return TensorNode() if is_tensor_type(asked.cls) else None


def _payload(asked: _Asked) -> Node | None:
    is_marked = {PLAN, BASE, REFUSED} & vars(asked.cls).keys()
    is_own = asked.cls is asked.ctx.own
    return PayloadNode(asked.cls) if is_own or is_marked else None


def _undecorated(asked: _Asked) -> None:
    if any(PLAN in vars(base) or BASE in vars(base) for base in asked.cls.__mro__):
        refusals.UNDECORATED.refuse(asked.name, cls=asked.cls.__name__)


def _protocol(asked: _Asked) -> Node | None:
    return DynamicNode() if asked.cls is SupportsLifetime else None


def _adapter(asked: _Asked) -> Node | None:
    return AdapterNode(asked.cls) if adapter_of(asked.cls) is not None else None


def _self_moving(asked: _Asked) -> Node | None:
    return SelfMovingNode(asked.cls) if owns_lifetime(asked.cls) else None


def _named_tuple(asked: _Asked) -> Node | None:
    if not is_named_tuple(asked.cls):
        return None
    return fold(NamedTupleNode(asked.cls, _members(asked, _named_members(asked.cls))))


def _typed_dict(asked: _Asked) -> Node | None:
    if not is_typed_dict(asked.cls):
        return None
    return fold(TypedDictNode(asked.cls, _members(asked, declared_keys(asked.cls))))


def _host(asked: _Asked) -> Node | None:
    return HostNode((asked.cls,)) if is_host_class(asked.cls) else None


def _host_struct(asked: _Asked) -> Node | None:
    fields = struct_fields(asked.cls)
    if not fields:  # none at all: a base, whose subclasses have them
        return None
    return HostNode((asked.cls,)) if _is_host_struct(asked, fields) else None


_ROWS: Mapping[Row, Callable[[_Asked], Node | None]] = {
    Row.PLAIN_HOST: _plain_host,
    Row.TENSOR: _tensor,
    Row.PAYLOAD: _payload,
    Row.UNDECORATED: _undecorated,
    Row.PROTOCOL: _protocol,
    Row.ADAPTER: _adapter,
    Row.SELF_MOVING: _self_moving,
    Row.NAMED_TUPLE: _named_tuple,
    Row.TYPED_DICT: _typed_dict,
    Row.HOST: _host,
    Row.HOST_STRUCT: _host_struct,
}


def _is_device_object(asked: _Asked) -> bool:
    if asked.cls.__module__.startswith("torch.cuda"):
        return True
    return any(
        base.__module__.partition(".")[0] == "torch"
        and base.__name__ in refusals.DEVICE_OBJECTS
        for base in asked.cls.__mro__
    )


_CALLABLE: object = collections.abc.Callable
_REFUSED: Mapping[str, Callable[[_Asked], bool]] = {
    "callable": lambda asked: asked.cls is _CALLABLE,
    "abstract": lambda asked: asked.cls.__module__ == "collections.abc",
    "device object": _is_device_object,
    "module": lambda asked: issubclass(asked.cls, torch.nn.Module),
    "container": lambda asked: issubclass(
        asked.cls, (dict, list, tuple, set, frozenset)
    ),
    "struct": lambda asked: bool(asked.fields),
    "recorder": lambda asked: callable(getattr(asked.cls, "record_stream", None)),
}


def _named_members(cls: Any) -> dict[str, object]:
    """Return the members of a named tuple with their types."""
    annotations = own_annotations(cls)
    for name in cls._fields:
        if name not in annotations:
            refusals.UNTYPED_MEMBER.refuse(cls.__name__, member=name)
    return {name: annotations[name] for name in cls._fields}


def _members(
    asked: _Asked, declared: Mapping[str, object]
) -> tuple[tuple[str, Node], ...]:
    """Read the members of a named tuple or typed dictionary."""
    cls, ctx = asked.cls, asked.ctx
    if cls in ctx.above:
        refusals.ENDLESS.refuse(cls.__name__)
    return tuple(
        (member.name, asked.node_of(member.annotation, member.ctx))
        for member in members_of(cls, asked.tp, declared, ctx)
    )


def _is_host_struct(asked: _Asked, fields: Mapping[str, object]) -> bool:
    """Return whether all fields of a struct are host types, its nested structs' too."""
    cls, ctx = asked.cls, asked.ctx
    if cls in ctx.above:
        return True
    annotated = {name for base in cls.__mro__ for name in own_annotations(base)}
    if any(tp is None and name not in annotated for name, tp in fields.items()):
        return False
    for member in members_of(cls, asked.tp, fields, ctx):
        if not isinstance(_node_of_member(asked, member), HostNode):
            return False
    foreign = next(filter(_may_hold_more, cls.__mro__[1:-1]), None)
    if foreign is not None:
        name = foreign.__name__
        refusals.FOREIGN_BASE.refuse(asked.name, cls=cls.__name__, base=name)
    for member in cached_members(cls, ctx):
        node = _node_of_member(asked, member)
        if not isinstance(node, (HostNode, HostOnlyNode, BorrowedNode)):
            refusals.CACHED.refuse(asked.name, member=member.name, cls=cls.__name__)
    return not any(slots_apart(cls, fields))


def _may_hold_more(base: type) -> bool:
    """Return whether a base may keep what is not in a field: it is not a struct."""
    marks = vars(base)
    if is_made(base) or marks.get("_is_protocol") or base.__module__ == "msgspec":
        return False
    return "__init__" in marks or "__new__" in marks


def _node_of_member(asked: _Asked, member: Member) -> Node | None:
    """Read a member of a struct; None if it has no lifetime support."""
    try:
        return asked.node_of(member.annotation, member.ctx)
    except RefusedError:
        return None
