"""Type -> node: the rules of the run-time validator, read from mypy's types."""

import dataclasses
from collections.abc import Mapping

from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import TypeInfo, Var
from mypy.types import (
    AnyType,
    Instance,
    LiteralType,
    NoneType,
    TupleType,
    Type,
    TypeAliasType,
    TypedDictType,
    TypeOfAny,
    TypeVarType,
    UnionType,
    UnpackType,
    get_proper_type,
)

from tensorpack.mypy_plugin.adapters import (
    derives_from_payload,
    has_adapter,
    is_payload,
)
from tensorpack.mypy_plugin.classes import (
    HOST,
    TENSOR,
    cached_in,
    is_host,
    is_tensor,
    owns_lifetime,
    struct_fields,
)
from tensorpack.mypy_plugin.names import ALIASES, PROTOCOL, Marker
from tensorpack.mypy_plugin.nodes import (
    NONE,
    Entries,
    Fixed,
    Guard,
    Items,
    Kept,
    Leaf,
    Node,
    Record,
    RefusedError,
    Typed,
    Unknown,
    Walked,
    refuse,
)
from tensorpack.mypy_plugin.remedies import (
    refusal_of,
    refuse_cached,
    refuse_form,
    refuse_open,
)
from tensorpack.mypy_plugin.scene import Scene
from tensorpack.mypy_plugin.spelling import is_omitted, spell
from tensorpack.mypy_plugin.unions import choose, folded

__all__ = ["Inside", "node_of"]

_SEQUENCES = {
    "builtins.list": "list",
    "collections.deque": "deque",
    "typing.Sequence": "Sequence",
    "typing.MutableSequence": "Sequence",
}
_MAPPINGS = {
    "builtins.dict": "dict",
    "collections.OrderedDict": "OrderedDict",
    "collections.defaultdict": "defaultdict",
    "typing.Mapping": "Mapping",
    "typing.MutableMapping": "Mapping",
}
_EXACT: Mapping[str, Node] = {
    **{name: Kept(Guard.TENSOR, name) for name in HOST},
    TENSOR: Leaf("tensor"),
}
_SETS = frozenset({"builtins.set", "builtins.frozenset", "typing.AbstractSet"})


@dataclasses.dataclass(frozen=True)
class Inside:
    """Where a type is read: the class under check, and what is being expanded."""

    scene: Scene
    above: tuple[object, ...] = ()

    def deeper(self, expanded: object) -> "Inside":
        """Give the place inside an alias or a class."""
        return Inside(self.scene, (*self.above, expanded))


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
            return NONE
        case UnionType(items=items):
            return choose([node_of(item, at) for item in items], tp)
        case LiteralType():
            return Kept(Guard.TENSOR, "Literal")
        case TypeVarType():
            return _node_of_variable(tp, at)
        case TupleType():
            return _node_of_tuple(tp, at)
        case TypedDictType():
            return _node_of_class(tp.fallback.type, tp, at)
        case Instance():
            return _node_of_instance(tp, at)
        case _:
            refuse_form(tp)


def _node_of_alias(tp: TypeAliasType, at: Inside) -> Node:
    """Read an alias: a marker, or what it stands for; a recursive one is walked."""
    alias = tp.alias
    if alias is None:
        return Unknown()
    match ALIASES.get(alias.fullname):
        case Marker.DYNAMIC:
            return Walked()
        case Marker.HOST_ONLY:
            return Kept(Guard.DEVICE_TENSOR)
        case Marker.BORROWED:
            return Kept(Guard.NOTHING)
        case Marker.DERIVED:
            reason = (
                "stands inside another type, and only a whole field gets its default"
            )
            refuse(spell(tp), reason, "Mark the whole field `Derived`.")
        case None:
            pass
    if tp in at.above:
        return Walked()
    return node_of(tp._expand_once(), at.deeper(tp))


def _node_of_any(tp: AnyType) -> Node:
    """Read `Any`: the user's own is refused, mypy's own for want of a type is not."""
    origin = tp.source_any or tp
    if origin.type_of_any in _OPEN:
        refuse_open("Any")
    return Unknown()


_OPEN = (TypeOfAny.explicit, TypeOfAny.from_omitted_generics, TypeOfAny.unannotated)


def _node_of_variable(tp: TypeVarType, at: Inside) -> Node:
    """Read a type variable: `Self`, its bound, or its values."""
    if tp.id.is_self():
        return Leaf("payload")
    if tp.values:
        return choose([node_of(value, at) for value in tp.values], tp)
    bound = get_proper_type(tp.upper_bound)
    if isinstance(bound, Instance) and bound.type.fullname == "builtins.object":
        refuse(
            tp.name,
            "is a type variable that nothing binds",
            "Bind it in a subclass (`class Child(Base[Tensor])`) and decorate that.",
            f"Or give it a bound: `TypeVar({tp.name!r}, bound=Tensor)`.",
        )
    return node_of(bound, at)


def _node_of_tuple(tp: TupleType, at: Inside) -> Node:
    """Read a tuple of fixed length, or a named tuple."""
    if tp.partial_fallback.type.fullname != "builtins.tuple":
        return _node_of_class(tp.partial_fallback.type, tp, at)
    if any(isinstance(item, UnpackType) for item in tp.items):
        refuse(
            spell(tp),
            "unpacks a tuple inside",
            "Write `tuple[X | Y, ...]`, or a `NamedTuple` whose members say it.",
        )
    return folded(Fixed(tuple(node_of(item, at) for item in tp.items)))


def _node_of_instance(tp: Instance, at: Inside) -> Node:
    """Read containers with parameters, then classes."""
    name = tp.type.fullname
    if name in _EXACT:  # most fields
        return _EXACT[name]
    if name == "builtins.tuple" or name in _SEQUENCES:
        (item,) = _arguments(tp)
        return folded(Items(_SEQUENCES.get(name, "tuple"), node_of(item, at)))
    if name in _MAPPINGS:
        return _node_of_mapping(tp, _MAPPINGS[name], at)
    if name in _SETS:
        return _node_of_set(tp, at)
    return _node_of_class(tp.type, tp, at)


def _arguments(tp: Instance) -> tuple[Type, ...]:
    """Give the parameters of a container, or refuse one without."""
    if any(is_omitted(argument, tp) for argument in tp.args):
        refuse_open(tp.type.name)
    return tuple(tp.args)


def _node_of_mapping(tp: Instance, kind: str, at: Inside) -> Node:
    """Read a mapping; its keys must be host values."""
    keys, values = _arguments(tp)
    if not _is_host_node(node_of(keys, at)):
        refuse(
            spell(keys),
            "is the key of a mapping, and keys stay on the host",
            "Use a host type as the key, or write a `LifetimeAdapter` for the mapping.",
        )
    return folded(Entries(kind, node_of(values, at)))


def _node_of_set(tp: Instance, at: Inside) -> Node:
    """Read a set; its items must be host values."""
    (item,) = _arguments(tp)
    if not _is_host_node(node_of(item, at)):
        refuse(
            spell(tp),
            "holds leaves, and a leaf on another device has another hash",
            f"Write `list[{spell(item)}]`.",
        )
    return Kept(Guard.TENSOR, "set")


def _is_host_node(node: Node) -> bool:
    """Tell whether values of a node are certainly host values, or not seen at all."""
    return isinstance(node, Unknown) or (
        isinstance(node, Kept) and node.guard is Guard.TENSOR
    )


def _node_of_class(info: TypeInfo, tp: Type, at: Inside) -> Node:
    """Read a class: the rows of the type table, in their order."""
    scene = at.scene
    scene.meet(info)
    if is_tensor(info):
        return Leaf("tensor")
    if info.is_newtype:
        return node_of(info.tuple_type or info.bases[0], at)
    if is_host(info):  # before adapters, which cost a search and change no verdict
        return Kept(Guard.TENSOR, info.fullname)
    if is_payload(info, scene):
        return Leaf("payload")
    if derives_from_payload(info):
        refuse(
            spell(tp),
            "derives from a payload but is not decorated itself",
            f"Decorate `{info.name}` with `@payload`.",
        )
    if info.fullname == PROTOCOL:
        return Walked()
    if has_adapter(info, scene):
        return Leaf("adapted")
    if owns_lifetime(info):
        return Leaf("opaque")
    return _node_of_members(info, tp, at)


def _node_of_members(info: TypeInfo, tp: Type, at: Inside) -> Node:
    """Read named tuples, typed dictionaries and host structs."""
    if info.is_named_tuple and isinstance(tp, TupleType):
        _check_typed(info, tp.items)
        return folded(Record(info.fullname, _members(info, tp.items, at)))
    if isinstance(tp, TypedDictType):
        declared = list(tp.items.values())
        return folded(Typed(info.fullname, _members(info, declared, at)))
    if info.fallback_to_any:
        return Unknown()
    if info.fullname == "builtins.object":
        refuse_open("object")
    fields = struct_fields(info, at.scene.api.modules)
    if fields and isinstance(tp, Instance):  # none at all: a base of others
        node = _node_of_struct(tp, fields, at)
        if node is not None:
            return node
    raise RefusedError(refusal_of(info, spell(tp), is_struct=bool(fields)))


def _check_typed(info: TypeInfo, types: list[Type]) -> None:
    """Refuse a named tuple whose members have no types."""
    names = info.metadata.get("namedtuple", {}).get("fields", ())
    for name, tp in zip(names, types, strict=False):
        member = get_proper_type(tp)
        untyped = isinstance(member, AnyType) and (
            member.type_of_any == TypeOfAny.unannotated
        )
        if untyped:
            way = f"Write `class {info.name}(NamedTuple)` with typed members."
            refuse(info.name, f"does not say what `{name}` is", way)


def _members(info: TypeInfo, types: list[Type], at: Inside) -> tuple[Node, ...]:
    """Read the members of a named tuple or typed dictionary."""
    if info in at.above:
        refuse(info.name, "contains itself", f"Write `Dynamic[{info.name}]`.")
    inner = at.deeper(info)
    return tuple(node_of(tp, inner) for tp in types)


def _node_of_struct(
    tp: Instance, fields: list[tuple[TypeInfo, Var]], at: Inside
) -> Node | None:
    """Read a struct; None unless all its fields are host types."""
    found: Node = Kept(Guard.TENSOR, tp.type.fullname)
    if tp.type in at.above:
        return found
    for owner, var in fields:
        node = _node_of_member(var.type, owner, tp, at)
        if node is None or not _is_host_node(node):
            return None
        if isinstance(node, Unknown):
            found = node
    for name, owner, returned in cached_in(tp.type):
        if not isinstance(_node_of_member(returned, owner, tp, at), (Kept, Unknown)):
            refuse_cached(tp.type, spell(tp), name)
    return found


def _node_of_member(
    declared: Type | None, owner: TypeInfo, tp: Instance, at: Inside
) -> Node | None:
    """Read what a class says of a member of a struct; None if that has no support."""
    at.scene.meet(owner)
    written = declared or AnyType(TypeOfAny.unannotated)
    seen = expand_type_by_instance(written, map_instance_to_supertype(tp, owner))
    try:
        return node_of(seen, at.deeper(tp.type))
    except RefusedError:
        return None
