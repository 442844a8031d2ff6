"""A short text of a payload: what each field holds, not its numbers."""

import reprlib
from collections import deque
from typing import Any

import attrs
import torch
from torch import Tensor

__all__ = ["payload_repr"]

_ITEMS = 3
_text = reprlib.Repr()
_text.maxother = _text.maxstring = 60


def payload_repr(self: Any) -> str:
    """Write a payload as `Inputs(ids=int64[1, 256] cuda:0, ...)`."""
    shown = [
        f"{a.name}={_field(self, a.name)}" for a in attrs.fields(type(self)) if a.repr
    ]
    return f"{type(self).__qualname__.rsplit('>.', 1)[-1]}({', '.join(shown)})"


def _field(self: Any, name: str) -> str:
    """Write the value of a field, or what keeps it from being read."""
    try:
        value = getattr(self, name)
    except AttributeError:
        return "<unset>"
    except Exception as error:  # noqa: BLE001  # a repr is read while debugging
        return f"<raises {type(error).__name__}>"
    return _value(value)


def _value(value: object) -> str:
    """Write one value, whatever it is; of a container, the first items."""
    try:
        return _text_of(value)
    except Exception:  # noqa: BLE001  # a repr is read while debugging
        return f"<{type(value).__name__}>"


def _text_of(value: object) -> str:
    if isinstance(value, Tensor):
        kind = "" if type(value) is Tensor else f"{type(value).__name__} "
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{kind}{dtype}{_shape(value)} {value.device}"
    # Of any container: what it holds may be tensors, and their numbers are not asked.
    if isinstance(value, dict):
        items = [f"{k!r}: {_value(v)}" for k, v in _first(value.items())]
        return _named(value, dict, f"{{{_cut(items, value)}}}")
    if isinstance(value, (list, deque)):
        items = [_value(v) for v in _first(value)]
        return _named(value, list, f"[{_cut(items, value)}]")
    if isinstance(value, tuple):
        names = [f"{n}=" for n in getattr(value, "_fields", ())] or [""] * len(value)
        pairs = _first(zip(names, value, strict=True))
        comma = "," * (len(value) == 1 and type(value) is tuple)
        text = f"({_cut([f'{n}{_value(v)}' for n, v in pairs], value)}{comma})"
        return text if type(value) is tuple else f"{type(value).__name__}{text}"
    if getattr(type(value), "__tensorpack_plan__", None) is not None:
        return repr(value)
    return _text.repr(value)


def _shape(tensor: Tensor) -> str:
    """Write a shape; a nested tensor of the strided kind has only its first size."""
    if tensor.is_nested and tensor.layout is torch.strided:
        return f"[{tensor.size(0)}, ...]"
    return str(list(tensor.shape))


def _named(value: object, plain: type, text: str) -> str:
    """Put the name of a container's class before its items, if it is a special one."""
    cls = type(value)
    return text if cls is plain else f"{cls.__name__}({text})"


def _first(items: Any) -> list[Any]:
    return [item for item, _ in zip(items, range(_ITEMS), strict=False)]


def _cut(parts: list[str], whole: Any) -> str:
    """Join the first items; say how many there are when that is not all."""
    rest = len(whole) - len(parts)
    return ", ".join([*parts, f"... {rest} more"] if rest else parts)
