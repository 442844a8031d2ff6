"""What adoption gives: methods `@payload` would delete, markers it asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

from tensorpack._audit.annotations import Carries
from tensorpack._audit.subjects import FieldOf, Subject

__all__ = ["Adoption", "adoption_of", "as_lines"]

_GIVEN = {"move", "pin", "record", "clone"}


@dataclass(frozen=True, slots=True)
class Adoption:
    """What `@payload` would change in a class.

    Attributes:
        path: file.
        line: of the class.
        cls: its qualified name.
        methods: its own methods that would be deleted.
        lines: how many lines they have.
        markers: fields whose annotation would need a marker or a type, and which.
    """

    path: str
    line: int
    cls: str
    methods: tuple[str, ...]
    lines: int
    markers: tuple[tuple[str, str], ...]


def adoption_of(subject: Subject) -> Adoption | None:
    """Return what adoption gives for a class; None if it has no such methods itself."""
    own = [
        each
        for each in subject.methods
        if each.method.owner is subject.cls and each.verb in _GIVEN
    ]
    tensors = [each for each in subject.fields.values() if each.carries is Carries.YES]
    if not own or not tensors:
        return None
    lines = sum(
        each.method.function.last - each.method.function.first + 1 for each in own
    )
    markers = [
        (each.name, marker)
        for each in subject.fields.values()
        if (marker := _marker(each))
    ]
    cls = subject.cls
    return Adoption(
        cls.path,
        cls.line,
        cls.name,
        tuple(each.name for each in own),
        lines,
        tuple(markers),
    )


def _marker(own: FieldOf) -> str:
    """Return what the annotation of a field would need, or ""."""
    if not own.own.annotation:
        return "a type"
    if own.is_host and own.carries:
        return "HostOnly"
    if own.is_cache and own.carries:
        return "Derived"
    unsure = [arm for arm in own.arms if arm.carries is Carries.MAY]
    if any(arm.kind == "any" for arm in unsure):
        return "Dynamic or HostOnly"
    if any(arm.kind == "box" for arm in unsure):
        return "types of its items, Dynamic or HostOnly"
    return "an adapter or HostOnly" if unsure else ""


def as_lines(adoptions: Sequence[Adoption]) -> list[str]:
    """Return what adoption gives, as lines."""
    if not adoptions:
        return []
    methods = sum(len(each.methods) for each in adoptions)
    lines = sum(each.lines for each in adoptions)
    total = f"{methods} methods, {lines} lines, of {len(adoptions)} classes"
    found = [f"`@payload` would delete {total}:"]
    for each in sorted(adoptions, key=lambda one: (-one.lines, one.path, one.line)):
        names = ", ".join(each.methods)
        found.append(f"  {each.path}:{each.line}: {each.cls}: {names} ({each.lines})")
        found += [f"      {name}: needs {marker}" for name, marker in each.markers]
    return found
