"""Recording: a stream is told of the device memory that leaves of any kind own."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensorpack._leaves.operations import has_repeats
from tensorpack._leaves.storage import as_stored, owned_tensors
from tensorpack._leaves.streams import is_capturing
from tensorpack.errors import CaptureError, LeafError

__all__ = ["record"]

# Where a leaf is on a CUDA device there is no need to ask whether there is one.
_is_capturing_cuda = getattr(torch._C, "_cuda_isCurrentStreamCapturing", is_capturing)

Where = Callable[[object], tuple[str, str]]
"""Finds the class and the key of a leaf, for an error."""


class _Guards(threading.local):
    """A guard for each thread: making one costs more than entering it."""

    def __init__(self) -> None:
        self.as_stored = as_stored()


_guards = _Guards()


def record(
    leaves: Sequence[Any],
    stream: torch.Stream,
    *,
    where: Where = lambda _: ("", ""),
    only_tensors: bool = False,
) -> int:
    """Mark the device memory of leaves as used by a stream, each object once.

    Leaves on the host and meta leaves own no device memory and are passed over. The
    stream's type is never looked at: the leaf decides what it takes.

    Args:
        leaves: tensors, and others that record themselves.
        stream: the stream whose queued work reads them.
        where: finds the class and the key of a leaf, for an error.
        only_tensors: whether the class of every leaf is known to be `Tensor` itself.

    Returns:
        How many times a stream was recorded.

    Raises:
        CaptureError: the current stream is capturing a graph.
        LeafError: what memory a leaf owns cannot be seen.
    """
    if has_repeats(leaves):
        leaves = list({id(leaf): leaf for leaf in leaves}.values())
    if only_tensors and leaves and leaves[0].is_cuda:
        if _is_capturing_cuda():
            raise CaptureError(call="record_stream", stream="current")
        try:
            with _guards.as_stored:
                return len([x.record_stream(stream) for x in leaves if x.is_cuda])
        except NotImplementedError:
            # Sparse, nested and quantized tensors say so; others never do. What was
            # recorded already is recorded once more, which does no harm.
            pass
    return _record_any(leaves, stream, where)


def _record_any(leaves: Sequence[Any], stream: torch.Stream, where: Where) -> int:
    """Record a stream on leaves of any kind."""
    count, asked = 0, False
    with as_stored():
        for leaf in leaves:
            plain = type(leaf) is Tensor
            if plain and not leaf.is_cuda and (leaf.is_cpu or leaf.is_meta):
                continue
            if not asked and is_capturing():
                raise CaptureError(call="record_stream", stream="current")
            asked = True
            if not plain:
                count += _record_other(leaf, stream, where)
                continue
            try:
                leaf.record_stream(stream)
            except NotImplementedError:
                count += _record_odd(leaf, stream, where)
            else:
                count += 1
    return count


def _record_other(leaf: Any, stream: torch.Stream, where: Where) -> int:
    """Record a stream on a leaf of any class, if it is on a device."""
    if not isinstance(leaf, Tensor):
        return _record_opaque(leaf, stream, where)
    if not issubclass(type(leaf), Tensor):  # a mock that only says it is a tensor
        leaf.record_stream(stream)
        return 1
    if leaf.is_cuda or leaf.device.type not in ("cpu", "meta"):
        return _record_odd(leaf, stream, where)
    return 0


def _record_odd(leaf: Tensor, stream: torch.Stream, where: Where) -> int:
    """Record a stream on every block that a tensor of any kind owns."""
    try:
        owned = owned_tensors("", leaf)
    except LeafError as error:
        root, key = where(leaf)
        raise LeafError(
            cls=root,
            key=key + error.key,
            found=error.found,
            problem=error.problem,
            remedy=error.remedy,
        ) from None
    for tensor in owned:
        tensor.record_stream(stream)
    return len(owned)


def _record_opaque(leaf: Any, stream: torch.Stream, where: Where) -> int:
    """Let a leaf that is not a tensor record itself, if it is on a device."""
    try:
        there = _is_on_device(leaf)
    except Exception as error:
        root, key = where(leaf)
        raise LeafError(
            cls=root,
            key=key,
            found=f"the `{type(leaf).__name__}`",
            problem=f"cannot tell where it is: {error}",
            remedy="Make `is_cuda` a property that returns a bool, or `device` one "
            "that returns a `torch.device`.",
        ) from error
    if not there:
        return 0
    leaf.record_stream(stream)
    return 1


def _is_on_device(leaf: Any) -> bool:
    """Return whether a leaf that is not a tensor is on a device, or does not say.

    Raises:
        Exception: what the leaf says is neither a bool nor a device.
    """
    is_cuda = getattr(leaf, "is_cuda", None)
    if is_cuda is not None and type(is_cuda).__name__ not in ("bool", "bool_"):
        msg = f"its `is_cuda` is a `{type(is_cuda).__name__}`"
        raise TypeError(msg)
    if is_cuda:
        return True
    device = getattr(leaf, "device", None)
    if device is None:
        return is_cuda is None
    if not isinstance(device, (torch.device, str, int)):
        msg = f"its `device` is a `{type(device).__name__}`"
        raise TypeError(msg)
    return torch.device(device).type not in ("cpu", "meta")
