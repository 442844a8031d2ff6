"""What the `__init__` of a class takes, and who has written the annotations."""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import attrs

from tensorpack._plan.makers import declared_fields, is_struct, members_of
from tensorpack._plan.namespace import Context, own_annotations
from tensorpack._rules.markers import PLAN

__all__ = [
    "Argument",
    "arguments_of",
    "called",
    "check_given",
    "concrete",
    "lacks",
    "written_by",
]


@attrs.frozen
class Argument:
    """A field as `__init__` takes it.

    Attributes:
        name: the attribute's name.
        annotation: what it is annotated with.
        argument: the name that `__init__` has for it; None if it takes none.
        optional: whether it has a default.
    """

    name: str
    annotation: object
    argument: str | None
    optional: bool


def arguments_of(cls: Any) -> Iterator[Argument]:
    """Iterate the fields of a class, or else the arguments of its `__init__`."""
    if _has_own_init(cls):
        yield from _own_arguments(cls)
    elif attrs.has(cls):
        for a in attrs.fields(cls):
            has_default = a.default is not attrs.NOTHING
            yield Argument(a.name, a.type, a.alias if a.init else None, has_default)
    elif dataclasses.is_dataclass(cls):
        missing = dataclasses.MISSING
        for f in dataclasses.fields(cls):
            has_default = f.default is not missing or f.default_factory is not missing
            yield Argument(f.name, f.type, f.name if f.init else None, has_default)
    elif is_struct(cls):
        for field in declared_fields(cls):
            optional = field.default is not None
            yield Argument(field.name, field.type, field.name, optional)
    else:
        yield from _own_arguments(cls)


_GENERATED = ("<attrs generated", "<string>")
"""The files that attrs and dataclasses say they have written `__init__` in."""


def _has_own_init(cls: Any) -> bool:
    """Return whether the author of a class has written its `__init__`."""
    code = getattr(cls.__init__, "__code__", None)
    return code is not None and not code.co_filename.startswith(_GENERATED)


def _own_arguments(cls: Any) -> Iterator[Argument]:
    """Iterate the arguments of an `__init__`, typed as their fields are."""
    declared = {n: a for b in cls.__mro__[::-1] for n, a in own_annotations(b).items()}
    for p in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            tp = p.annotation
            tp = declared.get(p.name, tp) if tp is p.empty else tp
            yield Argument(p.name, tp, p.name, p.default is not p.empty)


def written_by(
    cls: Any, tp: object, ctx: Context, fields: list[Argument]
) -> dict[str, tuple[object, Context]]:
    """Find who has written the annotation of each field, and where."""
    corrections: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        plan: Any = vars(base).get(PLAN)
        corrections.update(plan.corrections if plan is not None else {})
    plan = vars(cls).get(PLAN)
    names = plan.namespace if plan is not None else ctx.namespace.beside(cls)
    own = attrs.evolve(ctx, namespace=names, own=cls)
    declared = {f.name: f.annotation for f in fields}
    found = {
        member.name: (member.annotation, attrs.evolve(member.ctx, own=cls))
        for member in members_of(cls, tp, declared, own)
    }
    return found | {n: (a, own) for n, a in corrections.items() if n in found}


def concrete(cls: Any) -> Any:
    """Return a class that has instances: itself, or the first of its subclasses."""
    if not inspect.isabstract(cls):
        return cls
    # Where a decorator has made a class anew, the old one may still be there.
    newest = {(c.__module__, c.__qualname__): c for c in cls.__subclasses__()}
    for child in newest.values():
        found = concrete(child)
        if not inspect.isabstract(found):
            return found
    return cls


def check_given(cls: type, fields: list[Argument], given: dict[str, Any]) -> None:
    """Refuse values for what is not a field."""
    unknown = [name for name in given if name not in {f.name for f in fields}]
    if unknown:
        msg = f"`{cls.__qualname__}` has no field `{unknown[0]}`."
        raise TypeError(msg)


def lacks(made: object, name: str) -> bool:
    """Return whether `__init__` has left a field empty."""
    return getattr(made, name, None) is None


def called(cls: Any, arguments: dict[Any, Any]) -> Any:
    """Call a class; say which examples it was given if it does not take them."""
    try:
        return cls(**arguments)
    except Exception as error:
        error.add_note(
            f"`{cls.__qualname__}` was called with examples. Pass the values that it "
            f"asks for: `example({cls.__name__}, name=...)`."
        )
        raise
