"""Payloads as nodes of torch's trees: `vmap`, `checkpoint`, `export` see the leaves."""

import collections
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from tensorpack import (
    Derived,
    HostOnly,
    UndecoratedError,
    clone,
    payload,
    register_pytree,
)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@payload(frozen=True)
class Inner:
    weight: Tensor
    tag: str = "inner"


@register_pytree
@payload
class Batch:
    ids: Tensor
    inner: Inner | None = None
    rows: list[Tensor] | None = None
    named: dict[str, list[Tensor]] | None = None
    either: Tensor | Inner | None = None
    pair: Pair | None = None
    size: int = 1
    plan: np.ndarray | None = None
    host: HostOnly[Tensor | None] = None
    cache: Derived[Tensor | None] = None


def batch() -> Batch:
    """Make a payload in which each kind of field has something."""
    one = torch.ones(3, 2)
    return Batch(
        one,
        Inner(one + 1),
        [one + 2, one + 3],
        {"a": [one + 4]},
        Inner(one + 5),
        Pair(one + 6, one + 7),
        plan=np.arange(2),
        cache=one,
    )


def total(value: Batch) -> Tensor:
    """Add up the leaves, as many as there are."""
    leaves = pytree.tree_leaves(value)
    return torch.stack([leaf.sum() for leaf in leaves]).sum()


KEYS = [
    ".ids",
    ".inner.weight",
    ".rows[0]",
    ".rows[1]",
    ".named['a'][0]",
    ".either.weight",
    ".pair.left",
    ".pair.right",
]


class TestTree:
    """What the tree functions of torch make of a payload."""

    def test_leaves_are_the_tensors_with_their_keys(self) -> None:
        """None has no leaf, and neither has what stays on the host."""
        value = batch()
        pairs, _ = pytree.tree_flatten_with_path(value)

        assert KEYS == [pytree.keystr(key) for key, _ in pairs]
        assert all(isinstance(leaf, Tensor) for _, leaf in pairs)
        assert [1.0 + n for n in range(8)] == [float(leaf[0, 0]) for _, leaf in pairs]

    def test_map_makes_a_payload_of_the_same_kind(self) -> None:
        """Host fields are the same objects; a cache starts anew; nothing is shared."""
        value = batch()
        new = pytree.tree_map(lambda leaf: leaf * 2, value)

        assert type(new) is Batch
        assert type(new.inner) is Inner
        assert type(new.pair) is Pair
        assert [2.0, 4.0] == [float(new.ids[0, 0]), float(new.inner.weight[0, 0])]
        assert new.plan is value.plan
        assert new.cache is None
        assert 1.0 == float(value.ids[0, 0])

    def test_any_object_may_stand_where_a_leaf_was(self) -> None:
        """The tree keeps its form, whatever a function has made of the leaves."""
        shapes = pytree.tree_map(lambda leaf: tuple(leaf.shape), batch())
        again = pytree.tree_map(len, shapes, is_leaf=lambda x: type(x) is tuple)

        assert (3, 2) == shapes.ids
        assert [2] * 8 == pytree.tree_leaves(again)
        assert [0] * 8 == pytree.tree_leaves(
            pytree.tree_unflatten([0] * 8, pytree.tree_structure(batch()))
        )

    def test_equal_structure_is_equal_host_fields(self) -> None:
        """Leaves do not count, the fields that stay on the host do."""
        value = batch()
        same = clone(value)
        same.plan = np.arange(2)
        others = [clone(value) for _ in range(4)]
        others[0].size = 2
        others[1].rows = None
        others[2].plan = np.arange(3)
        others[3].inner = Inner(torch.ones(1), "other")

        structure = pytree.tree_structure(value)
        assert structure == pytree.tree_structure(same)
        assert hash(structure.context) == hash(pytree.tree_structure(same).context)
        assert [False] * 4 == [pytree.tree_structure(o) == structure for o in others]

    def test_host_value_of_a_union_is_no_leaf(self) -> None:
        """It belongs to the structure, as if the field could hold nothing else."""

        @register_pytree
        @payload
        class Masked:
            ids: Tensor
            causal: bool | Tensor = True

        on, off, mask = (Masked(torch.ones(2), c) for c in (True, False, torch.ones(2)))

        assert [1, 1, 2] == [len(pytree.tree_leaves(x)) for x in (on, off, mask)]
        assert pytree.tree_structure(on) != pytree.tree_structure(off)
        assert pytree.tree_map(lambda leaf: leaf + 1, on).causal is True
        assert [2.0] * 2 == torch.vmap(lambda x: x.ids + x.causal)(mask).tolist()

    def test_structure_says_what_it_is(self) -> None:
        """Two structures that differ in a host field do not look the same."""
        value = Batch(torch.ones(2), size=7, plan=np.zeros(1))
        context = pytree.tree_structure(value).context

        assert "[ids; size=7, plan=array([0.])]" == repr(context)

    def test_structure_keeps_no_leaf_alive(self) -> None:
        """It outlives the tensors, so it must not hold them."""
        value = Batch(torch.ones(2), rows=[torch.ones(2)])
        bare = pytree.tree_structure(value).context.bare

        assert (None, None) == (bare.ids, bare.rows)

    def test_knows_the_payloads_that_fields_name(self) -> None:
        """One call is enough for what the class mentions; two do no harm."""

        @payload
        class Deep:
            t: Tensor
            again: "Deep | None" = None

        @payload
        class Outer:
            deep: dict[str, tuple[Deep, ...]]
            again: "Outer | None" = None

        for _ in range(2):
            assert register_pytree(Outer) is Outer
        value = Outer({"a": (Deep(torch.ones(1), Deep(torch.ones(2))),)})
        shapes = [leaf.shape for leaf in pytree.tree_leaves([value])]

        assert [(1,), (2,)] == shapes

    def test_adapted_types_are_what_torch_takes_them_for(self) -> None:
        """A `PackedSequence` is a named tuple to the tree, its batch sizes a leaf."""

        @register_pytree
        @payload
        class Text:
            packed: PackedSequence

        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
        new = pytree.tree_map(lambda leaf: leaf, Text(packed))

        assert type(new.packed) is PackedSequence

    def test_needs_a_payload(self) -> None:
        """A class without a plan has no fields that travel."""
        with pytest.raises(UndecoratedError, match="is not decorated with `@payload`"):
            register_pytree(collections.OrderedDict)


class TestTransforms:
    """The transforms of torch take a payload for the tensors in it."""

    def test_vmap(self) -> None:
        """Each leaf is cut along the batch; a payload may come out too."""
        value = batch()
        sums = torch.vmap(total)(value)
        doubled = torch.vmap(lambda one: Batch(one.ids * 2, one.inner))(value)
        chosen = torch.vmap(lambda one, n: one.ids + n, in_dims=(0, None))(value, 1)

        assert [72.0] * 3 == sums.tolist()
        assert (3, 2) == doubled.ids.shape == doubled.inner.weight.shape
        assert torch.equal(value.ids + 1, chosen)

    def test_gradient(self) -> None:
        """The gradient of a function of a payload is a payload of gradients."""
        value = batch()
        gradients = torch.func.grad(lambda x: total(x) + (x.ids**2).sum())(value)

        assert type(gradients) is Batch
        assert torch.equal(torch.full((3, 2), 3.0), gradients.ids)
        assert torch.equal(torch.ones(3, 2), gradients.pair.right)

    def test_checkpoint(self) -> None:
        """What a payload brings into a checkpointed part gets its gradient."""
        ids = torch.ones(2, requires_grad=True)
        value = Batch(ids)
        checkpoint(lambda x: x.ids.sin().sum(), value, use_reentrant=False).backward()

        assert torch.equal(torch.ones(2).cos(), ids.grad)

    @pytest.mark.skipif(torch.__version__ < "2.11", reason="traces no sets")
    @pytest.mark.filterwarnings("ignore")  # torch warns of its own internals
    def test_compile(self) -> None:
        """Tree functions and `vmap` are traced through a payload."""
        torch._dynamo.reset()
        value = batch()
        compiled = torch.compile(fullgraph=True, backend="eager")
        doubled = compiled(lambda x: pytree.tree_map(lambda leaf: leaf * 2, x))(value)
        sums = compiled(torch.vmap(lambda x: x.ids.sum() * 2))(value)
        torch._dynamo.reset()

        assert torch.equal(value.ids * 2, doubled.ids)
        assert [4.0] * 3 == sums.tolist()


class Model(torch.nn.Module):
    """Reads leaves and host fields."""

    def forward(self, value: Batch) -> Tensor:
        assert value.inner is not None
        return value.ids * value.size + value.inner.weight.sum()


@pytest.fixture
def _quiet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_quiet")
@pytest.mark.filterwarnings("ignore")  # torch warns of its own internals
class TestExport:
    """`torch.export` takes each leaf for an input of the program."""

    @pytest.mark.parametrize("strict", [False, True])
    def test_leaves_are_inputs(self, strict: bool) -> None:
        """The program gives what the model gives, and checks the structure."""
        value = batch()
        program = torch.export.export(Model(), (value,), strict=strict)

        assert 8 == len(program.graph_signature.user_inputs)
        assert torch.equal(Model()(value), program.module()(value))

        with pytest.raises(ValueError, match="exported input tree spec"):
            program.module()(Batch(torch.ones(3, 2)))

    def test_sizes_may_be_free(self) -> None:
        """A leaf's size is left open by the tensor, or by the place of its field."""
        value = Batch(torch.ones(5, 2), Inner(torch.ones(3)))
        rows = torch.export.Dim("rows")
        by_tensor = torch.export.ShapesCollection()
        by_tensor[value.ids] = {0: rows}
        by_place: Any = ([{0: rows}, [None]],)

        for shapes in (by_tensor, by_place):
            program = torch.export.export(Model(), (value,), dynamic_shapes=shapes)
            other = Batch(torch.ones(7, 2), Inner(torch.ones(3)))
            assert (7, 2) == program.module()(other).shape

    def test_program_with_a_payload_is_not_saved(self) -> None:
        """Host fields have no form as text, and torch says so."""
        program = torch.export.export(Model(), (batch(),))

        with pytest.raises(TypeError, match="Unable to serialize context"):
            torch.export.save(program, io.BytesIO())
