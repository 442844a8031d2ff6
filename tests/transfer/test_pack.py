"""Packs, over many random layouts, with host memory standing in for the device."""

import contextlib
import functools
import linecache
import random
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from tensorpack._leaves.streams import outliving
from tensorpack.transfer import packing as _pack
from tensorpack.transfer.native import UNSEEN, Native
from tensorpack.transfer.packing import Packer
from tensorpack.transfer.staging import Stager

# Of torch itself: what it says the first time that such a tensor is made.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:torch.quantize"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`"),
]

HOST, META = torch.device("cpu"), torch.device("meta")
BELOW = 1 << 20
GUARD = 512

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


class Memory:
    """Gives host memory between two guards, and tells whether anybody wrote there."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []

    def __call__(self, count: int, dtype: torch.dtype) -> Tensor:
        nbytes = count * dtype.itemsize
        row = torch.full((nbytes + 2 * GUARD,), 0xA5, dtype=torch.uint8)
        self._rows.append(row)
        return row[GUARD : GUARD + nbytes].view(dtype)

    def guards_are_whole(self) -> bool:
        return all(
            bool((row[:GUARD] == 0xA5).all()) and bool((row[-GUARD:] == 0xA5).all())
            for row in self._rows
        )


class Compiled:
    """The compiled core in the place of a packer, with Python where it asks for it."""

    def __init__(self, native: Native, below: int) -> None:
        self.python = Packer(below)
        self.memory: Any = None
        pack = True
        self.core = native.Core(HOST, below, pack, 0, self._row, None, None)

    def _row(self, nbytes: int) -> Tensor:
        row: Tensor = self.memory(nbytes, torch.uint8)
        return row

    def pack(self, leaves: Sequence[Any], memory: Any) -> list[Any]:
        if self.core.look(list(leaves)) & UNSEEN:
            return packed(self.python, leaves, memory)
        self.memory = memory
        moved = self.core.move(list(leaves), [])
        assert moved is not None
        return moved[0]


MakePacker = Callable[[int], Packer | Compiled]


@pytest.fixture(params=["python", "native"])
def packer_of(request: pytest.FixtureRequest) -> MakePacker:
    """Make packers, in Python or compiled."""
    if request.param == "python":
        return Packer
    return functools.partial(Compiled, request.getfixturevalue("native"))


def packed(packer: Packer | Compiled, leaves: Sequence[Any], memory: Any) -> list[Any]:
    """Return the packed leaves; they passed through rows that `memory` gave."""
    if isinstance(packer, Compiled):
        return packer.pack(leaves, memory)
    new, *_ = packer.pack(packer.find(leaves), leaves, HOST, memory)
    return new


def random_shape(rng: random.Random) -> tuple[int, ...]:
    sizes = (0, 1, 1, 2, 3, 5, 9)
    return tuple(rng.choice(sizes) for _ in range(rng.randint(0, 4)))


def filled(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Make a tensor of random bytes that are numbers of the dtype."""
    count = torch.Size(shape).numel()
    numbers = torch.tensor([rng.randint(0, 7) for _ in range(count)], dtype=torch.int64)
    return numbers.to(dtype).view(shape)


def contiguous(x: Tensor, rng: random.Random) -> Tensor:
    return x


def transposed(x: Tensor, rng: random.Random) -> Tensor:
    return x.permute(rng.sample(range(x.dim()), x.dim()))


def expanded(x: Tensor, rng: random.Random) -> Tensor:
    return x.unsqueeze(0).expand(rng.choice((1, 3)), *x.shape)


def sliced(x: Tensor, rng: random.Random) -> Tensor:
    return x[..., ::2] if x.dim() else x


def channels_last(x: Tensor, rng: random.Random) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def conjugated(x: Tensor, rng: random.Random) -> Tensor:
    return x.conj() if x.is_complex() else x


def negated(x: Tensor, rng: random.Random) -> Tensor:
    return x.conj().imag if x.is_complex() else x


FORMS = (
    contiguous,
    contiguous,
    transposed,
    expanded,
    sliced,
    channels_last,
    conjugated,
    negated,
)


def random_leaves(rng: random.Random) -> list[Tensor]:
    return [
        rng.choice(FORMS)(filled(rng, random_shape(rng), rng.choice(DTYPES)), rng)
        for _ in range(rng.randint(2, 12))
    ]


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Compare the numbers of two tensors bit by bit."""
    rows = [
        torch.empty(x.shape, dtype=x.dtype).copy_(x).view(-1).view(torch.uint8)
        for x in (a, b)
    ]
    return torch.equal(*rows)


def strides(x: Tensor) -> list[int]:
    """Give the strides that matter: those of dimensions with several items."""
    pairs = zip(x.shape, x.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1 and x.numel()]


def check(sources: list[Tensor], leaves: list[Any]) -> None:
    """Assert that packed leaves are as good as separate tensors."""
    for source, leaf in zip(sources, leaves, strict=True):
        twin = torch.empty_like(source, device="meta")

        assert (source.dtype, source.shape) == (leaf.dtype, leaf.shape)
        assert strides(twin) == strides(leaf)
        assert same_bytes(source, leaf)
        assert 0 == leaf.storage_offset() * leaf.element_size() % 256
        assert not leaf._is_view()
        assert not leaf.is_conj()
        assert not leaf.is_neg()
        assert not leaf.requires_grad


def check_apart(leaves: list[Any]) -> None:
    """Assert that a write to one leaf is no write to another, and counts for it."""
    versions = [leaf._version for leaf in leaves]
    for index, leaf in enumerate(leaves):
        others = [x.clone() for i, x in enumerate(leaves) if i != index]
        leaf.zero_()
        rest = [x for i, x in enumerate(leaves) if i != index]

        assert all(map(same_bytes, others, rest))
        assert versions[index] < leaf._version
        assert versions[index + 1 :] == [x._version for x in leaves[index + 1 :]]


@pytest.mark.parametrize("seed", range(60))
def test_packed_leaves_are_as_good_as_separate_tensors(
    seed: int, packer_of: MakePacker
) -> None:
    """Bytes, shapes, strides, alignment and version counters, by loop and function."""
    rng = random.Random(seed)
    packer = packer_of(BELOW)
    sources = random_leaves(rng)
    kept = [x.clone() for x in sources]
    rounds = [packed(packer, sources, Memory()) for _ in range(4)]

    for leaves in rounds:
        check(sources, leaves)
    for leaves in (rounds[0], rounds[-1]):
        check_apart(leaves)
    assert all(map(same_bytes, kept, sources))


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_written_outside_the_pack(seed: int, packer_of: MakePacker) -> None:
    """The memory around a pack is as it was, and the pack is cut without an overlap."""
    rng = random.Random(seed)
    packer, memory = packer_of(BELOW), Memory()
    sources = random_leaves(rng)
    for _ in range(3):
        leaves = packed(packer, sources, memory)
        for leaf in leaves:
            leaf.zero_()

    assert memory.guards_are_whole()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_travels(dtype: torch.dtype) -> None:
    """Scalars, empty tensors, rows and matrices of each dtype keep their bytes."""
    rng = random.Random(0)
    shapes = ((), (0,), (1,), (3,), (2, 3), (0, 5), (1, 1, 7))
    sources = [filled(rng, shape, dtype) for shape in shapes]
    packer = Packer(BELOW)
    for _ in range(3):
        check(sources, packed(packer, sources, Memory()))

    assert 1 == len(packer.texts())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_travels(form: Any, packer_of: MakePacker) -> None:
    """Transposed, expanded, sliced, conjugated leaves come out dense, as by `to`."""
    rng = random.Random(1)
    dtypes = (torch.complex64, torch.float32, torch.int64)
    sources = [form(filled(rng, (2, 3, 4, 5), dtype), rng) for dtype in dtypes]
    packer = packer_of(BELOW)
    for _ in range(4):
        check(sources, packed(packer, sources, Memory()))


def test_functions_tell_strides_apart(packer_of: MakePacker) -> None:
    """A layout with a function of its own does not take other strides for its own."""
    packer = packer_of(BELOW)
    plain = [torch.arange(6).view(2, 3), torch.ones(2)]
    turned = [torch.arange(6).view(3, 2).t(), torch.ones(2)]
    for _ in range(4):
        for sources in (plain, turned):
            check(sources, packed(packer, sources, Memory()))


class OwnTensor(Tensor):
    """A subclass that adds nothing."""


def nested(_: Tensor) -> Tensor:
    """Make a nested tensor, which has no shape, and says so by an internal error."""
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


ODD: dict[str, Any] = {
    "class": lambda x: x.as_subclass(OwnTensor),
    "gradient": lambda x: x.clone().requires_grad_(),
    "later gradient": lambda x: x.clone().requires_grad_() * 2,
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
    "mkldnn": lambda x: x.float().to_mkldnn(),
    "nested": nested,
    "jagged": lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8),
    "meta": lambda x: x.to("meta"),
    "no tensor": lambda _: object(),
}
CHANGES: dict[str, Any] = {
    "shape": lambda x: x.view(3, 2),
    "dimensions": lambda x: x.view(6),
    "dtype": lambda x: x.view(torch.int32).view(2, 3),
    "strides": lambda x: x.t().contiguous().t(),
    "every other": lambda x: x.repeat(1, 2)[:, ::2],
    "negative": lambda x: torch.complex(x, x).conj().imag,
    **{name: change for name, change in ODD.items() if name != "nested"},
}
# The leaf is gathered under its own dtype in the first list, as others in the second.
BESIDE = {
    "one dtype": (torch.ones(5), torch.ones(2, 2)),
    "several": (torch.arange(4), torch.arange(3)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_guard_of_a_layout_knows_what_decides_it(change: Any) -> None:
    """Leaves that differ in anything from those of a layout do not pass its guard."""
    packer = Packer(BELOW)
    first, rest = torch.arange(6.0).view(2, 3), BESIDE["several"]
    for _ in range(4):
        packed(packer, [first, *rest], Memory())
    known = packer.find([first, *rest])

    assert known.fits(first.clone(), *rest)
    assert not known.fits(change(first), *rest)


@pytest.mark.parametrize("beside", BESIDE.values(), ids=list(BESIDE))
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("change", ODD.values(), ids=list(ODD))
def test_odd_leaf_goes_alone_in_the_place_of_a_plain_one(
    change: Any,
    grad: bool,
    beside: tuple[Tensor, ...],
    packer_of: MakePacker,
) -> None:
    """What a layout has learned of plain leaves is not done to others."""
    packer = packer_of(BELOW)
    plain = torch.arange(6.0).view(2, 3)
    odd = change(plain)
    with torch.set_grad_enabled(grad):
        for _ in range(4):
            check([plain, *beside], packed(packer, [plain, *beside], Memory()))
        for _ in range(4):
            new = packed(packer, [odd, *beside], Memory())

            assert new[0] is None
            check(list(beside), new[1:])


def test_leaf_with_a_tangent_goes_alone(packer_of: MakePacker) -> None:
    """Nothing but forward-mode autograd itself shows that there is one."""
    packer = packer_of(BELOW)
    rest = [torch.arange(4), torch.arange(3)]
    plain = torch.ones(2, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(plain, torch.full((2, 3), 5.0))
        for leaf in (plain, plain, plain, dual, plain):
            new = packed(packer, [leaf, *rest], Memory())

            assert (leaf is dual) == (new[0] is None)
            check(rest, new[1:])


@pytest.mark.parametrize("count", [8, 1 << 19])
def test_leaf_that_goes_alone_keeps_its_tangent(count: int) -> None:
    """A small one and one that would pass through the ring."""
    streams: Any = types.SimpleNamespace(
        pinned=lambda n, dtype: torch.zeros(n, dtype=dtype), record=lambda _: None
    )
    stager = Stager(streams, HOST, 1, 1, lambda _: None)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(count), torch.full((count,), 5.0))
        new, *_ = stager.move(dual, torch.Stream)  # type: ignore[arg-type]  # unused
        value, tangent = forward_ad.unpack_dual(new)

        assert 1.0 == value.mean()
        assert 5.0 == tangent.mean()


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad])
def test_leaf_of_a_transform_goes_alone(transform: Any, packer_of: MakePacker) -> None:
    """Inside of `vmap` or `grad` a leaf stands for others; only torch can copy it."""
    packer = packer_of(BELOW)
    rest = [torch.arange(4), torch.arange(3)]
    for _ in range(4):
        packed(packer, [torch.ones(3), *rest], Memory())
    seen: list[bool] = []

    def inside(x: Tensor) -> Tensor:
        rounds = [packed(packer, [x, *rest], Memory()) for _ in range(4)]
        seen.extend(new[0] is None for new in rounds)
        return x.sum()

    transform(inside)(torch.ones(2, 3) if transform is torch.vmap else torch.ones(3))

    assert [True] * 4 == seen


@pytest.mark.parametrize("allow", [True, False])
def test_fake_mode_leaves_nothing_fake_behind(
    allow: bool, packer_of: MakePacker
) -> None:
    """What is kept for later transfers is real, whoever made it necessary."""
    _pack._padding.cache_clear()
    packer = packer_of(BELOW)
    sources = [torch.full((3,), 7.0), torch.full((5,), 9.0)]
    for _ in range(2):
        packed(packer, sources, Memory())
    with (
        FakeTensorMode(allow_non_fake_inputs=allow),
        contextlib.suppress(AssertionError),  # torch's, where real leaves are refused
    ):
        packed(packer, sources, lambda n, dtype: torch.zeros(n, dtype=dtype))
    with FakeTensorMode(), outliving():
        kept = torch.zeros(2)

    assert type(kept) is Tensor
    check(sources, packed(packer, sources, Memory()))


def test_texts_are_kept_as_long_as_their_functions() -> None:
    """A layout that is replaced or goes takes its text along, and no other's."""
    packer = Packer(BELOW, bound=4)
    before = set(linecache.cache)
    for n in range(1, 40):
        square = [torch.ones(2, 2 + n), torch.ones(3)]
        turned = [torch.ones(2 + n, 2).t(), torch.ones(3)]
        alone = [torch.ones(3), torch.ones(3), torch.ones(BELOW + n)]
        for leaves in (square, square, turned, alone, alone):
            packed(packer, leaves, Memory())
    packer._recent.clear()

    assert len(set(linecache.cache) - before) <= 4
    assert all("def pack(" in text for text in packer.texts())


def test_guards_are_asked_before_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layouts that were met last are found without a key, in any mode."""
    packer = Packer(BELOW)
    layouts = [[torch.ones(n), torch.ones(2)] for n in (3, 4, 5)]
    for leaves in layouts * 4:
        check(leaves, packed(packer, leaves, Memory()))
    monkeypatch.setattr(packer, "_find_by_key", None)
    for leaves in layouts * 2:
        check(leaves, packed(packer, leaves, Memory()))


def test_guards_come_to_an_end() -> None:
    """Leaves that change between two modes are found by key, and cost no guard each."""
    packer = Packer(BELOW)
    plain = [torch.ones(3), torch.ones(2)]
    with torch.inference_mode():
        other = [torch.ones(3), torch.ones(2)]
    for _ in range(20):
        for leaves in (plain, other):
            new = packed(packer, leaves, Memory())

            assert all(map(same_bytes, leaves, new))
    assert 0 == packer.find(plain).guards_left


def test_layouts_travel_without_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that has no guards does all by keys."""
    monkeypatch.setattr(_pack, "_Guard", None)
    packer = Packer(BELOW)
    sources = [torch.arange(6).view(2, 3), torch.ones(2)]
    for _ in range(4):
        check(sources, packed(packer, sources, Memory()))

    assert {} == packer._recent
    assert packer.find(sources).move is not None


def test_packing_does_not_break_a_later_backward(packer_of: MakePacker) -> None:
    """An in-place write to one leaf leaves what another has saved for backward."""
    packer = packer_of(BELOW)
    sources = [torch.ones(3), torch.ones(2, 2)]
    weight = torch.full((2, 2), 2.0, requires_grad=True)
    for _ in range(3):
        with torch.no_grad():
            row, square = packed(packer, sources, Memory())
        loss = (square * weight).sum()
        row.add_(1)
        loss.backward()
        square.mul_(weight)
        square.sum().backward()

    assert torch.full((2, 2), 6.0).equal(weight.grad)


def test_many_shapes_compile_nothing() -> None:
    """Layouts seen once are moved by the loop, and no more than the bound are kept."""
    packer = Packer(BELOW, bound=8)
    for n in range(1, 50):
        packed(packer, [torch.ones(n), torch.ones(2)], Memory())

    assert [] == packer.texts()
    assert len(packer._seen) <= 8
    assert len(packer._known) <= 8


def test_functions_are_bounded() -> None:
    """The oldest function goes when there are too many; its layout still travels."""
    packer = Packer(BELOW, bound=8)
    for n in (*range(1, 20), 1):
        sources = [torch.ones(n), torch.ones(2)]
        for _ in range(3):
            check(sources, packed(packer, sources, Memory()))

    assert 8 == len(packer.texts())


def test_leaves_that_do_not_fit_go_alone(packer_of: MakePacker) -> None:
    """Large leaves, subclasses, sparse leaves and those with a gradient are left."""
    sources = [
        torch.ones(4),
        torch.ones(BELOW),
        torch.nn.Parameter(torch.ones(2)),
        torch.eye(3).to_sparse(),
        torch.ones(2, requires_grad=True),
        torch.ones(5),
    ]
    new = packed(packer_of(BELOW), sources, Memory())

    assert [0, 5] == [i for i, leaf in enumerate(new) if leaf is not None]


def test_pack_may_begin_with_an_empty_leaf(packer_of: MakePacker) -> None:
    """A leaf without items before all others ended in an IndexError."""
    sources = [torch.ones(0), torch.ones(3), torch.ones(0, 2)]
    packer = packer_of(BELOW)
    for _ in range(3):
        check(sources, packed(packer, sources, Memory()))


def test_empty_leaf_grows_into_no_other(packer_of: MakePacker) -> None:
    """As `out=` of an operation it once overwrote the leaves that lay behind it."""
    packer = packer_of(BELOW)
    sources = [torch.ones(3), torch.ones(0), torch.ones(5), torch.ones(2, 0)]
    for _ in range(4):
        first, empty, last, other = packed(packer, sources, Memory())
        torch.add(torch.zeros(4), 7, out=empty)

        assert torch.ones(3).equal(first)
        assert torch.ones(5).equal(last)
        assert (2, 0) == other.shape
        assert torch.full((4,), 7.0).equal(empty)


def test_leaves_apart_are_gathered_and_have_a_block_each() -> None:
    """With `pack=False` they pass through one pinned row, and share nothing after."""
    packer = Packer(BELOW, together=False)
    sources = [torch.arange(6).view(2, 3), torch.ones(5), torch.ones(2, 3).t()]
    sources += [torch.ones(0, 2), torch.full((3,), 7, dtype=torch.uint8)]
    for _ in range(4):
        entry = packer.find(sources)
        new, rows, blocks, alone = packer.pack(entry, sources, META, Memory())

        assert (1, 4, ()) == (len(rows), len(blocks), alone)
        assert {id(new[i]) for i in (0, 1, 2, 4)} == set(map(id, blocks))
        for source, leaf in zip(sources, new, strict=True):
            twin = source.to("meta")

            assert (twin.shape, twin.dtype) == (leaf.shape, leaf.dtype)
            assert twin.stride() == leaf.stride()
            assert 0 == leaf.storage_offset()
        rounds = packer.pack(packer.find(sources), sources, HOST, Memory())[0]
        assert all(map(same_bytes, sources, rounds))

    assert 1 == len(packer.texts())


def test_one_small_leaf_goes_alone() -> None:
    """A pack of one leaf would be no gain."""
    assert [None] == packed(Packer(BELOW), [torch.ones(3)], Memory())


def test_packs_are_bounded(packer_of: MakePacker) -> None:
    """A kept leaf holds no more than 4 MB alive."""
    sources = [torch.full((60_000,), float(i)) for i in range(40)]
    packer = packer_of(BELOW)
    for _ in range(3):
        leaves = packed(packer, sources, Memory())
        check(sources, leaves)

    assert all(x.untyped_storage().nbytes() <= (4 << 20) + 2 * GUARD for x in leaves)
