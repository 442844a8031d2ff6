"""What a class is for its values' lifetime: host type, struct, or moving itself."""

from collections.abc import Iterator, Mapping

from mypy.nodes import (
    Decorator,
    FuncDef,
    MypyFile,
    OverloadedFuncDef,
    TypeInfo,
    Var,
)

from tensorpack.mypy_plugin.nodes import Refusal

__all__ = [
    "annotated",
    "announced",
    "is_host",
    "is_tensor",
    "owns_lifetime",
    "refusal_of",
    "struct_fields",
]

_TENSORS = frozenset({"torch._tensor.Tensor", "torch.Tensor"})
_HOST = frozenset(
    {
        "builtins.bool",
        "builtins.int",
        "builtins.float",
        "builtins.complex",
        "builtins.str",
        "builtins.bytes",
        "builtins.range",
        "builtins.slice",
        "datetime.datetime",
        "datetime.date",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "uuid.UUID",
        *(
            f"torch.{inside}{name}"
            for inside in ("", "_C.")
            for name in ("dtype", "device", "Size", "layout", "memory_format")
        ),
    }
)
_HOST_BASES = frozenset(
    {"numpy.ndarray", "numpy.generic", "pathlib.PurePath", "pathlib._local.PurePath"}
)
_CONTAINERS = frozenset(
    f"builtins.{name}" for name in ("dict", "list", "tuple", "set", "frozenset")
)
_ABSTRACT = ("typing", "collections.abc", "_collections_abc")
_DEVICE_OBJECTS = frozenset({"Stream", "Event", "Generator", "CUDAGraph", "Graph"})


def _bases(info: TypeInfo) -> set[str]:
    return {base.fullname for base in info.mro}


def is_tensor(info: TypeInfo) -> bool:
    """Tell whether a class is `Tensor` or derives from it."""
    return not _TENSORS.isdisjoint(_bases(info))


def is_host(info: TypeInfo) -> bool:
    """Tell whether every value of a class is a host value."""
    if info.fullname in _HOST or info.is_enum:
        return True
    return not _HOST_BASES.isdisjoint(_bases(info))


def owns_lifetime(info: TypeInfo) -> bool:
    """Tell whether values of a class move and record themselves."""
    return (
        _records(info)
        and any(_declares(info, name) for name in ("to_device", "to"))
        and any(_declares(info, name) for name in ("is_cuda", "device"))
    )


def _records(info: TypeInfo) -> bool:
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
        if symbol is not None and not symbol.implicit:
            return True
        if name in (base.slots or ()):
            return True
    return False


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
    if "msgspec.Struct" in _bases(info):
        return False
    makers = [*info.mro, info.metaclass_type.type if info.metaclass_type else None]
    return any(m is not None and m.dataclass_transform_spec for m in makers)


def _fields(info: TypeInfo, maker: str) -> Iterator[tuple[TypeInfo, Var]]:
    """Iterate the fields of a struct, with the class that declares each."""
    made = info.metadata.get(maker)
    if made is not None:
        names = [field["name"] for field in made["attributes"]]
    else:  # its own hook has not run yet, which happens in an import cycle
        names = [n for b in reversed(info.mro) for n, _ in annotated(b)]
    for name in dict.fromkeys(names):
        for base in info.mro:
            symbol = base.names.get(name)
            if symbol is not None and isinstance(symbol.node, Var):
                yield base, symbol.node
                break


def annotated(info: TypeInfo) -> Iterator[tuple[str, Var]]:
    """Iterate the names that a class body annotates, class variables left out."""
    for name, symbol in info.names.items():
        node = symbol.node
        if isinstance(node, Var) and not symbol.implicit:
            written = node.type is not None and not node.is_inferred
            if written and not node.is_classvar and not symbol.plugin_generated:
                yield name, node


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


def refusal_of(info: TypeInfo, name: str, *, is_struct: bool) -> Refusal:
    """Say why a class is refused, by what kind of class it is."""
    adapter = f"Write a `LifetimeAdapter[{info.name}]`."
    host = f"Or write `HostOnly[{name}]` if it never holds device memory."
    borrowed = f"Write `Borrowed[{name}]` to hand on the same object."
    bases = _bases(info)
    if info.module_name in _ABSTRACT:
        reason = "says too little: a value of another class would have to come back"
        way = "Write `Sequence[...]`, `Mapping[...]` or a container's own name."
        return Refusal(name, reason, (way, host))
    if _is_device_object(info):
        return Refusal(name, "belongs to a device and does not travel", (borrowed,))
    if "torch.nn.modules.module.Module" in bases:
        reason = "is a module, which moves in place and cannot be recorded"
        return Refusal(name, reason, (borrowed,))
    if not _CONTAINERS.isdisjoint(bases):
        reason = "is a container class of its own, which cannot be rebuilt for certain"
        return Refusal(name, reason, (adapter, host))
    if is_struct:
        reason = "has fields that are no host types, and is no payload"
        way = f"Decorate `{info.name}` with `@payload`, or call `payload({info.name})`."
        return Refusal(name, reason, (way, host))
    if _records(info):
        reason = "records streams, but nobody can tell how to move it or where it is"
        way = f"Give `{info.name}` `to_device` (or `to`) and `is_cuda` (or `device`)."
        return Refusal(
            name, reason, (way, f"Or write a `LifetimeAdapter[{info.name}]`.")
        )
    return Refusal(name, "has no lifetime support", (adapter, host))


def _is_device_object(info: TypeInfo) -> bool:
    """Tell whether a class stands for a stream, an event, a generator or a graph."""
    if info.module_name.startswith("torch.cuda"):
        return True
    return any(
        base.module_name.partition(".")[0] == "torch" and base.name in _DEVICE_OBJECTS
        for base in info.mro
    )
