"""The oracle, and random classes before it: it finds what the traversal finds."""

import collections
import dataclasses
import enum
import functools
import random
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import torch
from random_classes import Maker, Stay, Universe
from torch import Tensor

from tensorpack import Borrowed, HostOnly, Payload, payload
from tensorpack._install import install
from tensorpack._rules.markers import PLAN
from tensorpack._rules.nodes import BorrowedNode, travels
from tensorpack._walk.walk import walk
from tensorpack.testing import assert_covers, reachable
from tensorpack.testing._marked import marks_of
from tensorpack.testing._oracle import Found, Search

CLASSES = 6
SEEDS = 90


class Colour(enum.Enum):
    RED = 1


def keys(value: object) -> list[str]:
    return [key for key, _ in reachable(value)]


def one() -> Tensor:
    return torch.ones(1)


# Where values can be.


def test_oracle_looks_into_slots_and_dictionaries() -> None:
    """Attributes are found in slots of every base and in the dictionary, in order."""

    class Base:
        __slots__ = ("__hidden", "first")

        def __init__(self) -> None:
            self.first = one()
            self.__hidden = one()

    class Child(Base):
        def __init__(self) -> None:
            super().__init__()
            self.later = {"x": [one()]}

    assert ["_Base__hidden", "first", "later['x'][0]"] == keys(Child())


def test_oracle_looks_into_containers_of_all_kinds() -> None:
    """Sequences, mappings, sets and named tuples, plain and derived ones."""

    class Named(NamedTuple):
        a: Tensor
        b: Any = None

    class Odd(list[Any]):
        pass

    odd = Odd([one()])
    odd.extra = one()  # type: ignore[attr-defined]
    value = [
        (one(),),
        {"k": one()},
        collections.deque([one()]),
        {one()},
        Named(one()),
        collections.UserDict({"u": one()}),
        collections.ChainMap({"c": one()}),
        odd,
        {(1, one()): "as a key"},
    ]
    found = keys(value)

    assert "[0][0]" in found
    assert "[1]['k']" in found
    assert "[2][0]" in found
    assert "[3][0]" in found
    assert "[4].a" in found
    assert "[5].data['u']" in found
    assert "[6].maps[0]['c']" in found
    assert {"[7][0]", "[7].extra"} <= set(found)
    assert 9 == len(found) - 1


def test_oracle_looks_where_the_collector_looks() -> None:
    """Partials, iterators, object arrays and closures: all but what code captures."""
    tensor = one()
    array = np.empty(2, dtype=object)
    array[1] = one()

    def captures() -> Tensor:
        return tensor

    assert ["args[0]"] == keys(functools.partial(captures, one()))
    assert ["<referent 0>[0]"] == keys(iter([one()]))
    assert [".flat[1]".removeprefix(".")] == keys(array)
    assert [] == keys(captures)
    assert [] == keys([Stay(one()).__init__, Stay, type, Colour.RED])


def test_oracle_runs_no_property_and_ends_in_cycles() -> None:
    """Only what is stored is looked at, and each object once."""

    class Node:
        def __init__(self) -> None:
            self.next = self
            self.leaf = one()

        @property
        def computed(self) -> Tensor:
            raise AssertionError

    assert ["leaf"] == keys(Node())


def test_oracle_names_each_place_of_a_tensor() -> None:
    """A tensor in two places is found in both."""
    tensor = one()

    assert ["[0]", "[1]['x']"] == keys([tensor, {"x": tensor}])


def test_oracle_looks_into_structs_of_other_makers() -> None:
    """Named nothing, asked nothing: attrs, dataclasses, with slots or without."""

    @attrs.define
    class A:
        x: object

    @dataclasses.dataclass(slots=True)
    class B:
        y: object

    @dataclasses.dataclass
    class C:
        z: object

    assert ["x.y.z"] == keys(A(B(C(one()))))


# What annotations mark.

Cache = Borrowed[list[Tensor]]


def test_marks_are_read_from_annotations() -> None:
    """A marker around the whole field, or only inside it, also through an alias."""

    @payload
    class Batch(Payload):
        ids: Tensor
        stays: HostOnly[list[Any]]
        maybe: HostOnly[list[Any]] | None
        cache: Cache
        pair: tuple[Tensor, HostOnly[Any]]

    marks = marks_of(Batch)

    assert {"stays", "maybe", "cache", "pair"} == set(marks)
    assert ["HostOnly"] == [repr(m) for m in marks["stays"].whole]
    assert marks["stays"] == marks["maybe"]
    assert (frozenset(), marks["stays"].whole) == (
        marks["pair"].whole,
        marks["pair"].inside,
    )
    assert ["Borrowed"] == [repr(m) for m in marks["cache"].whole]


# Against the traversal.


def is_aside(found: Found) -> bool:
    """Tell by the names of random classes whether a field keeps its tensors."""
    parts = found.key.replace("[", ".").split(".")
    return any(part.startswith(("host", "borrowed")) for part in parts)


def by_oracle(value: object) -> set[int]:
    """Identify the tensors that a random payload must move or record."""
    search = Search(value)
    hidden = {id(o.hidden) for o in search.seen.values() if isinstance(o, Stay)}
    owned = {id(f.tensor) for f in search.found if not is_aside(f)}
    return owned - hidden


def by_plan(value: object) -> set[int]:
    """Identify the tensors that the generated traversal meets."""
    return {id(x) for x in walk(value).recordable() if isinstance(x, Tensor)}


def test_traversals_of_random_classes_miss_nothing() -> None:
    """In 540 classes the generated code finds the very tensors that the oracle does."""
    checked = 0
    for seed in range(SEEDS):
        universe = Universe(random.Random(seed))
        for _ in range(CLASSES):
            cls = universe.add_class()
            value = universe.makers[cls](Maker(seed, device=False))
            checked += 1

            assert by_oracle(value) == by_plan(value), (seed, value)

    assert checked >= 500


@pytest.mark.parametrize("seed", range(12))
def test_random_classes_are_covered(seed: int) -> None:
    """What is generated for them passes the assertion that hand-written code faces."""
    universe = Universe(random.Random(seed))
    for _ in range(CLASSES):
        cls = universe.add_class()

        assert_covers(universe.makers[cls](Maker(seed, device=False)))


def with_hole(cls: Any, name: str) -> None:
    """Let a payload's plan take a field for a borrowed one."""
    plan = vars(cls)[PLAN]
    fields = [
        attrs.evolve(f, node=BorrowedNode()) if f.name == name else f
        for f in plan.fields
    ]
    install(cls, attrs.evolve(plan, fields=tuple(fields)), {})


def test_planted_hole_is_found() -> None:
    """A plan that loses a field is told by the oracle, and by the assertion."""

    @payload
    class Batch(Payload):
        ids: Tensor
        mask: Tensor

    with_hole(Batch, "mask")
    value = Batch(ids=one(), mask=one())

    assert by_oracle(value) - by_plan(value) == {id(value.mask)}
    with pytest.raises(AssertionError, match="record_stream` leaves out `mask`"):
        assert_covers(value)
    with pytest.raises(AssertionError, match="to_device` leaves `mask` where it was"):
        assert_covers(value)


def test_planted_holes_in_random_classes_are_found() -> None:
    """Whichever field of a random class is lost, oracle and assertion say so."""
    found = 0
    for seed in range(40):
        universe = Universe(random.Random(seed))
        cls = [universe.add_class() for _ in range(3)][-1]
        value = universe.makers[cls](Maker(seed, device=False))
        whole = by_plan(value)
        fields = [f.name for f in vars(cls)[PLAN].fields if travels(f.node)]
        for name in fields[:1]:
            with_hole(cls, name)
            lost = whole - by_plan(value)
            found += bool(lost)

            assert lost == by_oracle(value) - by_plan(value)
            if lost:
                with pytest.raises(AssertionError, match=rf"leaves out .*`{name}"):
                    assert_covers(value)

    assert found >= 15
