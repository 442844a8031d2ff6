"""Containers at any depth: what is found in them, and that the same type comes back."""

import collections
import dataclasses
import types
from collections.abc import (
    Callable,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from typing import Any, NamedTuple, NotRequired, Required, TypedDict

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import (
    Borrowed,
    DefinitionError,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeAdapter,
    LifetimeError,
    payload,
    tensors,
)


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


class Pair(NamedTuple):
    left: Tensor
    right: int = 0


class Strict(TypedDict):
    a: Tensor
    n: int


class Loose(Strict, total=False):
    b: Required[Tensor]
    c: list[Tensor]
    d: NotRequired[Tensor | None]


@payload
class Inner:
    t: Tensor


Untyped = collections.namedtuple("Untyped", "a b")  # noqa: PYI024  # as it is found


def holder(annotation: Any) -> Any:
    """Make a payload whose one field `x` has an annotation."""
    return payload(attrs.make_class("Holder", {"x": attrs.field(type=annotation)}))


def moved(annotation: Any, value: Any) -> Any:
    """Move a value as a field with an annotation; see that all leaves are moved."""
    before = holder(annotation)(value)
    after = before.to_device("meta")
    assert [key for key, _ in tensors(before)] == [key for key, _ in tensors(after)]
    assert all(leaf.is_meta for _, leaf in tensors(after))
    assert not any(leaf.is_meta for _, leaf in tensors(before))
    return after.x


def keys(annotation: Any, value: Any) -> list[str]:
    """List the keys of the leaves in a field, without its name."""
    return [key[1:] for key, _ in tensors(holder(annotation)(value))]


DEFAULTS = collections.defaultdict(list, {"a": [one()]})
CASES: dict[str, tuple[Any, Any, list[str]]] = {
    "list": (list[Tensor], [one(), None, one()], ["[0]", "[2]"]),
    "list of lists": (list[list[Tensor]], [[one()], [], None], ["[0][0]"]),
    "tuple": (tuple[Tensor, ...], (one(), one()), ["[0]", "[1]"]),
    "fixed tuple": (tuple[Tensor, int, Tensor], (one(), 1, None), ["[0]"]),
    "deque": (collections.deque[Tensor], collections.deque([one()], 3), ["[0]"]),
    "Sequence, list": (Sequence[Tensor], [one()], ["[0]"]),
    "Sequence, tuple": (Sequence[Tensor], (one(),), ["[0]"]),
    "Sequence, deque": (MutableSequence[Tensor], collections.deque([one()]), ["[0]"]),
    "dict": (dict[str, Tensor], {"a": one(), "b": None}, ["['a']"]),
    "dict by tuples": (
        dict[tuple[str, int], Tensor],
        {("a", 1): one()},
        ["[('a', 1)]"],
    ),
    "OrderedDict": (
        collections.OrderedDict[str, Tensor],
        collections.OrderedDict(b=one(), a=one()),
        ["['b']", "['a']"],
    ),
    "defaultdict": (
        collections.defaultdict[str, list[Tensor]],
        DEFAULTS,
        ["['a'][0]"],
    ),
    "defaultdict as dict": (dict[str, list[Tensor]], DEFAULTS, ["['a'][0]"]),
    "OrderedDict as dict": (
        dict[str, Tensor],
        collections.OrderedDict(a=one()),
        ["['a']"],
    ),
    "Mapping": (Mapping[int, Tensor], {3: one()}, ["[3]"]),
    "MutableMapping": (
        MutableMapping[str, Tensor],
        collections.OrderedDict(a=one()),
        ["['a']"],
    ),
    "named tuple": (Pair, Pair(one(), 3), [".left"]),
    "typed dict": (Strict, {"a": one(), "n": 3}, ["['a']"]),
    "partial typed dict": (
        Loose,
        {"a": one(), "b": one(), "d": None},
        ["['a']", "['b']"],
    ),
    "payloads in a mapping": (
        dict[str, list[Inner | None]],
        {"a": [Inner(one()), None]},
        ["['a'][0].t"],
    ),
    "all at once": (
        dict[str, tuple[list[Pair], Strict | None]],
        {"a": ([Pair(one())], {"a": one(), "n": 1}), "b": ([], None)},
        ["['a'][0][0].left", "['a'][1]['a']"],
    ),
}


@pytest.mark.parametrize(("annotation", "value", "expected"), CASES.values(), ids=CASES)
class TestSameTypeBack:
    """A moved container has the class and the host values of the original."""

    def test_keys_are_addresses(
        self, annotation: Any, value: Any, expected: list[str]
    ) -> None:
        """Each leaf is listed once, by the way to it; None is skipped."""
        assert expected == keys(annotation, value)

    def test_same_type_comes_back(
        self, annotation: Any, value: Any, expected: list[str]
    ) -> None:
        """The twin has the same class at every level."""
        new = moved(annotation, value)

        assert shape_of(value) == shape_of(new)
        assert new is not value


def shape_of(value: Any) -> Any:
    """Describe a value by its classes and host values, without its leaves."""
    if isinstance(value, Tensor):
        return "leaf"
    if isinstance(value, dict):
        return type(value), [(k, shape_of(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), [shape_of(v) for v in value]
    if isinstance(value, Inner):
        return type(value), shape_of(value.t)
    return value


def test_defaultdict_keeps_its_factory() -> None:
    """A moved defaultdict makes the same defaults."""
    new = moved(collections.defaultdict[str, list[Tensor]], DEFAULTS)

    assert [] == new["unseen"]
    assert "unseen" not in DEFAULTS


def test_deque_keeps_its_bound() -> None:
    """A moved deque has the same maximal length."""
    new = moved(collections.deque[Tensor], collections.deque([one()], maxlen=3))

    assert 3 == new.maxlen


@pytest.mark.parametrize(
    "annotation",
    [
        list[int],
        tuple[str, ...],
        dict[str, list[float]],
        tuple[tuple[int, ...], tuple[int, ...]],
        set[int],
        frozenset[str],
        list[list[HostOnly[object]]],
        dict[str, Borrowed[Tensor]],
    ],
    ids=str,
)
def test_container_of_host_values_stays_the_same_object(annotation: Any) -> None:
    """What holds nothing that travels is handed on as it is.

    A list of `HostOnly` values came back as a copy.
    """
    value = {"tuple": (), "dict": {}, "set": {1}, "frozenset": frozenset("a")}.get(
        annotation.__origin__.__name__, []
    )
    cls = holder(annotation)

    assert ((), ("x",)) == (cls.payload_keys(), cls.host_keys())
    assert cls(value).to_device("meta").x is value


class TestTypedDict:
    """A typed dictionary has the keys that it declares, and may lack some."""

    def test_missing_keys_stay_missing(self) -> None:
        """A key that is not there is not made up."""
        assert ["b", "a"] == list(moved(Loose, {"b": one(), "a": one()}))

    def test_extra_key_raises(self) -> None:
        """A key that nobody declares has no type to go by."""
        with pytest.raises(LeafError, match="'extra'"):
            moved(Strict, {"a": one(), "n": 1, "extra": one()})

    def test_another_mapping_raises(self) -> None:
        """A typed dictionary is a plain `dict` at run time."""
        with pytest.raises(LeafError, match="OrderedDict"):
            moved(Strict, collections.OrderedDict(a=one(), n=1))

    def test_one_that_holds_itself_is_refused(self) -> None:
        """A typed dictionary cannot be unfolded without end."""
        with pytest.raises(LifetimeError, match="contains itself"):
            holder(Endless)


class Endless(TypedDict):
    a: Tensor
    next: "Endless | None"


class OwnDict(dict[str, Any]):
    pass


class OwnList(list[Any]):
    pass


class OwnPair(Pair):
    pass


class SlottedDict(dict[str, Any]):
    __slots__ = ("extra",)


@dataclasses.dataclass
class Output(collections.OrderedDict[str, Any]):
    """An object that is a mapping and a dataclass at once, as model outputs are."""

    logits: Tensor | None = None


class TestOtherClasses:
    """A container class of somebody's own never comes back as another."""

    @pytest.mark.parametrize(
        "cls",
        [
            OwnDict,
            OwnList,
            OwnPair,
            Output,
            collections.Counter,
            collections.UserDict,
            collections.ChainMap,
            types.MappingProxyType,
            types.SimpleNamespace,
        ],
    )
    def test_refused_as_an_annotation(self, cls: Any) -> None:
        """Nobody can tell how to make another one of it."""
        with pytest.raises(LifetimeError) as caught:
            holder(cls)

        (refusal,) = caught.value.refusals
        assert f"Write a `LifetimeAdapter[{cls.__name__}]`." == refusal.remedies[0]

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (dict[str, Tensor], OwnDict(a=1)),
            (dict[str, Tensor], collections.UserDict(a=1)),
            (dict[str, Tensor], types.MappingProxyType({"a": 1})),
            (Mapping[str, Tensor], OwnDict(a=1)),
            (list[Tensor], OwnList([1])),
            (list[Tensor], (1,)),
            (tuple[Tensor, ...], [1]),
            (Sequence[Tensor], OwnList([1])),
            (Pair, OwnPair(torch.ones(1))),
            (Pair, (1, 2)),
            (collections.OrderedDict[str, Tensor], {"a": 1}),
            (collections.defaultdict[str, Tensor], {"a": 1}),
            (Sequence[Tensor], "text"),
            (Sequence[Tensor], torch.ones(2, 2)),
            (list[Tensor], torch.ones(2, 2)),
            (Dynamic[Any], {"x": OwnDict(a=torch.ones(1))}),
            (Dynamic[Any], [collections.UserDict(a=1)]),
            (Dynamic[Any], [Output(torch.ones(1))]),
        ],
    )
    def test_raises_as_a_value(self, annotation: Any, value: Any) -> None:
        """A value of another class raises instead of changing it."""
        with pytest.raises(LeafError, match="x"):
            moved(annotation, value)

    @pytest.mark.parametrize("cls", [OwnDict, OwnList, Output], ids=str)
    def test_refused_as_a_payload(self, cls: type) -> None:
        """Its own content is in no field, so a twin would lose it.

        It was accepted, and its first move failed in `object.__new__`.
        """
        decorated = type("Own", (cls,), {"__annotations__": {"a": Tensor}})
        with pytest.raises(DefinitionError, match="own content is in no field"):
            payload(decorated)

    def test_content_beside_the_items_raises(self) -> None:
        """A host container with attributes is no host value.

        A dictionary's attributes were not looked at.
        """
        with_attribute = OwnDict(a=1)
        with_attribute.leaf = one()
        with_slot = SlottedDict(a=1)
        with_slot.extra = one()

        for value in (with_attribute, with_slot):
            with pytest.raises(LeafError, match="has no lifetime support"):
                moved(Dynamic[Any], [value])

    def test_untyped_named_tuple(self) -> None:
        """Its members have no types: refused as a type, walked as a value."""
        with pytest.raises(LifetimeError, match="does not say what `a` is"):
            holder(Untyped)

        new = moved(Dynamic[Any], Untyped(one(), 2))

        assert (Untyped, 2) == (type(new), new.b)

    def test_adapter_makes_them_travel(self) -> None:
        """The remedy that is named works."""

        class Box(dict[str, Tensor]):
            pass

        class BoxAdapter(LifetimeAdapter[Box]):
            def leaves(self, value: Box) -> Sequence[Tensor]:
                return list(value.values())

            def rebuild(self, value: Box, leaves: Sequence[Tensor]) -> Box:
                return Box(zip(value, leaves, strict=True))

        new = moved(list[Box], [Box(a=one(), b=one())])

        assert (Box, ["a", "b"]) == (type(new[0]), list(new[0]))


NEVER_PAYLOADS: dict[str, tuple[Callable[[], Any], str]] = {
    "named tuple": (lambda: Pair, "named tuple"),
    "typed dictionary": (lambda: Strict, "typed dictionary"),
    "tensor": (lambda: type("T", (Tensor,), {}), "tensor"),
    "module": (lambda: type("M", (torch.nn.Module,), {}), "module"),
    "exception": (lambda: type("E", (ValueError,), {}), "ValueError"),
    "function": (lambda: one, "no class"),
    "instance": (lambda: 3, "no class"),
}


@pytest.mark.parametrize(
    ("make", "reason"), NEVER_PAYLOADS.values(), ids=NEVER_PAYLOADS
)
def test_what_cannot_be_a_payload_says_so(make: Callable[[], Any], reason: str) -> None:
    """Each was an error from the depths of attrs, or of Python."""
    with pytest.raises(DefinitionError, match=reason):
        payload(make())


@pytest.mark.parametrize("annotation", [tuple, list, dict, collections.deque], ids=str)
def test_bare_container_is_refused(annotation: Any) -> None:
    """A container that does not say what is inside is refused."""
    with pytest.raises(LifetimeError, match="does not say what it contains"):
        holder(annotation)


class Odd:
    """An object that may be the key of a mapping."""


@pytest.mark.parametrize("key", [one(), (1, one()), Odd(), frozenset([one()]), Inner])
@pytest.mark.parametrize(
    "annotation",
    [
        dict[str, Tensor],
        Mapping[str, Tensor],
        dict[str, list[Tensor | None]] | Tensor,
        list[dict[str, Inner]],
        dict[str, dict[int, Tensor]],
        collections.OrderedDict[str, Dynamic[object]],
        dict[str, Tensor | HostOnly[Odd]],
        Dynamic[object],
    ],
    ids=str,
)
def test_keys_stay_on_the_host(annotation: Any, key: object) -> None:
    """A tensor as a key passed where the values were annotated, and was lost."""
    cls = payload(type("Batch", (), {"__annotations__": {"found": annotation}}))
    text = str(annotation)
    mapping: Any = {key: None}
    if "OrderedDict" in text:
        mapping = collections.OrderedDict(mapping)
    if text.startswith("list"):
        mapping = [mapping]
    if "dict[str, dict" in text:
        mapping = {"a": mapping}

    with pytest.raises(LeafError, match=r"is the key of a mapping, and keys stay"):
        cls(mapping).record_stream(None)


@pytest.mark.parametrize(
    "key", [1, "a", None, (1, "a"), frozenset([1]), types.SimpleNamespace, 2.5, b"c"]
)
def test_any_host_value_may_be_a_key(key: object) -> None:
    """What the annotation of the key says is not held against a value that stays."""
    if key is types.SimpleNamespace:
        key = __import__("enum").Enum("Color", "RED").RED

    @payload
    class Batch:
        found: dict[str, Tensor]

    moved = Batch({key: one()}).to_device("meta")  # type: ignore[dict-item, attr-defined]

    assert [key] == list(moved.found)
