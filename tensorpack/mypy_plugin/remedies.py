"""What a refused type is told: why it has no lifetime support, and the ways out.

The words are those of the run-time errors; a test compares them.
"""

from typing import NoReturn

from mypy.nodes import TypeInfo
from mypy.types import CallableType, ProperType, TypeType

from tensorpack.mypy_plugin.classes import bases_of, records_streams
from tensorpack.mypy_plugin.nodes import Refusal, refuse
from tensorpack.mypy_plugin.spelling import spell

__all__ = [
    "refusal_of",
    "refuse_cached",
    "refuse_form",
    "refuse_open",
    "refuse_unknown",
]

_CONTAINERS = frozenset(
    f"builtins.{name}" for name in ("dict", "list", "tuple", "set", "frozenset")
)
_ABSTRACT = ("typing", "collections.abc", "_collections_abc")
_DEVICE_OBJECTS = frozenset({"Stream", "Event", "Generator", "CUDAGraph", "Graph"})


def refusal_of(info: TypeInfo, name: str, *, is_struct: bool) -> Refusal:
    """Say why a class is refused, by what kind of class it is."""
    adapter = f"Write a `LifetimeAdapter[{info.name}]`."
    host = f"Or write `HostOnly[{name}]` if it never holds device memory."
    borrowed = f"Write `Borrowed[{name}]` to hand on the same object."
    bases = bases_of(info)
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
    if records_streams(info):
        reason = "records streams, but nobody can tell how to move it or where it is"
        way = f"Give `{info.name}` a `to_device` or `to`, and an `is_cuda` or `device`."
        other = f"Or write a `LifetimeAdapter[{info.name}]`."
        return Refusal(name, reason, (way, other))
    return Refusal(name, "has no lifetime support", (adapter, host))


def refuse_cached(info: TypeInfo, name: str, cached: str) -> NoReturn:
    """Refuse a struct of host values that may keep a tensor in a cached property."""
    refuse(
        name,
        f"keeps `{cached}` in a cached property, and nobody says that it is no tensor",
        f"Annotate what `{cached}` returns with a host type.",
        f"Or decorate `{info.name}` with `@payload`, or call `payload({info.name})`.",
        f"Or write `HostOnly[{name}]` if it never holds device memory.",
    )


def _is_device_object(info: TypeInfo) -> bool:
    """Tell whether a class stands for a stream, an event, a generator or a graph."""
    if info.module_name.startswith("torch.cuda"):
        return True
    return any(
        base.module_name.partition(".")[0] == "torch" and base.name in _DEVICE_OBJECTS
        for base in info.mro
    )


def refuse_open(name: str) -> NoReturn:
    """Refuse a type that says nothing of what is inside."""
    refuse(
        name,
        "says nothing of what is inside",
        "Name the types (`list[Tensor]`, `dict[str, Tensor]`).",
        f"Or write `Dynamic[{name}]` to have its values walked at run time.",
        f"Or write `HostOnly[{name}]` if it stays on the host.",
    )


def refuse_form(tp: ProperType) -> NoReturn:
    """Refuse what is no class: a function, a class object, a form of `typing`."""
    name = spell(tp)
    if isinstance(tp, CallableType):
        refuse(
            name,
            "is code, and nobody can tell what it holds on to",
            f"Write `HostOnly[{name}]` if it never holds device memory.",
        )
    if isinstance(tp, TypeType):
        refuse(
            name,
            "has no lifetime support",
            "Write a `LifetimeAdapter[type]`.",
            f"Or write `HostOnly[{name}]` if it never holds device memory.",
        )
    refuse(
        name,
        "is no type whose values could be moved and recorded",
        "Write the type of the value, or mark the field `HostOnly`.",
    )


def refuse_unknown(name: str) -> NoReturn:
    """Refuse a name that is not known when the class is made."""
    refuse(
        name,
        "is a name that cannot be resolved when the class is made",
        "Import it at run time (not under `TYPE_CHECKING`), before the class.",
        f'Or write `Dynamic["{name}"]` to have its values walked at run time.',
        f'Or write `HostOnly["{name}"]` if it stays on the host.',
    )
