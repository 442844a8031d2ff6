"""The ways of moving that are measured against each other."""

import importlib.util
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils import _pytree

from tensorpack import CopyStream
from tensorpack._cli.bench.payloads import Case

__all__ = ["FLOOR", "HAND_WRITTEN", "OURS", "TENSORDICT", "Way", "ways_of"]

HAND_WRITTEN = "hand-written loop"
OURS = "tensorpack: start, wait"
TENSORDICT = "tensordict: to"
FLOOR = "floor: 1 allocation, 1 copy"

Life = Callable[[], object]
"""Moves, records, and gives what then dies."""


@attrs.frozen
class Way:
    """One way of moving a case; `life` is None where a peer is not installed."""

    name: str
    life: Life | None


def ways_of(
    case: Case, device: torch.device, stream: torch.Stream | None, copies: CopyStream
) -> tuple[list[Way], list[Way]]:
    """List the ways for a case; without a stream nothing is recorded.

    Returns:
        The ways that are measured side by side, and those that are measured in a
        round of their own: they fill the caches and queues of all others.
    """

    def record(value: Any) -> None:
        if stream is not None:
            value.record_stream(stream)

    unpacked = CopyStream(device, stream=copies.stream, pack=False, max_in_flight=64)

    def moved(value: Any) -> Any:
        new = value.to_device(device, non_blocking=True)
        record(new)
        return new

    def by_hand_in_order() -> Any:
        if stream is None or copies.stream is None:
            return moved(case.by_hand)
        with copies.stream:
            new = case.by_hand.to_device(device, non_blocking=True)
            ready = torch.Event(device)
            ready.record(copies.stream)
        ready.wait(stream)
        record(new)
        return new

    def pytree() -> Any:
        new = _pytree.tree_map(lambda t: t.to(device, non_blocking=True), case.mapping)
        _pytree.tree_map(record, new)
        return new

    main = [
        Way(HAND_WRITTEN, lambda: moved(case.by_hand)),
        Way("the same on a copy stream, with its event", by_hand_in_order),
        Way(OURS, lambda: copies.start(case.payload).take(stream)),
        Way("tensorpack: to_device, record_stream", lambda: moved(case.payload)),
        _tensordict_way(case, TENSORDICT, device, record, consolidate=False),
        Way("torch.utils._pytree", pytree),
        _torchrec_way(case, device, record),
        _floor(case, device, record),
    ]
    apart = [
        Way(HAND_WRITTEN, lambda: moved(case.by_hand)),
        Way(
            "tensorpack: start, wait, pack=False",
            lambda: unpacked.start(case.payload).take(stream),
        ),
        _tensordict_way(
            case, "tensordict: consolidate, to", device, record, consolidate=True
        ),
    ]
    return main, apart


def _tensordict_way(
    case: Case,
    name: str,
    device: torch.device,
    record: Callable[[Any], None],
    *,
    consolidate: bool,
) -> Way:
    if importlib.util.find_spec("tensordict") is None:
        return Way(name, None)
    import tensordict  # noqa: PLC0415  # a peer, not a dependency

    whole = tensordict.TensorDict(case.mapping, batch_size=[])

    def to() -> Any:
        source = whole.consolidate() if consolidate else whole
        new = source.to(device, non_blocking=True)
        record(new)
        return new

    return Way(name, to)


def _torchrec_way(
    case: Case, device: torch.device, record: Callable[[Any], None]
) -> Way:
    name = "torchrec: KeyedTensor.to"
    if importlib.util.find_spec("torchrec") is None:
        return Way(name, None)
    from torchrec.sparse.jagged_tensor import (  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415  # the same
        KeyedTensor,
    )

    rows = {k: v.reshape(1, -1).float() for k, v in case.mapping.items()}
    whole = KeyedTensor.from_tensor_list(list(rows), list(rows.values()))

    def to() -> Any:
        new = whole.to(device, non_blocking=True)
        record(new)
        return new

    return Way(name, to)


def _floor(case: Case, device: torch.device, record: Callable[[Any], None]) -> Way:
    """One device allocation, one copy from pinned memory, one record."""
    pin = device.type != "cpu" and torch.accelerator.is_available()
    host = torch.empty(case.nbytes, dtype=torch.uint8, pin_memory=pin)

    def life() -> Tensor:
        new = torch.empty(case.nbytes, dtype=torch.uint8, device=device)
        new.copy_(host, non_blocking=True)
        record(new)
        return new

    return Way(FLOOR, life)
