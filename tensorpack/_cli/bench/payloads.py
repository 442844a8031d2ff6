"""The payloads that are measured: a class for each number of leaves, its twins."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack import payload

__all__ = ["SHAPES", "Case", "make_case"]

Shape = tuple[tuple[int, ...], torch.dtype]

_DECODE: list[Shape] = [
    *[((256,), torch.int64)] * 20,
    *[((256,), torch.float32)] * 2,
    ((256, 74), torch.int64),
    ((512,), torch.bool),
]

SHAPES: Mapping[str, list[Shape]] = {
    "24 small decode tensors": _DECODE,
    "64 tensors of 1 KB": [((256,), torch.float32)] * 64,
    "500 tensors of 256 B": [((64,), torch.float32)] * 500,
    "8 tensors of 4 MB": [((1 << 20,), torch.float32)] * 8,
}


@attrs.frozen
class Case:
    """One set of tensors as a payload, as a hand-written class and as a dictionary."""

    name: str
    payload: Any
    by_hand: Any
    mapping: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Count the bytes of the leaves."""
        return sum(tensor.nbytes for tensor in self.mapping.values())


def make_case(name: str, shapes: list[Shape], *, pinned: bool) -> Case:
    """Make each kind of object, each the only owner of its tensors."""

    def tensors() -> dict[str, Tensor]:
        return {f"field_{i}": _filled(*s, pinned) for i, s in enumerate(shapes)}

    mapping = tensors()
    plain = attrs.make_class(
        "Inputs", {n: attrs.field(type=Tensor) for n in mapping}, slots=False, eq=False
    )
    made: Any = payload(plain)
    return Case(name, made(**tensors()), _hand_written(tensors()), mapping)


def _filled(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> Tensor:
    tensor = torch.randint(0, 2, shape).to(dtype)
    return tensor.pin_memory() if pinned else tensor


class HandWritten:
    """The lifetime code as engines write it: loops over the fields of a dataclass."""

    def to_device(self, device: torch.device, non_blocking: bool = False) -> Any:
        """Move each field that is a tensor."""
        out = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # made below
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                value = value.to(device, non_blocking=non_blocking)
            out[field.name] = value
        make: Callable[..., Any] = type(self)
        return make(**out)

    def record_stream(self, stream: torch.Stream) -> None:
        """Record a stream on each field that is a tensor."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # made below
            value = getattr(self, field.name)
            if isinstance(value, Tensor) and value.is_cuda:
                value.record_stream(stream)


def _hand_written(tensors: Mapping[str, Tensor]) -> Any:
    made: Any = dataclasses.make_dataclass(
        "HandWrittenInputs",
        [(name, Tensor) for name in tensors],
        bases=(HandWritten,),
        eq=False,
    )
    return made(**tensors)
