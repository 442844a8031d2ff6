"""Which bytes of its block a tensor covers."""

import torch
from torch import Tensor

from tensorpack.guard.extents import Extent

__all__ = ["extent_of"]


def extent_of(tensor: Tensor) -> Extent | None:
    """Return the bytes of its block that a tensor covers; None where it has no strides."""
    if tensor.layout is not torch.strided:
        return None
    offset = int(tensor.storage_offset())
    return Extent.of(offset, tensor.shape, tensor.stride(), tensor.itemsize)
