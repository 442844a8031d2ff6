"""torch's own functions where they ask for a device that does not exist."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tensorpack.testing._host import HostMemory

__all__ = ["Functions", "indexed"]


# Note [no gradients]
# Where torch is built without CUDA, a tensor on a CUDA device that takes part in a
# traced operation ends the process. So tracing is off while streams are recorded, and
# stays off when somebody turns it on.


_WHOLE = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Built-in functions that take other operators for a device than for the host."""


class Functions(TorchFunctionMode):
    """Gives a device its index, before torch asks a driver for it."""

    def __init__(self, run: Callable[[Any, Any, Any], Any], host: HostMemory) -> None:
        """Make the mode.

        Args:
            run: runs a function on host memory, in one piece.
            host: is told of reads that no operator does.
        """
        super().__init__()
        self._run = run
        self._host = host

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
        if type(func) in _BUILT_IN and func.__name__ in _WHOLE:
            return self._run(func, args, kwargs)
        if func in _READS and args[0].device.type == "cpu":
            self._host.use(args[0], writes=False, operation=f"Tensor.{func.__name__}")
        if func is Tensor.to:
            args = tuple(map(indexed, args))
        elif func is Tensor.cuda:
            return _cuda(*args, **kwargs)
        return func(*args, **kwargs)


_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)
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


def indexed(device: Any) -> Any:
    """Give a CUDA device its index; leave anything else."""
    if type(device) is int:
        return torch.device("cuda", device)
    if device == "cuda" if isinstance(device, str) else False:
        return torch.device("cuda", 0)
    if isinstance(device, torch.device) and str(device) == "cuda":
        return torch.device("cuda", 0)
    return device
