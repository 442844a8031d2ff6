"""Random payload classes, values of them, and a walker that knows no plan.

A little universe of classes is drawn, in which a later class may hold or derive from
an earlier one. What a field is for is told by its name alone: `host_`, `borrowed_` and
`derived_` fields are marked so, and the walker goes by that.
"""

import collections
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict, Union

import attrs
import torch
from subjects import Opaque
from torch import Tensor

from tensorpack import (
    Borrowed,
    Derived,
    Dynamic,
    HostOnly,
    LifetimeAdapter,
    Payload,
    payload,
)

DEEPEST = 4
FIELDS = 4


class Draw(Protocol):
    """Decides: hypothesis does, or a random number generator."""

    def choice(self, options: Sequence[Any], /) -> Any:
        """Pick one of some options."""


class Handle:
    """A foreign object that travels by an adapter."""

    def __init__(self, keys: Any, name: str) -> None:
        self.keys = keys
        self.name = name


class HandleAdapter(LifetimeAdapter[Handle]):
    """Lists the one leaf of a handle."""

    def leaves(self, value: Handle) -> Sequence[Tensor]:
        return [value.keys]

    def rebuild(self, value: Handle, leaves: Sequence[Tensor]) -> Handle:
        return Handle(leaves[0], value.name)


class Own(Opaque):
    """A leaf that is no tensor."""

    def pin_memory(self) -> "Own":
        return Own(str(self.device))

    def clone(self) -> "Own":
        return Own(str(self.device))

    def to_device(self, device: Any, non_blocking: bool = False) -> "Own":
        return self if torch.device(device) == self.device else Own(str(device))


class Stay:
    """An object that a marker keeps where it is, with a tensor that nobody may see."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


@attrs.define
class Maker:
    """Makes values: the same structure for the same seed, with leaves of one kind.

    Those on the device are made where streams are recorded.
    """

    seed: int
    device: bool
    dice: random.Random = attrs.field(init=False)
    leaves: list[Tensor] = attrs.field(factory=list)
    objects: dict[object, list[Any]] = attrs.field(
        factory=lambda: collections.defaultdict(list)
    )

    def __attrs_post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def leaf(self) -> Tensor:
        """Make a leaf, or take one that there is."""
        if self.leaves and self.dice.random() < 0.15:
            return self.dice.choice(self.leaves)
        made = torch.rand(2, device="cuda" if self.device else "cpu")
        self.leaves.append(made)
        return made

    def own(self) -> Own:
        """Make a leaf that is no tensor."""
        return Own("cuda:0" if self.device else "cpu")

    def count(self) -> int:
        """Choose the length of a container."""
        return self.dice.choice([0, 1, 1, 2])

    def shared(self, kind: object, make: Callable[[], Any]) -> Any:
        """Make an object, or take one of its kind that there is."""
        if self.objects[kind] and self.dice.random() < 0.1:
            return self.dice.choice(self.objects[kind])
        made = make()
        self.objects[kind].append(made)
        return made

    def maybe(self, make: Callable[[], Any]) -> Any:
        """Make a value, or none."""
        return None if self.dice.random() < 0.15 else make()


@attrs.frozen
class Kind:
    """A type: how it is annotated, and how a value of it is made."""

    annotation: Any
    make: Callable[[Maker], Any]


LEAF = Kind(Tensor, lambda maker: maker.leaf())
NUMBER = Kind(int, lambda maker: maker.dice.randrange(9))
TEXT = Kind(str, lambda maker: maker.dice.choice("abc"))
HANDLE = Kind(Handle, lambda maker: Handle(maker.leaf(), "name"))
OWN = Kind(Own, lambda maker: maker.own())
STAY = Kind(HostOnly[object], lambda _: Stay(torch.rand(1)))
PLAIN = (LEAF, LEAF, LEAF, NUMBER, TEXT, HANDLE, OWN, STAY)


@attrs.define
class Universe:
    """Draws classes, one after the other."""

    draw: Draw
    classes: list[Any] = attrs.field(factory=list)
    makers: dict[Any, Callable[[Maker], Any]] = attrs.field(factory=dict)

    def add_class(self) -> Any:
        """Draw one payload class more."""
        decorate, key = self.draw.choice(DECORATORS)
        bases = [c for c in self.classes if c.__made_by__ == key]
        base = self.draw.choice([None, None, *bases]) or self.draw.choice(
            [object, Payload]
        )
        inherited = getattr(base, "__kinds__", {})
        kinds: dict[str, Kind] = {}
        for number in range(self.draw.choice(range(1, FIELDS + 1))):
            role = self.draw.choice(
                ["f", "f", "f", "_f", "host", "borrowed", "derived"]
            )
            kinds[f"{role}{len(inherited) + number}"] = self._field_kind(role)
        namespace: dict[str, Any] = {
            "__annotations__": {name: kind.annotation for name, kind in kinds.items()},
            "__module__": __name__,
            "__made_by__": key,
            "__kinds__": {**inherited, **kinds},
        }
        namespace |= {n: None for n in kinds if n.startswith("derived")}
        cls = payload(decorate(type(f"C{len(self.classes)}", (base,), namespace)))
        self.classes.append(cls)
        self.makers[cls] = lambda maker: self._instance(cls, maker)
        return cls

    def _instance(self, cls: Any, maker: Maker) -> Any:
        values = {n: k.make(maker) for n, k in cls.__kinds__.items()}
        names = {n: n.lstrip("_") for n in values} if attrs.has(cls) else {}
        return cls(**{names.get(n, n): value for n, value in values.items()})

    def _field_kind(self, role: str) -> Kind:
        match role:
            case "host":
                return Kind(HostOnly[object], lambda _: [torch.rand(2)])
            case "borrowed":
                return Kind(Borrowed[object], lambda m: [{"x": m.leaf()}])
            case "derived":
                inner = self._kind(1)
                return Kind(
                    Derived[Union[inner.annotation, None]],
                    lambda m: m.maybe(lambda: inner.make(m)),
                )
            case _:
                return self._kind(1)

    def _kind(self, depth: int, without: frozenset[str] = frozenset()) -> Kind:
        """Draw a type of at most the allowed depth, without some forms in it."""
        forms = [self._plain]
        if depth < DEEPEST:
            forms += [self._sequence, self._mapping, self._fixed, self._named]
            forms += [self._union, self._optional]
            forms += [self._typed] if "typed" not in without else []
            forms += [self._open] if "open" not in without else []
        if self.classes:
            forms += [self._nested, self._nested]
        return self.draw.choice(forms)(depth, without)

    def _plain(self, _: int, without: frozenset[str]) -> Kind:
        return self.draw.choice(
            [k for k in PLAIN if k is not STAY or "stay" not in without]
        )

    def _nested(self, *_: object) -> Kind:
        cls = self.draw.choice(self.classes)
        values = [c for c in self.classes if issubclass(c, cls)]
        return Kind(
            cls,
            lambda m: m.shared(cls, lambda: self.makers[m.dice.choice(values)](m)),
        )

    def _sequence(self, depth: int, without: frozenset[str]) -> Kind:
        annotation, classes = self.draw.choice(SEQUENCES)
        item = self._kind(depth + 1, without)

        def make(maker: Maker) -> Any:
            items = (
                maker.maybe(lambda: item.make(maker)) for _ in range(maker.count())
            )
            return maker.dice.choice(classes)(list(items))

        parameters = (item.annotation, ...) if annotation is tuple else item.annotation
        return Kind(annotation[parameters], make)

    def _mapping(self, depth: int, without: frozenset[str]) -> Kind:
        annotation, classes = self.draw.choice(MAPPINGS)
        value = self._kind(depth + 1, without)

        def make(maker: Maker) -> Any:
            made: Any = maker.dice.choice(classes)()
            for number in range(maker.count()):
                made[f"k{number}"] = maker.maybe(lambda: value.make(maker))
            return made

        return Kind(annotation[str, value.annotation], make)

    def _fixed(self, depth: int, without: frozenset[str]) -> Kind:
        length = self.draw.choice([1, 2, 3])
        items = [self._kind(depth + 1, without) for _ in range(length)]
        return Kind(
            tuple[tuple(item.annotation for item in items)],
            lambda m: tuple(m.maybe(lambda i=item: i.make(m)) for item in items),
        )

    def _named(self, depth: int, without: frozenset[str]) -> Kind:
        items = {f"m{n}": self._kind(depth + 1, without) for n in range(2)}
        members = [(name, item.annotation) for name, item in items.items()]
        cls: Any = NamedTuple("Named", members)  # its members are drawn
        return Kind(cls, lambda m: cls(*(item.make(m) for item in items.values())))

    def _typed(self, depth: int, without: frozenset[str]) -> Kind:
        items = {f"k{n}": self._kind(depth + 1, without) for n in range(2)}
        members = {name: item.annotation for name, item in items.items()}
        cls: Any = TypedDict("Typed", members, total=False)

        def make(maker: Maker) -> Any:
            there = [n for n in items if maker.dice.random() < 0.8]
            return {name: items[name].make(maker) for name in there}

        return Kind(cls, make)

    def _union(self, depth: int, without: frozenset[str]) -> Kind:
        """Draw a union whose arms a value can tell apart."""
        inner, other = (
            self._kind(depth + 1, without | {"typed", "open"}) for _ in range(2)
        )
        arms = [
            [LEAF, NUMBER],
            [LEAF, _list(inner)],
            [_list(inner), TEXT],
            [LEAF, _list(inner), _dict(other)],
            [_list(inner), _tuple(other)],
            [HANDLE, LEAF],
            [OWN, _dict(inner)],
        ]
        if "stay" not in without:
            arms += [[HANDLE, LEAF, STAY], [_list(inner), STAY]]
        if "typed" not in without:
            arms += [[LEAF, self._typed(depth + 1, without), _list(inner)]]
        if "open" not in without:
            arms += [[LEAF, self._open(depth + 1, without)]]
        if self.classes:
            arms += [[self._nested(), LEAF, NUMBER], [_list(inner), self._nested()]]
        chosen = self.draw.choice(arms)
        return Kind(
            Union[tuple(arm.annotation for arm in chosen)],  # arms are drawn
            lambda m: m.dice.choice(chosen).make(m),
        )

    def _optional(self, depth: int, without: frozenset[str]) -> Kind:
        inner = self._kind(depth, without)
        return Kind(
            Union[inner.annotation, None], lambda m: m.maybe(lambda: inner.make(m))
        )

    def _open(self, depth: int, without: frozenset[str]) -> Kind:
        """Draw a value whose type is only known at run time: no marker is."""
        items = [self._kind(depth + 1, without | {"stay"}) for _ in range(2)]

        def make(maker: Maker) -> Any:
            made = [item.make(maker) for item in items]
            return maker.dice.choice([made, {"a": made, 3: tuple(made)}])

        return Kind(Dynamic[Any], make)


def _list(item: Kind) -> Kind:
    return Kind(
        list[item.annotation], lambda m: [item.make(m) for _ in range(m.count())]
    )


def _tuple(item: Kind) -> Kind:
    return Kind(
        tuple[item.annotation, ...],
        lambda m: tuple(item.make(m) for _ in range(m.count())),
    )


def _dict(item: Kind) -> Kind:
    return Kind(
        dict[str, item.annotation],
        lambda m: {f"k{n}": item.make(m) for n in range(m.count())},
    )


DECORATORS = [
    (attrs.define(kw_only=True), "attrs"),
    (attrs.define(kw_only=True, slots=False), "attrs-dict"),
    (attrs.frozen(kw_only=True), "attrs-frozen"),
    (dataclasses.dataclass(kw_only=True), "data"),
    (dataclasses.dataclass(kw_only=True, frozen=True), "data-frozen"),
    (dataclasses.dataclass(kw_only=True, slots=True), "data-slots"),
]
SEQUENCES: list[tuple[Any, list[Any]]] = [
    (list, [list]),
    (tuple, [tuple]),
    (collections.deque, [collections.deque]),
    (Sequence, [list, tuple, collections.deque]),
]
MAPPINGS: list[tuple[Any, list[Any]]] = [
    (dict, [dict, collections.OrderedDict]),
    (collections.OrderedDict, [collections.OrderedDict]),
    (collections.defaultdict, [lambda: collections.defaultdict(list)]),
    (Mapping, [dict, collections.OrderedDict]),
]


@attrs.define
class Found:
    """What the walker has found: leaves by key, those aside, and all objects."""

    leaves: dict[str, Any] = attrs.field(factory=dict)
    aside: dict[str, Any] = attrs.field(factory=dict)
    objects: list[tuple[str, object]] = attrs.field(factory=list)


def walk_by_hand(value: object) -> Found:
    """Find every leaf of a value by looking at everything it holds."""
    found = Found()
    _visit(value, "", found, found.leaves)
    return found


def _visit(value: Any, key: str, found: Found, leaves: dict[str, Any]) -> None:
    found.objects.append((key, value))
    if isinstance(value, (Tensor, Own)):
        leaves[key] = value
    elif isinstance(value, Handle):
        leaves[f"{key}[0]"] = value.keys
    elif isinstance(value, dict):
        for name, item in value.items():
            _visit(item, f"{key}[{name!r}]", found, leaves)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, item in zip(value._fields, value, strict=True):
            _visit(item, f"{key}.{name}", found, leaves)
    elif isinstance(value, (list, tuple, collections.deque)):
        for index, item in enumerate(value):
            _visit(item, f"{key}[{index}]", found, leaves)
    elif hasattr(type(value), "__kinds__"):
        for name, item in attributes(value):
            where = f"{key}.{name}" if key else name
            if name.startswith(("host", "borrowed")):
                found.objects.append((where, item))
            elif name.startswith("derived"):
                _visit(item, where, found, found.aside)
            else:
                _visit(item, where, found, leaves)


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Iterate all that an object keeps, in slots or in its dictionary."""
    names = {
        name
        for base in type(value).__mro__
        for name in vars(base).get("__slots__", ())
        if not name.startswith("__")
    }
    for name in (*sorted(names), *getattr(value, "__dict__", ())):
        yield name, getattr(value, name)
