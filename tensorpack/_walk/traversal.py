"""The state of one traversal, and what generated code calls while it runs.

A `Walk` collects the leaves of an object in plan order. Nobody needs their keys while
all is well, so they are made by a second, keyed walk when somebody asks. Values whose
type is only known at run time are walked here.
"""

import collections
from collections.abc import Callable
from typing import Any, Never

from torch import Tensor
from torch.compiler import is_compiling

from tensorpack._leaves.adapters import adapter_of
from tensorpack._leaves.host_types import PLAIN
from tensorpack._leaves.tracing import TRACES_ALL, let_trace_as
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.markers import PLAN
from tensorpack._walk import mismatch
from tensorpack._walk.checks import Checks
from tensorpack._walk.hidden import hidden_in
from tensorpack._walk.host_values import is_host_value
from tensorpack._walk.values import (
    Kind,
    is_leaf_class,
    is_of_payload,
    is_payload,
    items_of,
    kind_by_class,
    kind_of,
    payload_plan,
)
from tensorpack.errors import CycleError

__all__ = ["Entries", "Walk"]


class Entries(dict[str, object]):
    """Some entries of a mapping, walked together: their names begin the keys."""


class Walk(Checks):
    """Collects the leaves of one object in plan order.

    Attributes:
        value: the object.
        keyed: whether (key, leaf) is collected instead of the leaf alone.
        leaves: the leaves that travel.
        hooked: whether a payload with `__payload_prepare__` was met.
        plain: whether the class of every leaf to record is `Tensor` itself.
    """

    __slots__ = "_aside", "_open", "add", "hooked", "leaves", "plain"

    _kind_of = staticmethod(kind_of)

    def __init__(self, value: Any, *, keyed: bool = False) -> None:
        super().__init__(value, keyed=keyed)
        self.leaves: list[Any] = []
        self.add = self.leaves.append
        self.hooked = False
        self.plain = False
        self._open: list[int] = []  # of few objects: a list is quicker than a set
        self._aside: Aside | None = None

    def run(self) -> "Walk":
        """Walk the object."""
        if is_payload(self.value):
            self.nested(self.value, "")
        elif isinstance(self.value, Entries):
            for name, entry in self.value.items():
                self.dynamic(entry, str(name))
        else:
            self.dynamic(self.value, "")
        if self._aside is not None:
            self._aside.settle()
        return self

    @property
    def aside(self) -> "Aside":
        """The walk that collects what is recorded but never moved."""
        if self._aside is None:
            self._aside = Aside(self)
        return self._aside

    @property
    def cached(self) -> "CachedWalk":
        """The walk that collects what cached properties keep, among the others."""
        return self.aside.cached

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
                self._raise(leaf, self.key_of(leaf), *mismatch.no_leaf(leaf))

    def nested(self, value: Any, key: str) -> None:
        """Walk a payload by the plan of its own class."""
        cls = type(value)
        plan = getattr(cls, PLAN, None)
        # Not `is None`: a metaclass with a `__getattr__` may give anything.
        if plan.__class__ is not ClassPlan or plan.cls is not cls:
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
        if is_of_payload(type(value)):
            payload_plan(type(value), self._address(key) if key else "")
        self._raise(value, key, *mismatch.no_payload(value))

    def adapted(self, value: object, key: str) -> None:
        """Walk a value through the adapter of its class."""
        adapter = adapter_of(type(value))
        if adapter is None:
            self._raise(value, key, *mismatch.no_adapter(value))
        for index, leaf in enumerate(adapter.leaves(value)):
            if not isinstance(leaf, Tensor):
                self._raise(leaf, f"{key}[{index}]", *mismatch.no_tensor(adapter))
            self._found(leaf, f"{key}[{index}]")

    def _found(self, leaf: object, key: str) -> None:
        self.add((key, leaf) if self.keyed else leaf)

    def dynamic(self, value: Any, key: str) -> None:
        """Walk a value by the types that are found in it."""
        match self._kind_of(value):
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
        self._items(value, key)
        self._open.pop()

    def _items(self, value: Any, key: str) -> None:
        """Walk what is in a container."""
        if isinstance(value, dict):
            self.names(value, key)
        for mark, item in items_of(value):
            self.dynamic(item, f"{key}{mark}")

    def _close(self, value: object, key: str) -> None:
        """Raise for a value that is met again inside itself."""
        name = type(value).__qualname__
        raise CycleError(cls=name, key=self._address(key) if key else name)


class Aside(Walk):
    """Collects what is recorded but never moved, beside the leaves of another walk."""

    __slots__ = ("_cached",)

    def __init__(self, outer: Walk) -> None:
        super().__init__(outer.value, keyed=outer.keyed)
        self._open = outer._open
        self._cached: CachedWalk | None = None

    @property
    def aside(self) -> "Aside":
        """The walk itself: nothing that it meets is moved."""
        return self

    @property
    def cached(self) -> "CachedWalk":
        """The one walk that collects what cached properties keep."""
        if self._cached is None:
            self._cached = CachedWalk(self)
        return self._cached

    def settle(self) -> None:
        """Judge what could not be judged before the walk was over."""
        if self._cached is not None:
            self._cached.settle()


class CachedWalk(Aside):
    """Collects what cached properties keep, among what else is recorded.

    It is never moved, so a value is held to less than in a field: an object that leads
    back to its owner is fine, since that is walked already, and so is an object of
    unknown class, as long as no tensor can be in it that is not recorded anyway.
    Each object is walked once, however many lead to it.
    """

    # What waits is on a list, not on the stack of calls: a chain may have any length.
    __slots__ = "_around", "_busy", "_done", "_doubts", "_rest"

    def __init__(self, outer: Aside) -> None:
        super().__init__(outer)
        self.leaves, self.add = outer.leaves, outer.add
        self._open = []
        self._around = outer._open
        self._busy = False
        self._done: dict[
            int, object
        ] = {}  # which keeps the objects, so no id comes again
        self._doubts: list[tuple[object, str, bool]] = []
        self._rest: list[tuple[Callable[..., None], object, str]] = []

    @property
    def cached(self) -> "CachedWalk":
        """The walk itself."""
        return self

    _kind_of = staticmethod(kind_by_class)

    def dynamic(self, value: Any, key: str) -> None:
        """Walk a value by the types that are found in it."""
        if issubclass(type(value), Tensor):
            self._found(value, key)
        else:
            self._put(Walk.dynamic, value, key)

    def nested(self, value: Any, key: str) -> None:
        """Walk a payload by the plan of its own class."""
        self._put(Walk.nested, value, key)

    def adapted(self, value: object, key: str) -> None:
        """Walk a value through the adapter of its class."""
        if self._enter(value):
            super().adapted(value, key)
            self._open.pop()

    def _put(self, visit: Callable[..., None], value: object, key: str) -> None:
        """Visit a value, or have it visited next where another is being visited."""
        # Code that is traced moves leaves and records none, and cannot search.
        if is_compiling():
            return
        rest = self._rest
        rest.append((visit, value, key))
        if self._busy:
            return
        self._busy = True
        while rest:
            visit, value, key = rest.pop()
            start = len(rest)
            visit(self, value, key)
            rest[start:] = rest[start:][::-1]  # so that the first one put comes next
        self._busy = False

    def _enter(self, value: object) -> bool:
        """Note that a value is walked; say no if it was, or is by the walk around."""
        if id(value) in self._done or id(value) in self._around:
            return False
        self._done[id(value)] = value
        return super()._enter(value)

    def _close(self, value: object, key: str) -> None:
        """Let a value be that is walked already."""

    def _items(self, value: Any, key: str) -> None:
        """Walk what is in a container, and note what makes the missing items."""
        held: Any = value  # as it is now: another thread may change what is cached
        if isinstance(value, dict):
            held = dict(value)
            parts = (*held, *held.values())
        else:
            held = (
                list(value) if isinstance(value, (list, collections.deque)) else value
            )
            parts = tuple(held)
        if not PLAIN.issuperset(map(type, parts)):
            super()._items(held, key)
        if type(value) is collections.defaultdict:
            self._unsupported(value.default_factory, key)

    def names(self, value: dict[object, object], key: str) -> None:
        """Note the keys of a mapping that are no host values."""
        self._doubts += [(n, key, True) for n in value if not is_host_value(n)]

    def _unsupported(self, value: object, key: str) -> None:
        """Note a value of unknown class: what it holds may be walked later."""
        self._doubts.append((value, key, False))

    def settle(self) -> None:
        """Raise for a value that has or may have a tensor inside.

        What the object is known to hold elsewhere is recorded there, so it is no
        matter who else holds it.
        """
        for value, key, is_name in self._doubts:
            culprit = hidden_in(value, self._done)
            if culprit is not None:
                culprit = hidden_in(value, self._all_known())
            if culprit is not None and is_name:
                self._raise(value, key, *mismatch.key_of_mapping())
            elif culprit is not None:
                self._raise(value, key, *mismatch.hidden(value, culprit))

    def _all_known(self) -> set[int]:
        """Name all that is walked or recorded, in fields too."""
        whole = Aside(Walk(self.value))
        entries = isinstance(self.value, Entries)
        for value in self.value.values() if entries else (self.value,):
            whole.cached.dynamic(value, "")
        return {*whole.cached._done, *map(id, whole.leaves)}


if not TRACES_ALL:
    let_trace_as(Walk._enter, Walk._enter_untold)
