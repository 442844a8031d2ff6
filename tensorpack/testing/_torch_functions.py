"""torch's own functions where they ask for a device that does not exist."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tensorpack.testing._device import DeviceTensor, set_data
from tensorpack.testing._devices import indexed
from tensorpack.testing._pinned import mark_pinned

__all__ = ["Functions"]


# Note [no gradients]
# Where torch is built without CUDA, a tensor on a CUDA device that takes part in a
# traced operation ends the process. So tracing is off while streams are recorded, and
# stays off when the code under test turns it on.


_WHOLE = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "ctc_loss"})
"""Built-in functions that use other operators on a device than on the host."""
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]  # a descriptor


class Functions(TorchFunctionMode):
    """Answers what torch would ask a driver, before torch does."""

    def __init__(self, run: Callable[[Any, Any, Any], Any]) -> None:
        """Create the mode.

        Args:
            run: runs a function on host memory, in one piece.
        """
        super().__init__()
        self._run = run

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch._C._set_grad_enabled:
            return None  # off for the whole block
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = indexed(kwargs["device"])
            if getattr(kwargs["device"], "type", "") == "cuda":
                kwargs.pop("requires_grad", None)
        is_whole = type(func) in _BUILT_IN and func.__name__ in _WHOLE
        if is_whole or func is torch.nn.functional.ctc_loss:
            return self._run(func, args, kwargs)
        if func is torch.tensor and kwargs.pop("pin_memory", False):
            return mark_pinned(func(*args, **kwargs))
        if func is torch.nonzero and isinstance(args[0], DeviceTensor):
            return args[0].nonzero(**kwargs)
        if func == _SET_DATA and any(isinstance(x, DeviceTensor) for x in args):
            return set_data(*args)
        if func is Tensor.to:
            args = tuple(map(indexed, args))
        elif func is Tensor.cuda:
            return _cuda(*args, **kwargs)
        return func(*args, **kwargs)


_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType)


def _cuda(
    tensor: Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Tensor:
    """Do what `Tensor.cuda` does."""
    target = indexed("cuda" if device is None else device)
    return tensor.to(target, non_blocking=non_blocking, memory_format=memory_format)
