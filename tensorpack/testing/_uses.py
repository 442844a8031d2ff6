"""What an operator does with tensors, as the model of streams and blocks is told."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tensorpack.guard.blocks import Shaped
from tensorpack.guard.extents import Extent
from tensorpack.guard.model import Use
from tensorpack.guard.places import Place
from tensorpack.testing._proofs import WRITES

__all__ = ["extent_of", "uses_of"]


def uses_of(
    call: str, tensors: Sequence[Tensor], operation: str, place: Place
) -> list[Use]:
    """Tell the model what an operator does with the tensors of one block."""
    writes, by_host = call in WRITES, call == "fetch"
    if not tensors:
        return [Use(writes, operation, place=place, by_host=by_host)]
    return [
        Use(
            writes,
            operation,
            Shaped(tensor.dtype, tuple(tensor.shape), tensor.device),
            place,
            extent_of(tensor),
            by_host,
        )
        for tensor in tensors
    ]


def extent_of(tensor: Tensor) -> Extent | None:
    """Return the bytes of its block that a tensor covers; None without strides."""
    if tensor.layout is not torch.strided:
        return None
    offset = int(tensor.storage_offset())
    return Extent.of(offset, tensor.shape, tensor.stride(), tensor.itemsize)
