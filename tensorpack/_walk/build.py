"""The making of copies: new leaves put where the walk has found the old ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from tensorpack._leaves.adapters import adapter_of
from tensorpack._leaves.host_types import PLAIN
from tensorpack._leaves.tracing import let_trace_as
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.containers import (
    CONTAINERS,
    MAPPING_CLASSES,
    SEQUENCE_CLASSES,
    like,
)
from tensorpack._rules.markers import PLAN
from tensorpack._walk.mappings import Selection
from tensorpack._walk.values import (
    Kind,
    a_class,
    is_payload,
    kind_of,
    payload_plan,
    slot_value,
)
from tensorpack._walk.walk import Walk, walk
from tensorpack.errors import LeafCountError, LeafError

__all__ = ["HELPERS", "Build", "prepared", "rebuild"]

T = TypeVar("T")


def has_extra(value: Any, names: frozenset[str]) -> bool:
    """Return whether an instance has attributes that are not fields."""
    return not names.issuperset(value.__dict__)


def starts_plain(value: Any) -> bool:
    """Return whether a builtin container is empty, or its first item is plain."""
    cls = type(value)
    if cls is list or cls is tuple:
        return not value or type(value[0]) in PLAIN
    if cls is dict:
        for name, item in value.items():
            return type(name) in PLAIN and type(item) in PLAIN
        return True
    return False


let_trace_as(has_extra, lambda value, names: False)  # noqa: ARG005  # the same
let_trace_as(slot_value, lambda slot, owner: None)  # noqa: ARG005  # none is recorded

HELPERS: Mapping[str, object] = {
    **{row.name: row.cls for row in CONTAINERS.values() if not row.is_abstract},
    "Tensor": Tensor,
    "has_extra": has_extra,
    "is_payload": is_payload,
    "like": like,
    "mapping_types": MAPPING_CLASSES,
    "plain_types": PLAIN,
    "sequence_types": SEQUENCE_CLASSES,
    "slot_value": slot_value,
    "starts_plain": starts_plain,
}
"""The global names of generated code that are the same for every class."""


class Build:
    """Makes a copy of an object from new leaves, taken in the order of the walk."""

    __slots__ = ("_hooked", "rest", "take")

    def __init__(self, leaves: Sequence[object], *, hooks: bool = False) -> None:
        self.rest = list(reversed(leaves))
        self.take: Callable[[], Any] = self.rest.pop
        self._hooked: dict[int, Any] | None = {} if hooks else None

    def root(self, value: Any) -> Any:
        """Copy the walked object itself."""
        if isinstance(value, Selection):
            return {name: self.dynamic(entry) for name, entry in value.items()}
        if is_payload(value):
            return self.nested(value)
        return self.dynamic(value)

    def nested(self, value: Any) -> Any:
        """Copy a payload."""
        new = type(value).__tensorpack_rebuild__(value, self)
        if self._hooked is None:
            return new
        # An object that is in two places is asked once, and its first copy goes to
        # both. The move that follows makes a copy for each place, as it always does.
        if id(value) not in self._hooked:
            self._hooked[id(value)] = _hook(new)
        return self._hooked[id(value)]

    def adapted(self, value: Any) -> Any:
        """Copy a value that has an adapter."""
        adapter = adapter_of(type(value))
        if adapter is None:  # the walk has found one
            raise LookupError(type(value))
        leaves = [self.take() for _ in adapter.leaves(value)]
        new = adapter.rebuild(value, leaves)
        if type(new) is not type(value):
            raise LeafError(
                found=f"{adapter!r}",
                problem=f"made {a_class(type(new))} from {a_class(type(value))}",
                remedy=f"Write an adapter for `{type(value).__name__}` itself.",
            )
        return new

    def dynamic(self, value: Any) -> Any:
        """Copy a value by the types that are found in it."""
        match kind_of(value):
            case Kind.LEAF:
                return self.take()
            case Kind.PAYLOAD:
                return self.nested(value)
            case Kind.ADAPTED:
                return self.adapted(value)
            case Kind.CONTAINER if isinstance(value, dict):
                return like(value, {k: self.dynamic(v) for k, v in value.items()})
            case Kind.CONTAINER:
                return like(value, [self.dynamic(v) for v in value])
            case Kind.HOST | Kind.UNKNOWN:
                return value


def rebuild(value: T, leaves: Sequence[object], *, hooks: bool = False) -> T:
    """Make a copy of a walked value from new leaves.

    Raises:
        LeafCountError: the value does not have as many leaves as were given.
    """
    cls: Any = type(value)
    # `Build(leaves, hooks=hooks)`, spelled out: see Note [cold caches].
    build = object.__new__(Build)
    build.rest = list(reversed(leaves))
    build.take = build.rest.pop
    build._hooked = {} if hooks else None
    try:
        if getattr(cls, PLAN, None).__class__ is ClassPlan and not hooks:
            new: T = cls.__tensorpack_rebuild__(value, build)
        else:
            new = build.root(value)
    except IndexError:
        if build.rest:
            raise
        count = LeafCountError(
            cls=type(value).__qualname__, given=len(leaves), more=True
        )
        raise count from None
    if build.rest:
        raise LeafCountError(cls=type(value).__qualname__, given=len(leaves))
    return new


def _hook(value: Any) -> Any:
    """Ask a payload for the object that travels in its place."""
    if not payload_plan(type(value)).hooked:
        return value
    found = value.__payload_prepare__()
    if type(found) is not type(value):
        raise LeafError(
            cls=type(value).__qualname__,
            key="__payload_prepare__()",
            found="`None`" if found is None else a_class(type(found)),
            problem=f"was returned, and only {a_class(type(value))} can travel here",
            remedy="Return `self`, or a changed copy made by `tensorpack.evolve`.",
        )
    return found


def prepared(value: Any) -> tuple[Any, Walk]:
    """Return the value that travels, children prepared first, and its walk."""
    found = walk(value)
    if not found.hooked:
        return value, found
    value = rebuild(value, found.leaves, hooks=True)
    if isinstance(found.value, Selection):
        value = Selection(value)
    return value, walk(value)
