"""What a class is for its values' lifetime: host type, struct, or moving itself."""

from collections.abc import Iterator, Mapping
from typing import Final

from mypy.nodes import (
    Decorator,
    FuncDef,
    MypyFile,
    OverloadedFuncDef,
    SymbolTableNode,
    TypeInfo,
    Var,
)
from mypy.types import CallableType, Instance, Type, get_proper_type

from tensorpack._rules import host_types

__all__ = [
    "MODULE",
    "TENSOR",
    "annotated",
    "announced",
    "bases_of",
    "cached_in",
    "foreign_base",
    "is_annotated",
    "is_host_class",
    "is_in_c",
    "is_separator",
    "is_tensor",
    "owns_lifetime",
    "records_streams",
    "struct_fields",
    "unfit_kind",
]

TENSOR: Final = "torch._tensor.Tensor"
MODULE: Final = "torch.nn.modules.module.Module"
_EXACT = frozenset(n for e in host_types.EXACT for n in host_types.full_names(e))


def bases_of(info: TypeInfo) -> set[str]:
    """Give the full names of a class and its bases."""
    return {base.fullname for base in info.mro}


def is_tensor(info: TypeInfo) -> bool:
    """Tell whether a class is `Tensor` or derives from it."""
    return TENSOR in bases_of(info)


def is_host_class(info: TypeInfo) -> bool:
    """Return whether a class is a host type where it is written as an annotation."""
    if info.fullname in _EXACT or info.is_enum:
        return True
    return not host_types.BASES.isdisjoint(bases_of(info))


def owns_lifetime(info: TypeInfo) -> bool:
    """Tell whether values of a class move and record themselves."""
    return (
        records_streams(info)
        and any(_declares(info, name) for name in ("to_device", "to"))
        and any(_declares(info, name) for name in ("is_cuda", "device"))
    )


def records_streams(info: TypeInfo) -> bool:
    """Tell whether a class has a method `record_stream`."""
    symbol = info.get("record_stream")
    node = symbol.node if symbol else None
    if isinstance(node, Var):
        return node.has_explicit_value
    func = node.func if isinstance(node, Decorator) else node
    return isinstance(func, (FuncDef, OverloadedFuncDef)) and not func.is_property


def _declares(info: TypeInfo, name: str) -> bool:
    """Tell whether instances have a name for certain, before any method has run."""
    for base in info.mro:
        symbol = base.names.get(name)
        if symbol is not None and _is_in_body(base, name, symbol):
            return True
        if name in (base.slots or ()):
            return True
    return False


def _is_in_body(info: TypeInfo, name: str, symbol: SymbolTableNode) -> bool:
    """Tell whether a name stands in the class body, not only in a method.

    mypy's plugin for dataclasses makes the fields look as if a method assigned them.
    """
    made = info.metadata.get("dataclass", {}).get("attributes", ())
    return not symbol.implicit or any(field["name"] == name for field in made)


def struct_fields(
    info: TypeInfo, modules: Mapping[str, MypyFile]
) -> list[tuple[TypeInfo, Var]] | None:
    """Give the fields of a dataclass, attrs class or msgspec struct, with owners.

    A class that has annotations beside its fields is none: what they announce is in no
    field.
    """
    maker = next(filter(None, map(_maker, info.mro)), None)
    if maker is None:
        return None
    fields = list(_fields(*maker))
    names = {var.name for _, var in fields}
    beside = (n for b in info.mro for n, _ in announced(b, modules) if n not in names)
    return None if any(beside) or _has_init_only(*maker) else fields


def cached_in(info: TypeInfo) -> Iterator[tuple[str, TypeInfo, Type | None]]:
    """Iterate the cached properties of a class: name, owner and what it returns.

    mypy's cache keeps no decorators, but what they made of a function: a property with
    a setter of its own is an overloaded one.
    """
    for base in info.mro:
        for name, symbol in base.names.items():
            node = symbol.node
            if isinstance(node, Decorator) and node.var.is_settable_property:
                tp = node.func.type
                yield name, base, tp.ret_type if isinstance(tp, CallableType) else None


def foreign_base(info: TypeInfo) -> str | None:
    """Return the name of a base that may keep what is not in its fields, or None."""
    for base in info.mro[1:-1]:
        made = any(maker in base.metadata for maker in ("attrs", "dataclass"))
        if made or base.is_protocol or base.module_name == "msgspec":
            continue
        for name in ("__init__", "__new__"):
            symbol = base.names.get(name)
            if symbol is not None and not symbol.plugin_generated:
                return base.name
    return None


def is_in_c(info: TypeInfo) -> bool:
    """Return whether a built-in base makes the instances: no payload can do that."""
    return any(base.module_name == "builtins" for base in info.mro[:-1])


def unfit_kind(info: TypeInfo) -> str | None:
    """Return what a class is that cannot be a payload; None if it can."""
    if info.is_named_tuple:
        return "named tuple"
    if info.typeddict_type is not None:
        return "typed dictionary"
    if info.is_enum:
        return "enumeration"
    if is_tensor(info):
        return "tensor"
    if MODULE in bases_of(info):
        return "module"
    return "protocol" if info.is_protocol else None


def _maker(info: TypeInfo) -> tuple[TypeInfo, str] | None:
    """Tell whether attrs or `dataclasses` has made a class."""
    for maker in ("attrs", "dataclass"):
        if f"{maker}_tag" in info.metadata or maker in info.metadata:
            seeming = maker == "dataclass" and _is_lookalike(info)
            return None if seeming else (info, maker)
    return None


def _has_init_only(info: TypeInfo, maker: str) -> bool:
    """Tell whether a dataclass takes arguments that it does not keep."""
    made = info.metadata.get(maker, {})
    return any(field.get("is_init_var") for field in made.get("attributes", ()))


def _is_lookalike(info: TypeInfo) -> bool:
    """Tell whether only a base or metaclass makes a class look like a dataclass."""
    if "msgspec.Struct" in bases_of(info):
        return False
    makers = [*info.mro, info.metaclass_type.type if info.metaclass_type else None]
    return any(m is not None and m.dataclass_transform_spec for m in makers)


def _fields(info: TypeInfo, maker: str) -> Iterator[tuple[TypeInfo, Var]]:
    """Iterate the fields of a struct, with the class that declares each."""
    made = info.metadata.get(maker)
    if made is not None:
        names = [field["name"] for field in made["attributes"]]
    else:  # its own hook has not run yet, which happens in an import cycle
        names = [n for b in reversed(info.mro[:-1]) for n, _ in annotated(b)]
    for name in dict.fromkeys(names):
        for base in info.mro:
            symbol = base.names.get(name)
            if symbol is not None and isinstance(symbol.node, Var):
                if not is_separator(symbol.node):
                    yield base, symbol.node
                break


def annotated(info: TypeInfo) -> Iterator[tuple[str, Var]]:
    """Iterate the names that a class body annotates, class variables left out."""
    for name, symbol in info.names.items():
        node = symbol.node
        if not isinstance(node, Var) or node.type is None or node.is_inferred:
            continue
        if node.is_classvar or symbol.plugin_generated or is_separator(node):
            continue
        if _is_in_body(info, name, symbol):
            yield name, node


def is_separator(node: Var) -> bool:
    """Tell whether a name only says that keyword-only fields follow."""
    tp = get_proper_type(node.type)
    return isinstance(tp, Instance) and tp.type.fullname == "dataclasses.KW_ONLY"


def is_annotated(info: TypeInfo, modules: Mapping[str, MypyFile]) -> bool:
    """Return whether a class or a base of it annotates a name in its body.

    What a stub annotates, the code may not.
    """
    return any(
        _is_in_body(base, name, symbol)
        for base in info.mro
        if (module := modules.get(base.module_name)) and not module.is_stub
        for name, symbol in base.names.items()
        if isinstance(symbol.node, Var)
        and symbol.node.type is not None
        and not symbol.node.is_inferred
        and not symbol.plugin_generated
    )


def announced(
    info: TypeInfo, modules: Mapping[str, MypyFile]
) -> Iterator[tuple[str, Var]]:
    """Iterate the names that a class body annotates at run time too.

    A stub annotates what the code does not, and dunder names are Python's own.
    """
    module = modules.get(info.module_name)
    if module is not None and not module.is_stub:
        for name, var in annotated(info):
            if not (name[:2] == name[-2:] == "__"):
                yield name, var
