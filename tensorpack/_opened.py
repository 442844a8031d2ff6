"""Odd leaves opened: the plain tensors whose storages an odd one owns."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tensorpack.errors import LeafError

__all__ = ["owned_tensors"]

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_DISABLED = torch._C._disabled_torch_dispatch_impl  # no public name


def owned_tensors(key: str, leaf: Tensor) -> Sequence[Tensor]:
    """List the plain tensors that own the device memory of a leaf.

    Args:
        key: the leaf's address, for the error.
        leaf: any kind of tensor, on a device.

    Raises:
        LeafError: nobody can tell what the leaf owns.
    """
    if hasattr(leaf, "__tensor_flatten__"):
        names, _ = leaf.__tensor_flatten__()
        inner = [(name, getattr(leaf, name)) for name in names]
        return [
            owned
            for name, tensor in inner
            if tensor is not None
            for owned in owned_tensors(f"{key}.{name}", tensor)
        ]
    if leaf.layout is torch.sparse_coo:
        # The unchecked accessors: `indices()` refuses a tensor that is not coalesced.
        return [leaf._indices(), leaf._values()]  # public in effect
    if leaf.layout in _COMPRESSED:
        return [getattr(leaf, name)() for name in _COMPRESSED[leaf.layout]]
    if leaf.layout is not torch.strided:
        raise _closed(key, leaf, f"has the layout `{leaf.layout}`")
    if leaf.is_quantized or leaf.is_nested:
        return [_bytes_of(leaf), *_quantizers(leaf)]
    if type(leaf).__torch_dispatch__ is not _DISABLED and not _has_storage(leaf):
        raise _closed(key, leaf, "wraps memory that only it knows")
    return (leaf,)


def _bytes_of(leaf: Tensor) -> Tensor:
    """View the storage of a tensor as plain bytes."""
    view = torch.empty(0, dtype=torch.uint8, device=leaf.device)
    return view.set_(leaf.untyped_storage())


def _quantizers(leaf: Tensor) -> list[Tensor]:
    """List the scales and zero points of a tensor that is quantized by channels."""
    if not leaf.is_quantized or leaf.qscheme() not in (
        torch.per_channel_affine,
        torch.per_channel_symmetric,
        torch.per_channel_affine_float_qparams,
    ):
        return []
    both = (leaf.q_per_channel_scales(), leaf.q_per_channel_zero_points())
    return [tensor for tensor in both if tensor.device == leaf.device]


def _has_storage(leaf: Tensor) -> bool:
    """Tell whether a tensor with a dispatch of its own has memory of its own."""
    if any(b.__name__ == "FakeTensor" for b in type(leaf).__mro__):
        return True
    try:
        return leaf.numel() == 0 or leaf.untyped_storage().data_ptr() != 0
    except RuntimeError:
        return False


def _closed(key: str, leaf: Tensor, problem: str) -> LeafError:
    return LeafError(
        key=key,
        found=f"a `{type(leaf).__name__}`",
        problem=f"{problem}, so no stream can be recorded on it for certain",
        remedy="Give its class `__tensor_flatten__`, or pass the tensors inside it.",
    )
