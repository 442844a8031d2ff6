"""What is done to leaves: moved to a device, recorded, pinned, cloned."""

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tensorpack._leaves.once import each_once, stand_twice
from tensorpack._leaves.storage import as_stored, owned_tensors
from tensorpack._leaves.streams import is_capturing
from tensorpack._leaves.tracing import let_trace_as
from tensorpack.errors import CaptureError, LeafError

__all__ = [
    "as_leaf",
    "check_methods",
    "cloned",
    "compacted",
    "moved",
    "pinned",
    "record",
]

# Note [cold caches]
# After each step of a model the caches hold other things, and what costs then is not
# what is computed but what is touched: a call of a Python function costs as much as the
# move of a small leaf. So a few lines here and in their callers are spelled out.

# Where a leaf is on a CUDA device nobody has to ask first whether there is one.
_is_capturing_cuda = getattr(torch._C, "_cuda_isCurrentStreamCapturing", is_capturing)
# Asked whole: `device.type` makes a text, and takes as long as ten such questions.
_HOST = frozenset({torch.device("cpu"), torch.device("cpu", 0)})
_CUDA = frozenset(
    {torch.device("cuda"), *(torch.device("cuda", index) for index in range(16))}
    if torch.version.cuda is not None or torch.version.hip is not None
    else ()
)


_Device = torch.device


class _Guards(threading.local):
    """A guard for each thread: to make one costs more than to enter it."""

    def __init__(self) -> None:
        self.as_stored = as_stored()


_guards = _Guards()


def moved(
    leaves: Sequence[Any],
    device: torch.device | str | int,
    *,
    non_blocking: bool,
    plain: bool = False,
) -> list[Any]:
    """Move leaves to a device, each object once.

    A move to the host is a blocking one, whatever was asked: the caller could read the
    memory before the copy is done.

    Args:
        leaves: tensors, and others that move themselves.
        device: where to: a device, its name or its index.
        non_blocking: let copies from pinned memory go on while the host does.
        plain: whether the class of every leaf is known to be `Tensor` itself.
    """
    target = device if type(device) is _Device else torch.device(device)
    flag = non_blocking and target not in _HOST
    if stand_twice(leaves):
        return _moved_once(leaves, target, non_blocking=flag)
    if plain and target in _CUDA:
        # The same as `to`, but torch has fewer forms of it to try: 0.96 of the time.
        return [leaf.cuda(target, flag) for leaf in leaves]
    # By keyword: the form by position took a sixth longer on an H200.
    # Not `leaf.__class__`: it costs as much as the rest of the loop with cold caches.
    return [
        leaf.to(target, non_blocking=flag)
        if type(leaf) is Tensor
        else _move_one(leaf, target, flag)
        for leaf in leaves
    ]


def _moved_once(
    leaves: Sequence[Any],
    device: torch.device | str | int,
    *,
    non_blocking: bool,
    plain: bool = False,  # noqa: ARG001  # the arguments are those of `moved`
) -> list[Any]:
    """Move leaves of which some may stand twice."""
    target = device if type(device) is _Device else torch.device(device)
    flag = non_blocking and target not in _HOST
    return each_once(
        leaves, lambda found: [_move_one(leaf, target, flag) for leaf in found]
    )


# Tracing takes the other: it cannot read the numbers of references.
let_trace_as(moved, _moved_once)


def _move_one(leaf: Any, device: torch.device, non_blocking: bool) -> Any:
    """Move a tensor of any class, or a leaf that is no tensor."""
    if isinstance(leaf, Tensor):
        return leaf.to(device, non_blocking=non_blocking)
    cls: Any = type(leaf)
    method = getattr(cls, "to_device", None) or cls.to
    if _takes_non_blocking(method):
        return as_leaf(leaf, method(leaf, device, non_blocking=non_blocking))
    return as_leaf(leaf, method(leaf, device))


def as_leaf(leaf: Any, twin: Any) -> Any:
    """Give what a leaf that is no tensor has made of itself.

    Raises:
        LeafError: no stream could be recorded on it.
    """
    if not callable(getattr(twin, "record_stream", None)):
        name = type(leaf).__name__
        raise LeafError(
            found=f"the `{name}`",
            problem=f"gave a `{type(twin).__name__}` for itself, on which no stream "
            "can be recorded",
            remedy=f"Let `{name}` give a `{name}` when it is moved, pinned or cloned.",
        )
    return twin


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
    where: Callable[[object], tuple[str, str]] = lambda _: ("", ""),
    plain: bool = False,
) -> int:
    """Mark the device memory of leaves as used by a stream, each object once.

    Leaves on the host and meta leaves own no device memory and are passed over. The
    stream's type is never looked at: the leaf decides what it takes.

    Args:
        leaves: tensors, and others that record themselves.
        stream: the stream whose queued work reads them.
        where: finds the class and the key of a leaf, for an error.
        plain: whether the class of every leaf is known to be `Tensor` itself.

    Returns:
        How many times a stream was recorded.

    Raises:
        CaptureError: the current stream is capturing a graph.
        LeafError: nobody can tell what memory a leaf owns.
    """
    if stand_twice(leaves):
        leaves = list({id(leaf): leaf for leaf in leaves}.values())
    if plain and leaves and leaves[0].is_cuda:
        if _is_capturing_cuda():
            raise CaptureError(call="record_stream", stream="current")
        try:
            with _guards.as_stored:
                return len([x.record_stream(stream) for x in leaves if x.is_cuda])
        except NotImplementedError:
            # Sparse, nested and quantized tensors say so; others never do. What was
            # recorded already is recorded once more, which is no harm.
            pass
    return _record_any(leaves, stream, where)


def _record_any(
    leaves: Sequence[Any],
    stream: torch.Stream,
    where: Callable[[object], tuple[str, str]],
) -> int:
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


def _record_other(
    leaf: Any, stream: torch.Stream, where: Callable[[object], tuple[str, str]]
) -> int:
    """Record a stream on a leaf of any kind, if it is on a device."""
    if not isinstance(leaf, Tensor):
        return _record_opaque(leaf, stream)
    if not issubclass(type(leaf), Tensor):  # a mock that only says it is a tensor
        leaf.record_stream(stream)
        return 1
    if leaf.is_cuda or leaf.device.type not in ("cpu", "meta"):
        return _record_odd(leaf, stream, where)
    return 0


def _record_odd(
    leaf: Tensor, stream: torch.Stream, where: Callable[[object], tuple[str, str]]
) -> int:
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
        return as_leaf(leaf, leaf.pin_memory())

    return each_once(leaves, lambda found: [pin(leaf) for leaf in found])


def cloned(leaves: Sequence[Any]) -> list[Any]:
    """Give every leaf new storage, each object once."""

    def copy(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, Tensor) else as_leaf(leaf, leaf.clone())

    return each_once(leaves, lambda found: [copy(leaf) for leaf in found])


def compacted(leaves: Sequence[Any]) -> list[Any]:
    """Give each leaf that is part of a larger memory its own, each object once."""

    def compact(leaf: Any) -> Any:
        if leaf.__class__ is not Tensor or not _is_part(leaf):
            return leaf
        if leaf.requires_grad and leaf.is_leaf:  # so it stays where gradients end
            return leaf.detach().clone().requires_grad_()
        return leaf.clone()

    return each_once(leaves, lambda found: [compact(leaf) for leaf in found])


def _is_part(leaf: Tensor) -> bool:
    """Tell whether a tensor's memory holds more than the tensor."""
    if leaf.layout is not torch.strided or leaf.is_nested or leaf.is_quantized:
        return False
    return leaf.untyped_storage().nbytes() > leaf.numel() * leaf.element_size()


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
