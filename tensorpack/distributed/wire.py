"""Where each leaf of a message lies: in the packed buffer, or in one of its own."""

import functools
import hashlib
import pickle
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack.transfer.layout import ALIGNMENT

__all__ = ["SMALL", "Place", "WireLayout", "layout_of", "unsendable"]

SMALL = 256 << 10
"""Bytes under which a leaf travels in the packed buffer."""


@attrs.frozen
class Place:
    """One leaf as the receiver has to make it.

    Attributes:
        dtype: name of its dtype, such as `"bfloat16"`.
        shape: its sizes.
        stride: its strides, in items; dense.
        offset: bytes from the start of the packed buffer; None if it travels alone.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int | None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the leaf's items."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.torch_dtype.itemsize


@attrs.frozen
class WireLayout:
    """The places of all leaves of a message, in plan order, each object once.

    Attributes:
        places: one for each leaf.
        nbytes: bytes of the packed buffer.
    """

    places: tuple[Place, ...]
    nbytes: int

    @functools.cached_property
    def text(self) -> bytes:
        """The layout as it is written for the other ranks."""
        rows = [(p.dtype, p.shape, p.stride, p.offset) for p in self.places]
        return pickle.dumps((rows, self.nbytes), protocol=5)

    @functools.cached_property
    def digest(self) -> bytes:
        """Eight bytes that tell layouts apart."""
        return hashlib.blake2b(self.text, digest_size=8).digest()

    @functools.cached_property
    def alone(self) -> tuple[int, ...]:
        """The indexes of the leaves that travel in a collective of their own."""
        places = enumerate(self.places)
        return tuple(i for i, p in places if p.offset is None and p.nbytes)

    @classmethod
    def decode(cls, text: bytes) -> "WireLayout":
        """Read the `text` of a layout."""
        rows, nbytes = pickle.loads(text)  # noqa: S301  # from a rank of the same job
        return cls(tuple(Place(*row) for row in rows), nbytes)

    def fill(self, leaves: Sequence[Tensor], buffer: Tensor) -> None:
        """Copy the small leaves into the packed buffer, on the buffer's device."""
        packed = [
            (self._cut(place, buffer), leaf)
            for place, leaf in zip(self.places, leaves, strict=True)
            if place.offset is not None
        ]
        if packed:
            rooms, sources = zip(*packed, strict=True)
            torch._foreach_copy_(list(rooms), list(sources))

    def cut(self, buffer: Tensor, alone: Sequence[Tensor]) -> list[Tensor]:
        """Return the leaves: cut out of the buffer, or those that came alone.

        Each has its own version counter and is not a view, like a fresh tensor; leaves
        without items do not share the buffer.
        """
        came = iter(alone)
        new = []
        for place in self.places:
            if not place.nbytes:
                new.append(
                    torch.empty_strided(
                        place.shape,
                        place.stride,
                        dtype=place.torch_dtype,
                        device=buffer.device,
                    )
                )
            elif place.offset is None:
                new.append(next(came))
            else:
                new.append(self._own(place, buffer))
        return new

    def empty_alone(self, device: torch.device) -> list[Tensor]:
        """Allocate the leaves that travel alone."""
        return [
            torch.empty_strided(
                self.places[i].shape,
                self.places[i].stride,
                dtype=self.places[i].torch_dtype,
                device=device,
            )
            for i in self.alone
        ]

    def _cut(self, place: Place, buffer: Tensor) -> Tensor:
        """Return a view of the buffer where a leaf belongs."""
        start = place.offset or 0
        row = buffer[start : start + place.nbytes].view(place.torch_dtype)
        return row.as_strided(place.shape, place.stride)

    def _own(self, place: Place, buffer: Tensor) -> Tensor:
        """Return the leaf over the memory of the buffer, which is not a view of it."""
        leaf = torch.empty(0, dtype=place.torch_dtype, device=buffer.device)
        start = (place.offset or 0) // place.torch_dtype.itemsize
        leaf.set_(buffer.untyped_storage(), start, place.shape, place.stride)
        return leaf


def unsendable(leaf: Any) -> str | None:
    """Return why a leaf cannot travel between ranks; None if it can."""
    if type(leaf) is not Tensor:
        kind = f"is a `{type(leaf).__name__}`, not a plain tensor"
        return f"{kind}, so another rank could not make the same of its bytes"
    if leaf.layout is not torch.strided or leaf.is_nested or leaf.is_quantized:
        return "is not a dense tensor"
    if leaf.requires_grad:
        return "requires grad, and a gradient does not go back to another rank"
    if leaf.is_meta:
        return "is on the meta device and has no bytes"
    return None


def layout_of(leaves: Sequence[Tensor], *, small: int = SMALL) -> WireLayout:
    """Lay out leaves: those under `small` bytes packed, the others alone."""
    places: list[Place] = []
    filled = 0
    for leaf in leaves:
        nbytes = leaf.numel() * leaf.element_size()
        packed = 0 < nbytes < small
        places.append(
            Place(
                str(leaf.dtype).removeprefix("torch."),
                tuple(leaf.shape),
                dense_strides(leaf),
                filled if packed else None,
            )
        )
        if packed:
            filled += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return WireLayout(tuple(places), filled)


def dense_strides(leaf: Tensor) -> tuple[int, ...]:
    """Return the strides that a copy of a leaf has: its own if it is dense."""
    if leaf.is_contiguous():
        return tuple(leaf.stride())
    copy = torch.empty_like(leaf, device="meta", memory_format=torch.preserve_format)
    return tuple(copy.stride())
