"""Leaves that are no tensors: they move, pin, clone and record themselves."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorpack import (
    CopyStream,
    Dynamic,
    LeafError,
    Payload,
    clone,
    payload,
    to_device,
)
from tensorpack.testing import Log, recorded_streams


class Rows:
    """Moves as such classes do: by a new object around the moved tensor."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        return type(self)(self.rows.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        if self.rows.is_cuda:
            self.rows.record_stream(stream)


class InPlace(Rows):
    """Moves itself, and gives itself."""

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        self.rows = self.rows.to(device, non_blocking=non_blocking)
        return self


class Counted(Rows):
    """Tells its bytes by a method."""

    def nbytes(self) -> int:
        return self.rows.nbytes


class Lost(Rows):
    """Forgets to give what it has moved, pinned and cloned."""

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        return None

    pin_memory = clone = lambda self: self.rows.tolist()


class Nowhere(Rows):
    """Names a device that is none."""

    where: Any = "nonsense"

    @property
    def device(self) -> Any:
        return self.where


class Undecided(Rows):
    """Cannot name a device."""

    @property
    def device(self) -> torch.device:
        msg = "on several devices"
        raise ValueError(msg)


@payload
class Batch(Payload):
    found: Dynamic[Any]


@pytest.fixture
def log() -> Iterator[Log]:
    with recorded_streams() as made:
        yield made


@pytest.mark.parametrize("cls", [Rows, InPlace, Counted])
@pytest.mark.parametrize("call", ["start", "fetch"])
def test_source_may_be_overwritten_without_streams(cls: Any, call: str) -> None:
    """A twin never shares the memory of its source, whatever `to` gives."""
    leaf = cls(torch.zeros(2))
    copies = CopyStream("cpu")
    if call == "start":
        twin = copies.start([leaf, leaf])
        leaf.rows.fill_(7)
        first, second = twin.wait()
    else:
        fetched = copies.fetch([leaf, leaf])
        leaf.rows.fill_(7)
        first, second = fetched.result()

    assert [0.0, 0.0] == first.rows.tolist()
    assert first is second


@pytest.mark.parametrize("cls", [Rows, Counted])
def test_way_there_and_back(cls: Any, log: Log) -> None:
    """It is copied, recorded and fetched beside leaves that are tensors."""
    copies, forward = CopyStream("cuda"), torch.Stream("cuda")
    batch = copies.start(Batch([cls(torch.ones(2)), torch.ones(3)])).take(forward)
    fetched = copies.fetch(batch).result()

    assert not log.missing(batch, forward)
    assert [1.0, 1.0] == fetched.found[0].rows.tolist()
    assert 2 == copies.counters.leaves


LOST = (
    "the `Lost` returned a `{}` in its place. Return a `Lost` when it is moved, pinned "
    "or cloned."
)
CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "to_device": (lambda x: to_device(x, "meta"), "NoneType"),
    "clone": (clone, "list"),
    "pin_memory": (lambda x: x.pin_memory(), "list"),
    "start": (lambda x: CopyStream("cpu").start(x), "list"),
    "start, cuda": (lambda x: CopyStream("cuda").start(x), "NoneType"),
}


@pytest.mark.parametrize(("act", "given"), CALLS.values(), ids=list(CALLS))
def test_leaf_that_gives_something_else_for_itself(
    act: Callable[[Any], object], given: str, log: Log
) -> None:
    """What nobody could record never takes the place of a leaf."""
    with pytest.raises(LeafError) as caught:
        act(Batch(Lost(torch.ones(2))))

    assert LOST.format(given) == str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("where", ["nonsense", ["cuda:0"], 3.5])
def test_device_that_is_none(device: str, where: Any, log: Log) -> None:
    """The error names the key, and nothing has been queued."""
    leaf = Nowhere(torch.ones(2))
    leaf.where = where
    copies = CopyStream(device)
    with pytest.raises(LeafError) as caught:
        copies.start(Batch([leaf, torch.ones(2)]))

    assert (
        "`found[0]`: a `Nowhere` has a `device` that is not a device. Let "
        "`Nowhere.device` be a `torch.device` or its name."
    ) == str(caught.value)
    assert (0, 0) == (copies.in_flight, copies.counters.leaves)
    with pytest.raises(LeafError, match="has a `device` that is not a device"):
        copies.start([Undecided(torch.ones(2))])


def test_leaf_may_start_a_transfer_of_its_own(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream object is entered twice at once: an older torch refuses that."""
    entered: list[int] = []
    cls = torch.Stream
    enter, leave = cls.__enter__, cls.__exit__

    def enter_once(self: Any) -> Any:
        if id(self) in entered:
            msg = "Stream's context should not be initialized"
            raise RuntimeError(msg)
        entered.append(id(self))
        return enter(self)

    def leave_it(self: Any, *details: Any) -> None:
        entered.remove(id(self))
        leave(self, *details)

    monkeypatch.setattr(cls, "__enter__", enter_once)
    monkeypatch.setattr(cls, "__exit__", leave_it)
    copies, forward = CopyStream("cuda"), cls("cuda")

    class Nesting(Rows):
        def to(self, device: Any, non_blocking: bool = False) -> Any:
            inner = [copies.start(self.rows + n).take(forward) for n in range(2)]
            return Nesting(inner[1])

    for _ in range(3):
        value = [Nesting(torch.ones(2)), torch.ones(3), Nesting(torch.ones(2))]
        moved = copies.start(value).take(forward)

        assert [2.0, 2.0] == moved[0].rows.tolist() == moved[2].rows.tolist()
        assert not log.missing(moved, forward)
    assert [] == entered


class WhereMethod(Rows):
    """Says where it is by a method, as some libraries do."""

    def device(self) -> torch.device:  # type: ignore[override]
        return self.rows.device


class CudaMethod(Rows):
    def is_cuda(self) -> bool:
        return self.rows.is_cuda


class CudaText(Rows):
    is_cuda = "no"


class CudaNone(Rows):
    is_cuda = None


class WhereTuple(Rows):
    device = ("cpu", "cpu")  # type: ignore[assignment]


class WhereText(Rows):
    device = "cpu"  # type: ignore[assignment]


@pytest.mark.parametrize(
    "cls", [WhereMethod, CudaMethod, CudaText, WhereTuple, Nowhere, Undecided]
)
def test_leaf_that_does_not_say_where_it_is(cls: Any) -> None:
    """Its stream was never recorded, or torch's raw error came out."""
    batch = Batch([cls(torch.ones(1))])

    with pytest.raises(LeafError, match="cannot tell where it is") as caught:
        batch.record_stream(torch.Stream(stream_id=7, device_index=0, device_type=1))

    assert ("Batch", "found[0]") == (caught.value.cls, caught.value.key)


@pytest.mark.parametrize("cls", [CudaNone, WhereText, Rows])
def test_leaf_that_says_so_in_its_own_way(cls: Any) -> None:
    """None leaves the answer to the other attribute; a name is as good as a device."""
    batch = Batch([cls(torch.ones(1))])

    batch.record_stream(torch.Stream(stream_id=7, device_index=0, device_type=1))


class Plain(Rows):
    """Gives the tensor that it holds."""

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        return self.rows.to(device)


class Other(Rows):
    def to(self, device: Any, non_blocking: bool = False) -> Any:
        return Rows(self.rows.to(device))


@pytest.mark.parametrize("cls", [Plain, Other, Lost])
def test_leaf_that_returns_another_class(cls: Any) -> None:
    """Nothing of another class takes the place of a leaf."""
    with pytest.raises(LeafError, match=rf"`{cls.__name__}` returned a `"):
        to_device(Batch(cls(torch.ones(1))), "meta")


def test_leaf_that_moves_in_place() -> None:
    """The original would be moved too, which nothing else does."""
    with pytest.raises(LeafError, match="was moved in place"):
        to_device(Batch(InPlace(torch.ones(1))), "meta")

    same = InPlace(torch.ones(1))
    assert same is to_device(Batch(same), "cpu").found
