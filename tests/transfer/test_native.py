"""The compiled core against Python, byte by byte, and against leaves that are odd."""

import gc
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from tensorpack.transfer import native as room
from tensorpack.transfer.native import ODD, TWICE, UNSEEN, Core, Native
from tensorpack.transfer.packing import Packer

HOST = torch.device("cpu")
BELOW = 1 << 12
FUZZ = Path(__file__).with_name("fuzz_native.py")
DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e5m2,
)


def row(nbytes: int) -> Tensor:
    return torch.full((nbytes,), 0xA5, dtype=torch.uint8)


def core_of(native: Native, *, pack: bool = True, take: Any = row) -> Core:
    return native.Core(HOST, BELOW, pack, 0, take, None, None)


def moved(core: Core, leaves: list[Any]) -> list[Any]:
    """Return the new leaves; None where a leaf is left to Python."""
    found = core.move(leaves, [])

    assert found is not None
    return found[0]


@st.composite
def leaves_of(draw: st.DrawFn) -> list[Tensor]:
    """Draw plain leaves of any shape, strides and dtype, small and large ones."""

    def leaf() -> Tensor:
        shape = draw(st.lists(st.sampled_from((0, 1, 1, 2, 3, 7, 40)), max_size=4))
        count = torch.Size(shape).numel()
        start = draw(st.integers(0, 5))
        dtype = draw(st.sampled_from(DTYPES))
        numbers = torch.arange(start, start + count).remainder(5).to(dtype)
        found = numbers.view(shape)
        match draw(st.integers(0, 4)):
            case 0 if found.dim():
                return found.permute(draw(st.permutations(range(found.dim()))))
            case 1 if found.dim():
                return found[..., :: draw(st.integers(1, 3))]
            case 2:
                return found.expand(draw(st.integers(1, 3)), *found.shape)
            case 3:
                return found.conj() if found.is_complex() else found[None]
            case _:
                return found

    return [leaf() for _ in range(draw(st.integers(0, 8)))]


def described(leaf: Any) -> Any:
    """Return all that a new leaf should have in common, whoever has made it."""
    if leaf is None:
        return None
    dense = torch.empty(leaf.shape, dtype=leaf.dtype).copy_(leaf)
    return (
        leaf.dtype,
        tuple(leaf.shape),
        [n for n, size in zip(leaf.stride(), leaf.shape, strict=True) if size > 1]
        if leaf.numel()
        else [],
        bytes(dense.view(-1).view(torch.uint8).tolist()) if dense.numel() else b"",
        leaf.is_inference(),
        leaf._is_view(),
        leaf.is_conj() or leaf.is_neg() or leaf.requires_grad,
        leaf.storage_offset() * leaf.element_size() % 256,
    )


@settings(max_examples=100, deadline=None)
@given(leaves=leaves_of(), inference=st.booleans(), grad=st.booleans())
def test_core_does_what_python_does(
    native: Native, leaves: list[Tensor], inference: bool, grad: bool
) -> None:
    """Bytes, shapes, strides, version counters and modes are those of the packer."""
    packer = Packer(BELOW)
    with torch.inference_mode(inference), torch.set_grad_enabled(grad):
        compiled = moved(core_of(native), leaves)
        entry = packer.find(leaves)
        plain, *_ = packer.pack(
            entry, leaves, HOST, lambda n, dtype: row(n * dtype.itemsize).view(dtype)
        )
        # One small leaf is its own buffer: the core moves it, the packer leaves it.
        if not inference:
            assert not any(x._version for x in compiled if x is not None)
        if sum(leaf is not None for leaf in compiled) == 1 and not any(
            leaf is not None for leaf in plain
        ):
            return

        assert list(map(described, plain)) == list(map(described, compiled))


def test_pack_is_one_block_and_leaves_apart_are_one_each(native: Native) -> None:
    """With `pack=False` leaves share only the pinned row that they pass through."""
    leaves = [torch.ones(3), torch.ones(2, 2).t(), torch.ones(0), torch.ones(BELOW)]
    for pack, blocks in ((True, 1), (False, 2)):
        found = core_of(native, pack=pack).move(leaves, [])
        assert found is not None
        new, rows, buffers, rest, ready = found

        assert (1, blocks, [3], None) == (len(rows), len(buffers), rest, ready)
        assert blocks == len({x.untyped_storage().data_ptr() for x in new[:2]})
        assert [x.tolist() for x in leaves[:3]] == [x.tolist() for x in new[:3]]
        assert (1, 2) == new[1].stride()


def test_packs_of_the_core_are_bounded(native: Native) -> None:
    """A kept leaf holds no more than 4 MB alive, and rows come in powers of two."""
    sizes: list[int] = []

    def take(nbytes: int) -> Tensor:
        sizes.append(nbytes)
        return row(nbytes)

    core = native.Core(HOST, 1 << 20, True, 0, take, None, None)  # noqa: FBT003
    leaves = [torch.full((60_000,), float(i)) for i in range(40)]
    new = moved(core, leaves)

    assert all(map(torch.equal, leaves, new))
    assert all(leaf.untyped_storage().nbytes() <= 4 << 20 for leaf in new)
    assert {4 << 20, 2 << 20} >= set(sizes)


def dual() -> Any:
    level = torch.autograd.forward_ad.dual_level()
    level.__enter__()
    return level


LOOKS: dict[str, tuple[Callable[[Tensor], list[Any]], int]] = {
    "plain": (lambda x: [x, x.clone(), x[::2], x[:0]], 0),
    "nothing": (lambda x: [], 0),
    "twice": (lambda x: [x, x.clone(), x], TWICE),
    "parameter": (lambda x: [torch.nn.Parameter(x)], ODD),
    "gradient": (lambda x: [x.clone().requires_grad_()], ODD),
    "sparse": (lambda x: [x.to_sparse()], ODD),
    "meta": (lambda x: [x.to("meta")], ODD),
    "zeros": (lambda x: [torch._efficientzerotensor(3)], ODD),
    "no tensor": (lambda x: [object()], ODD),
    "none": (lambda x: [None], ODD),
    "class": (lambda x: [Tensor], ODD),
}


@pytest.mark.parametrize(("make", "flags"), LOOKS.values(), ids=list(LOOKS))
def test_core_says_what_is_among_leaves(
    make: Callable[[Tensor], list[Any]], flags: int, native: Native
) -> None:
    """Odd leaves and doubles are told before anything is queued."""
    assert flags == core_of(native).look(make(torch.ones(4)))


class Seeing(torch.overrides.TorchFunctionMode):
    """Sees each call."""


class SeeingMore(torch.utils._python_dispatch.TorchDispatchMode):
    """Sees each operation."""


MODES: dict[str, tuple[Callable[[], Any], int]] = {
    "function": (Seeing, UNSEEN),
    "dispatch": (SeeingMore, UNSEEN),
    "fake": (torch._subclasses.FakeTensorMode, UNSEEN),
    "forward": (torch.autograd.forward_ad.dual_level, UNSEEN),
    "default device": (lambda: torch.device("meta"), 0),
    "no grad": (torch.no_grad, 0),
    "inference": (torch.inference_mode, 0),
    "autocast": (lambda: torch.autocast("cpu", dtype=torch.bfloat16), 0),
}


@pytest.mark.parametrize(("mode", "flags"), MODES.values(), ids=list(MODES))
def test_core_leaves_to_python_what_a_mode_sees(
    mode: Callable[[], Any], flags: int, native: Native
) -> None:
    """Nothing is done behind the back of a mode, and `move` itself refuses."""
    core, leaves = core_of(native), [torch.ones(3), torch.ones(2)]
    held = row(1 << 12)
    quiet = core_of(native, take=lambda _: held)
    with mode():
        assert flags == core.look(leaves)
        if flags:
            with pytest.raises(RuntimeError, match="wants to see each operation"):
                quiet.move(leaves, [])
        else:
            assert [1.0] * 3 == moved(quiet, leaves)[0].tolist()


def test_core_leaves_transforms_to_python(native: Native) -> None:
    """Inside of `vmap` nothing is read, wrapped or not."""
    core, seen = core_of(native), []

    def inside(x: Tensor) -> Tensor:
        seen.append(core.look([x, torch.ones(2)]))
        return x

    torch.vmap(inside)(torch.ones(2, 3))

    assert [UNSEEN] == seen


def test_freed_memory_is_odd(native: Native) -> None:
    """Items without memory are never read; torch itself would end the process."""
    freed, part, view = torch.ones(3), torch.ones(8), torch.ones(8)[4:]
    for leaf, nbytes in ((freed, 0), (part, 8), (view, 16)):
        leaf.untyped_storage().resize_(nbytes)

        assert ODD == core_of(native).look([leaf])
    assert [None, None, None] == moved(core_of(native), [freed, part, view])


def test_leaf_that_changes_meanwhile_is_an_error(native: Native) -> None:
    """What was measured is measured again where the bytes are read."""
    leaf, other = torch.ones(3), torch.ones(2)

    def take(nbytes: int) -> Tensor:
        leaf.resize_(1000)
        return row(nbytes)

    with pytest.raises(RuntimeError, match="another thread has changed a leaf"):
        core_of(native, take=take).move([leaf, other], [])


WRONG_ROWS: dict[str, Callable[[int], Any]] = {
    "short": lambda n: row(n)[: n // 64],
    "of another dtype": lambda n: row(n).to(torch.int16),
    "not contiguous": lambda n: row(2 * n)[::2],
    "meta": lambda n: row(n).to("meta"),
    "no tensor": bytearray,
    "none": lambda n: None,
}


@pytest.mark.parametrize("take", WRONG_ROWS.values(), ids=list(WRONG_ROWS))
def test_row_that_is_none_is_an_error(take: Any, native: Native) -> None:
    """The core checks what it writes into."""
    with pytest.raises((TypeError, ValueError), match="a row must be"):
        core_of(native, take=take).move([torch.ones(99), torch.ones(99)], [])


def test_error_while_a_row_is_taken_passes(native: Native) -> None:
    """An error of Python comes out as it is."""

    def take(nbytes: int) -> Tensor:
        raise MemoryError(nbytes)

    with pytest.raises(MemoryError, match="4096"):
        core_of(native, take=take).move([torch.ones(2), torch.ones(3)], [])


@pytest.mark.parametrize("leaves", [(), None, (torch.ones(1),)])
def test_leaves_are_a_list(leaves: Any, native: Native) -> None:
    """Anything else is a TypeError."""
    with pytest.raises(TypeError, match="list"):
        core_of(native).look(leaves)
    with pytest.raises(TypeError, match="list"):
        core_of(native).move(leaves, [])


def test_core_keeps_nothing_alive(native: Native) -> None:
    """Ten thousand moves leave no object behind."""
    core, leaves = core_of(native), [torch.ones(3), torch.ones(2), torch.ones(0)]
    core.move(leaves, [])
    gc.collect()
    before, counts = len(gc.get_objects()), [sys.getrefcount(x) for x in leaves]
    for _ in range(10_000):
        core.move(leaves, [])
    gc.collect()

    assert abs(len(gc.get_objects()) - before) < 50
    assert counts == [sys.getrefcount(x) for x in leaves]


@pytest.mark.parametrize("seed", range(3))
def test_odd_leaves_raise_and_never_crash(seed: int, native: Native) -> None:
    """Thousands of odd lists, in a process of their own, end in exceptions at most."""
    done = subprocess.run(
        [sys.executable, str(FUZZ), str(room.location()), str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "whole\n") == (done.returncode, done.stdout), done.stderr[-2000:]


# Finding and loading it.


def test_status_says_which_core_is_used(
    native: Native, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """One sentence for each case."""
    monkeypatch.delenv(room.SWITCH, raising=False)

    assert f"The compiled core: {room.location()}" == room.status()
    monkeypatch.setenv(room.SWITCH, "0")
    assert (
        "Plain Python: TENSORPACK_NATIVE=0 switches the compiled core off."
    ) == room.status()
    assert room.load() is None
    monkeypatch.setenv(room.SWITCH, "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (
        "Plain Python: the core is not built. Run `python -m tensorpack native`."
    ) == room.status()
    assert room.load() is None


def test_file_that_cannot_be_loaded_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Plain Python goes on in its place."""
    monkeypatch.delenv(room.SWITCH, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = room.location()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no library")

    with pytest.warns(RuntimeWarning, match="was not loaded, plain Python") as caught:
        assert room.load() is None
    assert 1 == len(caught)
    assert room.load() is None
    assert f"Plain Python: {path} could not be loaded." == room.status()


def test_name_tells_torch_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another torch or another source is another file, so a stale one is not found."""
    first = room.location()
    monkeypatch.setattr(torch, "__version__", "9.9")

    assert first != room.location()
    assert room.location().parent.name.startswith("torch-9.9-")
    monkeypatch.undo()
    monkeypatch.setattr(room, "SOURCE", room.Path(room.__file__))
    assert first != room.location()


def test_traced_and_exported_code_does_not_enter() -> None:
    """A tracer sees each operation, so Python does them."""
    code = textwrap.dedent(
        """
        import torch
        from tensorpack.transfer import native
        core = native.load().Core(torch.device("cpu"), 99, True, 0, None, None, None)
        seen = []
        def traced(x):
            seen.append(core.look([x]))
            return x + 1
        torch.jit.trace(traced, torch.ones(2), check_trace=False)
        torch.fx.experimental.proxy_tensor.make_fx(traced)(torch.ones(2))
        print(seen)
        """
    )
    if room.load() is None:
        pytest.skip("the core is not built")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"[{UNSEEN}, {UNSEEN}]\n" == done.stdout
