"""The walk of a whole object: its leaves, checked, with or without their keys.

A `Walk` collects the leaves of an object in plan order, and is what generated code
calls while it runs. The keys of leaves are not needed while all is well, so they are
made by a second, keyed walk when something asks for them. Values whose type is only
known at run time are walked here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never

from torch import Tensor

from tensorpack._leaves.adapters import adapter_of
from tensorpack._leaves.host_types import PLAIN
from tensorpack._leaves.tracing import let_trace_as
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.containers import MAPPING_CLASSES, SEQUENCE_CLASSES
from tensorpack._rules.markers import PLAN
from tensorpack._walk import mismatch
from tensorpack._walk.mappings import Selection
from tensorpack._walk.values import (
    Kind,
    a_class,
    is_host_value,
    is_leaf_class,
    is_of_payload,
    is_payload,
    items_of,
    kind_of,
    payload_plan,
)
from tensorpack.errors import CycleError, LeafError

__all__ = ["Pair", "Walk", "pairs", "walk"]

Pair = tuple[str, Any]
"""The key of a leaf, and the leaf."""

_ONLY_TENSORS = {Tensor}
_CONTAINERS = SEQUENCE_CLASSES | MAPPING_CLASSES | {set, frozenset}
_DEEPEST = 20  # containers in one another: a list may hold itself


class Walk:
    """Collects the leaves of one object in plan order, and raises for a wrong value.

    Attributes:
        value: the object.
        keyed: whether (key, leaf) is collected instead of the leaf alone.
        leaves: the leaves that travel.
        add: takes the next leaf.
        hooked: whether a payload with `__payload_prepare__` was met.
        only_tensors: whether the class of every leaf to record is `Tensor` itself.
    """

    __slots__ = (
        "_open",
        "_record_only",
        "add",
        "hooked",
        "keyed",
        "leaves",
        "only_tensors",
        "value",
    )

    def __init__(self, value: Any, *, keyed: bool = False) -> None:
        self.value: Any = value
        self.keyed: bool = keyed
        self.leaves: list[Any] = []
        self.add: Callable[[Any], None] = self.leaves.append
        self.hooked: bool = False
        self.only_tensors: bool = False
        self._open: list[int] = []  # of few objects: no set is quicker
        self._record_only: Walk | None = None

    def run(self) -> "Walk":
        """Walk the object."""
        if is_payload(self.value):
            self.nested(self.value, "")
        elif isinstance(self.value, Selection):
            for name, entry in self.value.items():
                self.dynamic(entry, str(name))
        else:
            self.dynamic(self.value, "")
        return self

    @property
    def record_only(self) -> "Walk":
        """The walk that collects what is recorded but never moved."""
        if self._record_only is None:
            self._record_only = inner = Walk(self.value, keyed=self.keyed)
            inner._open = self._open
            inner._record_only = inner
        return self._record_only

    def recordable(self) -> list[Any]:
        """List every leaf to record: those that travel, then the others."""
        if self._record_only is None:
            return self.leaves
        return self.leaves + self._record_only.leaves

    @property
    def root(self) -> str:
        """The name of the object's class if it is a payload, else ""."""
        return type(self.value).__qualname__ if is_payload(self.value) else ""

    def key_of(self, leaf: object) -> str:
        """Find the key of a leaf that this walk has collected."""
        again = Walk(self.value, keyed=True).run()
        return next((key for key, found in again.recordable() if found is leaf), "")

    def where(self, leaf: object) -> tuple[str, str]:
        """Return the name of the object's class, and the key of a leaf in it."""
        return self.root, self.key_of(leaf)

    # Values that are walked.

    def nested(self, value: Any, key: str) -> None:
        """Walk a payload by the plan of its own class."""
        cls = type(value)
        plan = getattr(cls, PLAN, None)
        # Not `is None`: a metaclass with a `__getattr__` may give anything.
        if plan.__class__ is not ClassPlan or plan.cls is not cls:
            self._refuse_unplanned(value, key)
        if plan.hooked:
            self.hooked = True
        self._enter(value, key)
        visit = cls.__tensorpack_keyed__ if self.keyed else cls.__tensorpack_leaves__
        visit(value, self, f"{key}." if key else "")
        self._open.pop()

    def adapted(self, value: object, key: str) -> None:
        """Walk a value through the adapter of its class."""
        adapter = adapter_of(type(value))
        if adapter is None:
            self._raise(value, key, mismatch.no_adapter(value))
        for index, leaf in enumerate(adapter.leaves(value)):
            if not isinstance(leaf, Tensor):
                self._raise(leaf, f"{key}[{index}]", mismatch.no_tensor(adapter))
            self._found(leaf, f"{key}[{index}]")

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
                self._enter(value, key)
                if isinstance(value, dict):
                    self.check_keys(value, key)
                for mark, item in items_of(value):
                    self.dynamic(item, f"{key}{mark}")
                self._open.pop()
            case Kind.HOST:
                return
            case Kind.UNKNOWN:
                self._refuse_unknown(value, key)

    def _found(self, leaf: object, key: str) -> None:
        self.add((key, leaf) if self.keyed else leaf)

    def _enter(self, value: object, key: str) -> None:
        """Note that a value is being walked; raise if it already is."""
        if id(value) in self._open:
            name = type(value).__qualname__
            raise CycleError(cls=name, key=self._address(key) if key else name)
        self._open.append(id(value))

    def _enter_unseen(self, value: object, key: str) -> None:  # noqa: ARG002  # the same
        """Do what `_enter` does, but for cycles, where `id` cannot be traced."""
        self._open.append(0)

    # Values that are checked, in generated code after a quick test has failed.

    def check_leaves(self, classes: set[type]) -> None:
        """Raise for a leaf, of one of the classes, that cannot be moved or recorded."""
        bad = {cls for cls in classes if not is_leaf_class(cls)}
        for leaf in self.recordable():
            # `isinstance` is asked last: a mock may only say that it is a tensor.
            if type(leaf) in bad and not isinstance(leaf, Tensor):
                self._raise(leaf, self.key_of(leaf), mismatch.no_leaf(leaf))

    def check_host(self, value: object, key: str) -> None:
        """Raise for a value that is not a host value; of a container, its first item.

        Only the first item is looked at, and of that the first one: the walk of a long
        list of numbers would cost more than the move of a small tensor.
        """
        for _ in range(_DEEPEST):
            if type(value) not in _CONTAINERS or not value:
                break
            first = next(iter(value))  # type: ignore[call-overload]  # a container has
            if isinstance(value, dict):
                if type(first) not in PLAIN:
                    self.check_keys({first: None}, key)
                value, key = value[first], f"{key}[{first!r}]"
            else:
                value, key = first, f"{key}[0]"
        if type(value) not in PLAIN and not is_host_value(value):
            self._raise(value, key, mismatch.not_host(value))

    def check_host_struct(self, value: object, key: str) -> None:
        """Raise for a value that is not the host struct that is annotated."""
        if isinstance(value, Tensor):
            self._raise(value, key, mismatch.not_host(value))
        if not is_host_value(value):
            self._raise(value, key, mismatch.no_host_struct(value))

    def check_host_only(self, value: object, key: str) -> None:
        """Raise for a tensor on a device where the value must stay on the host."""
        if isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            self._raise(value, key, mismatch.on_device(value))

    def check_union(self, value: object, key: str, types: tuple[type, ...]) -> None:
        """Raise for a value that matches no arm of a union with leaves.

        Args:
            value: a value that is not of an arm with leaves.
            key: its key.
            types: the host types among the arms.
        """
        if type(value) in types:
            self.check_host(value, key)
        elif not is_host_value(value):
            self._raise(value, key, mismatch.no_arm(value))

    def check_keys(self, value: dict[object, object], key: str) -> None:
        """Raise for a leaf that is the key of a mapping."""
        for name in value:
            if not is_host_value(name):
                self._raise(name, key, mismatch.key_of_mapping())

    def check_container(self, value: object, key: str, wanted: str) -> None:
        """Raise for a value that is not a container of the annotated class."""
        self._raise(value, key, mismatch.wrong_container(value, wanted))

    def check_length(self, value: Sequence[object], key: str, length: int) -> None:
        """Raise for a tuple whose length is not the annotated one."""
        self._raise(value, key, mismatch.wrong_length(value, length))

    def check_known_keys(
        self, value: Mapping[str, object], key: str, keys: frozenset[str]
    ) -> None:
        """Raise for keys that a typed dictionary does not declare."""
        names = [name for name in value if name not in keys]
        self._raise(value, key, mismatch.unknown_keys(names))

    def check_no_extra(self, value: Any, names: frozenset[str], at: str) -> None:
        """Raise for attributes of an instance that are not fields."""
        name = next(name for name in vars(value) if name not in names)
        said = mismatch.no_field(type(value), name)
        self._raise(vars(value)[name], f"{at}{name}", said)

    def _refuse_unplanned(self, value: object, key: str) -> Never:
        """Raise for a value that is not a payload, where one is annotated."""
        if is_of_payload(type(value)):
            payload_plan(type(value), self._address(key) if key else "")
        self._raise(value, key, mismatch.no_payload(value))

    def _refuse_unknown(self, value: object, key: str) -> Never:
        """Raise for a value of unknown class."""
        around = None if "." in key or is_payload(self.value) else self.value
        if isinstance(around, dict) and not any(value is x for x in around.values()):
            around = [value]  # not an entry itself
        self._raise(value, key, mismatch.no_support(value, around))

    def _address(self, key: str) -> str:
        """Put the name of the class before a key."""
        return f"{self.root}.{key}" if self.root else key

    def _raise(self, value: object, key: str, said: mismatch.Said) -> Never:
        problem, remedy = said
        raise LeafError(
            cls=self.root,
            key=key,
            found=a_class(type(value)),
            problem=problem,
            remedy=remedy,
        )


let_trace_as(Walk._enter, Walk._enter_unseen)


def walk(value: Any) -> Walk:
    """Walk a payload, or any value by the types found in it.

    Raises:
        LeafError: something in it is not what its annotation says.
    """
    cls = type(value)
    plan = getattr(cls, PLAN, None)
    if plan.__class__ is ClassPlan and plan.cls is cls:
        # `Walk(value).run()`, spelled out: see Note [cold caches].
        found = object.__new__(Walk)
        found.value, found.keyed, found.hooked = value, False, plan.hooked
        found.leaves = []
        found.add = found.leaves.append
        found._open, found._record_only = [id(value)], None
        try:
            cls.__tensorpack_leaves__(value, found, "")
        except RecursionError:
            raise mismatch.too_deep(cls) from None
    else:
        found = Walk(value).run()
    leaves = found.leaves if found._record_only is None else found.recordable()
    classes = set(map(type, leaves))
    found.only_tensors = classes == _ONLY_TENSORS
    if not found.only_tensors:
        found.check_leaves(classes)
    return found


def pairs(value: Any) -> list[Pair]:
    """List the leaves that travel, each with its key."""
    walk(value)
    return Walk(value, keyed=True).run().leaves
