"""A short text of a payload: what each field holds, not its numbers."""

import reprlib
from typing import Any

import attrs
from torch import Tensor

__all__ = ["payload_repr"]

_ITEMS = 3
_text = reprlib.Repr()
_text.maxother = _text.maxstring = 60


def payload_repr(self: Any) -> str:
    """Write a payload as `Inputs(ids=int64[1, 256] cuda:0, ...)`."""
    shown = [
        f"{a.name}={_value(getattr(self, a.name, '<unset>'))}"
        for a in attrs.fields(type(self))
        if a.repr
    ]
    return f"{type(self).__qualname__.rsplit('>.', 1)[-1]}({', '.join(shown)})"


def _value(value: object) -> str:
    """Write one value; of a container, the first items."""
    if isinstance(value, Tensor):
        kind = "" if type(value) is Tensor else f"{type(value).__name__} "
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{kind}{dtype}{list(value.shape)} {value.device}"
    if type(value) is dict:
        return (
            "{"
            + _cut([f"{k!r}: {_value(v)}" for k, v in _first(value.items())], value)
            + "}"
        )
    if type(value) is list:
        return f"[{_cut([_value(v) for v in _first(value)], value)}]"
    if type(value) is tuple:
        comma = "," * (len(value) == 1)
        return f"({_cut([_value(v) for v in _first(value)], value)}{comma})"
    if getattr(type(value), "__tensorpack_plan__", None) is not None:
        return repr(value)
    return _text.repr(value)


def _first(items: Any) -> list[Any]:
    return [item for item, _ in zip(items, range(_ITEMS), strict=False)]


def _cut(parts: list[str], whole: Any) -> str:
    """Join the first items; say how many there are when that is not all."""
    rest = len(whole) - len(parts)
    return ", ".join([*parts, f"... {rest} more"] if rest else parts)
