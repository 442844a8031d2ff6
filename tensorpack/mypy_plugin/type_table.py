"""Class -> node: which row of the type table mypy's picture of a class belongs to."""

import dataclasses
from collections.abc import Callable, Mapping

from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import TypeInfo, Var
from mypy.types import (
    AnyType,
    Instance,
    TupleType,
    Type,
    TypeAliasType,
    TypedDictType,
    TypeOfAny,
    get_proper_type,
)

from tensorpack._rules import host_types, refusals
from tensorpack._rules.nodes import (
    AdapterNode,
    BorrowedNode,
    DynamicNode,
    HostNode,
    HostOnlyNode,
    NamedTupleNode,
    NodeOf,
    PayloadNode,
    SelfMovingNode,
    TensorNode,
    TypedDictNode,
    UnseenNode,
)
from tensorpack._rules.refusals import RefusedError
from tensorpack._rules.type_table import Row, first_row
from tensorpack._rules.unions import fold, is_host
from tensorpack.mypy_plugin.adapters import (
    derives_from_payload,
    has_adapter,
    is_payload,
)
from tensorpack.mypy_plugin.checked_class import CheckedClass
from tensorpack.mypy_plugin.classes import (
    MODULE,
    TENSOR,
    bases_of,
    cached_in,
    foreign_base,
    is_annotated,
    is_host_class,
    is_in_c,
    is_tensor,
    owns_lifetime,
    records_streams,
    struct_fields,
)
from tensorpack.mypy_plugin.names import PROTOCOL
from tensorpack.mypy_plugin.spelling import spell

__all__ = ["EXACT", "Inside", "Node", "node_of_class"]

Node = NodeOf[str]
"""A node of the plugin: a class is known by its full name."""

# The first row of the table and tensors, asked by name: they are most fields.
EXACT: Mapping[str, Node] = {
    **{
        name: HostNode((name,))
        for plain in host_types.PLAIN
        for name in host_types.full_names(plain)
    },
    TENSOR: TensorNode(),
}


@dataclasses.dataclass(frozen=True)
class Inside:
    """Where a type is read: the class under check, and what is being expanded."""

    checked: CheckedClass
    above: tuple[object, ...] = ()

    def deeper(self, expanded: object) -> "Inside":
        """Return the place inside an alias or a class."""
        return Inside(self.checked, (*self.above, expanded))

    def expands(self, alias: TypeAliasType) -> bool:
        """Return whether an alias is read inside itself, with no class in between.

        A class in between is met again itself.
        """
        for above in reversed(self.above):
            if isinstance(above, TypeInfo):
                return False
            if above == alias:
                return True
        return False


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A class to be judged.

    Attributes:
        info: the class.
        tp: the same as it was named, perhaps with parameters.
        at: where it was named.
        node_of: reads the types of its members.
        is_struct: whether it is a struct with fields.
    """

    info: TypeInfo
    tp: Type
    at: Inside
    node_of: Callable[[Type, Inside], Node]
    is_struct: bool = False


def node_of_class(
    info: TypeInfo,
    tp: Type,
    at: Inside,
    node_of: Callable[[Type, Inside], Node],
) -> Node:
    """Read a class by the rows of the type table.

    Args:
        info: the class.
        tp: the same as it was named, perhaps with parameters.
        at: where it was named.
        node_of: reads the types of its members.

    Raises:
        RefusedError: it has no lifetime support.
    """
    at.checked.meet(info)
    if info.is_newtype:
        return node_of(info.tuple_type or info.bases[0], at)
    asked = _Asked(info, tp, at, node_of)
    node: Node | None = first_row(_ROWS, asked)
    if node is not None:
        return node
    if info.fallback_to_any:
        return UnseenNode()
    if info.fullname == "builtins.object":
        refusals.OPEN.refuse("object")
    modules = at.checked.api.modules
    fields = struct_fields(info, modules)
    asked = dataclasses.replace(asked, is_struct=bool(fields))
    name = spell(tp)
    refused = refusals.refusal_of_class(_REFUSED, asked, name, info.name)
    if refused is None:
        annotated = is_annotated(info, modules) and not is_in_c(info)
        refused = refusals.unsupported(name, info.name, is_annotated=annotated)
    raise refused


def _plain_host(asked: _Asked) -> Node | None:
    return EXACT.get(asked.info.fullname)


def _tensor(asked: _Asked) -> Node | None:
    return TensorNode() if is_tensor(asked.info) else None


def _payload(asked: _Asked) -> Node | None:
    info = asked.info
    return PayloadNode(info.fullname) if is_payload(info, asked.at.checked) else None


def _undecorated(asked: _Asked) -> None:
    if derives_from_payload(asked.info):
        refusals.UNDECORATED.refuse(spell(asked.tp), cls=asked.info.name)


def _protocol(asked: _Asked) -> Node | None:
    return DynamicNode() if asked.info.fullname == PROTOCOL else None


def _adapter(asked: _Asked) -> Node | None:
    info = asked.info
    return AdapterNode(info.fullname) if has_adapter(info, asked.at.checked) else None


def _self_moving(asked: _Asked) -> Node | None:
    return SelfMovingNode(asked.info.fullname) if owns_lifetime(asked.info) else None


def _named_tuple(asked: _Asked) -> Node | None:
    info, tp = asked.info, asked.tp
    if not (info.is_named_tuple and isinstance(tp, TupleType)):
        return None
    names = info.metadata.get("namedtuple", {}).get("fields", ())
    for name, item in zip(names, tp.items, strict=False):
        member = get_proper_type(item)
        if isinstance(member, AnyType) and member.type_of_any == TypeOfAny.unannotated:
            refusals.UNTYPED_MEMBER.refuse(info.name, member=name)
    members = dict(zip(names, tp.items, strict=False))
    return fold(NamedTupleNode(info.fullname, _members(asked, members)))


def _typed_dict(asked: _Asked) -> Node | None:
    if not isinstance(asked.tp, TypedDictType):
        return None
    return fold(TypedDictNode(asked.info.fullname, _members(asked, asked.tp.items)))


def _host(asked: _Asked) -> Node | None:
    info = asked.info
    return HostNode((info.fullname,)) if is_host_class(info) else None


def _host_struct(asked: _Asked) -> Node | None:
    if asked.info.fallback_to_any:
        return None
    fields = struct_fields(asked.info, asked.at.checked.api.modules)
    if not fields or not isinstance(asked.tp, Instance):
        return None
    return _node_of_struct(asked, fields)


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
    if asked.info.module_name.startswith("torch.cuda"):
        return True
    return any(
        base.module_name.partition(".")[0] == "torch"
        and base.name in refusals.DEVICE_OBJECTS
        for base in asked.info.mro
    )


_CONTAINERS = frozenset(
    f"builtins.{name}" for name in ("dict", "list", "tuple", "set", "frozenset")
)
_ABSTRACT = ("typing", "collections.abc", "_collections_abc")
_REFUSED: Mapping[str, Callable[[_Asked], bool]] = {
    "callable": lambda _: False,  # mypy has a type of its own for functions
    "abstract": lambda asked: asked.info.module_name in _ABSTRACT,
    "device object": _is_device_object,
    "module": lambda asked: MODULE in bases_of(asked.info),
    "container": lambda asked: not _CONTAINERS.isdisjoint(bases_of(asked.info)),
    "struct": lambda asked: asked.is_struct,
    "recorder": lambda asked: records_streams(asked.info),
}


def _members(
    asked: _Asked, members: Mapping[str, Type]
) -> tuple[tuple[str, Node], ...]:
    """Read the members of a named tuple or typed dictionary."""
    if asked.info in asked.at.above:
        refusals.ENDLESS.refuse(asked.info.name)
    inner = asked.at.deeper(asked.info)
    return tuple((name, asked.node_of(tp, inner)) for name, tp in members.items())


def _node_of_struct(asked: _Asked, fields: list[tuple[TypeInfo, Var]]) -> Node | None:
    """Read a struct; None unless all its fields are host types."""
    info = asked.info
    found: Node = HostNode((info.fullname,))
    if info in asked.at.above:
        return found
    for owner, var in fields:
        node = _node_of_member(asked, var.type, owner)
        if node is None or not is_host(node):
            return None
        if isinstance(node, UnseenNode):
            found = node
    foreign = foreign_base(info)
    if foreign is not None:
        refusals.FOREIGN_BASE.refuse(spell(asked.tp), cls=info.name, base=foreign)
    kept = (HostNode, HostOnlyNode, BorrowedNode, UnseenNode)
    for name, owner, returned in cached_in(info):
        if not isinstance(_node_of_member(asked, returned, owner), kept):
            refusals.CACHED.refuse(spell(asked.tp), member=name, cls=info.name)
    return found


def _node_of_member(
    asked: _Asked, declared: Type | None, owner: TypeInfo
) -> Node | None:
    """Read the type of a member of a struct; None if that has no support."""
    asked.at.checked.meet(owner)
    written = declared or AnyType(TypeOfAny.unannotated)
    if isinstance(asked.tp, Instance):
        written = expand_type_by_instance(
            written, map_instance_to_supertype(asked.tp, owner)
        )
    try:
        return asked.node_of(written, asked.at.deeper(asked.info))
    except RefusedError:
        return None
