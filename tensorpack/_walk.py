"""The state of one traversal, and what generated code calls while it runs.

A `Walk` collects the leaves of an object with their keys; a `Build` makes the twin
from new leaves. Values whose type is only known at run time are walked here.
"""

import collections
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never, TypeVar

from torch import Tensor

import tensorpack.adapters  # noqa: F401  # registers the ready adapters
from tensorpack._hosts import is_host_class, is_host_value
from tensorpack._lifetime import PLAN, SupportsLifetime, adapter_of, owns_lifetime
from tensorpack._resolve import own_annotations
from tensorpack._structs import is_named_tuple
from tensorpack.errors import (
    CycleError,
    LeafError,
    UndecoratedError,
)

__all__ = [
    "Kind",
    "Pair",
    "Walk",
    "has_leaves",
    "is_payload",
    "kind_of",
    "mappings",
    "payload_plan",
    "sequences",
    "walk",
]

T = TypeVar("T")
Pair = tuple[str, Any]
"""The key of a leaf, and the leaf."""

sequences = frozenset({list, tuple, collections.deque})
mappings = frozenset({dict, collections.OrderedDict, collections.defaultdict})


def is_payload(value: object) -> bool:
    """Tell whether a value is an instance of a payload, or of a subclass of one."""
    return getattr(type(value), PLAN, None) is not None


def payload_plan(cls: type, key: str = "") -> Any:
    """Give the plan of a payload class.

    Raises:
        UndecoratedError: the class is no payload itself. A base's plan does not count:
            it would lose the fields of the class.
    """
    plan = getattr(cls, PLAN, None)
    if plan is not None and plan.cls is cls:
        return plan
    base = plan.cls if plan is not None else None
    known = {field.name for field in plan.fields} if plan is not None else set()
    above = cls.__mro__[: cls.__mro__.index(base)] if base else (cls,)
    lost = [n for c in reversed(above) for n in own_annotations(c) if n not in known]
    raise UndecoratedError(
        cls=cls.__qualname__,
        base=base.__qualname__ if base else "",
        lost=lost,
        key=key,
    )


class Walk:
    """Collects the leaves of one object, each with its key, in plan order.

    Attributes:
        leaves: the leaves that travel.
        hooked: whether a payload with `__payload_prepare__` was met inside.
    """

    __slots__ = ("_aside", "_open", "add", "hooked", "leaves", "root")

    def __init__(self, root: str) -> None:
        self.root = root
        self.leaves: list[Pair] = []
        self.add = self.leaves.append
        self.hooked = False
        self._open: set[int] = set()
        self._aside: Walk | None = None

    @property
    def aside(self) -> "Walk":
        """The walk that collects what is recorded but never moved."""
        if self._aside is None:
            self._aside = Walk(self.root)
            self._aside._open = self._open
        return self._aside

    def recordable(self) -> list[Pair]:
        """List every leaf to record: those that travel, then the derived ones."""
        if self._aside is None:
            return self.leaves
        return self.leaves + self._aside.recordable()

    def nested(self, value: Any, key: str) -> None:
        """Walk a payload by the plan of its own class."""
        cls = type(value)
        plan = getattr(cls, PLAN, None)
        if plan is None or plan.cls is not cls:
            self._refuse_unplanned(value, key)
        if plan.hooked:
            self.hooked = True
        if id(value) in self._open:
            raise CycleError(cls=cls.__qualname__, key=key or cls.__qualname__)
        self._open.add(id(value))
        cls.__tensorpack_leaves__(value, self, f"{key}." if key else "")
        self._open.discard(id(value))

    def _refuse_unplanned(self, value: object, key: str) -> Never:
        """Raise for a value that is no payload, where one is declared."""
        if is_payload(value):
            payload_plan(type(value), f"{self.root}.{key}" if key else "")
        self._raise(
            value,
            key,
            "is no payload",
            "Decorate its class, or correct the annotation.",
        )

    def adapted(self, value: object, key: str) -> None:
        """Walk a value through the adapter of its class."""
        adapter = adapter_of(type(value))
        if adapter is None:
            self._raise(
                value,
                key,
                "has no adapter",
                f"Write a `LifetimeAdapter[{type(value).__name__}]`, or correct the "
                "annotation.",
            )
        for index, leaf in enumerate(adapter.leaves(value)):
            if not isinstance(leaf, Tensor):
                self._raise(
                    leaf,
                    f"{key}[{index}]",
                    f"is no tensor, but {adapter!r} lists it as a leaf",
                    "List tensors only.",
                )
            self.add((f"{key}[{index}]", leaf))

    def dynamic(self, value: Any, key: str) -> None:
        """Walk a value by the types that are found in it."""
        match kind_of(value):
            case Kind.LEAF:
                self.add((key, value))
            case Kind.PAYLOAD:
                self.nested(value, key)
            case Kind.ADAPTED:
                self.adapted(value, key)
            case Kind.CONTAINER:
                self._dynamic_items(value, key)
            case Kind.HOST:
                return
            case Kind.UNKNOWN:
                name = type(value).__name__
                self._raise(
                    value,
                    key,
                    "has no lifetime support",
                    f"Decorate `{name}` with `@payload`, write a "
                    f"`LifetimeAdapter[{name}]`, or keep it out of here.",
                )

    def _dynamic_items(self, value: Any, key: str) -> None:
        """Walk the items of a container of any known class."""
        if id(value) in self._open:
            raise CycleError(cls=type(value).__name__, key=key or type(value).__name__)
        self._open.add(id(value))
        for mark, item in _items(value):
            self.dynamic(item, f"{key}{mark}")
        self._open.discard(id(value))

    def keep(self, value: object, key: str, types: tuple[type, ...]) -> None:
        """Check a value that no arm of a union with leaves has claimed."""
        if isinstance(value, Tensor):
            self.stray(value, key)
        if isinstance(value, types) or is_host_value(value):
            return
        self._raise(
            value,
            key,
            "belongs to no arm of the annotated union",
            "Correct the value, or the annotation.",
        )

    def stray(self, value: object, key: str) -> Never:
        """Raise for a tensor where a host value is declared."""
        self._raise(
            value,
            key,
            "stands in a field that is annotated as a host value, so it would be "
            "neither moved nor recorded",
            "Annotate the field `Tensor`, or mark it `HostOnly[Tensor]`.",
        )

    def host_only(self, value: object, key: str) -> None:
        """Raise for a tensor on a device where the value must stay on the host."""
        if isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            self._raise(
                value,
                key,
                "stands in a `HostOnly` field but lives on a device",
                "Annotate the field `Tensor`, or mark it `Borrowed` if it is owned "
                "and recorded elsewhere.",
            )

    def wrong(self, value: object, key: str, wanted: str) -> None:
        """Raise for a value that is no container of the annotated class."""
        remedy = "Correct the value, or the annotation."
        if isinstance(value, Tensor):
            remedy = f"Annotate the field `Tensor | {wanted}[...]`, or wrap the tensor."
        self._raise(value, key, f"is no `{wanted}`, as its annotation says", remedy)

    def length(self, value: Sequence[object], key: str, length: int) -> None:
        """Raise for a tuple of another length than annotated."""
        one = length == 1
        self._raise(
            value,
            key,
            f"has {len(value)} items, and its annotation says {length}",
            "For a tuple of any length write `tuple[Tensor, ...]`."
            if one
            else "Correct the value, or the annotation.",
        )

    def unknown(
        self, value: Mapping[str, object], key: str, keys: frozenset[str]
    ) -> None:
        """Raise for keys that a typed dictionary does not declare."""
        extra = ", ".join(repr(name) for name in value if name not in keys)
        self._raise(
            value,
            key,
            f"has the keys {extra}, which its `TypedDict` does not declare",
            "Declare them, or take them out.",
        )

    def extra(self, value: Any, stores: frozenset[str], at: str) -> None:
        """Raise for attributes of an instance that are no fields."""
        names = [name for name in vars(value) if name not in stores]
        self._raise(
            vars(value)[names[0]],
            f"{at}{names[0]}",
            f"is an attribute of a `{type(value).__qualname__}` but no field, so it "
            "would be lost",
            "Declare the field in the class.",
        )

    def _raise(self, value: object, key: str, problem: str, remedy: str) -> Never:
        found = f"a `{type(value).__name__}`"
        raise LeafError(
            cls=self.root, key=key, found=found, problem=problem, remedy=remedy
        )


class Kind(enum.Enum):
    """What a value is, as far as its lifetime goes."""

    LEAF = enum.auto()
    PAYLOAD = enum.auto()
    ADAPTED = enum.auto()
    CONTAINER = enum.auto()
    HOST = enum.auto()
    UNKNOWN = enum.auto()


def kind_of(value: object) -> Kind:
    """Tell what a value is; the walk and the build both go by it."""
    cls = type(value)
    if isinstance(value, Tensor):
        return Kind.LEAF
    if is_host_class(cls):
        return Kind.HOST
    if getattr(cls, PLAN, None) is not None:
        return Kind.PAYLOAD
    if adapter_of(cls) is not None:
        return Kind.ADAPTED
    if cls in mappings or cls in sequences or is_named_tuple(cls):
        return Kind.CONTAINER
    if owns_lifetime(cls) or isinstance(value, SupportsLifetime):
        return Kind.LEAF
    return Kind.HOST if is_host_value(value) else Kind.UNKNOWN


def _items(value: Any) -> Iterator[tuple[str, object]]:
    """Iterate the items of a container with the text that addresses each."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"[{name!r}]", item
    elif hasattr(type(value), "_fields"):
        yield from zip((f".{n}" for n in value._fields), value, strict=True)
    else:
        for index, item in enumerate(value):
            yield f"[{index}]", item


def has_leaves(value: object) -> bool:
    """Tell whether a value is a leaf, a payload or a container: something to move."""
    return kind_of(value) not in (Kind.HOST, Kind.UNKNOWN)


def walk(value: Any) -> Walk:
    """Walk a payload, or any value by the types found in it."""
    cls = type(value)
    found = Walk(cls.__qualname__ if getattr(cls, PLAN, None) is not None else "")
    found.dynamic(value, "")
    return found
