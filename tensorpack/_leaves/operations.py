"""New leaves from leaves: moved, pinned, cloned, compacted; each object once."""

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tensorpack.errors import LeafError

__all__ = [
    "as_leaf",
    "check_methods",
    "cloned",
    "compacted",
    "each_once",
    "has_repeats",
    "moved",
    "pinned",
]

# Note [cold caches]
# After each step of a model the caches hold other things, and what costs then is not
# what is computed but what is touched: a call of a Python function costs as much as the
# move of a small leaf. So a few lines here and in their callers are spelled out.

# Asked whole: `device.type` makes a text, and takes as long as ten such questions.
_HOST = frozenset({torch.device("cpu"), torch.device("cpu", 0)})
_CUDA = frozenset(
    {torch.device("cuda"), *(torch.device("cuda", index) for index in range(16))}
    if torch.version.cuda is not None or torch.version.hip is not None
    else ()
)


_Device = torch.device


def has_repeats(leaves: Sequence[Any]) -> bool:
    """Return whether an object is among leaves more than once."""
    return len(set(map(id, leaves))) < len(leaves)


def each_once(
    leaves: Sequence[Any], act: Callable[[Sequence[Any]], Sequence[Any]]
) -> list[Any]:
    """Act on the leaves; a leaf that comes again gets the same result."""
    if not has_repeats(leaves):
        return list(act(leaves))
    once = {id(leaf): leaf for leaf in leaves}
    done = dict(zip(once, act(list(once.values())), strict=True))
    return [done[id(leaf)] for leaf in leaves]


def moved(
    leaves: Sequence[Any],
    device: torch.device | str | int,
    *,
    non_blocking: bool,
    only_tensors: bool = False,
) -> list[Any]:
    """Move leaves to a device, each object once.

    A move to the host is a blocking one, whatever was asked: the caller could read the
    memory before the copy is done.

    Args:
        leaves: tensors, and others that move themselves.
        device: where to: a device, its name or its index.
        non_blocking: let copies from pinned memory go on while the host does.
        only_tensors: whether the class of every leaf is known to be `Tensor` itself.
    """
    target = device if type(device) is _Device else torch.device(device)
    flag = non_blocking and target not in _HOST
    if len(set(map(id, leaves))) < len(leaves):
        return each_once(
            leaves, lambda found: [_move_one(leaf, target, flag) for leaf in found]
        )
    if only_tensors and target in _CUDA:
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


def _move_one(leaf: Any, device: torch.device, non_blocking: bool) -> Any:
    """Move a tensor of any class, or a leaf that is not a tensor."""
    if isinstance(leaf, Tensor):
        return leaf.to(device, non_blocking=non_blocking)
    cls: Any = type(leaf)
    method = getattr(cls, "to_device", None) or cls.to
    before = _place(leaf)
    if _takes_non_blocking(method):
        new = as_leaf(leaf, method(leaf, device, non_blocking=non_blocking))
    else:
        new = as_leaf(leaf, method(leaf, device))
    if new is leaf and _place(leaf) != before:
        raise LeafError(
            found=f"the `{cls.__name__}`",
            problem="was moved in place, so the original is changed too",
            remedy=f"Return a new `{cls.__name__}` from its `{method.__name__}`.",
        )
    return new


def _place(leaf: Any) -> tuple[object, object]:
    """Return where a leaf says it is."""
    try:
        return getattr(leaf, "is_cuda", None), str(getattr(leaf, "device", None))
    except Exception:  # noqa: BLE001  # recording is what needs an answer
        return None, ""


def as_leaf(leaf: Any, new: Any) -> Any:
    """Return what a leaf that is not a tensor has made of itself.

    Raises:
        LeafError: it is of another class.
    """
    cls = type(leaf)
    if not isinstance(new, cls):
        name = cls.__name__
        raise LeafError(
            found=f"the `{name}`",
            problem=f"returned a `{type(new).__name__}` in its place",
            remedy=f"Return a `{name}` when it is moved, pinned or cloned.",
        )
    return new


@lru_cache(maxsize=256)
def _takes_non_blocking(method: Callable[..., Any]) -> bool:
    """Return whether a method that moves has a parameter `non_blocking`."""
    parameters = inspect.signature(method).parameters
    return "non_blocking" in parameters or any(
        p.kind is p.VAR_KEYWORD for p in parameters.values()
    )


def pinned(leaves: Sequence[Any]) -> list[Any]:
    """Copy host leaves into pinned memory, each object once; others stay."""

    def pin(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.pin_memory() if leaf.device.type == "cpu" else leaf
        return as_leaf(leaf, leaf.pin_memory())

    return each_once(leaves, lambda found: [pin(leaf) for leaf in found])


def cloned(leaves: Sequence[Any]) -> list[Any]:
    """Copy every leaf into new storage, each object once."""

    def copy(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, Tensor) else as_leaf(leaf, leaf.clone())

    return each_once(leaves, lambda found: [copy(leaf) for leaf in found])


def compacted(leaves: Sequence[Any]) -> list[Any]:
    """Copy each leaf that is part of a larger memory, each object once; others stay."""

    def compact(leaf: Any) -> Any:
        if leaf.__class__ is not Tensor or not _is_part(leaf):
            return leaf
        if leaf.requires_grad and leaf.is_leaf:  # so it stays where gradients end
            return leaf.detach().clone().requires_grad_()
        return leaf.clone()

    return each_once(leaves, lambda found: [compact(leaf) for leaf in found])


def _is_part(leaf: Tensor) -> bool:
    """Return whether a tensor's memory holds more than the tensor."""
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
