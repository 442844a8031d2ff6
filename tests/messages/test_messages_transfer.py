"""Every message of the transfer layer in full, on recorded streams."""

import asyncio
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
from torch import Tensor

from tensorpack import (
    CaptureError,
    CopyStream,
    Payload,
    TensorpackError,
    payload,
    prefetch,
    record_stream,
)
from tensorpack.testing import Log, recorded_streams

ONE = torch.ones(1)
ERRORS = (TensorpackError, ValueError, RuntimeError)


@payload
class Batch(Payload):
    ids: Tensor
    images: list[Tensor]


class Ending:
    """Raises what ends a loop in silence."""

    def __payload_prepare__(self) -> "Ending":
        raise StopIteration


@payload
class Endless(Ending, Payload):
    ids: Tensor


def copies() -> CopyStream:
    return CopyStream("cuda")


def there(device: str = "cuda") -> Tensor:
    return torch.ones(1, device=device)


async def never_taken() -> None:
    """Start more than the limit, on a thread whose other tasks could not take any."""
    stream = CopyStream("cuda", max_in_flight=2)
    handoffs = [stream.start(ONE) for _ in range(2)]
    with mock.patch("tensorpack.transfer.in_flight.PATIENCE", 0.05):
        handoffs.append(stream.start(ONE))


def taken_twice() -> None:
    handoff = copies().start(ONE)
    handoff.take(torch.Stream("cuda"))
    handoff.wait(torch.Stream("cuda"))


def freed() -> Tensor:
    found = torch.ones(3)
    found.untyped_storage().resize_(0)
    return found


def closed(call: str) -> None:
    with copies() as stream:
        pass
    getattr(stream, call)(ONE)


def paused(call: str) -> None:
    stream = copies()
    with stream.pause():
        getattr(stream, call)(there())


def waited_inside() -> None:
    stream = copies()
    assert stream.stream is not None
    with stream.stream:
        stream.start(ONE).wait()


USES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: CopyStream("cuda", max_in_flight=0),
        "`max_in_flight` is 0. Choose a whole number of at least 1.",
    ),
    (
        lambda: prefetch([ONE], CopyStream("cuda", max_in_flight=3), depth=3),
        ("`depth` is 3. Choose at least 1 and less than `max_in_flight`, which is 3."),
    ),
    (
        lambda: list(prefetch([Endless(ONE)], copies())),
        "a batch raised StopIteration",
    ),
    (
        lambda: CopyStream("xpu"),
        (
            "`xpu` is no device of this machine and this torch. Name one that is "
            "there, or test with `tensorpack.testing.recorded_streams()`."
        ),
    ),
    (
        lambda: CopyStream("cuda", stream=torch.Stream("cuda:1")),
        (
            "`torch.Stream device_type=cuda, device_index=1, stream_id=1` is no stream "
            "of `cuda:0`. Pass a stream of `cuda:0`."
        ),
    ),
    (
        lambda: copies().start(ONE).wait("cuda"),  # type: ignore[arg-type]
        (
            "an object of class `str` is no stream of an accelerator. Pass a "
            "`torch.Stream` of the device."
        ),
    ),
    (
        waited_inside,
        (
            "the current stream is the copy stream, which consumes nothing. Leave "
            "`with copies.stream`, or pass the consumer stream."
        ),
    ),
    (
        lambda: copies().fetch(there("cuda:1")),
        (
            "a leaf is on `cuda:1`, and this fetches from `cuda:0`. Fetch it with a "
            "`CopyStream` of `cuda:1`."
        ),
    ),
    (
        lambda: copies().start(Batch(ONE, [torch.ones(1, device="meta")])),
        (
            "`images[0]`: a meta tensor has no data to copy. Fill it first, or leave "
            "it out of what travels."
        ),
    ),
    (
        lambda: asyncio.run(never_taken()),
        (
            "`start`: 2 handoffs were started and none was waited for. Call `wait` on "
            "the oldest one first, or raise `max_in_flight`."
        ),
    ),
    (
        lambda: copies().start(Batch(freed(), [ONE])),
        (
            "`ids`: a tensor whose memory was freed has no data to copy. Fill it "
            "first, or leave it out of what travels."
        ),
    ),
    (
        taken_twice,
        (
            "`wait`: the payload was taken before. Call `wait`, not `take`, where "
            "several consumers read it."
        ),
    ),
    (
        lambda: closed("start"),
        (
            "`start`: the copy stream is closed. Make one that lives as long as the "
            "engine."
        ),
    ),
    (
        lambda: closed("fetch"),
        (
            "`fetch`: the copy stream is closed. Make one that lives as long as the "
            "engine."
        ),
    ),
    (
        lambda: paused("start"),
        (
            "`start`: this thread has paused the copy stream. Call it before or after "
            "the `pause()` block."
        ),
    ),
    (
        lambda: paused("fetch"),
        (
            "`fetch`: this thread has paused the copy stream. Call it before or after "
            "the `pause()` block."
        ),
    ),
]


@pytest.mark.parametrize(("act", "text"), USES, ids=range(len(USES)))
def test_wrong_use_of_a_copy_stream(act: Callable[[], object], text: str) -> None:
    """What cannot be copied or handed over says why, and what to do instead."""
    with recorded_streams(), pytest.raises(ERRORS) as caught:
        act()

    assert text == str(caught.value)


REPLAY = (
    "is capturing a graph, and a replay would neither copy again nor keep the memory. "
    "Transfer before the capture: `start(x, into=static)` before each replay; what is "
    "on the device already, `axes.copy_(static, x)` copies inside the graph."
)


def captured(log: Log) -> Iterator[tuple[torch.Stream, Callable[[], object], str]]:
    """Iterate what captures, what is done then, and how the message begins."""
    stream, forward = copies(), torch.Stream("cuda")
    handoff, found = stream.start(ONE), there()
    assert stream.stream is not None
    current = torch.accelerator.current_stream()
    yield current, lambda: stream.start(ONE), "`start`: the current stream "
    yield stream.stream, lambda: stream.start(ONE), "`start`: the copy stream "
    yield forward, lambda: handoff.wait(forward), "`wait`: the consumer stream "
    yield current, lambda: stream.fetch(found), "`fetch`: the current stream "
    yield (
        forward,
        lambda: stream.fetch(found, after=forward),
        "`fetch`: the producer stream ",
    )


def test_transfer_in_a_capture() -> None:
    """Each call names the stream that is capturing."""
    with recorded_streams() as log:
        for stream, act, begin in captured(log):
            with log.capturing(stream), pytest.raises(CaptureError) as caught:
                act()
            assert begin + REPLAY == str(caught.value)


def test_record_in_a_capture() -> None:
    """`record_stream` asks torch itself, without a copy stream."""
    with (
        recorded_streams(),
        mock.patch("tensorpack._leaves.record.is_capturing", return_value=True),
    ):
        leaf, stream = there(), torch.Stream("cuda")
        with pytest.raises(CaptureError) as caught:
            record_stream(leaf, stream)

    assert f"`record_stream`: the current stream {REPLAY}" == str(caught.value)
