"""Tensors and their storages: the plain tensors that own what an odd one holds."""

# Note [lazy views]
# A conjugate or negative view (`x.conj()`, `x.conj().imag`) shares its base's storage;
# a bit says how to read it. torch makes a plain copy of such a view before any
# operation that does not know the bit, `record_stream` among them: it would mark the
# copy's block and not the view's. So streams are recorded with these dispatch keys off,
# and with that of the zeros without memory which forward-mode autograd uses.

import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from tensorpack.errors import LeafError

__all__ = [
    "PLAIN_MARK",
    "as_stored",
    "inner_tensors",
    "is_plain_tensor",
    "owned_tensors",
]

PLAIN_MARK = "__tensorpack_plain_tensor__"
"""Marks a subclass of `Tensor` whose values are their numbers and nothing else."""

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_BY_CHANNEL = (
    torch.per_channel_affine,
    torch.per_channel_symmetric,
    torch.per_channel_affine_float_qparams,
)
_DISABLED = torch._C._disabled_torch_dispatch_impl  # no public name
_BITS = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate)
_BITS = _BITS.add(torch._C.DispatchKey.Negative).add(torch._C.DispatchKey.ZeroTensor)

as_stored = functools.partial(torch._C._ExcludeDispatchKeyGuard, _BITS)
"""Makes the context in which operations see tensors as they lie in memory."""


def is_plain_tensor(cls: type) -> bool:
    """Return whether values of a class are their numbers and nothing else."""
    return cls is Tensor or PLAIN_MARK in cls.__dict__


def owned_tensors(key: str, leaf: Tensor) -> list[Tensor]:
    """List the plain tensors that own the device memory of a leaf.

    Args:
        key: the leaf's address, for the error.
        leaf: any kind of tensor, on a device.

    Raises:
        LeafError: what the leaf owns cannot be seen.
    """
    inner = inner_tensors(key, leaf)
    return [t for t in inner if t.is_cuda or t.device.type not in ("cpu", "meta")]


def inner_tensors(key: str, leaf: Tensor) -> Iterator[Tensor]:
    """Iterate the plain tensors inside a leaf, those on the host included."""
    if hasattr(leaf, "__tensor_flatten__"):
        names, _ = leaf.__tensor_flatten__()
        for name in names:
            part = getattr(leaf, name)
            if isinstance(part, Tensor):  # a device mesh may be named too, or None
                yield from inner_tensors(f"{key}.{name}", part)
    elif leaf.layout is torch.sparse_coo:
        # The unchecked accessors: `indices()` refuses a tensor that is not coalesced.
        yield leaf._indices()  # public in effect
        yield leaf._values()
    elif leaf.layout in _COMPRESSED:
        for name in _COMPRESSED[leaf.layout]:
            yield getattr(leaf, name)()
    elif leaf.layout is not torch.strided:
        raise _closed(key, leaf, f"has the layout `{leaf.layout}`")
    elif leaf.is_quantized:
        yield _bytes_of(leaf)
        if leaf.qscheme() in _BY_CHANNEL:
            yield leaf.q_per_channel_scales()
            yield leaf.q_per_channel_zero_points()
    elif leaf.is_nested:
        yield _bytes_of(leaf)
    else:
        _check_open(key, leaf)
        yield leaf


def _bytes_of(leaf: Tensor) -> Tensor:
    """View the storage of a tensor as plain bytes."""
    view = torch.empty(0, dtype=torch.uint8, device=leaf.device)
    return view.set_(leaf.untyped_storage())


def _check_open(key: str, leaf: Tensor) -> None:
    """Refuse a tensor with a dispatch of its own unless its memory is all it has."""
    cls = type(leaf)
    if cls.__torch_dispatch__ is _DISABLED or hasattr(cls, PLAIN_MARK):
        return
    if issubclass(cls, FakeTensor):
        return
    if not _has_storage(leaf):
        raise _closed(key, leaf, "wraps memory that only it knows")
    if any(isinstance(part, Tensor) for part in vars(leaf).values()):
        raise _closed(key, leaf, "holds tensors beside its own memory")


def _has_storage(leaf: Tensor) -> bool:
    """Return whether a tensor has memory of its own."""
    try:
        return leaf.numel() == 0 or leaf.untyped_storage().data_ptr() != 0
    except RuntimeError:
        return False


def _closed(key: str, leaf: Tensor, problem: str) -> LeafError:
    remedy = "Give its class `__tensor_flatten__`, or pass the tensors inside it."
    if type(leaf) is Tensor:
        remedy = "Pass its `to_dense()`."
    return LeafError(
        key=key,
        found=f"a `{type(leaf).__name__}`",
        problem=f"{problem}, so a stream cannot be recorded on all of it",
        remedy=remedy,
    )
