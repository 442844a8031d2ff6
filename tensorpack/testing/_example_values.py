"""The values that examples are made of: tensors, containers, host values."""

import datetime as dt
import enum
import importlib
import pathlib
import types
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack._leaves.adapters import is_tensor_type
from tensorpack._rules.containers import BY_ANNOTATION, CONTAINERS

__all__ = ["MAKERS", "CannotError", "Values", "another", "container_kind"]


class CannotError(Exception):
    """No example can be made of a type."""


@attrs.frozen
class _Makers:
    """What makes a container of a kind from its items."""

    sequences: Mapping[str, Callable[[Any], Any]]
    mappings: Mapping[str, Callable[[Any], Any]]


MAKERS = _Makers(
    sequences={n: row.make for n, row in CONTAINERS.items() if row.holds != "key"},
    mappings={n: row.make for n, row in CONTAINERS.items() if row.holds == "key"},
)


def container_kind(tp: object) -> str | None:
    """Name the kind of a container type."""
    row = BY_ANNOTATION.get(tp) if type(tp).__hash__ is not None else None
    return row.name if row is not None else None


_HOST: Mapping[type, object] = {
    bool: True,
    int: 1,
    float: 1.0,
    complex: 1j,
    str: "a",
    bytes: b"a",
    range: range(1),
    slice: slice(1),
    dt.datetime: dt.datetime(2000, 1, 1, tzinfo=dt.UTC),
    dt.date: dt.date(2000, 1, 1),
    dt.time: dt.time(1),
    dt.timedelta: dt.timedelta(1),
    dt.timezone: dt.UTC,
    uuid.UUID: uuid.UUID(int=1),
    torch.dtype: torch.float32,
    torch.device: torch.device("cpu"),
    torch.Size: torch.Size([1]),
    torch.layout: torch.strided,
    torch.memory_format: torch.contiguous_format,
}


def another(key: Any) -> Any:
    """Return another key of the same class; the same one where there is none."""
    if type(key) is str:
        return key + "b"
    if isinstance(key, enum.Enum):
        return list(type(key))[-1]
    return key + 1 if type(key) in (int, float) else key


class Values:
    """Makes the values; each tensor has numbers of its own."""

    def __init__(self) -> None:
        self._made = 0

    def tensor(self, cls: Any = Tensor, shape: tuple[int, ...] = (2, 3)) -> Any:
        """Make a tensor of a class, or of the dtype that `torch.LongTensor` names."""
        is_class = isinstance(cls, type) and issubclass(cls, Tensor)
        dtype = torch.float32 if is_class else cls.dtype
        made = self._filled(shape, dtype)
        if cls is Tensor or not is_class:
            return made
        if cls is torch.nn.Parameter:
            return torch.nn.Parameter(made, requires_grad=False)
        return made.as_subclass(cls)

    def _filled(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Fill a tensor with the next numbers."""
        count = torch.Size(shape).numel()
        self._made += 1
        if dtype is torch.bool:
            row = torch.arange(count) % 2 == self._made % 2
        else:
            row = torch.arange(self._made, self._made + count).to(dtype)
        return row.view(shape)

    def jaxtyped(self, cls: Any) -> Any:
        """Make a tensor of an annotation such as `Float[Tensor, "batch n"]`."""
        names = [name for name in cls.dtypes if hasattr(torch, name)]
        wanted = "float32" if "float32" in names or not names else names[0]
        dims = cls.dims or ()
        shape = tuple(getattr(dim, "size", 2) for dim in dims)
        if not is_tensor_type(cls.array_type):
            msg = f"no example can be made of `{cls.__name__}`"
            raise CannotError(msg)
        return self._filled(shape, getattr(torch, wanted))

    def known(self, cls: Any) -> Any:
        """Make a value of a class that is known; None of another."""
        if cls in _HOST:
            return _HOST[cls]
        if cls is torch.nn.utils.rnn.PackedSequence:
            return torch.nn.utils.rnn.pack_sequence([self.tensor()])
        if cls is types.SimpleNamespace:
            return types.SimpleNamespace(value=None)
        if issubclass(cls, enum.Enum):
            return next(iter(cls), None)
        if issubclass(cls, pathlib.PurePath):
            return cls("a")
        names = {(base.__module__, base.__qualname__) for base in cls.__mro__}
        if ("numpy", "ndarray") in names:
            return importlib.import_module("numpy").zeros(1)
        return cls(0) if ("numpy", "generic") in names else None
