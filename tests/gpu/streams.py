"""What the tests on a device share: streams held by a sleep, and memory poisoned."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensorpack import CopyStream, Payload, payload

DEVICE = "cuda"
CYCLES_PER_MS = 2_000_000
POISON = 77


def hold(stream: torch.Stream, ms: float) -> None:
    """Keep a stream busy for some milliseconds."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(ms * CYCLES_PER_MS))


def poison(stream: torch.Stream, nbytes: int, count: int = 4) -> list[Tensor]:
    """Take blocks of a size on a stream, as the next transfers would, and fill them."""
    with torch.cuda.stream(stream):
        blocks = [
            torch.empty(nbytes, dtype=torch.uint8, device=DEVICE) for _ in range(count)
        ]
        for block in blocks:
            block.fill_(POISON)
    return blocks


def timed_ms(call: Callable[[], Any]) -> tuple[float, Any]:
    """Give the host time of a call in milliseconds, and its result."""
    start = time.perf_counter()
    value = call()
    return (time.perf_counter() - start) * 1000, value


@payload
class Inputs(Payload):
    """A few small leaves and, where a test wants it, a large one."""

    ids: Tensor
    mask: Tensor | None = None
    scale: Tensor | None = None
    big: Tensor | None = None


def small_inputs(value: int) -> Inputs:
    """Make inputs of small leaves, all filled with one value."""
    return Inputs(
        ids=torch.full((64, 8), value),
        mask=torch.full((100,), value % 2 == 1),
        scale=torch.full((33,), float(value)),
    )


def is_filled(inputs: Inputs, value: int) -> bool:
    """Tell whether the leaves of small inputs hold a value; synchronizes."""
    assert inputs.mask is not None
    assert inputs.scale is not None
    return (
        bool((inputs.ids == value).all())
        and bool((inputs.mask == (value % 2 == 1)).all())
        and bool((inputs.scale == float(value)).all())
    )


def life(copies: CopyStream, forward: torch.Stream, source: Any) -> list[Tensor]:
    """Transfer, read late on the forward stream, drop, poison; give what was read.

    This is the hazard: while the forward stream still sleeps, the payload is gone and
    its memory is asked for again on the copy stream.
    """
    on_device = copies.start(source).take(forward)
    leaves = [t for t in vars_of(on_device) if isinstance(t, Tensor)]
    sizes = {leaf.untyped_storage().nbytes() for leaf in leaves}
    with torch.cuda.stream(forward):
        torch.cuda._sleep(10 * CYCLES_PER_MS)
        read = [leaf.clone() for leaf in leaves]
    del on_device, leaves
    blocks = [block for size in sizes for block in poison(copies.stream, size)]
    torch.cuda.synchronize()
    del blocks
    return read


def vars_of(inputs: Any) -> list[Any]:
    """Give the field values of inputs."""
    return [getattr(inputs, n) for n in ("ids", "mask", "scale", "big")]
