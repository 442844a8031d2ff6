"""What a class's annotations mark: read here again, without its plan."""

import types
import typing
from collections.abc import Iterator
from typing import Any

import attrs

from tensorpack._plan.cached import cached_properties
from tensorpack._plan.makers import declared_keys, is_typed_dict
from tensorpack._plan.namespace import Namespace, own_annotations, returned_by
from tensorpack._rules.markers import PLAN, Marker

__all__ = ["Marks", "marks_of"]

_DEEPEST = 16


@attrs.frozen
class Marks:
    """The markers on a field, or on all fields on the way to a value.

    Attributes:
        whole: those that hold for whatever is in the field.
        inside: those on a part of the annotation, such as an item of a tuple: they may
            hold for what is in the field, and only the plan can tell.
    """

    whole: frozenset[Marker] = frozenset()
    inside: frozenset[Marker] = frozenset()

    def __or__(self, other: "Marks") -> "Marks":
        return Marks(self.whole | other.whole, self.inside | other.inside)

    def may(self, marker: Marker) -> bool:
        """Return whether a marker holds, or may hold."""
        return marker in self.whole or marker in self.inside


def marks_of(cls: type) -> dict[str, Marks]:
    """Return the markers in the annotation of each field that has some.

    A cached property is `Derived`, and its return annotation may mark it once more.
    """
    found: dict[str, Marks] = {}
    computed: set[str] = set()
    cached = list(cached_properties(cls))
    for base in reversed(cls.__mro__):
        plan: Any = vars(base).get(PLAN)
        names = plan.namespace if plan is not None else Namespace.of(base, {})
        own, corrections = own_annotations(base), plan.corrections if plan else {}
        returned = {c.name: returned_by(c.function) for c in cached if c.owner is base}
        computed = (computed - own.keys()) | returned.keys()
        for name, annotation in {**own, **returned, **corrections}.items():
            derived = frozenset({Marker.DERIVED} if name in computed else ())
            whole = frozenset(_outer(annotation, names, _DEEPEST))
            every = frozenset(_every(annotation, names, _DEEPEST))
            found[name] = Marks(whole | derived, every - whole)
    return {name: marks for name, marks in found.items() if marks != Marks()}


def _read(annotation: object, names: Namespace) -> Any:
    """Evaluate an annotation, and return what an alias means."""
    tp: Any = names.evaluate(annotation)
    return tp.__value__ if type(tp).__name__ == "TypeAliasType" else tp


def _own(tp: object) -> list[Marker]:
    notes = getattr(tp, "__metadata__", ())
    return [note for note in notes if isinstance(note, Marker)]


def _outer(annotation: object, names: Namespace, depth: int) -> Iterator[Marker]:
    """Iterate the markers around a whole annotation; None beside it does not count."""
    tp = _read(annotation, names)
    yield from _own(tp)
    arms = [arm for arm in typing.get_args(tp) if arm is not type(None)]
    is_union = typing.get_origin(tp) in (typing.Union, types.UnionType)
    if is_union and len(arms) == 1 and depth:
        yield from _outer(arms[0], names, depth - 1)


def _every(annotation: object, names: Namespace, depth: int) -> Iterator[Marker]:
    """Iterate the markers anywhere in an annotation."""
    tp = _read(annotation, names)
    yield from _own(tp)
    if depth == 0:
        return
    for argument in typing.get_args(tp):
        if not isinstance(argument, (Marker, list)):
            yield from _every(argument, names, depth - 1)
    if is_typed_dict(tp):
        # Its values are plain dictionaries, which cannot be asked.
        for member in declared_keys(tp).values():
            yield from _every(member, names.beside(tp), depth - 1)
