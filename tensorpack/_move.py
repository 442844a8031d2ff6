"""What is done to leaves: moved to a device, recorded, pinned, cloned."""

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tensorpack._opened import as_stored, owned_tensors
from tensorpack._streams import is_capturing
from tensorpack.errors import CaptureError, LeafError

__all__ = ["check_methods", "cloned", "moved", "pinned", "record"]


def moved(
    leaves: Sequence[Any], device: torch.device | str | int, *, non_blocking: bool
) -> list[Any]:
    """Move leaves to a device, each object once.

    A move to the host is a blocking one, whatever was asked: the caller could read the
    memory before the copy is done.
    """
    target = device if isinstance(device, torch.device) else torch.device(device)
    flag = non_blocking and target.type != "cpu"

    def move(leaves: Sequence[Any]) -> list[Any]:
        # By position where that is known to be taken: keywords cost a tenth of a move.
        return [
            leaf.to(target, None, flag)
            if leaf.__class__ is Tensor
            else _move_odd(leaf, target, flag)
            for leaf in leaves
        ]

    return _each_once(leaves, move)


def _move_odd(leaf: Any, device: torch.device, non_blocking: bool) -> Any:
    """Move a subclass's tensor, or a leaf that is no tensor."""
    if isinstance(leaf, Tensor):
        return leaf.to(device, non_blocking=non_blocking)
    cls: Any = type(leaf)
    method = getattr(cls, "to_device", None) or cls.to
    if _takes_non_blocking(method):
        return method(leaf, device, non_blocking=non_blocking)
    return method(leaf, device)


@lru_cache(maxsize=256)
def _takes_non_blocking(method: Callable[..., Any]) -> bool:
    """Tell whether a type that is no tensor can be told not to block."""
    parameters = inspect.signature(method).parameters
    return "non_blocking" in parameters or any(
        p.kind is p.VAR_KEYWORD for p in parameters.values()
    )


def record(
    leaves: Sequence[Any],
    stream: torch.Stream,
    *,
    root: str = "",
    key_of: Callable[[object], str] = lambda _: "",
) -> int:
    """Mark the device memory of leaves as used by a stream, each object once.

    Leaves on the host and meta leaves own no device memory and are passed over. The
    stream's type is never looked at: the leaf decides what it takes.

    Args:
        leaves: tensors, and others that record themselves.
        stream: the stream whose queued work reads them.
        root: name of the class they come from, for an error.
        key_of: finds the key of a leaf, for an error.

    Returns:
        How many times a stream was recorded.
    """
    count = 0
    if len(set(map(id, leaves))) < len(leaves):
        leaves = list({id(leaf): leaf for leaf in leaves}.values())
    if all(leaf.__class__ is Tensor and leaf.is_cpu for leaf in leaves):
        return 0  # so it ends where there is no accelerator
    if is_capturing():
        raise CaptureError(call="record_stream", stream="current")
    with as_stored():
        for leaf in leaves:
            if leaf.__class__ is Tensor and leaf.is_cuda:
                try:
                    leaf.record_stream(stream)
                except NotImplementedError:
                    # Sparse, nested and quantized tensors say so; others never do.
                    count += _record_odd(leaf, stream, root, key_of)
                else:
                    count += 1
            elif not isinstance(leaf, Tensor):
                count += _record_opaque(leaf, stream)
            elif leaf.is_cuda or leaf.device.type not in ("cpu", "meta"):
                count += _record_odd(leaf, stream, root, key_of)
    return count


def _record_odd(
    leaf: Tensor, stream: torch.Stream, root: str, key_of: Callable[[object], str]
) -> int:
    """Record a stream on every block that a tensor of any kind owns."""
    try:
        owned = owned_tensors("", leaf)
    except LeafError as error:
        raise LeafError(
            cls=root,
            key=key_of(leaf) + error.key,
            found=error.found,
            problem=error.problem,
            remedy=error.remedy,
        ) from None
    for tensor in owned:
        tensor.record_stream(stream)
    return len(owned)


def _record_opaque(leaf: Any, stream: torch.Stream) -> int:
    """Let a leaf that is no tensor record itself, if it is on a device."""
    if not _is_on_device(leaf):
        return 0
    leaf.record_stream(stream)
    return 1


def _is_on_device(leaf: Any) -> bool:
    """Ask a leaf that is no tensor where it is; if it cannot tell, it shall act."""
    is_cuda = getattr(leaf, "is_cuda", None)
    if isinstance(is_cuda, bool) and is_cuda:
        return True
    device = getattr(leaf, "device", None)
    if device is None:
        return is_cuda is None
    return torch.device(device).type not in ("cpu", "meta")


def pinned(leaves: Sequence[Any]) -> list[Any]:
    """Copy host leaves into pinned memory, each object once; others stay."""

    def pin(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.pin_memory() if leaf.device.type == "cpu" else leaf
        return leaf.pin_memory()

    return _each_once(leaves, lambda found: [pin(leaf) for leaf in found])


def cloned(leaves: Sequence[Any]) -> list[Any]:
    """Give every leaf new storage, each object once."""
    return _each_once(leaves, lambda found: [leaf.clone() for leaf in found])


def check_methods(
    leaves: Sequence[Any], name: str, root: str, key_of: Callable[[object], str]
) -> None:
    """Raise for a leaf that cannot do what is asked, before any leaf has done it."""
    for leaf in leaves:
        if leaf.__class__ is not Tensor and not callable(getattr(leaf, name, None)):
            cls = type(leaf).__name__
            raise LeafError(
                cls=root,
                key=key_of(leaf),
                found=f"the `{cls}`",
                problem=f"has no method `{name}`",
                remedy=f"Give `{cls}` a `{name}`, or write a `LifetimeAdapter[{cls}]`.",
            )


def _each_once(
    leaves: Sequence[Any], act: Callable[[Sequence[Any]], list[Any]]
) -> list[Any]:
    """Act on the leaves; a leaf that comes again gets the same result."""
    if len(set(map(id, leaves))) == len(leaves):
        return act(leaves)
    once = {id(leaf): leaf for leaf in leaves}
    done = dict(zip(once, act(list(once.values())), strict=True))
    return [done[id(leaf)] for leaf in leaves]
