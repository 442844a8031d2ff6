"""The state of one traversal, and what generated code calls while it runs.

A `Walk` collects the leaves of an object in plan order. Nobody needs their keys while
all is well, so they are made by a second, keyed walk when somebody asks. Values whose
type is only known at run time are walked here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Never

from torch import Tensor
from torch.compiler import is_compiling

from tensorpack import _lies
from tensorpack._hidden import hidden_in
from tensorpack._hosts import is_host_value
from tensorpack._kinds import (
    BASE,
    Kind,
    a_class,
    is_leaf_class,
    is_payload,
    items_of,
    kind_of,
    payload_plan,
)
from tensorpack._lifetime import PLAN, adapter_of
from tensorpack._tracing import TRACES_ALL, let_trace_as
from tensorpack.errors import CycleError, LeafError

__all__ = ["Entries", "Pair", "Walk", "pairs", "walk"]

Pair = tuple[str, Any]
"""The key of a leaf, and the leaf."""

_PLAIN = {Tensor}


class Entries(dict[str, object]):
    """Some entries of a mapping, walked together: their names begin the keys."""


class Walk:
    """Collects the leaves of one object in plan order.

    Attributes:
        value: the object.
        keyed: whether (key, leaf) is collected instead of the leaf alone.
        leaves: the leaves that travel.
        hooked: whether a payload with `__payload_prepare__` was met.
        plain: whether the class of every leaf to record is `Tensor` itself.
    """

    __slots__ = "_aside", "_open", "add", "hooked", "keyed", "leaves", "plain", "value"

    def __init__(self, value: Any, *, keyed: bool = False) -> None:
        self.value = value
        self.keyed = keyed
        self.leaves: list[Any] = []
        self.add = self.leaves.append
        self.hooked = False
        self.plain = False
        self._open: list[int] = []  # of few objects: a list is quicker than a set
        self._aside: Walk | None = None

    @property
    def root(self) -> str:
        """The name of the object's class if it is a payload, else ""."""
        return type(self.value).__qualname__ if is_payload(self.value) else ""

    def run(self) -> "Walk":
        """Walk the object."""
        if is_payload(self.value):
            self.nested(self.value, "")
        elif isinstance(self.value, Entries):
            for name, entry in self.value.items():
                self.dynamic(entry, str(name))
        else:
            self.dynamic(self.value, "")
        return self

    @property
    def aside(self) -> "Walk":
        """The walk that collects what is recorded but never moved."""
        if self._aside is None:
            self._aside = Walk(self.value, keyed=self.keyed)
            self._aside._open = self._open
        return self._aside

    @property
    def cached(self) -> "Walk":
        """The walk that collects what cached properties keep, among the others."""
        return CachedWalk(self)

    def recordable(self) -> list[Any]:
        """List every leaf to record: those that travel, then the derived ones."""
        if self._aside is None:
            return self.leaves
        return self.leaves + self._aside.recordable()

    def key_of(self, leaf: object) -> str:
        """Find the key of a leaf that this walk has collected."""
        again = Walk(self.value, keyed=True).run()
        return next((key for key, found in again.recordable() if found is leaf), "")

    def where(self, leaf: object) -> tuple[str, str]:
        """Give the class that the object is of, and the key of a leaf in it."""
        return self.root, self.key_of(leaf)

    def check(self, kinds: set[type]) -> None:
        """Raise for a leaf that nobody could move and record."""
        bad = {kind for kind in kinds if not is_leaf_class(kind)}
        for leaf in self.recordable():
            # `isinstance` is asked last: a stand-in may only say that it is a tensor.
            if type(leaf) in bad and not isinstance(leaf, Tensor):
                self._raise(leaf, self.key_of(leaf), *_lies.no_leaf(leaf))

    def nested(self, value: Any, key: str) -> None:
        """Walk a payload by the plan of its own class."""
        cls = type(value)
        plan = getattr(cls, PLAN, None)
        if plan is None or plan.cls is not cls:
            self._refuse_unplanned(value, key)
        if plan.hooked:
            self.hooked = True
        if not self._enter(value):
            return self._close(value, key)
        visit = cls.__tensorpack_keyed__ if self.keyed else cls.__tensorpack_leaves__
        visit(value, self, f"{key}." if key else "")
        self._open.pop()

    def _refuse_unplanned(self, value: object, key: str) -> Never:
        """Raise for a value that is no payload, where one is declared."""
        if hasattr(type(value), PLAN) or hasattr(type(value), BASE):
            payload_plan(type(value), self._address(key) if key else "")
        self._raise(value, key, *_lies.no_payload(value))

    def adapted(self, value: object, key: str) -> None:
        """Walk a value through the adapter of its class."""
        adapter = adapter_of(type(value))
        if adapter is None:
            self._raise(value, key, *_lies.no_adapter(value))
        for index, leaf in enumerate(adapter.leaves(value)):
            if not isinstance(leaf, Tensor):
                self._raise(leaf, f"{key}[{index}]", *_lies.no_tensor(adapter))
            self._found(leaf, f"{key}[{index}]")

    def _found(self, leaf: object, key: str) -> None:
        self.add((key, leaf) if self.keyed else leaf)

    def dynamic(self, value: Any, key: str) -> None:
        """Walk a value by the types that are found in it."""
        match kind_of(value):
            case Kind.LEAF:
                self._found(value, key)
            case Kind.PAYLOAD:
                self.nested(value, key)
            case Kind.ADAPTED:
                self.adapted(value, key)
            case Kind.CONTAINER:
                self._dynamic_items(value, key)
            case Kind.HOST:
                return
            case Kind.UNKNOWN:
                self._unsupported(value, key)

    def _enter(self, value: object) -> bool:
        """Note that a value is being walked; say no if it is already."""
        if id(value) in self._open:
            return False
        self._open.append(id(value))
        return True

    def _enter_untold(self, value: object) -> bool:  # noqa: ARG002  # the same
        """Stand for `_enter` where `id` cannot be traced: cycles are not found."""
        self._open.append(0)
        return True

    def _dynamic_items(self, value: Any, key: str) -> None:
        """Walk the items of a container of any known class."""
        if not self._enter(value):
            return self._close(value, key)
        if isinstance(value, dict):
            self._check_names(value, key)
        for mark, item in items_of(value):
            self.dynamic(item, f"{key}{mark}")
        self._open.pop()

    def _check_names(self, value: dict[object, object], key: str) -> None:
        """Raise for a leaf that is the key of a mapping."""
        for name in value:
            if not is_host_value(name):
                self._raise(name, key, *_lies.key_of_mapping())

    def _unsupported(self, value: object, key: str) -> None:
        """Raise for a value of unknown class."""
        in_field = "." in key or is_payload(self.value)
        around = None if in_field else self.value
        self._raise(value, key, *_lies.no_support(value, around))

    def _close(self, value: object, key: str) -> None:
        """Raise for a value that is met again inside itself."""
        name = type(value).__qualname__
        raise CycleError(cls=name, key=self._address(key) if key else name)

    def keep(self, value: object, key: str, types: tuple[type, ...]) -> None:
        """Check a value that no arm of a union with leaves has claimed."""
        if type(value) not in types and not is_host_value(value):
            self._raise(value, key, *_lies.no_arm(value))

    def struct(self, value: object, key: str) -> None:
        """Check a value of another class than the host struct that is annotated."""
        if not is_host_value(value):
            self._raise(value, key, *_lies.no_host_struct(value))

    def stray(self, value: object, key: str) -> Never:
        """Raise for a tensor where a host value is declared."""
        self._raise(value, key, *_lies.stray())

    def host_only(self, value: object, key: str) -> None:
        """Raise for a tensor on a device where the value must stay on the host."""
        if isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            self._raise(value, key, *_lies.host_only(value))

    def wrong(self, value: object, key: str, wanted: str) -> None:
        """Raise for a value that is no container of the annotated class."""
        self._raise(value, key, *_lies.wrong(value, wanted))

    def length(self, value: Sequence[object], key: str, length: int) -> None:
        """Raise for a tuple of another length than annotated."""
        self._raise(value, key, *_lies.length(value, length))

    def unknown(
        self, value: Mapping[str, object], key: str, keys: frozenset[str]
    ) -> None:
        """Raise for keys that a typed dictionary does not declare."""
        names = [name for name in value if name not in keys]
        self._raise(value, key, *_lies.unknown_keys(names))

    def extra(self, value: Any, stores: frozenset[str], at: str) -> None:
        """Raise for attributes of an instance that are no fields."""
        name = next(name for name in vars(value) if name not in stores)
        said = _lies.no_field(type(value), name)
        self._raise(vars(value)[name], f"{at}{name}", *said)

    def _address(self, key: str) -> str:
        """Put the name of the class before a key."""
        return f"{self.root}.{key}" if self.root else key

    def _raise(self, value: object, key: str, problem: str, remedy: str) -> Never:
        fields = {"cls": self.root, "key": key, "found": a_class(type(value))}
        raise LeafError(**fields, problem=problem, remedy=remedy)


class CachedWalk(Walk):
    """Collects what a cached property keeps, beside the leaves of another walk.

    It is never moved, so a value is held to less than in a field: an object that leads
    back to its owner is fine, since that is walked already, and so is an object of
    unknown class, as long as no tensor can be in it.
    """

    __slots__ = ()

    def __init__(self, outer: Walk) -> None:
        super().__init__(outer.value, keyed=outer.keyed)
        aside = outer.aside
        self.leaves, self.add, self._open = aside.leaves, aside.add, aside._open

    @property
    def aside(self) -> Walk:
        """The walk itself: nothing that it meets is moved."""
        return self

    @property
    def cached(self) -> Walk:
        """The walk itself."""
        return self

    def dynamic(self, value: Any, key: str) -> None:
        """Walk a value by the types that are found in it."""
        # Code that is traced moves leaves and records none, and cannot search.
        if not is_compiling():
            super().dynamic(value, key)

    def _close(self, value: object, key: str) -> None:
        """Let a value be that is being walked."""

    def _check_names(self, value: dict[object, object], key: str) -> None:
        """Raise for the key of a mapping that has or may have a tensor inside."""
        for name in value:
            if not is_host_value(name) and hidden_in(name, self._open) is not None:
                self._raise(name, key, *_lies.key_of_mapping())

    def _unsupported(self, value: object, key: str) -> None:
        """Raise for a value that has or may have a tensor inside."""
        culprit = hidden_in(value, self._open)
        if culprit is not None:
            self._raise(value, key, *_lies.hidden(value, culprit))


def walk(value: Any) -> Walk:
    """Walk a payload, or any value by the types found in it.

    Raises:
        LeafError: something in it is not what its annotation says.
    """
    cls = type(value)
    plan = getattr(cls, PLAN, None)
    if plan is not None and plan.cls is cls:
        # `Walk(value).run()`, spelled out: see Note [cold caches] in `_move`.
        found = object.__new__(Walk)
        found.value, found.keyed, found.hooked = value, False, plan.hooked
        found.leaves = []
        found.add = found.leaves.append
        found._open, found._aside = [id(value)], None
        cls.__tensorpack_leaves__(value, found, "")
    else:
        found = Walk(value).run()
    leaves = found.leaves if found._aside is None else found.recordable()
    kinds = set(map(type, leaves))
    found.plain = kinds == _PLAIN
    if not found.plain:
        found.check(kinds)
    return found


def _walk_step_by_step(value: Any) -> Walk:
    """Stand for `walk` where `id` cannot be traced."""
    found = Walk(value).run()
    kinds = set(map(type, found.recordable()))
    found.plain = kinds == _PLAIN
    found.check(kinds)
    return found


if not TRACES_ALL:
    let_trace_as(walk, _walk_step_by_step)
    let_trace_as(Walk._enter, Walk._enter_untold)


def pairs(value: Any) -> list[Pair]:
    """List the leaves that travel, each with its key."""
    walk(value)
    return Walk(value, keyed=True).run().leaves
