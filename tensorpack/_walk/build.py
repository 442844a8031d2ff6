"""The making of twins: new leaves put where the walk has found the old ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tensorpack._leaves.adapters import adapter_of
from tensorpack._leaves.host_types import PLAIN
from tensorpack._leaves.tracing import has_extra, kept
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.containers import like
from tensorpack._rules.markers import PLAN
from tensorpack._walk.values import (
    Kind,
    a_class,
    is_payload,
    kind_of,
    mappings,
    payload_plan,
    sequences,
)
from tensorpack._walk.walk import Entries, Walk, walk
from tensorpack.errors import LeafCountError, LeafError

__all__ = ["HELPERS", "Build", "prepared", "rebuild"]

T = TypeVar("T")


class Build:
    """Makes the twin of an object from new leaves, taken in the order of the walk."""

    __slots__ = ("_hooked", "rest", "take")

    def __init__(self, leaves: Sequence[object]) -> None:
        self.rest = list(reversed(leaves))
        self.take: Callable[[], Any] = self.rest.pop
        self._hooked: dict[int, Any] | None = None

    def root(self, value: Any) -> Any:
        """Make the twin of the walked object itself."""
        if isinstance(value, Entries):
            return {name: self.dynamic(entry) for name, entry in value.items()}
        if is_payload(value):
            return self.nested(value)
        return self.dynamic(value)

    def nested(self, value: Any) -> Any:
        """Make the twin of a payload."""
        twin = type(value).__tensorpack_rebuild__(value, self)
        if self._hooked is None:
            return twin
        # An object that stands in two places is asked once, and its first twin goes to
        # both. The move that follows makes a twin for each place, as it always does.
        if id(value) not in self._hooked:
            self._hooked[id(value)] = _hook(twin)
        return self._hooked[id(value)]

    def adapted(self, value: Any) -> Any:
        """Make the twin of a value that has an adapter."""
        adapter = adapter_of(type(value))
        if adapter is None:  # the walk has found one
            raise LookupError(type(value))
        new = [self.take() for _ in adapter.leaves(value)]
        twin = adapter.rebuild(value, new)
        if type(twin) is not type(value):
            raise LeafError(
                found=f"{adapter!r}",
                problem=f"made {a_class(type(twin))} from {a_class(type(value))}",
                remedy=f"Write an adapter for `{type(value).__name__}` itself.",
            )
        return twin

    def dynamic(self, value: Any) -> Any:
        """Make the twin of a value by the types that are found in it."""
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


HELPERS: Mapping[str, object] = {
    "has_extra": has_extra,
    "is_payload": is_payload,
    "kept": kept,
    "like": like,
    "mappings": mappings,
    "plain_names": PLAIN,
    "sequences": sequences,
}
"""The global names of generated code that are the same for every class."""


def rebuild(value: T, leaves: Sequence[object], *, hooks: bool = False) -> T:
    """Make the twin of a walked value from new leaves.

    Raises:
        LeafCountError: the value does not have as many leaves as were given.
    """
    cls: Any = type(value)
    # `Build(leaves).root(value)`, spelled out: see Note [cold caches].
    build = object.__new__(Build)
    build.rest = list(reversed(leaves))
    build.take = build.rest.pop
    build._hooked = {} if hooks else None
    try:
        if getattr(cls, PLAN, None).__class__ is ClassPlan and not hooks:
            twin: T = cls.__tensorpack_rebuild__(value, build)
        else:
            twin = build.root(value)
    except IndexError:
        if build.rest:
            raise
        count = LeafCountError(
            cls=type(value).__qualname__, given=len(leaves), more=True
        )
        raise count from None
    if build.rest:
        raise LeafCountError(cls=type(value).__qualname__, given=len(leaves))
    return twin


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
    """Give the value that travels, children prepared first, and its walk."""
    found = walk(value)
    if not found.hooked:
        return value, found
    value = rebuild(value, found.leaves, hooks=True)
    if isinstance(found.value, Entries):
        value = Entries(value)
    return value, walk(value)
