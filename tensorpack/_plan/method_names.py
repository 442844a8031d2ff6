"""The names that `@payload` generates in a class, and who else uses them there."""

from collections.abc import Iterable, Mapping, Sequence

from tensorpack._plan.classes import declared_fields
from tensorpack._rules.markers import PLAN
from tensorpack.errors import DefinitionError

__all__ = ["check_body", "check_fields", "listed", "methods_of"]

_METHODS = ("to_device", "record_stream", "payload_keys", "host_keys")
_COURTESIES = ("to", "pin_memory")


def listed(names: Iterable[str]) -> str:
    """Write names one after the other."""
    return ", ".join(f"`{name}`" for name in names)


def check_body(cls: type, keep: Sequence[str], generated: Mapping[str, object]) -> None:
    """Refuse hand-written twins in a class body, which would live on.

    Args:
        cls: the class, before anything is done to it.
        keep: names that shall stay the class's own.
        generated: the methods by their names.
    """
    _check_keep(cls, keep)
    clash = [n for n in _METHODS if n not in keep and _defines(cls, n, generated)]
    if clash:
        raise DefinitionError(
            cls=cls.__qualname__,
            problem=f"its body defines {listed(clash)}, which `@payload` generates",
            remedy=f"Delete {listed(clash)}, or write `@payload(keep="
            f"{tuple(clash)!r})` to keep your own.",
        )


def _check_keep(cls: type, keep: Sequence[str]) -> None:
    """Refuse names in `keep=` that keep nothing."""
    if isinstance(keep, str):
        raise DefinitionError(
            cls=cls.__qualname__,
            problem=f"`keep=` is one text, {keep!r}",
            remedy=f"Write `keep=({keep!r},)`.",
        )
    odd = [n for n in keep if n not in (*_METHODS, *_COURTESIES) or n not in vars(cls)]
    if odd:
        raise DefinitionError(
            cls=cls.__qualname__,
            problem=f"`keep=` names {listed(odd)}, which the class body does not "
            "define or `@payload` does not generate",
            remedy=f"Take {listed(odd)} out of `keep=`.",
        )


def check_fields(cls: type) -> None:
    """Refuse fields whose names the generated methods need."""
    clash = [name for name in _METHODS if name in _field_names(cls)]
    if clash:
        raise DefinitionError(
            cls=cls.__qualname__,
            problem=f"{listed(clash)} would be a field and a generated method",
            remedy="Rename the field.",
        )


def methods_of(
    cls: type, keep: Sequence[str], generated: Mapping[str, object]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Choose the methods to install, and note what is left out."""
    methods = {name: generated[name] for name in _METHODS if name not in keep}
    notes = [f"`{name}` is the class's own (`keep`)" for name in keep]
    for name in _COURTESIES:
        owner = _owner_of(cls, name, generated)
        if owner is None:
            methods[name] = generated[name]
        elif name not in keep:
            uses = f"`{owner.__name__}` uses the name itself"
            notes.append(f"`{name}` is left out: {uses}")
    return methods, tuple(notes)


def _owner_of(cls: type, name: str, generated: Mapping[str, object]) -> type | None:
    """Find the class that uses a courtesy's name itself: this one or a payload base.

    Methods that other bases have written by hand are overridden, like all twins.
    """
    if name in _field_names(cls):
        return cls
    for base in cls.__mro__:
        if (base is cls or PLAN in vars(base)) and _defines(base, name, generated):
            return base
    return None


def _defines(cls: type, name: str, generated: Mapping[str, object]) -> bool:
    """Tell whether a class body has a method that would be generated otherwise."""
    return vars(cls).get(name, generated[name]) is not generated[name]


def _field_names(cls: type) -> set[str]:
    """Name the fields of a class that has been made."""
    return {field.name for field in declared_fields(cls)}
