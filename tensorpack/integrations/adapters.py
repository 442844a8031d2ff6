"""Ready adapters for foreign types, found by qualified name, never imported."""

import copy
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tensorpack._leaves.adapters import register_late, register_marked
from tensorpack._walk.values import is_host_value
from tensorpack.errors import LeafError

__all__: list[str] = []


def _packed_leaves(value: Any) -> list[Tensor]:
    """List the leaves of a `PackedSequence`; its batch sizes belong on the host."""
    return _given(value.data, value.sorted_indices, value.unsorted_indices)


def _packed_host(value: Any) -> list[Tensor]:
    """List what torch reads on the host: the batch sizes."""
    return [value.batch_sizes]


def _rebuild_packed(value: Any, leaves: Sequence[Tensor]) -> Any:
    """Make a `PackedSequence` without its checks, which read values."""
    new = iter(leaves)
    data = next(new)
    by_length, back = (
        None if old is None else next(new)
        for old in (value.sorted_indices, value.unsorted_indices)
    )
    return tuple.__new__(type(value), (data, value.batch_sizes, by_length, back))


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


_JAGGED = ("_values", "_weights", "_lengths", "_offsets")


def _jagged_leaves(value: Any) -> list[Tensor]:
    """List the tensors of a `JaggedTensor`, those that were computed included."""
    return _given(*(getattr(value, name) for name in _JAGGED))


def _rebuild_jagged(value: Any, leaves: Sequence[Tensor]) -> Any:
    """Make a jagged tensor of the same class with new tensors, and no checks."""
    return _refilled(value, _JAGGED, iter(leaves))


def _refilled(value: Any, names: Sequence[str], leaves: Iterator[Tensor]) -> Any:
    """Copy an object, and put a new tensor where each named one was."""
    new = copy.copy(value)
    for name in names:
        if getattr(value, name) is not None:
            setattr(new, name, next(leaves))
    return new


# What torchrec's own `record_stream` and `to` leave out: the inverse indices, and the
# cache of the tensors by key, which `to` hands on although it stays behind.


def _keyed_jagged_leaves(value: Any) -> list[Tensor]:
    """List the tensors of a `KeyedJaggedTensor`, those that it caches included."""
    inverse = getattr(value, "_inverse_indices", None)
    return [
        *_jagged_leaves(value),
        *([inverse[1]] if inverse is not None else []),
        *_given(_strides_on_device(value)),
        *_cached_on_device(value),
    ]


def _strides_on_device(value: Any) -> Tensor | None:
    """Give the strides by key and rank if they are on a device; the host reads them."""
    strides: Any = getattr(value, "_stride_per_key_per_rank", None)
    on_device = isinstance(strides, Tensor) and strides.device.type != "cpu"
    return strides if on_device else None


def _keyed_jagged_host(value: Any) -> list[Tensor]:
    """List what the host reads: the strides by key and rank, unless on a device."""
    strides: Any = getattr(value, "_stride_per_key_per_rank", None)
    on_host = isinstance(strides, Tensor) and strides.device.type == "cpu"
    return [strides] if on_host else []


def _cached_on_device(value: Any) -> list[Tensor]:
    """List what the cache by key owns on a device: views, and computed offsets."""
    cache = getattr(value, "_jt_dict", None) or {}
    owned = [leaf for jagged in cache.values() for leaf in _jagged_leaves(jagged)]
    return [leaf for leaf in owned if leaf.device.type not in ("cpu", "meta")]


def _rebuild_keyed_jagged(value: Any, leaves: Sequence[Tensor]) -> Any:
    """Make a `KeyedJaggedTensor` with new tensors; its cache fills itself again."""
    rest = iter(leaves)
    new = _refilled(value, _JAGGED, rest)
    inverse = getattr(value, "_inverse_indices", None)
    if inverse is not None:
        new._inverse_indices = (inverse[0], next(rest))
    if _strides_on_device(value) is not None:
        new._stride_per_key_per_rank = next(rest)
    new._jt_dict = None
    return new


def _keyed_leaves(value: Any) -> list[Tensor]:
    """List the one tensor of a `KeyedTensor`."""
    return [value._values]


def _rebuild_keyed(value: Any, leaves: Sequence[Tensor]) -> Any:
    """Make a `KeyedTensor` with a new tensor."""
    return _refilled(value, ("_values",), iter(leaves))


def _dict_leaves(value: Any) -> list[Tensor]:
    """List the tensors of a tensordict or tensorclass, nested ones included."""
    found: list[Tensor] = []
    value.apply(found.append, filter_empty=True)
    return found


def _rebuild_dict(value: Any, leaves: Sequence[Tensor]) -> Any:
    """Make a tensordict or tensorclass with new tensors, and the rest as it was."""
    rest = iter(leaves)
    device: torch.device | None = value.device
    if device is not None and leaves:
        device = leaves[0].device
    return value.apply(
        lambda _: next(rest), device=device, filter_empty=False, propagate_lock=True
    )


# The `to` of transformers' encodings moves in place, and not all that is in lists.


def _encoding_leaves(value: Any) -> list[Tensor]:
    """List the tensors in a `BatchEncoding` or `BatchFeature`, at any depth."""
    return list(_tensors_in(value.data, type(value).__name__))


def _tensors_in(value: Any, key: str) -> Iterator[Tensor]:
    """Iterate the tensors in plain containers; raise for what nobody can look into."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) is dict:
        for name, item in value.items():
            yield from _tensors_in(item, f"{key}[{name!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _tensors_in(item, f"{key}[{index}]")
    elif not is_host_value(value):
        raise LeafError(
            key=key,
            found=f"the `{type(value).__name__}`",
            problem="has no lifetime support",
            remedy="Take it out, or convert it to tensors.",
        )


def _rebuild_encoding(value: Any, leaves: Sequence[Tensor]) -> Any:
    """Make a `BatchEncoding` or `BatchFeature` with new tensors."""
    new = copy.copy(value)
    new.data = _with_tensors(value.data, iter(leaves))
    return new


def _with_tensors(value: Any, leaves: Iterator[Tensor]) -> Any:
    """Make the containers of tensors anew, with new tensors; the rest is the same."""
    if isinstance(value, Tensor):
        return next(leaves)
    if type(value) is dict:
        twin = {name: _with_tensors(item, leaves) for name, item in value.items()}
        return twin if any(twin[name] is not value[name] for name in value) else value
    if type(value) in (list, tuple):
        items = [_with_tensors(item, leaves) for item in value]
        changed = any(map(operator.is_not, items, value))
        return type(value)(items) if changed else value
    return value


register_late(
    "torch.nn.utils.rnn.PackedSequence",
    leaves=_packed_leaves,
    rebuild=_rebuild_packed,
    host=_packed_host,
)
register_late(
    "torchrec.sparse.jagged_tensor.JaggedTensor",
    leaves=_jagged_leaves,
    rebuild=_rebuild_jagged,
)
register_late(
    "torchrec.sparse.jagged_tensor.KeyedJaggedTensor",
    leaves=_keyed_jagged_leaves,
    rebuild=_rebuild_keyed_jagged,
    host=_keyed_jagged_host,
)
register_late(
    "torchrec.sparse.jagged_tensor.KeyedTensor",
    leaves=_keyed_leaves,
    rebuild=_rebuild_keyed,
)
for _base in ("tensordict.base.TensorDictBase", "tensordict.tensorclass.TensorClass"):
    register_late(_base, leaves=_dict_leaves, rebuild=_rebuild_dict)
for _encoding in (
    "transformers.tokenization_utils_base.BatchEncoding",
    "transformers.feature_extraction_utils.BatchFeature",
):
    register_late(_encoding, leaves=_encoding_leaves, rebuild=_rebuild_encoding)
# A class decorated with `@tensorclass` has no base to be known by.
register_marked("_is_tensorclass", leaves=_dict_leaves, rebuild=_rebuild_dict)
