"""Every message of the testing kit and of the commands in full."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import Borrowed, LifetimeAdapter, Payload, evolve, payload
from tensorpack.testing import (
    assert_covers,
    assert_honest,
    assert_moves,
    example,
    recorded_streams,
)


@payload
class Batch(Payload):
    ids: Tensor
    names: list[str] = attrs.field(factory=list)
    cache: Borrowed[Tensor | None] = None
    again: Tensor | None = None


def moved_by(move: Callable[[Any, Any], object], **values: Any) -> None:
    """Assert that a payload moves, where it does not do so by generated methods."""
    batch = Batch(torch.ones(2), ["a"], **values)
    with mock.patch.object(Batch, "to_device", move):
        assert_moves(batch, "meta")


def copied_names(batch: Any, device: Any) -> Any:
    return evolve(batch, ids=batch.ids.to(device), names=[*batch.names])


def copied_cache(batch: Any, device: Any) -> Any:
    return evolve(batch, ids=batch.ids.to(device), cache=batch.cache.to(device))


def split() -> None:
    def move(batch: Any, device: Any) -> Any:
        return evolve(batch, ids=batch.ids.to(device), again=batch.again.to(device))

    with mock.patch.object(Batch, "to_device", move):
        assert_moves(Batch(ONE, again=ONE), "meta")


def records_the_cache() -> None:
    def record(batch: Any, stream: Any) -> None:
        batch.ids.record_stream(stream)
        batch.cache.record_stream(stream)

    with mock.patch.object(Batch, "record_stream", record):
        assert_covers(Batch(torch.ones(2), cache=torch.ones(1)))


def honest(annotation: Any, value: object) -> None:
    cls: Any = payload(attrs.make_class("Open", {"x": attrs.field(type=annotation)}))
    assert_honest(cls(value))


class Refusing:
    def __init__(self, ids: Tensor) -> None:
        raise ValueError(ids.shape)


def note_of(cls: type) -> None:
    """Raise the note that an error of `example` has been given."""
    try:
        example(cls)
    except ValueError as error:
        raise AssertionError(error.__notes__[0]) from None


ONE = torch.ones(2)


def read_on_the_host() -> None:
    """Read what a held stream would have to write first."""
    with recorded_streams() as log, log.held(torch.cuda.current_stream()):
        there().item()


def stuck() -> None:
    class Stuck(list):  # type: ignore[type-arg]  # any items
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    @attrs.define
    class Owner:
        xs: Any

        def record_stream(self, stream: Any) -> None:
            self.xs[0].record_stream(stream)

    assert_covers(Owner(Stuck([ONE])))


def empty_field() -> None:
    @attrs.define
    class Owner:
        ids: Tensor
        extra: Any = None

        def record_stream(self, stream: Any) -> None:
            self.ids.record_stream(stream)

    Owner.__qualname__ = "Owner"
    assert_covers(Owner)


class Untyped:
    def __init__(self, ids: Tensor, mask=None) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  # nothing is known
        self.ids, self.mask = ids, mask

    def record_stream(self, stream: Any) -> None:
        self.ids.record_stream(stream)


class Pages:
    def __init__(self, table: Tensor) -> None:
        self.table = table


class PagesAdapter(LifetimeAdapter[Pages]):
    def leaves(self, value: Pages) -> list[Tensor]:
        return [value.table]

    def rebuild(self, value: Pages, leaves: Any) -> Pages:
        return Pages(leaves[0])

    def host(self, value: Pages) -> list[Tensor]:
        return [value.table]


def moves_what_stays() -> None:
    cls: Any = payload(attrs.make_class("Paged", {"x": attrs.field(type=Pages)}))
    assert_moves(cls(Pages(ONE)), "meta")


def kept_stream() -> None:
    with recorded_streams():
        kept = torch.cuda.Stream
    kept()


CLASSES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: moved_by(copied_names),
        "`Batch.to_device` copies `names`, which stays on the host.",
    ),
    (
        lambda: moved_by(copied_cache, cache=torch.ones(1)),
        (
            "`Batch.to_device` copies `cache`, which is `HostOnly` or `Borrowed`.\n"
            "`Batch.to_device` copies `cache`, which stays on the host."
        ),
    ),
    (
        split,
        "`Batch.to_device` makes several objects of `ids`, `again`.",
    ),
    (
        records_the_cache,
        "`Batch.record_stream` records `cache`, which is borrowed.",
    ),
    (
        lambda: honest(list[int], [1, {"deep": [ONE]}]),
        (
            "`Open` hides `x[1]['deep'][0]` in a host field. Annotate the field so "
            "that its tensors travel, or mark it `HostOnly`."
        ),
    ),
    (
        moves_what_stays,
        ("`Paged.to_device` moves `x.table`, which its adapter keeps on the host."),
    ),
    (
        stuck,
        "`stuck.<locals>.Owner` cannot be put on a device: its copies share `xs[0]`.",
    ),
    (
        lambda: assert_covers(Untyped),
        (
            "`Untyped.mask`: it has no annotation. Pass a value: "
            "`assert_covers(Untyped, mask=...)`."
        ),
    ),
    (
        empty_field,
        (
            "`Owner.extra`: `Any` does not say what it holds. Pass a value: "
            "`assert_covers(Owner, extra=...)`."
        ),
    ),
    (
        lambda: note_of(Refusing),
        (
            "`Refusing` was called with examples. Pass the values that it asks for: "
            "`example(Refusing, name=...)`."
        ),
    ),
]


@pytest.mark.parametrize(("act", "text"), CLASSES, ids=range(len(CLASSES)))
def test_what_a_class_does_wrong(act: Callable[[], object], text: str) -> None:
    """The method, the key and the fault."""
    with pytest.raises(AssertionError) as caught:
        act()

    assert text == str(caught.value)


def there() -> Tensor:
    return torch.ones(2, device="cuda")


def written_again() -> None:
    with recorded_streams() as log:
        ids, forward = there(), torch.cuda.Stream()
        forward.wait_stream(torch.cuda.current_stream())
        ids.record_stream(forward)
        ids.zero_()
        log.assert_handed_over({"ids": ids}, forward)


def not_moved() -> None:
    with recorded_streams() as log:
        log.assert_handed_over({"ids": torch.ones(2)}, torch.cuda.Stream())


def waits_out_of_a_capture() -> None:
    with recorded_streams() as log:
        captured, event = torch.cuda.Stream(), torch.cuda.Event()
        event.record(torch.cuda.Stream())
        with log.capturing(captured):
            event.wait(captured)


def blocks_in_a_capture() -> None:
    ids = there()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        ids.sum().item()


def recorded(act: Callable[[], object]) -> Callable[[], None]:
    """Let an action run on a recorded machine."""

    def acting() -> None:
        with recorded_streams():
            act()

    return acting


MACHINE: list[tuple[Callable[[], object], str]] = [
    (
        kept_stream,
        "No streams are recorded. Make the stream inside `recorded_streams()`.",
    ),
    (
        recorded(lambda: torch.ones(2) + there()),
        (
            "Expected all tensors to be on the same device, but found at least two "
            "devices, cuda:0 and cpu! (aten.add.Tensor)"
        ),
    ),
    (
        recorded(lambda: torch.cuda.set_device(1)),
        "CUDA error: invalid device ordinal",
    ),
    (
        recorded(blocks_in_a_capture),
        "CUDA error: operation not permitted when stream is capturing",
    ),
    (
        recorded(lambda: there().numpy()),
        (
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        ),
    ),
    (
        read_on_the_host,
        (
            "The host blocks for ever: it synchronizes with work of a stream that the "
            "test holds. Leave the `held` block first, or find out why the code "
            "synchronizes."
        ),
    ),
    (
        waits_out_of_a_capture,
        "CUDA error: dependency created on uncaptured work in another stream",
    ),
    (
        not_moved,
        "The payload has no leaf on a device. Give what `wait` returned.",
    ),
    (
        written_again,
        "`['ids']` is written by another stream after it was handed over.",
    ),
]


@pytest.mark.parametrize(("act", "text"), MACHINE, ids=range(len(MACHINE)))
def test_what_the_recorded_machine_refuses(
    act: Callable[[], object], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words where it is no real one, torch's where a real one refuses too."""
    monkeypatch.setattr("tensorpack.testing._clocks._PATIENCE", 0.01)
    with pytest.raises((AssertionError, RuntimeError, TypeError)) as caught:
        act()

    assert text == str(caught.value)


def test_real_streams_need_an_accelerator() -> None:
    """A test that watches the machine's own device says where there is none."""
    absent = mock.patch("torch.accelerator.is_available", return_value=False)
    with absent, pytest.raises(RuntimeError) as caught, recorded_streams(real=True):
        pass

    assert (
        "`recorded_streams(real=True)`: there is no accelerator here. Leave "
        "`real=True` out, or skip the test."
    ) == str(caught.value)


HAZARDS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "read": (
        Tensor.sum,
        (
            "storage 0: stream 1 reads what stream 0 writes, and does not wait for it. "
            "Let stream 1 wait for an event recorded on stream 0."
        ),
    ),
    "write": (
        Tensor.zero_,
        (
            "storage 0: stream 1 writes what stream 0 writes, and does not wait for "
            "it. Let stream 1 wait for an event recorded on stream 0."
        ),
    ),
    "free": (
        Tensor.sum,
        "storage 0: freed while stream 1 may still use it. Record stream 1 on it.",
    ),
}


@pytest.mark.parametrize("kind", HAZARDS)
def test_hazard(kind: str) -> None:
    """The block, the streams, and what the later one must do."""
    use, text = HAZARDS[kind]
    with recorded_streams() as log:
        block, stream = there(), torch.cuda.Stream()
        if kind == "free":
            stream.wait_stream(torch.cuda.current_stream())
        else:
            block.record_stream(stream)
        with stream:
            use(block)
        del block

        assert [text] == log.hazards()
