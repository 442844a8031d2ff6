"""Memory that is filled again and again: `empty_like`.

# Note [static memory]
A graph reads fixed addresses, so the leaves of a static payload are made once, for the
largest sizes. Its small leaves are cut out of one buffer, at whose layout a host buffer
can be filled and copied at once.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tensorpack._leaves.streams import outliving
from tensorpack._rules.axes import AxisMark, DimMark, Offsets
from tensorpack.axes.padding import Padding, check_sizes
from tensorpack.axes.survey import Found, dim_of, is_array, size_at, survey
from tensorpack.axes.traversal import Place, Values, visited

__all__ = ["empty_like", "shared_buffer"]

T = TypeVar("T")

_ALIGNMENT = 256
_SHARED_BELOW = 256 << 10
"""Bytes under which a leaf lies in the shared buffer."""

_shared: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def shared_buffer(leaf: Tensor) -> tuple[Tensor, int] | None:
    """Return the buffer of bytes that a static leaf shares, and where it starts."""
    found: tuple[Tensor, int] | None = _shared.get(leaf)  # type: ignore[no-untyped-call]  # torch's
    return found


def empty_like(
    example: T,
    /,
    *,
    device: torch.device | str | int | None = None,
    pinned: bool = False,
    **sizes: int,
) -> T:
    """Return a payload of the form of another, whose leaves have memory of their own.

    New rows and all others are filled with the `pad` of their axis, else with 0. Small
    leaves share one buffer. Lists along an axis get its size, filled with its `pad`,
    else None; other host fields are the same objects.

    Args:
        example: a payload with every leaf that will ever be there.
        device: where the memory is. Left out, it is where each leaf is.
        pinned: make it pinned, for memory on the host.
        **sizes: how many items each axis gets, the others those of the example.

    Raises:
        AxisError: an axis is unknown or has more items, or a leaf cannot be made again.

    Streams:
        Memory is allocated and filled on the current stream. The host does not block.

    >>> import torch
    >>> from typing import Annotated
    >>> from torch import Tensor
    >>> from tensorpack import Axis, payload
    >>> @payload
    ... class Batch:
    ...     ids: Annotated[Tensor, Axis("requests", pad=-1)]
    >>> empty_like(Batch(torch.arange(2)), requests=4).ids
    tensor([-1, -1, -1, -1])
    """
    found = survey(example)
    check_sizes(found, sizes)
    where = None if device is None else torch.device(device)
    specs = [_spec(leaf, found.sizes | sizes, where) for leaf in found.leaves]
    leaves = _allocated(specs, pinned=pinned)
    new: T = visited((example,), _Empty(sizes, found.leaves, leaves))
    return new


@attrs.frozen(eq=False)
class _Spec:
    """One leaf to be made."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    fill: Any


def _spec(found: Found, sizes: Mapping[str, int], device: torch.device | None) -> _Spec:
    """Describe the new leaf in the place of an old one."""
    leaf = found.leaf
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        found.place.fail(
            "is not a dense tensor, so no memory can be made for it",
            "Set it to None in the example.",
        )
    shape = [*leaf.shape]
    fill = 0
    for mark in found.place.axes:
        if not isinstance(mark, DimMark) or size_at(found.place, mark, leaf) is None:
            continue
        dim = dim_of(found.place, mark, leaf)
        shape[dim] = sizes[mark.name] + isinstance(mark, Offsets)
        pad = getattr(mark, "pad", None)
        fill = pad if pad is not None else fill
    return _Spec(tuple(shape), leaf.dtype, device or leaf.device, fill)


def _allocated(specs: Sequence[_Spec], *, pinned: bool) -> list[Tensor]:
    """Make the leaves: small ones as parts of one buffer for each device."""
    new: list[Any] = [None] * len(specs)
    with outliving(), torch.no_grad():
        for device in dict.fromkeys(spec.device for spec in specs):
            own = [i for i, spec in enumerate(specs) if spec.device == device]
            pin = pinned and device.type == "cpu"
            _fill_shared(specs, own, new, pin=pin)
            for i in own:
                if new[i] is None:
                    new[i] = torch.empty(
                        specs[i].shape,
                        dtype=specs[i].dtype,
                        device=device,
                        pin_memory=pin,
                    )
        for leaf, spec in zip(new, specs, strict=True):
            leaf.fill_(spec.fill)
    return new


def _fill_shared(
    specs: Sequence[_Spec], own: Sequence[int], new: list[Any], *, pin: bool
) -> None:
    """Cut the small leaves of one device out of one buffer."""
    small = [i for i in own if _nbytes(specs[i]) < _SHARED_BELOW]
    # Leaves of one dtype lie side by side, so that one call can gather them.
    kinds = list(dict.fromkeys(specs[i].dtype for i in small))
    small.sort(key=lambda i: kinds.index(specs[i].dtype))
    if len(small) < 2:  # noqa: PLR2004  # one leaf is its own buffer
        return
    starts = _starts([_nbytes(specs[i]) for i in small])
    device = specs[small[0]].device
    buffer = torch.zeros(starts[-1], dtype=torch.uint8, device=device, pin_memory=pin)
    for i, start in zip(small, starts[:-1], strict=True):
        dtype, shape = specs[i].dtype, specs[i].shape
        row = buffer.view(dtype)
        before, count = start // dtype.itemsize, math.prod(shape)
        rest = row.numel() - before - count
        # Without a view relation: see Note [packed leaves] in `transfer.layout`.
        leaf = torch.unsafe_split_with_sizes(row, [before, count, rest])[1]
        new[i] = leaf.resize_(shape)
        _shared[new[i]] = (buffer, start)


def _nbytes(spec: _Spec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return where each part starts, each on a boundary, and where the last ends."""
    starts = [0]
    for nbytes in sizes:
        starts.append(starts[-1] + -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
    return starts


class _Empty(Padding):
    """Puts new leaves in the place of the old ones, and lengthens lists."""

    hooked = False

    def __init__(
        self, sizes: Mapping[str, int], old: Sequence[Found], new: Sequence[Tensor]
    ) -> None:
        super().__init__(sizes)
        self._new = iter(new)
        self._by_id: dict[int, Tensor] = {}
        self._old = old  # kept, so that no id comes again

    def leaf(self, place: Place, leaves: Values) -> Any:  # noqa: ARG002  # in order
        """Take the next leaf; one object in two fields stays one."""
        new = next(self._new)
        return self._by_id.setdefault(id(leaves[0]), new)

    def filler(self, place: Place, mark: AxisMark, value: Any) -> Any:  # noqa: ARG002  # as declared
        """Return the pad of an axis, else 0, or None in a list."""
        pad = getattr(mark, "pad", None)
        return 0 if pad is None and is_array(value) else pad
