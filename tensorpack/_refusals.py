"""Refusals that are collected instead of raised, so that `check` hears of all."""

# Note [refused classes that are made]
# A module goes on after a refusal only if the refused class is there, since others name
# it in a field, derive from it and make instances. So where refusals are collected, a
# refused class is made all the same, as a stand-in: a payload whose every use raises
# its refusal. Whoever gets hold of it, nothing is moved or recorded in part. Its
# instances are those of the class that it stands for, so no method takes the place of
# a field. What could be no payload at all, as an enumeration, stays what it is.

import inspect
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Never

import attrs

from tensorpack._plan.classes import declared_fields
from tensorpack._plan.namespace import Namespace
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.nodes import BorrowedNode, Node
from tensorpack.errors import DefinitionError, LifetimeError

__all__ = ["Refused", "RefusedPlan", "collected", "collecting", "holds_data"]


@attrs.frozen
class Refused:
    """A class that was refused, or its stand-in, and why.

    Attributes:
        cls: the class, or whatever was decorated.
        error: its refusal.
        module: name of the module that decorates it.
        line: the line there, starting at 1.
    """

    cls: object
    error: DefinitionError | LifetimeError
    module: str
    line: int


@attrs.frozen
class _RefusedField:
    """Stands for the fields of a refused class: whoever reads more than this is told.

    Attributes:
        node: of a field that names no payload, so that the class can be registered.
    """

    error: DefinitionError | LifetimeError
    node: Node

    def __getattr__(self, name: str) -> Never:
        _refuse(self.error, name)


@attrs.frozen(eq=False, slots=False)
class RefusedPlan:
    """Stands for the plan of a refused class: whoever reads more than this is told.

    Attributes:
        cls: the class.
        error: its refusal.
        namespace: as in a plan, for the classes that derive from it.
        corrections: the same.
        by_name: nothing, so that they read the annotations of its fields themselves.
        fields: one that raises.
    """

    cls: type
    error: DefinitionError | LifetimeError
    namespace: Namespace
    corrections: Mapping[str, object]
    by_name: Mapping[str, object] = attrs.field(init=False, factory=dict)
    fields: tuple[_RefusedField, ...] = attrs.field(init=False)

    @fields.default
    def _fields(self) -> tuple[_RefusedField, ...]:
        return (_RefusedField(self.error, BorrowedNode()),)

    def __getattr__(self, name: str) -> Never:
        _refuse(self.error, name)

    @property  # type: ignore[misc]  # of `object` it can be set
    def __class__(self) -> type[ClassPlan]:  # type: ignore[override]
        """Say that it is a plan, so that it is asked like one."""
        return ClassPlan

    def refuse(self, *_: object) -> Never:
        """Raise the refusal."""
        _refuse(self.error)


def _refuse(error: DefinitionError | LifetimeError, name: str = "") -> Never:
    """Raise a refusal where a plan or field is asked for what it does not have.

    It is the same object each time, by which `check` knows it, so the calls of earlier
    uses are taken off it.
    """
    if name.startswith("__"):
        raise AttributeError(name)  # Python's own question
    raise error.with_traceback(None)


def holds_data(cls: type, name: str) -> bool:
    """Tell whether a name of a made class belongs to what its instances hold.

    It is a field, a slot, or what the class body defines and nobody could call.
    """
    if any(field.name == name for field in declared_fields(cls)):
        return True
    held = inspect.getattr_static(cls, name, None)
    if name not in vars(cls):
        return isinstance(held, types.MemberDescriptorType)
    return not (callable(held) or isinstance(held, (classmethod, staticmethod)))


_found: dict[int, list[Refused]] = {}
_lock = threading.Lock()


@contextmanager
def collected() -> Iterator[list[Refused]]:
    """Collect the refusals of all classes that any thread decorates in the body."""
    found: list[Refused] = []
    with _lock:
        _found[id(found)] = found
    try:
        yield found
    finally:
        with _lock:
            del _found[id(found)]


def collecting() -> Sequence[list[Refused]]:
    """Give the lists that refusals go into; none where they are raised, as ever."""
    with _lock:
        return list(_found.values())
