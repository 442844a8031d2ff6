"""Why a type is refused, and what to write instead: every text, as data.

Both readers of annotations say a refusal by its name here, so that the words cannot
differ. In a template, `{name}` is the refused part as written and `{cls}` the name of
its class; a few have holes of their own.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final, Never, TypeVar

from tensorpack.errors import Refusal, TensorpackError

__all__ = [
    "ALIAS_TOO_EARLY",
    "CACHED",
    "CALLABLE",
    "CLASSES",
    "COMPUTED_DEFAULT",
    "CONTAINER_VALUE",
    "CONTRADICTED",
    "DEVICE_OBJECTS",
    "ENDLESS",
    "FOREIGN_BASE",
    "FUNCTION",
    "INIT_ONLY",
    "INNER_DERIVED",
    "INNER_RESIDENT",
    "KEY",
    "MARKERS",
    "NOT_A_TYPE",
    "NO_ANNOTATION",
    "NO_DEFAULT",
    "ONE_PARAMETER",
    "OPEN",
    "REFERS_TO_ITSELF",
    "SET",
    "SHARED_DEFAULT",
    "STRUCT",
    "TWO_ARMS",
    "TWO_DICTIONARIES",
    "UNBOUND",
    "UNDECORATED",
    "UNFIT",
    "UNKNOWN_NAME",
    "UNPACKED",
    "UNREADABLE",
    "UNTYPED_MEMBER",
    "Reason",
    "RefusedError",
    "lost_field",
    "refusal_of_class",
    "refuse",
    "unsupported",
]

Q = TypeVar("Q")


class RefusedError(TensorpackError):
    """A part of an annotation has no lifetime support; becomes a field's `Refusal`.

    Attributes:
        culprit: the part, as written.
        reason: why it has none, as a clause.
        remedies: what to write instead, one sentence each.
    """

    def __init__(self, culprit: str, reason: str, remedies: tuple[str, ...]) -> None:
        self.culprit = culprit
        self.reason = reason
        self.remedies = remedies
        super().__init__(f"`{culprit}` {reason}.")

    def at(self, field: str, annotation: str) -> Refusal:
        """Return the refusal of the field whose annotation was read."""
        return Refusal(field, annotation, self.culprit, self.reason, self.remedies)


@dataclasses.dataclass(frozen=True)
class Reason:
    """A reason to refuse a type, with its remedies, as templates.

    Attributes:
        clause: why, as a clause whose subject is the refused part.
        remedies: what to write instead, one sentence each.
    """

    clause: str
    remedies: tuple[str, ...]

    def error(self, name: str, **holes: object) -> RefusedError:
        """Compose the error for the part written as `name`."""
        filled = {"name": name, **holes}
        remedies = tuple(remedy.format(**filled) for remedy in self.remedies)
        return RefusedError(name, self.clause.format(**filled), remedies)

    def refuse(self, name: str, **holes: object) -> Never:
        """Refuse the part written as `name`."""
        raise self.error(name, **holes)


def refuse(culprit: str, reason: str, *remedies: str) -> Never:
    """Refuse a part of an annotation, for a reason that only one reader knows."""
    raise RefusedError(culprit, reason, remedies)


_IF_HOST: Final = "Or write `HostOnly[{name}]` if it never holds device memory."
_STAYS: Final = "Or write `HostOnly[{name}]` if it stays on the host."
_WALKED: Final = "Or write `Dynamic[{name}]` to have its values walked at run time."
_ADAPTER: Final = "Write a `LifetimeAdapter[{cls}]`."
_AS_IT_IS: Final = "Write `Borrowed[{name}]` to pass on the same object."
_DECORATE: Final = "Decorate `{cls}` with `@payload`, or call `payload({cls})`."
_FIX: Final = "Fix the annotation."

# Annotations that cannot be read.
UNREADABLE = Reason("cannot be read: {error}", (_FIX,))
REFERS_TO_ITSELF = Reason("refers to itself", (_FIX,))
ALIAS_TOO_EARLY = Reason(
    "cannot be read: {error}", ("Define the name before the class.",)
)
UNKNOWN_NAME = Reason(
    "is a name that cannot be resolved when the class is made",
    (
        "Import it at run time (not under `TYPE_CHECKING`), before the class.",
        'Or write `Dynamic["{name}"]` to have its values walked at run time.',
        'Or write `HostOnly["{name}"]` if it stays on the host.',
    ),
)
FUNCTION = Reason(
    "is a function, not a type",
    (
        "Write the type: `Tensor` for `torch.tensor`, `np.ndarray` for `np.array`.",
        "Or mark the field `HostOnly` if it stays on the host.",
    ),
)
CONTAINER_VALUE = Reason(
    "is a {kind}, not a type",
    ("Write `{kind}[...]`: `list[Tensor]`, `dict[str, Tensor]`.",),
)
NOT_A_TYPE = Reason(
    "is not a type tensorpack can move and record",
    ("Write the type of the value, or mark the field `HostOnly`.",),
)

# Types that leave something open.
OPEN = Reason(
    "does not say what it contains",
    ("Name the types (`list[Tensor]`, `dict[str, Tensor]`).", _WALKED, _STAYS),
)
UNBOUND = Reason(
    "is a type variable that nothing binds",
    (
        "Bind it in a subclass (`class Child(Base[Tensor])`) and decorate that.",
        "Or give it a bound: `TypeVar('{name}', bound=Tensor)`.",
    ),
)
ENDLESS = Reason("contains itself without end", ("Write `Dynamic[{name}]`.",))
UNTYPED_MEMBER = Reason(
    "does not say what `{member}` is",
    ("Write `class {name}(NamedTuple)` with typed members.",),
)

# Markers.
MARKERS = Reason("has {count} markers: {markers}", ("Keep one of them.",))
INNER_RESIDENT = Reason(
    "is inside another type, but only a whole field stays resident",
    ("Mark the whole field `Resident`.",),
)
INNER_DERIVED = Reason(
    "is inside another type, but only a whole field gets its default",
    ("Mark the whole field `Derived`.",),
)
CONTRADICTED = Reason(
    "has a marker on one arm that another arm contradicts",
    ("Mark the whole field with one of them.",),
)

# Containers and unions.
ONE_PARAMETER = Reason(
    "is not a valid annotation: `{kind}` takes one type",
    ("Write `{kind}[{item}]`, or `tuple[{item}, ...]`.",),
)
UNPACKED = Reason(
    "unpacks a tuple inside",
    ("Write `tuple[X | Y, ...]`, or a `NamedTuple` with one member for each part.",),
)
KEY = Reason(
    "is the key of a mapping, and keys stay on the host",
    ("Use a host type as the key, or write a `LifetimeAdapter` for the mapping.",),
)
SET = Reason(
    "contains leaves, whose hashes change when they move", ("Write `list[{item}]`.",)
)
TWO_ARMS = Reason("has {arms} that a value cannot tell apart", ("Write `{joined}`.",))
TWO_DICTIONARIES = Reason(
    "has two dictionary types that a value cannot tell apart",
    ("Keep one of them, or write `Dynamic[...]`.",),
)

# Classes.
UNDECORATED = Reason(
    "derives from a payload but is not decorated itself",
    ("Decorate `{cls}` with `@payload`.",),
)
CALLABLE = Reason(
    "is a callable, which may capture tensors",
    ("Write `HostOnly[{name}]` if it never holds device memory.",),
)
STRUCT = Reason(
    "has fields that are not host types, and is not a payload", (_DECORATE, _IF_HOST)
)
FOREIGN_BASE = Reason(
    "derives from `{base}`, which may hold more than its fields",
    (_ADAPTER, _IF_HOST),
)
CACHED = Reason(
    "keeps `{member}` in a cached property whose type is not a host type",
    (
        "Annotate what `{member}` returns with a host type.",
        "Or decorate `{cls}` with `@payload`, or call `payload({cls})`.",
        _IF_HOST,
    ),
)
_UNSUPPORTED = "has no lifetime support"
UNSUPPORTED = Reason(_UNSUPPORTED, (_ADAPTER, _IF_HOST))
NOT_DECORATED = Reason(
    _UNSUPPORTED,
    (
        "Decorate `{cls}` with `@payload`, or write a `LifetimeAdapter[{cls}]`.",
        _IF_HOST,
    ),
)

CLASSES: Mapping[str, Reason] = {
    "callable": CALLABLE,
    "abstract": Reason(
        "is abstract, so a move could not rebuild the same class",
        (
            "Write `Sequence[...]`, `Mapping[...]` or the name of a container.",
            _IF_HOST,
        ),
    ),
    "device object": Reason("belongs to a device and does not travel", (_AS_IT_IS,)),
    "module": Reason(
        "is a module, which moves in place and cannot be recorded", (_AS_IT_IS,)
    ),
    "container": Reason(
        "is a custom container, which tensorpack cannot rebuild",
        (_ADAPTER, _IF_HOST),
    ),
    "struct": STRUCT,
    "recorder": Reason(
        "has `record_stream` but no `to_device`/`to`, or no `is_cuda`/`device`",
        (
            "Add a `to_device` or `to`, and an `is_cuda` or `device`, to `{cls}`.",
            "Or write a `LifetimeAdapter[{cls}]`.",
        ),
    ),
}
"""The kinds of classes without lifetime support, in the order in which they are asked.

Each reader has a predicate for each; the first that holds gives the reason.
"""

DEVICE_OBJECTS = frozenset({"Stream", "Event", "Generator", "CUDAGraph", "Graph"})
"""Classes of torch that belong to a device, by name."""

# Fields.
NO_ANNOTATION = Reason("has no annotation", ("For example, write `{name}: Tensor`.",))
SHARED_DEFAULT = Reason(
    "has a `{kind}` as its default, which all instances would share",
    ("Write `{name}: {annotation} = attrs.field(factory={factory})`.",),
)
NO_DEFAULT = Reason(
    "needs a default, which a moved copy gets in its place",
    ("Write `{field}: {name} = None`.",),
)
COMPUTED_DEFAULT = Reason(
    "has a default that reads other fields, so a copy would compute it before their "
    "tensors are there",
    (
        "Compute it in a cached property instead: `def {field}(self)`.",
        "Or write a default that reads nothing: `{field}: {name} = None`.",
    ),
)
INIT_ONLY = Reason(
    "is passed to `__init__` but not stored, so it cannot travel",
    ("Make it a field, or compute from it before the class is made.",),
)
_LOST = (
    "is annotated in `{owner}` but is not a field of `{cls}`, so its value would be "
    "lost"
)
_OF_CLASS = "Or write `ClassVar[{name}]` if it belongs to the class."
LOST_BESIDE_FIELDS = Reason(
    _LOST,
    ("Write `{field}: {name} = attrs.field(...)`, as for the other fields.", _OF_CLASS),
)
LOST_FROM_ATTRS = Reason(
    _LOST, ("Decorate `{cls}` with `@attrs.define` under `@payload`.", _OF_CLASS)
)
LOST_FROM_DATACLASS = Reason(
    _LOST,
    ("Decorate `{cls}` with `@dataclasses.dataclass` under `@payload`.", _OF_CLASS),
)
LOST_FROM_PLAIN = Reason(
    _LOST, ("Decorate `{owner}` with `@attrs.define` or `@payload`.", _OF_CLASS)
)


_TRAVELS = "which travels without being a payload"
_AS_FIELD = "Use it as the type of a field."
UNFIT: Mapping[str, tuple[str, str]] = {
    "named tuple": (f"it is a named tuple, {_TRAVELS}", _AS_FIELD),
    "typed dictionary": (f"it is a typed dictionary, {_TRAVELS}", _AS_FIELD),
    "enumeration": ("it is an enumeration, which stays on the host", _AS_FIELD),
    "tensor": (f"it is a tensor, {_TRAVELS}", _AS_FIELD),
    "module": (
        "it is a module, whose parameters are not in fields",
        "Hold its tensors in a class of their own.",
    ),
    "protocol": (
        "it is a protocol, which has no instances",
        "Decorate the classes that implement it.",
    ),
}
"""What cannot be a payload, with the problem and what to do instead."""


def refusal_of_class(
    predicates: Mapping[str, Callable[[Q], bool]], asked: Q, name: str, cls: str
) -> RefusedError | None:
    """Return why a class is refused, by the first kind whose predicate holds.

    Args:
        predicates: whether a class is of a kind, for each kind of `CLASSES`.
        asked: what a predicate takes.
        name: the class as written, perhaps with parameters.
        cls: its name.
    """
    for kind, reason in CLASSES.items():
        if predicates[kind](asked):
            return reason.error(name, cls=cls)
    return None


def unsupported(name: str, cls: str, *, is_annotated: bool) -> RefusedError:
    """Return the refusal of a class of no known kind.

    Args:
        name: the class as written, perhaps with parameters.
        cls: its name.
        is_annotated: whether its body has annotations, so that it could be a payload.
    """
    return (NOT_DECORATED if is_annotated else UNSUPPORTED).error(name, cls=cls)


def lost_field(  # a sentence with six parts
    field: str, name: str, *, owner: str, cls: str, is_own: bool, maker: str
) -> RefusedError:
    """Return the refusal of an annotation that is not a field.

    Args:
        field: the annotated name.
        name: the annotation as written.
        owner: the class that annotates it.
        cls: the class that is decorated.
        is_own: whether they are the same.
        maker: what has made `owner`: `"attrs"`, `"dataclasses"` or nothing.
    """
    reason = LOST_FROM_PLAIN
    if is_own:
        reason = LOST_BESIDE_FIELDS
    elif maker == "attrs":
        reason = LOST_FROM_ATTRS
    elif maker == "dataclasses":
        reason = LOST_FROM_DATACLASS
    return reason.error(name, field=field, owner=owner, cls=cls)
