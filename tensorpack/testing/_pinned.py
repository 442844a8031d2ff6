"""Pinned host memory on a machine that can pin none: it is only marked."""

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from tensorpack._leaves.storage import inner_tensors

__all__ = ["is_pinned", "mark_pinned"]

_pinned = WeakIdKeyDictionary()


def mark_pinned(tensor: Tensor) -> Tensor:
    """Mark the memory of a host tensor as pinned."""
    for part in inner_tensors("", tensor):
        _pinned[part.untyped_storage()] = True
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """Return whether a tensor lies in memory that is marked as pinned."""
    return tensor.device.type == "cpu" and all(
        part.untyped_storage() in _pinned for part in inner_tensors("", tensor)
    )
