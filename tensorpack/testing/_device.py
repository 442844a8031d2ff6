"""Tensors that say they are on a device, while their numbers lie in host memory."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from tensorpack._leaves.streams import StreamId

__all__ = ["Block", "DeviceTensor", "getitem", "refresh"]


class Block:
    """A block of device memory: all tensors that are cut out of it share it.

    Attributes:
        number: which block it is, counted from 0.
        device: where it claims to be.
        memory: the host memory that stands for it.
        stream: the stream it was allocated on.
    """

    def __init__(
        self,
        number: int,
        device: torch.device,
        memory: torch.UntypedStorage,
        stream: StreamId,
        freed: Callable[[StreamId, int], None],
    ) -> None:
        self.number = number
        self.device = device
        self.memory = memory
        self.stream = stream
        self.storage: torch.UntypedStorage | None = None
        self._freed = freed

    def __del__(self) -> None:
        """Tell the log: the last tensor of the block is gone."""
        self._freed(self.stream, self.number)


class DeviceTensor(Tensor):
    """A tensor on a device that need not exist.

    Attributes:
        numbers: the host tensor with its numbers.
        block: the block of device memory that it lies in.
        world: what records its use.
        parts: of a tensor that is sparse, the tensors that its numbers lie in.
    """

    __tensorpack_plain_tensor__ = True  # moved and packed as a `Tensor` is
    numbers: Tensor
    block: Block
    world: Any
    parts: Sequence["DeviceTensor"]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch does

    def __new__(
        cls,
        numbers: Tensor,
        block: Block,
        world: Any,
        parts: Sequence["DeviceTensor"] = (),
    ) -> Self:
        """Claim that a host tensor lies on the device of a block."""
        strided = numbers.layout is torch.strided
        new: Self = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride() if strided else None,
            storage_offset=numbers.storage_offset() if strided else None,
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=block.device,
        )
        new.numbers = numbers
        new.block = block
        new.world = world
        new.parts = parts
        if strided:
            if block.storage is None:
                block.storage = new.untyped_storage()
            refresh(new)
        return new

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # typed as disabled
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Let the world of the first such tensor record the call."""
        flat = torch.utils._pytree.arg_tree_leaves(*args, **(kwargs or {}))
        first = next(arg for arg in flat if isinstance(arg, DeviceTensor))
        return first.world.call(func, args, kwargs or {})

    # What torch refuses to subclasses, or does under a device guard of Python's own,
    # which needs a device that exists.

    def __getitem__(self, index: Any) -> Any:
        return self.world.call(getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        self.world.call(setitem, (self, index, value), {})
        torch.autograd.graph.increment_version(self)

    def copy_(self, src: Tensor, non_blocking: bool = False) -> Self:
        """Copy the numbers of another tensor into this one."""
        torch.ops.aten.copy_.default(self, src, non_blocking)
        return self

    def contiguous(
        self, memory_format: torch.memory_format = torch.contiguous_format
    ) -> Any:
        """Give the tensor itself if it is contiguous, else a copy that is."""
        if self.is_contiguous(memory_format=memory_format):
            return self
        return self.clone(memory_format=memory_format)

    def __invert__(self) -> Tensor:
        return torch.bitwise_not(self)

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """Find what is not zero; the host blocks."""
        found = torch.ops.aten.nonzero.default(self)
        return found.unbind(1) if as_tuple else found

    def item(self) -> Any:
        """Give the one number; the host blocks."""
        return self.cpu().item()

    def tolist(self) -> Any:
        """Give the numbers as lists; the host blocks."""
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        """Refuse, as for any device tensor."""
        msg = (
            f"can't convert {self.device} device type tensor to numpy. Use "
            "Tensor.cpu() to copy the tensor to host memory first."
        )
        raise TypeError(msg)

    def new_tensor(self, data: Any, **options: Any) -> Tensor:  # type: ignore[override]  # by name
        """Make a tensor of this one's dtype and device."""
        options = {"dtype": self.dtype, "device": self.device, **options}
        return torch.tensor(data, **options)

    def data_ptr(self) -> int:
        """Give the address of the numbers."""
        return self.numbers.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self.clone()
        return memo[id(self)]

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec and not self.dim() else repr(self), spec)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    # See Note [no gradients].

    def requires_grad_(self, requires_grad: bool = True) -> Self:  # noqa: ARG002
        """Leave the tensor without a gradient."""
        return self

    @property
    def requires_grad(self) -> bool:
        """Say no: gradients are stripped."""
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        pass

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's is odd
        return f"{repr(self.numbers)[:-1]}, device='{self.device}')"


def getitem(tensor: Tensor, index: Any) -> Tensor:
    """Index a tensor."""
    return tensor[index]


def setitem(tensor: Tensor, index: Any, value: Any) -> None:
    """Set what an index names."""
    tensor[index] = value


def refresh(tensor: DeviceTensor) -> None:
    """Give a tensor the shape and the place in its block that its numbers have."""
    numbers = tensor.numbers
    torch._C._set_conj(tensor, numbers.is_conj())
    torch._C._set_neg(tensor, numbers.is_neg())
    meta = torch._C._meta_in_tls_dispatch_include()
    with no_dispatch():
        # The kernel for meta tensors changes what is known of a tensor, and no numbers.
        torch._C._set_meta_in_tls_dispatch_include(True)  # noqa: FBT003  # C takes it so
        try:
            torch.ops.aten.set_.source_Storage_storage_offset(
                tensor,
                tensor.block.storage,
                numbers.storage_offset(),
                numbers.size(),
                numbers.stride(),
            )
        finally:
            torch._C._set_meta_in_tls_dispatch_include(meta)
