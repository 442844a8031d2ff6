"""What a refused type is told: why it has no lifetime support, and the ways out."""

import collections.abc
import dataclasses
import types
from typing import Never

import torch

from tensorpack._plan.namespace import Placeholder, own_annotations, spell
from tensorpack.errors import Refusal, TensorpackError

__all__ = [
    "RefusedError",
    "refuse",
    "refuse_cached",
    "refuse_form",
    "refuse_open",
    "refuse_unknown",
]


class RefusedError(TensorpackError):
    """A part of an annotation has no lifetime support; becomes a field's `Refusal`."""

    def __init__(self, culprit: str, reason: str, remedies: tuple[str, ...]) -> None:
        self.culprit = culprit
        self.reason = reason
        self.remedies = remedies
        super().__init__(f"`{culprit}` {reason}.")

    @classmethod
    def of_class(cls, refused: type, name: str, is_struct: bool) -> "RefusedError":
        """Say why a class is refused, by what kind of class it is."""
        for belongs, reason, remedies in _KINDS:
            if belongs(refused, is_struct):
                return cls(
                    name,
                    reason,
                    tuple(r.format(name=name, cls=refused.__name__) for r in remedies),
                )
        first, second = _ways_out(name, refused.__name__)
        if any(map(own_annotations, refused.__mro__)):
            first = f"Decorate `{refused.__name__}` with `@payload`, or w{first[1:]}"
        return cls(name, "has no lifetime support", (first, second))

    def at(self, field: str, annotation: str) -> Refusal:
        """Make the refusal of the field whose annotation was read."""
        return Refusal(field, annotation, self.culprit, self.reason, self.remedies)


def refuse(culprit: str, reason: str, *remedies: str) -> Never:
    """Refuse a part of an annotation."""
    raise RefusedError(culprit, reason, remedies)


def _ways_out(name: str, cls: str) -> tuple[str, str]:
    return (
        f"Write a `LifetimeAdapter[{cls}]`.",
        f"Or write `HostOnly[{name}]` if it never holds device memory.",
    )


def _is_device_object(cls: type, _: bool) -> bool:
    names = {(b.__module__.split(".")[0], b.__name__) for b in cls.__mro__}
    return bool(
        names
        & {
            ("torch", kind)
            for kind in ("Stream", "Event", "Generator", "CUDAGraph", "Graph")
        }
    ) or cls.__module__.startswith("torch.cuda")


def _is_container(cls: type, _: bool) -> bool:
    return issubclass(cls, (dict, list, tuple, set, frozenset))


def _is_abstract(cls: type, _: bool) -> bool:
    return cls.__module__ == "collections.abc"


_KINDS = (
    (
        lambda cls, _: cls is collections.abc.Callable,
        "is code, and nobody can tell what it holds on to",
        ("Write `HostOnly[{name}]` if it never holds device memory.",),
    ),
    (
        _is_abstract,
        "says too little: a value of another class would have to come back",
        (
            "Write `Sequence[...]`, `Mapping[...]` or a container's own name.",
            "Or write `HostOnly[{name}]` if it never holds device memory.",
        ),
    ),
    (
        _is_device_object,
        "belongs to a device and does not travel",
        ("Write `Borrowed[{name}]` to hand on the same object.",),
    ),
    (
        lambda cls, _: issubclass(cls, torch.nn.Module),
        "is a module, which moves in place and cannot be recorded",
        ("Write `Borrowed[{name}]` to hand on the same object.",),
    ),
    (
        _is_container,
        "is a container class of its own, which cannot be rebuilt for certain",
        (
            "Write a `LifetimeAdapter[{cls}]`.",
            "Or write `HostOnly[{name}]` if it never holds device memory.",
        ),
    ),
    (
        lambda _, is_struct: is_struct,
        "has fields that are no host types, and is no payload",
        (
            "Decorate `{cls}` with `@payload`, or call `payload({cls})`.",
            "Or write `HostOnly[{name}]` if it never holds device memory.",
        ),
    ),
    (
        lambda cls, _: callable(getattr(cls, "record_stream", None)),
        "records streams, but nobody can tell how to move it or where it is",
        (
            "Give `{cls}` a `to_device` or `to`, and an `is_cuda` or `device`.",
            "Or write a `LifetimeAdapter[{cls}]`.",
        ),
    ),
)


def refuse_cached(cls: type, name: str, cached: str) -> Never:
    """Refuse a struct of host values that may keep a tensor in a cached property."""
    refuse(
        name,
        f"keeps `{cached}` in a cached property, and nobody says that it is no tensor",
        f"Annotate what `{cached}` returns with a host type.",
        f"Or decorate `{cls.__name__}` with `@payload`, or call "
        f"`payload({cls.__name__})`.",
        f"Or write `HostOnly[{name}]` if it never holds device memory.",
    )


def refuse_unknown(name: Placeholder) -> Never:
    """Refuse a name that is not known when the class is made."""
    refuse(
        name.name,
        "is a name that cannot be resolved when the class is made",
        "Import it at run time (not under `TYPE_CHECKING`), before the class.",
        f'Or write `Dynamic["{name.name}"]` to have its values walked at run time.',
        f'Or write `HostOnly["{name.name}"]` if it stays on the host.',
    )


def refuse_form(tp: object) -> Never:
    """Refuse what is no type at all, or says nothing of what is inside."""
    name = spell(tp)
    if isinstance(tp, (types.FunctionType, types.BuiltinFunctionType)):
        refuse(
            name,
            "is a function, no type",
            "Write the type: `Tensor` for `torch.tensor`, `np.ndarray` for `np.array`.",
            "Or mark the field `HostOnly` if it stays on the host.",
        )
    if isinstance(tp, (list, dict, set)):
        kind = type(tp).__name__
        refuse(
            name,
            f"is a {kind}, no type",
            f"Write `{kind}[...]`: `list[Tensor]`, `dict[str, Tensor]`.",
        )
    if isinstance(tp, dataclasses.InitVar):
        refuse(
            name,
            "is given to `__init__` alone and kept nowhere, so it cannot travel",
            "Make it a field, or compute from it before the class is made.",
        )
    refuse(
        name,
        "is no type whose values could be moved and recorded",
        "Write the type of the value, or mark the field `HostOnly`.",
    )


def refuse_open(name: str) -> Never:
    """Refuse a type that says nothing of what is inside."""
    refuse(
        name,
        "says nothing of what is inside",
        "Name the types (`list[Tensor]`, `dict[str, Tensor]`).",
        f"Or write `Dynamic[{name}]` to have its values walked at run time.",
        f"Or write `HostOnly[{name}]` if it stays on the host.",
    )
