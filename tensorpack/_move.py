"""What is done to leaves: moved to a device, recorded, pinned, cloned."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tensorpack._opened import owned_tensors
from tensorpack.errors import LeafError

__all__ = ["Pair", "cloned", "moved", "pinned", "record"]

Pair = tuple[str, Any]
"""The key of a leaf, and the leaf."""


def moved(
    leaves: Sequence[Pair],
    device: torch.device | str | int,
    *,
    non_blocking: bool,
    root: str = "",
) -> list[Any]:
    """Move leaves to a device, each object once.

    A move to the host is a blocking one, whatever was asked: the caller could read the
    memory before the copy is done.
    """
    device = torch.device(device)
    non_blocking = non_blocking and device.type != "cpu"

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        mover = _mover(type(leaf))  # type: ignore[arg-type]  # classes are hashable
        return mover(leaf, device, non_blocking)

    return _each_once(leaves, move, root)


def record(leaves: Iterable[Pair], stream: torch.Stream, root: str = "") -> int:
    """Mark the device memory of leaves as used by a stream, each object once.

    Leaves on the host and meta leaves own no device memory and are passed over. The
    stream's type is never looked at: the leaf decides what it takes.

    Returns:
        How many times a stream was recorded.
    """
    count = 0
    for key, leaf in {id(leaf): (key, leaf) for key, leaf in leaves}.values():
        if not isinstance(leaf, Tensor):
            count += _record_opaque(key, leaf, stream, root)
        elif leaf.is_cuda or leaf.device.type not in ("cpu", "meta"):
            count += _record_tensor(key, leaf, stream)
    return count


def _record_tensor(key: str, leaf: Tensor, stream: torch.Stream) -> int:
    """Record a stream on every block that a tensor owns."""
    if leaf.__class__ is Tensor:
        try:
            leaf.record_stream(stream)
        except NotImplementedError:
            # Sparse, nested and quantized tensors say so; others never do.
            pass
        else:
            return 1
    owned = owned_tensors(key, leaf)
    for tensor in owned:
        tensor.record_stream(stream)
    return len(owned)


def _record_opaque(key: str, leaf: Any, stream: torch.Stream, root: str) -> int:
    """Let a leaf that is no tensor record itself, if it is on a device."""
    if not callable(getattr(leaf, "record_stream", None)):
        raise _not_a_leaf(root, key, leaf)
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


def pinned(leaves: Sequence[Pair], root: str = "") -> list[Any]:
    """Copy host leaves into pinned memory, each object once; others stay."""

    def pin(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.pin_memory() if leaf.device.type == "cpu" else leaf
        return leaf.pin_memory()

    _check_methods(leaves, "pin_memory", root)
    return _each_once(leaves, pin, root)


def cloned(leaves: Sequence[Pair], root: str = "") -> list[Any]:
    """Give every leaf new storage, each object once."""
    _check_methods(leaves, "clone", root)
    return _each_once(leaves, lambda leaf: leaf.clone(), root)


def _each_once(
    leaves: Sequence[Pair], act: Callable[[Any], Any], root: str
) -> list[Any]:
    """Act on each leaf; a leaf that comes again gets the same result."""
    done: dict[int, Any] = {}
    found = []
    for key, leaf in leaves:
        if id(leaf) not in done:
            if not isinstance(leaf, Tensor) and not _has_mover(type(leaf)):
                raise _not_a_leaf(root, key, leaf)
            done[id(leaf)] = act(leaf)
        found.append(done[id(leaf)])
    return found


def _has_mover(cls: type) -> bool:
    return callable(getattr(cls, "record_stream", None)) and (
        hasattr(cls, "to_device") or hasattr(cls, "to")
    )


@lru_cache(maxsize=256)
def _mover(cls: type) -> Callable[[Any, torch.device, bool], Any]:
    """Find how a type that is no tensor is asked to move."""
    method = getattr(cls, "to_device", None) or getattr(cls, "to")  # noqa: B009
    parameters = inspect.signature(method).parameters
    takes = "non_blocking" in parameters or any(
        p.kind is p.VAR_KEYWORD for p in parameters.values()
    )
    if takes:
        return lambda leaf, device, flag: method(leaf, device, non_blocking=flag)
    return lambda leaf, device, _: method(leaf, device)


def _check_methods(leaves: Iterable[Pair], name: str, root: str) -> None:
    """Raise for a leaf that cannot do what is asked, before any leaf has done it."""
    for key, leaf in leaves:
        if not callable(getattr(leaf, name, None)):
            raise LeafError(
                cls=root,
                key=key,
                found=f"a `{type(leaf).__name__}`",
                problem=f"has no `{name}`",
                remedy=f"Give the class a `{name}`, or write a `LifetimeAdapter`.",
            )


def _not_a_leaf(root: str, key: str, leaf: object) -> LeafError:
    remedy = "Correct the value, or the annotation."
    if hasattr(type(leaf), "__tensorpack_plan__"):
        remedy = f"Annotate the field `{type(leaf).__name__}`."
    return LeafError(
        cls=root,
        key=key,
        found=f"a `{type(leaf).__name__}`",
        problem="stands where a tensor is annotated",
        remedy=remedy,
    )
