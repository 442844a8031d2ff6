"""The compiled core on a device: the same as Python there, and nothing left behind."""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorpack import CopyStream
from tensorpack.transfer.native import SWITCH, BuildError, build, location
from tests.gpu.streams import hold, small_inputs

pytestmark = pytest.mark.cuda

MakeCopies = Callable[..., CopyStream]


@pytest.fixture(params=["native", "python"])
def copies_of(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeCopies]:
    """Make copy streams with the compiled core, or without it."""
    compiled = request.param == "native"
    if compiled and not location().exists():
        try:
            build()
        except BuildError as error:
            pytest.skip(str(error))
    monkeypatch.setenv(SWITCH, str(int(compiled)))
    made: list[CopyStream] = []

    def make(**options: Any) -> CopyStream:
        made.append(CopyStream("cuda", **options))
        assert compiled is made[-1].native
        return made[-1]

    yield make
    for copies in made:
        copies.close()


def leaves() -> list[Tensor]:
    """Make host leaves of many kinds, small and large, pageable and pinned."""
    many = [torch.arange(40).view(5, 8).to(d) for d in (torch.int64, torch.bool)]
    many += [torch.rand(33), torch.rand(3, 4).t(), torch.rand(6, 6)[:, ::2]]
    many += [torch.rand(2).expand(3, 2), torch.complex(*torch.rand(2, 4)).conj()]
    many += [torch.rand(()), torch.empty(0, 3), torch.rand(1 << 19)]
    many += [torch.rand(1 << 17).pin_memory(), torch.rand(9).pin_memory()]
    return [*many, torch.rand(4, 5, 6, 7).to(memory_format=torch.channels_last)]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("inference", [True, False])
def test_leaves_are_those_of_to(
    pack: bool, inference: bool, copies_of: MakeCopies
) -> None:
    """Bytes, strides, mode and version counter are those that `Tensor.to` gives."""
    copies, source = copies_of(pack=pack), leaves()
    for _ in range(4):
        with torch.inference_mode(inference):
            found = copies.start(source).take(torch.cuda.current_stream())
            expected = [leaf.to("cuda") for leaf in source]
        torch.cuda.synchronize()
        for want, leaf in zip(expected, found, strict=True):
            assert torch.equal(want, leaf)
            assert want.stride() == leaf.stride() or not leaf.numel()
            assert want.is_inference() == leaf.is_inference()
            assert not leaf._is_view()
            assert 0 == leaf.data_ptr() % 256 or not leaf.numel()


def test_empty_leaf_grows_into_no_other(copies_of: MakeCopies) -> None:
    """As `out=` of an operation it once overwrote its neighbours."""
    copies = copies_of()
    source = [torch.ones(3), torch.ones(0), torch.ones(50)]
    for _ in range(4):
        first, empty, last = copies.start(source).take(torch.cuda.current_stream())
        torch.add(torch.zeros(40, device="cuda"), 7, out=empty)
        torch.cuda.synchronize()

        assert bool((first == 1).all())
        assert bool((last == 1).all())
        assert 280.0 == float(empty.sum())


def test_error_after_a_copy_keeps_what_it_reads(copies_of: MakeCopies) -> None:
    """A leaf that fails to move leaves the sources of the others alive until then."""

    class Failing:
        device = "cpu"
        is_cuda = False

        def to_device(self, device: object) -> "Failing":
            raise MemoryError

        def record_stream(self, stream: object) -> None:
            pass

    copies = copies_of()
    pinned = torch.ones(1 << 20).pin_memory()
    alive = weakref.ref(pinned)
    hold(copies.stream, 20)
    with pytest.raises(MemoryError):
        copies.start([pinned, Failing()])
    del pinned
    copies.reap()
    kept = alive() is not None
    torch.cuda.synchronize()
    copies.reap()
    gc.collect()

    assert kept
    assert alive() is None


def test_current_stream_is_as_before(copies_of: MakeCopies) -> None:
    """A start enters the copy stream and leaves it."""
    copies, own = copies_of(), torch.cuda.Stream()
    with torch.cuda.stream(own):
        for _ in range(4):
            copies.start(small_inputs(1)).take(own)

            assert own == torch.cuda.current_stream()


def test_memory_is_flat_over_ten_thousand_steps(copies_of: MakeCopies) -> None:
    """Neither device nor host memory grows once everything is warm."""
    copies, forward = copies_of(), torch.cuda.Stream()
    shapes = [[torch.ones(n), torch.ones(3, n), torch.arange(n)] for n in range(1, 60)]

    def steps(count: int) -> tuple[int, int]:
        for number in range(count):
            found = copies.start(shapes[number % len(shapes)]).take(forward)
            with torch.cuda.stream(forward):
                found[0].sum()
        torch.cuda.synchronize()
        gc.collect()
        return torch.cuda.memory_reserved(), resident()

    device, host = steps(2_000)
    after_device, after_host = steps(10_000)
    print(f"host memory grew by {(after_host - host) >> 10} KiB")  # the figure

    assert device == after_device
    assert after_host - host < 8 << 20


def resident() -> int:
    """Count the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:  # noqa: PTH123  # no path of a project
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
