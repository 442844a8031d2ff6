"""Kinds of bugs that users of other libraries have reported, each with its members."""

import collections
import dataclasses
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, TypedDict, Union

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from tensorpack import (
    Dynamic,
    HostOnly,
    LifetimeError,
    Payload,
    UndecoratedError,
    clone,
    evolve,
    payload,
    record_stream,
    tensors,
    to_device,
)
from tensorpack.testing import recorded_streams

META = torch.device("meta")
ONE = torch.ones(1)
STREAM: Any = object()  # a leaf on the host never looks at it


@payload
class Part(Payload):
    grid: Tensor
    more: "dict[str, Tensor | None] | None" = None


class Point(NamedTuple):
    x: Tensor
    n: int


class Entry(TypedDict, total=False):
    a: Tensor
    n: int


@payload
class Everything(Payload):
    plain: Tensor
    none: Tensor | None
    optional: Optional[Tensor]
    some: list[Tensor | None]
    nested: list[list[Tensor]]
    table: dict[str, Tensor]
    pair: tuple[Tensor, int, Tensor]
    many: tuple[Tensor, ...]
    part: Part
    parts: dict[str, list[Part]]
    either: Tensor | list[Tensor] | None
    point: Point
    entry: Entry
    deque: collections.deque[Tensor]
    meta: Dynamic[dict[str, Any]]


@payload
class Base(Payload):
    ids: Tensor


@payload
class Holder(Payload):
    base: Base
    more: list[Base] | None = None
    meta: Dynamic[dict[str, Any] | None] = None


def everything(leaf: Callable[[], Tensor]) -> Everything:
    """Fill every kind of field with leaves."""
    return Everything(
        plain=leaf(),
        none=None,
        optional=leaf(),
        some=[leaf(), None, leaf()],
        nested=[[leaf()], [leaf()]],
        table={"a": leaf(), "b": leaf()},
        pair=(leaf(), 1, leaf()),
        many=(leaf(),),
        part=Part(leaf(), {"x": None, "y": leaf()}),
        parts={"p": [Part(leaf()), Part(leaf())]},
        either=[leaf()],
        point=Point(leaf(), 2),
        entry={"a": leaf(), "n": 3},
        deque=collections.deque([leaf()]),
        meta={"d": [leaf()], "p": Part(leaf()), "n": 1},
    )


class TestForgottenFields:
    """A leaf in an unusual place is listed, moved, recorded and pinned all the same."""

    KEYS = (
        "plain",
        "optional",
        "some[0]",
        "some[2]",
        "nested[0][0]",
        "nested[1][0]",
        "table['a']",
        "table['b']",
        "pair[0]",
        "pair[2]",
        "many[0]",
        "part.grid",
        "part.more['y']",
        "parts['p'][0].grid",
        "parts['p'][1].grid",
        "either[0]",
        "point.x",
        "entry['a']",
        "deque[0]",
        "meta['d'][0]",
        "meta['p'].grid",
    )

    def test_every_leaf_is_listed_once(self) -> None:
        """Each leaf has one stable key; None is skipped."""
        found = list(tensors(everything(lambda: torch.ones(1))))

        assert list(self.KEYS) == [key for key, _ in found]
        assert len(found) == len({id(leaf) for _, leaf in found})

    def test_every_leaf_is_moved(self) -> None:
        """What is moved is what is listed, and the twin is of the same shape."""
        twin = everything(lambda: torch.ones(1)).to_device(META)

        assert list(self.KEYS) == [key for key, _ in tensors(twin)]
        assert {META} == {leaf.device for _, leaf in tensors(twin)}
        assert (None, None) == (twin.none, twin.some[1])
        assert (1, 2, {"n": 3}) == (
            twin.pair[1],
            twin.point.n,
            {k: v for k, v in twin.entry.items() if k == "n"},
        )

    def test_every_leaf_is_recorded(self) -> None:
        """What is recorded is what is listed, in the same order, each once."""
        with recorded_streams() as log:
            stream = torch.Stream("cuda")
            batch = everything(lambda: torch.ones(1, device="cuda"))
            batch.record_stream(stream)
        leaves = [leaf for _, leaf in tensors(batch)]

        assert [f"[{n}]" for n in range(len(self.KEYS))] == log.recorded(leaves)
        assert log.recorded(leaves) == log.recorded(leaves, stream)

    def test_every_leaf_is_pinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is pinned is what is listed."""
        pinned: list[Tensor] = []
        monkeypatch.setattr(
            Tensor, "pin_memory", lambda x: pinned.append(x) or x.clone()
        )
        batch = everything(lambda: torch.ones(1))
        batch.pin_memory()

        assert [leaf for _, leaf in tensors(batch)] == pinned

    def test_every_leaf_is_cloned(self) -> None:
        """What is cloned is what is listed."""
        batch = everything(lambda: torch.ones(1))
        pairs = zip(tensors(batch), tensors(clone(batch)), strict=True)

        assert all(a[0] == b[0] and a[1] is not b[1] for a, b in pairs)


class Undecorated:
    ids: Tensor


class TestUnsupportedTypes:
    """A type without lifetime support is refused when the class is made."""

    REFUSED: tuple[Any, ...] = (
        Undecorated,
        Any,
        object,
        list,
        dict,
        tuple,
        set,
        typing.List,
        typing.Dict,
        list[Any],
        dict[str, Any],
        dict[str, object],
        list[Undecorated],
        dict[Undecorated, int],
        Callable,
        Callable[[], Tensor],
        Union[Tensor, Undecorated],
        Optional[Undecorated],
        Tensor | Any,
        torch.nn.Module,
        torch.Generator,
        torch.Stream,
        torch.Event,
        type,
        Exception,
        collections.UserDict,
        collections.Counter,
        set[Tensor],
        dict[Tensor, int],
        "Unknown",
        typing.TypeVar("T"),
    )

    HOST: tuple[Any, ...] = (
        int,
        bool,
        float,
        complex,
        str,
        bytes,
        None,
        list[int],
        dict[str, list[float]],
        tuple[int, ...],
        set[str],
        np.ndarray,
        torch.dtype,
        torch.device,
        torch.Size,
        int | str | None,
        typing.Literal["a", "b"],
    )

    @pytest.mark.parametrize("annotation", REFUSED, ids=str)
    def test_is_refused_with_a_way_out(self, annotation: Any) -> None:
        """The error names the class, the field, the type, and what to do."""
        with pytest.raises(LifetimeError) as caught:
            payload(type("Batch", (), {"__annotations__": {"field": annotation}}))

        (refusal,) = caught.value.refusals
        assert ("Batch", "field") == (caught.value.cls, refusal.field)
        assert refusal.culprit
        assert refusal.remedies
        assert "`Batch.field`" in str(caught.value)

    @pytest.mark.parametrize("annotation", REFUSED, ids=str)
    def test_a_marker_overrides(self, annotation: Any) -> None:
        """An explicit marker is the author's word against the type's."""
        body = {"__annotations__": {"field": HostOnly[annotation]}}
        cls: Any = payload(type("Batch", (), body))

        assert (("field",), ()) == (cls.host_keys(), cls.payload_keys())

    def test_all_are_named_in_one_error(self) -> None:
        """One error lists every bad field, in field order."""
        names = {f"f{i}": tp for i, tp in enumerate(self.REFUSED)}
        with pytest.raises(LifetimeError) as caught:
            payload(type("Batch", (), {"__annotations__": {"ok": Tensor, **names}}))

        assert list(names) == [r.field for r in caught.value.refusals]

    @pytest.mark.parametrize("annotation", HOST, ids=str)
    def test_host_types_pass(self, annotation: Any) -> None:
        """What owns no device memory needs no marker."""
        body = {"__annotations__": {"field": annotation}}
        cls: Any = payload(type("Batch", (), body))

        assert ("field",) == cls.host_keys()


class TestSubclasses:
    """A subclass of a payload covers its own fields, or says that it does not."""

    USES: tuple[Callable[[Any], object], ...] = (
        lambda x: x.to_device(META),
        lambda x: x.to(META),
        lambda x: x.record_stream(STREAM),
        lambda x: x.pin_memory(),
        tensors,
        clone,
        lambda x: to_device(x, META),
        lambda x: record_stream(x, STREAM),
        lambda x: to_device([x], META),
        lambda x: to_device({"x": x}, META, keys=["x"]),
        lambda x: record_stream({"x": x}, STREAM, keys=["x"]),
    )
    each_use = pytest.mark.parametrize("use", USES)

    def undecorated(self) -> tuple[type, ...]:
        """Make subclasses that nobody has decorated, each with a new tensor."""

        @attrs.define
        class Defined(Base):
            mask: Tensor = ONE

        class Plain(Base):
            mask: Tensor

        @dataclasses.dataclass(init=False)
        class Data(Base):
            mask: Tensor

        return Defined, Plain, Data

    def test_decorated_covers_base_and_own(self) -> None:
        """A decorated child moves and records the base's fields and its own."""

        @payload
        class Child(Base):
            mask: Tensor

        twin = Child(torch.ones(1), torch.ones(2)).to_device(META)
        with recorded_streams() as log:
            child = Child(*(torch.ones(n, device="cuda") for n in (1, 2)))
            child.record_stream(torch.Stream("cuda"))

        assert Child is type(twin)
        assert (META, META) == (twin.ids.device, twin.mask.device)
        assert ["ids", "mask"] == log.recorded(child)

    def test_decorated_child_in_a_base_field_keeps_its_fields(self) -> None:
        """A field typed with the base carries the whole child."""

        @payload
        class Child(Base):
            mask: Tensor

        holder = Holder(Child(torch.ones(1), torch.ones(2)))
        twin: Any = holder.to_device(META).base

        assert (Child, META) == (type(twin), twin.mask.device)

    @each_use
    @pytest.mark.parametrize("number", range(3))
    def test_undecorated_raises_on_every_path(
        self, number: int, use: Callable[[Any], object]
    ) -> None:
        """Every first use names the class and the field that would be lost."""
        cls = self.undecorated()[number]

        with pytest.raises(UndecoratedError) as caught:
            use(cls(torch.ones(1)))

        assert ("mask",) == caught.value.lost
        assert cls.__qualname__ == caught.value.cls
        assert Base.__qualname__ == caught.value.base

    @each_use
    @pytest.mark.parametrize("where", ["base", "more", "meta"])
    def test_undecorated_inside_another_payload_raises(
        self, where: str, use: Callable[[Any], object]
    ) -> None:
        """It raises on every path to it, and the error gives the address."""
        child: Any = self.undecorated()[0](torch.ones(1))
        fine = Base(torch.ones(1))
        holder, address = {
            "base": (Holder(child), "base"),
            "more": (Holder(fine, [fine, child]), "more[1]"),
            "meta": (Holder(fine, None, {"x": child}), "meta['x']"),
        }[where]

        with pytest.raises(UndecoratedError) as caught:
            use(holder)

        assert caught.value.key.endswith(address)

    def test_class_methods_raise_too(self) -> None:
        """The keys of an undecorated class are not those of its base."""
        for cls in self.undecorated():
            with pytest.raises(UndecoratedError):
                cls.payload_keys()  # type: ignore[attr-defined]
            with pytest.raises(UndecoratedError):
                cls.host_keys()  # type: ignore[attr-defined]


class TestManyLeaves:
    """A payload of hundreds of leaves costs what its leaves cost."""

    COUNT = 500

    def test_no_property_is_computed(self) -> None:
        """No traversal reads a property or cached property of the class."""
        read: list[str] = []

        def make(name: str) -> property:
            return property(lambda self: read.append(name))

        names = [f"leaf_{i}" for i in range(self.COUNT)]
        body: dict[str, Any] = {"__annotations__": dict.fromkeys(names, Tensor)}
        body |= {f"property_{i}": make(f"property_{i}") for i in range(20)}
        cls: Any = payload(type("Wide", (), body))
        wide = cls(*(torch.ones(1) for _ in names))
        twin = wide.to_device(META)
        wide.record_stream(STREAM)
        list(tensors(wide))
        clone(wide)
        evolve(wide, leaf_0=torch.ones(2))

        assert [] == read
        assert self.COUNT == len(list(tensors(twin)))

    def test_each_leaf_is_moved_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A move of n leaves is n calls of `to`."""
        calls = []
        to = Tensor.to

        def counted(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            calls.append(self)
            return to(self, *args, **kwargs)

        monkeypatch.setattr(Tensor, "to", counted)

        @payload
        class Deep(Payload):
            many: list[Tensor]

        Deep([torch.ones(1) for _ in range(self.COUNT)]).to_device(META)

        assert self.COUNT == len(calls)


class TestHostValues:
    """Recording is for device memory only."""

    def test_every_kind_of_host_payload_is_a_no_op(self) -> None:
        """Nothing is recorded on host leaves, wherever they stand."""
        batch = everything(lambda: torch.ones(1))
        with recorded_streams() as log:
            batch.record_stream(torch.Stream("cuda"))

        assert [] == log.recorded(batch)

    def test_a_wrong_stream_is_not_swallowed(self) -> None:
        """The leaf decides what it takes as a stream, and its error arrives."""

        class Device(Tensor):
            is_cuda = True  # type: ignore[assignment]

        with pytest.raises((TypeError, RuntimeError), match=r"type|Stream"):
            Base(torch.ones(1).as_subclass(Device)).record_stream(object())  # type: ignore[arg-type]
