"""msgspec structs, adopted in place: filled in C, copied without `__post_init__`."""

import copy
import functools
import gc
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import pytest
import torch
from clients.libraries import client
from torch import Tensor

from tensorpack import (
    DefinitionError,
    Derived,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeError,
    Payload,
    UndecoratedError,
    clone,
    evolve,
    payload,
    register_pytree,
    tensors,
)
from tensorpack.testing import recorded_streams

msgspec = client("msgspec", "0.20")
Struct = msgspec.Struct
T = TypeVar("T")


@payload
class Inner(Struct):  # type: ignore[misc,valid-type]  # no stubs
    weight: Tensor
    tag: str = "inner"


@payload
class Batch(Struct, Payload, frozen=True, kw_only=True):  # type: ignore[misc,valid-type,call-arg]
    ids: Tensor
    size: int = 1
    inner: Inner | None = None
    rows: list[Tensor] | None = None
    either: Tensor | list[Tensor] | str = ""
    open: Dynamic[Any] = None
    host: HostOnly[Tensor | None] = None
    cache: Derived[Tensor | None] = None
    seen: Derived[list[str]] = msgspec.field(default_factory=list)

    posted: ClassVar[list[int]] = []

    def __post_init__(self) -> None:
        self.posted.append(self.size)


def batch() -> Any:
    """Make a struct with a leaf in each kind of field."""
    one = torch.ones(2)
    return Batch(
        ids=one,
        size=7,
        inner=Inner(one + 1),
        rows=[one + 2],
        either=[one + 3],
        open={"x": one + 4},
        host=one,
        cache=one,
        seen=["it"],
    )


KEYS = ["ids", "inner.weight", "rows[0]", "either[0]", "open['x']"]


class TestAdopted:
    """A struct gets the methods and stays the class that it was."""

    def test_every_leaf_is_listed_moved_and_recorded(self) -> None:
        """Wherever it stands; host fields are the same objects."""
        value = batch()
        moved = value.to_device("meta")
        with recorded_streams() as log:
            leaves = [torch.ones(2, device="cuda") for _ in range(3)]
            there = Batch(ids=leaves[0], rows=[leaves[1]], cache=leaves[2])
            there.record_stream(torch.Stream("cuda"))

        assert KEYS == [key for key, _ in tensors(value)]
        assert KEYS == [key for key, leaf in tensors(moved) if leaf.is_meta]
        assert moved.host is value.host
        assert (7, "inner") == (moved.size, moved.inner.tag)
        assert ["[0]", "[1]", "[2]"] == log.recorded(leaves)

    def test_nothing_of_the_class_runs_again(self) -> None:
        """A copy is no new instance to msgspec; derived fields get their default."""
        value = batch()
        before = len(Batch.posted)
        moved = value.to_device("meta")

        assert before == len(Batch.posted)
        assert (None, []) == (moved.cache, moved.seen)
        assert moved.seen is not value.seen

    def test_copies_are_changed_and_the_original_is_not(self) -> None:
        """`clone` and `evolve` work for frozen structs, as for all payloads."""
        value = batch()
        changed = evolve(value, size=8)
        copied = clone(value)

        assert (8, 7) == (changed.size, value.size)
        assert changed.ids is value.ids
        assert copied.ids is not value.ids
        assert torch.equal(copied.ids, value.ids)

    def test_keys_are_in_the_order_of_the_struct(self) -> None:
        """`Derived` fields are in neither list."""
        assert ("ids", "inner", "rows", "either", "open") == Batch.payload_keys()
        assert ("size", "host") == Batch.host_keys()

    def test_text_reads_as_if_written_by_hand(self) -> None:
        """A twin starts as a copy, so fields that stay need no line."""
        Inner(torch.ones(1)).to_device("cpu")
        expected = '''def rebuild(self, build):
    """Make a copy of an Inner from new leaves."""
    take = build.take
    new = Struct.__copy__(self)
    force_setattr(new, "weight", None if self.weight is None else take())
    return new
'''

        assert expected == inspect.getsource(Inner.__tensorpack_rebuild__)

    @pytest.mark.parametrize(
        "options",
        [
            {"frozen": True},
            {"gc": False},
            {"kw_only": True},
            {"forbid_unknown_fields": True},
            {"omit_defaults": True},
            {"array_like": True, "tag": True},
            {"rename": "camel"},
            {"eq": False},
            {"order": True},
            {"weakref": True},
            {"dict": True},
            {"repr_omit_defaults": True},
        ],
        ids=str,
    )
    def test_takes_every_option_of_msgspec(self, options: dict[str, Any]) -> None:
        """None of them changes what travels."""
        made = msgspec.defstruct(
            "Made",
            [("some_ids", Tensor), ("size", int, 3), ("rows", list[Tensor], None)],
            **options,
        )
        assert payload(made) is made
        value = made(some_ids=torch.ones(2), rows=[torch.ones(1)])
        moved = value.to_device("meta")

        assert ["some_ids", "rows[0]"] == [key for key, _ in tensors(value)]
        assert moved.some_ids.is_meta
        assert moved.rows[0].is_meta
        assert 3 == moved.size
        assert gc.is_tracked(value) == gc.is_tracked(moved)

    def test_subclasses_are_guarded_and_covered(self) -> None:
        """An undecorated one raises at first use; a decorated one covers its base."""

        class Child(Inner):  # type: ignore[misc]  # no stubs
            bias: Tensor | None = None

        with pytest.raises(UndecoratedError, match="Its field `bias` would be lost"):
            Child(torch.ones(1)).to_device("meta")

        payload(Child)
        moved = Child(torch.ones(1), bias=torch.ones(1)).to_device("meta")

        assert (True, True) == (moved.weight.is_meta, moved.bias.is_meta)
        assert ("weight", "bias") == Child.payload_keys()

    def test_generic_struct_is_bound_in_a_subclass(self) -> None:
        """A type variable means what the subclass says."""

        class Box(Struct, Generic[T]):  # type: ignore[misc,valid-type]  # no stubs
            content: T

        @payload
        class OfTensor(Box[Tensor]): ...  # type: ignore[misc]  # no stubs

        assert OfTensor(torch.ones(1)).to_device("meta").content.is_meta

    def test_cached_property_is_computed_anew(self) -> None:
        """What a struct keeps beside its fields stays behind; what is lost raises."""

        @payload
        class Kept(Struct, dict=True):  # type: ignore[misc,valid-type,call-arg]
            ids: Tensor

            @functools.cached_property
            def total(self) -> float:
                return float(self.ids.sum())

        value = Kept(torch.ones(2))

        assert 2.0 == value.total
        assert 4.0 == evolve(value, ids=torch.ones(4)).total

        value.more = torch.ones(1)
        with pytest.raises(LeafError, match="but not a field"):
            value.to_device("meta")

    def test_fields_are_corrected(self) -> None:
        """A struct of somebody else, whose annotation says too little."""

        class Theirs(Struct):  # type: ignore[misc,valid-type]  # no stubs
            meta: dict[str, Any]

        payload(Theirs, fields={"meta": Dynamic[dict[str, Any]]})

        assert Theirs({"x": torch.ones(1)}).to_device("meta").meta["x"].is_meta


class TestRefused:
    """What cannot be right is refused when the class is made."""

    def test_fields_without_lifetime_support(self) -> None:
        """All of them at once, and the struct is left as it was."""

        class Bad(Struct):  # type: ignore[misc,valid-type]  # no stubs
            meta: dict[str, Any]
            call: Callable[[], None]
            ids: Tensor

        before = dict(vars(Bad))
        with pytest.raises(LifetimeError) as caught:
            payload(Bad)

        assert ["meta", "call"] == [r.field for r in caught.value.refusals]
        assert before == dict(vars(Bad))

    def test_cached_hash(self) -> None:
        """A copy takes it along, so a twin would have the hash of the original."""

        class Hashed(Struct, frozen=True, cache_hash=True):  # type: ignore[misc,valid-type,call-arg]
            ids: Tensor

        with pytest.raises(DefinitionError, match="caches its hash"):
            payload(Hashed)


class TestCarried:
    """A struct goes where others go."""

    @pytest.mark.parametrize(
        "way",
        [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))],  # noqa: S301
        ids=["deepcopy", "pickle"],
    )
    def test_copies_are_equal(self, way: Callable[[Any], Any]) -> None:
        """Every field comes back."""
        value = batch()
        again = way(value)

        assert KEYS == [key for key, _ in tensors(again)]
        assert torch.equal(value.inner.weight, again.inner.weight)
        assert (7, ["it"]) == (again.size, again.seen)

    def test_torch_saves_and_loads_it(self) -> None:
        """Nothing but what is declared safe is loaded."""
        file = io.BytesIO()
        torch.save(Inner(torch.ones(2)), file)
        file.seek(0)
        rebuild = Inner(torch.ones(1)).__reduce__()[0]
        with torch.serialization.safe_globals([Inner, rebuild]):
            again = torch.load(file)

        assert type(again) is Inner
        assert [1.0, 1.0] == again.weight.tolist()

    def test_is_a_node_of_torchs_trees(self) -> None:
        """`vmap` sees the leaves of a frozen struct."""
        register_pytree(Batch)
        value = Batch(ids=torch.ones(3, 2), inner=Inner(torch.ones(3)))
        found = torch.vmap(lambda one: one.ids.sum() + one.inner.weight)(value)

        assert [3.0] * 3 == found.tolist()

    @pytest.mark.filterwarnings("ignore")  # torch warns of its own internals
    def test_is_read_in_a_traced_function(self) -> None:
        """Fields may be read; a struct cannot be made there, since C code makes it."""
        torch._dynamo.reset()
        value = Inner(torch.ones(2))
        compiled = torch.compile(fullgraph=True, backend="eager")

        assert [2.0, 2.0] == compiled(lambda x: x.weight * 2)(value).tolist()
        for make in (lambda t: Inner(t).weight, lambda t: t + value.to("cpu").weight):
            with pytest.raises(torch._dynamo.exc.Unsupported):
                compiled(make)(torch.ones(2))
        torch._dynamo.reset()
