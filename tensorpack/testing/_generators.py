"""Random generators that say they are on a device."""

from typing import Any, Self

import torch

from tensorpack.testing._devices import indexed

__all__ = ["RecordedGenerator"]

_Generator = torch.Generator


class _Kind(type(_Generator)):  # type: ignore[misc]  # torch's metaclass is `type`
    """Lets torch's own generators pass for what takes their place."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Generator)


class RecordedGenerator(_Generator, metaclass=_Kind):
    """A generator of the recorded machine; takes the place of `torch.Generator`."""

    _device: torch.device

    def __new__(cls, device: Any = "cpu") -> Self:
        """Create a generator whose numbers are made on the host."""
        self = super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's takes it
        self._device = torch.device(indexed(device))
        return self

    def __init__(self, *_: object, **__: object) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's is a field
        """Where it says its numbers are made."""
        return self._device
