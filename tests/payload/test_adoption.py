"""Classes of others that become payloads where they stand, with all that knows them."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import Dynamic, LifetimeError, UndecoratedError, payload, tensors

Maker = Callable[[type], Any]

MAKERS = pytest.mark.parametrize(
    "make",
    [
        dataclasses.dataclass,
        dataclasses.dataclass(frozen=True, slots=True),
        attrs.define,
        attrs.frozen,
        attrs.define(slots=False),
    ],
    ids=["dataclass", "frozen dataclass", "attrs", "frozen attrs", "attrs in a dict"],
)


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


@MAKERS
class TestInPlace:
    """The class is the same object, so whoever has imported it sees the methods."""

    def test_class_and_instances_from_before_are_payloads(self, make: Maker) -> None:
        """What was made before the decoration travels too."""

        @make
        class Theirs:
            ids: Tensor
            size: int = 1

        before = Theirs(one())
        adopted = payload(Theirs)
        moved = before.to_device("meta")

        assert adopted is Theirs
        assert type(moved) is Theirs
        assert moved.ids.is_meta
        assert isinstance(before, Theirs)

    def test_tools_of_the_maker_still_work(self, make: Maker) -> None:
        """Fields, copies with changes, and dictionaries are what they were."""

        @make
        class Theirs:
            ids: Tensor
            size: int = 1

        payload(Theirs)
        moved = Theirs(one()).to_device("meta")
        by_attrs = attrs.has(Theirs)
        names = [f.name for f in (attrs if by_attrs else dataclasses).fields(Theirs)]
        changed = (attrs.evolve if by_attrs else dataclasses.replace)(moved, size=2)

        assert ["ids", "size"] == names
        assert (2, True) == (changed.size, changed.ids is moved.ids)
        assert 1 == copy.copy(moved).size

    def test_child_is_adopted_before_its_base(self, make: Maker) -> None:
        """The order of the calls does not matter: each class has a plan of its own."""

        @make
        class Base:
            ids: Tensor

        @make
        class Child(Base):
            more: Tensor | None = None

        payload(Child)
        payload(Base)
        moved = Child(one(), one()).to_device("meta")

        assert ["ids", "more"] == [key for key, _ in tensors(moved)]
        assert type(moved) is Child
        assert ("ids",) == Base.payload_keys()  # type: ignore[attr-defined]  # adopted

    def test_child_that_is_left_out_says_so(self, make: Maker) -> None:
        """A class under an adopted one is not covered by it, and names what it adds."""

        @make
        class Base:
            ids: Tensor

        @make
        class Child(Base):
            more: Tensor | None = None

        payload(Base)

        with pytest.raises(UndecoratedError, match="Its field `more` would be lost"):
            Child(one(), one()).to_device("meta")

    def test_refused_class_is_as_it_was(self, make: Maker) -> None:
        """After the remedy the same class is adopted."""

        @make
        class Theirs:
            ids: Tensor
            meta: dict[str, Any] | None = None

        before = dict(vars(Theirs))
        with pytest.raises(LifetimeError, match="Or write `Dynamic"):
            payload(Theirs)
        assert before == dict(vars(Theirs))

        payload(Theirs, fields={"meta": Dynamic[dict[str, Any] | None]})
        moved = Theirs(one(), {"x": one(), "n": 1}).to_device("meta")

        assert (True, 1) == (moved.meta["x"].is_meta, moved.meta["n"])


OPTIONS: list[dict[str, Any]] = [
    {"frozen": True},
    {"slots": True},
    {"slots": True, "weakref_slot": True},
    {"kw_only": True},
    {"order": True},
    {"unsafe_hash": True},
    {"eq": False},
    {"repr": False},
    {"match_args": False},
    {"frozen": True, "slots": True, "kw_only": True, "order": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_of_dataclasses_is_taken(options: dict[str, Any]) -> None:
    """None of them changes what travels, and nothing of `__post_init__` runs again."""
    posted = []

    @payload
    @dataclasses.dataclass(**options)
    class Theirs:
        ids: Tensor
        rows: list[Tensor] | None = None
        size: int = dataclasses.field(default=3, kw_only=True)
        made: Tensor = dataclasses.field(init=False)
        cached: int = dataclasses.field(
            init=False, default=0, repr=False, compare=False
        )

        def __post_init__(self) -> None:
            posted.append(self.size)
            object.__setattr__(self, "made", self.ids + 1)
            object.__setattr__(self, "cached", 7)

    value = Theirs(ids=one(), rows=[one()], size=4)
    moved = value.to_device("meta")

    assert ["ids", "rows[0]", "made"] == [key for key, _ in tensors(value)]
    assert ["ids", "rows[0]", "made"] == [k for k, t in tensors(moved) if t.is_meta]
    assert (4, 7, [4]) == (moved.size, moved.cached, posted)


@payload
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    ids: Tensor
    host: tuple[int, ...] = ()


def test_frozen_slots_cross_a_process_boundary() -> None:
    """The state that `dataclasses` makes for such a class is enough after a move."""
    moved: Any = Sent(ids=one(), host=(1, 2)).to_device("cpu")  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(moved))  # noqa: S301  # our own

    assert torch.equal(moved.ids, again.ids)
    assert (1, 2) == again.host
