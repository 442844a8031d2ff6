"""Pinned host memory on a machine that can pin none: it is only marked."""

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from tensorpack._leaves.storage import inner_tensors

__all__ = ["is_pinned", "mark_pinned"]

_pinned = WeakIdKeyDictionary()


def mark_pinned(tensor: Tensor) -> Tensor:
    """Say of a host tensor's memory that it is pinned."""
    for part in inner_tensors("", tensor):
        _pinned[part.untyped_storage()] = True
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """Tell whether a tensor lies in memory that was said to be pinned."""
    return tensor.device.type == "cpu" and all(
        part.untyped_storage() in _pinned for part in inner_tensors("", tensor)
    )
