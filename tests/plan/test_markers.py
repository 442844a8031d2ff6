"""The four markers at any depth: what stays, what is borrowed, derived, or walked."""

import collections
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import attrs
import numpy as np
import pytest
import torch
from subjects import Opaque
from torch import Tensor

from tensorpack import (
    Borrowed,
    Derived,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeAdapter,
    LifetimeError,
    evolve,
    opaque,
    payload,
    record_stream,
    tensors,
)
from tensorpack.testing import device_twin, recorded_streams


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


class Pair(NamedTuple):
    left: Tensor
    right: int = 0


@payload
class Inner:
    t: Tensor


@payload
class Child(Inner):
    u: Tensor | None = None


@attrs.define
class Settings:
    rate: float
    nested: "list[Settings] | None" = None


@attrs.define
class Plain:
    t: Tensor


class Handle:
    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class HandleAdapter(LifetimeAdapter[Handle]):
    def leaves(self, value: Handle) -> Sequence[Tensor]:
        return [value.keys]

    def rebuild(self, value: Handle, leaves: Sequence[Tensor]) -> Handle:
        return Handle(leaves[0])


class HalfOwn:
    def record_stream(self, stream: object) -> None: ...


@payload
class Open:
    """A payload with one field that is walked at run time."""

    x: Dynamic[Any] = None


def keys(value: object) -> list[str]:
    """List the keys of all leaves."""
    return [key for key, _ in tensors(value)]


class TestDynamic:
    """`Dynamic` walks a value by the types that are found in it."""

    def test_reaches_every_kind_of_value(self) -> None:
        """Leaves travel from any known container, payload or adapted type."""
        value = {
            "tensor": one(),
            "list": [one(), None, (one(), 1, "text")],
            "payload": Inner(one()),
            "child": Child(one(), one()),
            "pair": Pair(one()),
            "adapted": Handle(one()),
            "defaults": collections.defaultdict(list, a=[one()]),
            "ordered": collections.OrderedDict(b=one()),
            "queue": collections.deque([one()], maxlen=2),
            3: {("a", 1): {"deep": [Inner(one())]}},
            "inner": Open({"again": Open([one()])}),
        }
        batch = Open(value)
        moved = batch.to_device("meta")

        assert keys(batch) == keys(moved)
        assert [
            "x['tensor']",
            "x['list'][0]",
            "x['list'][2][0]",
            "x['payload'].t",
            "x['child'].t",
            "x['child'].u",
            "x['pair'].left",
            "x['adapted'][0]",
            "x['defaults']['a'][0]",
            "x['ordered']['b']",
            "x['queue'][0]",
            "x[3][('a', 1)]['deep'][0].t",
            "x['inner'].x['again'].x[0]",
        ] == keys(moved)
        assert [type(item) for item in value.values()] == [
            type(item) for item in moved.x.values()
        ]
        assert moved.x["queue"].maxlen == 2
        assert moved.x["defaults"]["new"] == []

    def test_host_values_are_the_same_objects(self) -> None:
        """What is certainly a host value stays where it is."""
        values = [3, "a", b"b", 0.5, None, np.ones(2), {1, 2}, Settings(0.5)]
        values += [Settings(1.0, [Settings(2.0)]), torch.float32, slice(1), range(2)]

        moved = Open(values).to_device("meta").x

        assert all(a is b for a, b in zip(values, moved, strict=True))

    def test_leaf_that_moves_itself(self) -> None:
        """A value with a lifetime of its own is asked to move."""
        batch = Open([Opaque()])

        assert ["x[0]"] == [key for key, _ in opaque(batch)]
        assert "meta" == batch.to_device("meta").x[0].device.type

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            Plain(torch.ones(1)),
            HalfOwn(),
            Settings(0.5, [Plain(torch.ones(1))]),
            {torch.ones(1)},
            torch.Generator(),
            torch.nn.Linear(1, 1),
            threading.Lock(),
            len,
            int,
            torch.UntypedStorage(1),
            iter([1]),
            {torch.ones(1): 1},
            {(1, torch.ones(1)): 1},
        ],
    )
    @pytest.mark.parametrize("depth", [0, 1, 3])
    def test_value_without_support_raises_with_its_key(
        self, value: object, depth: int
    ) -> None:
        """Anything else might own device memory, so it raises at any depth.

        A leaf that was the key of a dictionary was passed over in silence.
        """
        for _ in range(depth):
            value = [{"k": value}]

        with pytest.raises(LeafError) as caught:
            Open(value).to_device("meta")

        assert "x" + "[0]['k']" * depth == caught.value.key

    @pytest.mark.parametrize(
        "annotation",
        [
            Dynamic[dict[str, Any]],
            dict[str, Dynamic[Any]],
            list[Dynamic["Unknown"]],  # noqa: F821
            Optional[Dynamic[object]],
            tuple[int, Dynamic[list]],
        ],
        ids=str,
    )
    def test_stands_at_any_depth(self, annotation: Any) -> None:
        """The marker may stand inside a container or a union."""
        cls: Any = payload(
            attrs.make_class("Holder", {"x": attrs.field(type=annotation)})
        )
        text = str(annotation)
        value: Any = {"a": one()}
        if "list[" in text:
            value = [value]
        if "tuple[" in text:
            value = (1, [one()])

        assert 1 == len(keys(cls(value).to_device("meta")))


class TestBorrowed:
    """`Borrowed` hands on the same object, and touches nothing in it."""

    def test_neither_moved_nor_recorded(self) -> None:
        """A persistent cache on the device is somebody else's to record."""

        @payload
        class Batch:
            ids: Tensor
            cache: Borrowed[list[dict[str, Any]]]
            some: list[Borrowed[Tensor]]
            by_name: dict[str, Borrowed[object]]

        with recorded_streams() as log:
            leaves = [torch.ones(2, device="cuda") for _ in range(3)]
            cache, held = [{"k": leaves[1]}], [leaves[2]]
            batch = Batch(leaves[0], cache, held, {"o": object()})
            batch.record_stream(torch.Stream("cuda"))
        moved = Batch(one(), cache, held, {}).to_device("meta")

        assert ["ids"] == log.recorded(batch)
        assert moved.cache is cache
        assert moved.some is held
        assert ["ids"] == keys(batch)


class TestHostOnly:
    """`HostOnly` keeps the very same object on the host."""

    @pytest.mark.parametrize(
        ("annotation", "wrap"),
        [
            (HostOnly[Tensor], lambda t: t),
            (list[HostOnly[Tensor]], lambda t: [t]),
            (dict[str, HostOnly[object] | int], lambda t: {"a": t}),
            (tuple[HostOnly[Any], ...], lambda t: (t,)),
            (HostOnly[Any] | list[int], lambda t: t),
        ],
    )
    def test_device_tensor_raises(self, annotation: Any, wrap: Any) -> None:
        """A tensor on a device would be neither moved nor recorded.

        `HostOnly[object] | int` gave generated text that was no Python.
        """
        cls: Any = payload(
            attrs.make_class("Holder", {"x": attrs.field(type=annotation)})
        )
        host = wrap(one())

        assert cls(host).to_device("meta").x is host
        assert [] == keys(cls(host))
        with pytest.raises(LeafError, match="lives on `cuda:0`"):
            keys(cls(wrap(device_twin(one()))))


class TestDerived:
    """`Derived` is recorded, never moved, and a twin starts with the default."""

    def test_recorded_at_any_depth(self) -> None:
        """Every leaf of a cache is recorded, after those that travel."""

        @payload
        class Batch:
            ids: Tensor
            cache: Derived[dict[str, list[Tensor | Inner]] | None] = None
            one: Derived[Tensor | None] = None
            any: Derived[Handle | None] = None

        with recorded_streams() as log:
            leaves = [torch.ones(2, device="cuda") for _ in range(5)]
            batch = Batch(
                leaves[0],
                {"a": [leaves[1], Inner(leaves[2])]},
                leaves[3],
                Handle(leaves[4]),
            )
            forward, free = torch.Stream("cuda"), torch.Stream("cuda")
            batch.record_stream(forward)
            record_stream([batch], free)

        each = ["[0]", "[1]", "[2]", "[3]", "[4]"]
        assert each == log.recorded(leaves, forward) == log.recorded(leaves, free)
        assert each * 2 == log.recorded(leaves)
        assert ["ids"] == keys(batch)
        assert (("ids",), ()) == (Batch.payload_keys(), Batch.host_keys())

    def test_twin_gets_the_default_each_time_anew(self) -> None:
        """The default is made for each twin, by what the class says."""

        @payload
        class Batch:
            ids: Tensor
            made: Derived[list[Tensor]] = attrs.field(factory=list)

        batch = Batch(one(), [one()])

        for new in (batch.to_device("meta"), evolve(batch), evolve(batch, ids=one())):
            assert [] == new.made
        assert batch.to_device("meta").made is not batch.to_device("meta").made

    def test_nested_payloads_caches_are_recorded(self) -> None:
        """A cache inside a nested payload counts too, and inside a cache."""

        @payload
        class Cached:
            cache: Derived[Tensor | None] = None

        @payload
        class Batch:
            many: list[Cached]
            aside: Derived[Cached | None] = None

        with recorded_streams() as log:
            leaves = [torch.ones(2, device="cuda") for _ in range(2)]
            batch = Batch([Cached(leaves[0])], Cached(leaves[1]))
            batch.record_stream(torch.Stream("cuda"))

        assert ["[0]", "[1]"] == log.recorded(leaves)
        assert [] == keys(batch)

    def test_needs_a_default(self) -> None:
        """Without a default, a twin would have nothing to start with."""
        with pytest.raises(LifetimeError, match="needs a default"):
            payload(attrs.make_class("B", {"x": attrs.field(type=Derived[Tensor])}))

    @pytest.mark.parametrize(
        "annotation",
        [list[Derived[Tensor]], Derived[Tensor] | int, HostOnly[Derived[int]]],
        ids=str,
    )
    def test_marks_a_whole_field(self, annotation: Any) -> None:
        """A part of a field cannot start anew."""
        field = attrs.field(type=annotation, default=None)
        with pytest.raises(LifetimeError):
            payload(attrs.make_class("B", {"x": field}))
