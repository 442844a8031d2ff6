"""Tensors that say they are on a device, while their numbers lie in host memory."""

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from tensorpack._leaves.streams import StreamId

__all__ = [
    "Block",
    "DeviceTensor",
    "class_of",
    "device_class",
    "getitem",
    "is_strided",
    "refresh",
    "set_data",
]


class DeviceStorage(torch.UntypedStorage):
    """Host memory that says it is on a device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's is a field
        """The device that it stands for."""
        return torch.device("cuda", 0)

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a CUDA device."""
        return True


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
        freed: Callable[[], None],
    ) -> None:
        self.number = number
        self.device = device
        self.memory = memory
        self.stream = stream
        self.storage: torch.UntypedStorage | None = None
        memory.__class__ = DeviceStorage
        # The log learns that the last tensor of the block is gone, unless the
        # interpreter is going too.
        weakref.finalize(self, freed).atexit = False


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
        strided = is_strided(numbers)
        # torch has no wrapper for the other layouts; `layout` below tells them.
        is_coo = numbers.layout is torch.sparse_coo
        new: Self = Tensor._make_wrapper_subclass(
            cls,
            _outer_size(numbers),
            strides=numbers.stride() if strided else None,
            storage_offset=numbers.storage_offset() if strided else None,
            dtype=numbers.dtype,
            layout=numbers.layout if is_coo else torch.strided,
            device=block.device,
        )
        new.numbers = numbers
        new.block = block
        new.world = world
        new.parts = parts
        if strided:
            if block.storage is None:
                block.storage = Tensor.untyped_storage(new)
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
        """Return the tensor itself if it is contiguous, else a copy that is."""
        if self.is_contiguous(memory_format=memory_format):
            return self
        return self.clone(memory_format=memory_format)

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]  # torch's is a field
        """The layout of the numbers."""
        return self.numbers.layout

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]  # torch's is a field
        """Whether the numbers are in rows of a sparse matrix."""
        return self.numbers.is_sparse_csr

    @property
    def is_nested(self) -> bool:  # type: ignore[override]  # torch's is a field
        """Whether the numbers are several tensors of different shapes."""
        return self.numbers.is_nested

    def to_dense(self, *args: Any, **options: Any) -> Any:
        """Return a tensor that is not sparse."""
        return self.world.call(Tensor.to_dense, (self, *args), options)

    def as_subclass(self, cls: Any) -> Any:
        """Return a tensor of another class that shares this one's memory."""
        if isinstance(self, cls):
            return self
        return device_class(cls)(self.numbers, self.block, self.world, self.parts)

    @property
    def data(self) -> Tensor:
        """The tensor without its history."""
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        set_data(self, other)

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory of the block, which says it is on the device."""
        return self.block.memory

    def __invert__(self) -> Tensor:
        return torch.bitwise_not(self)

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """Find what is not zero; the host blocks."""
        found = torch.ops.aten.nonzero.default(self)
        return found.unbind(1) if as_tuple else found

    def item(self) -> Any:
        """Return the one number; the host blocks."""
        return self.cpu().item()

    def tolist(self) -> Any:
        """Return the numbers as lists; the host blocks."""
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
        """Return the address of the numbers."""
        return self.numbers.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self.clone()
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return loaded, (self.numbers.clone(),)  # its own memory says it is on a device

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
        """Whether it wants a gradient: never, they are stripped."""
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        pass

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's is odd
        return f"{repr(self.numbers)[:-1]}, device='{self.device}')"


def is_strided(numbers: Tensor) -> bool:
    """Return whether a tensor lies in one memory, with a step for each dimension."""
    odd = numbers.is_nested or numbers.is_quantized
    return numbers.layout is torch.strided and not odd


def _outer_size(numbers: Tensor) -> Sequence[int]:
    """Return the shape of a tensor; a nested one has only its outer dimension."""
    if numbers.is_nested:
        return (numbers.size(0), *[0] * (numbers.dim() - 1))
    return numbers.size()


def getitem(tensor: Tensor, index: Any) -> Tensor:
    """Index a tensor."""
    return tensor[index]


def setitem(tensor: Tensor, index: Any, value: Any) -> None:
    """Set what an index names."""
    tensor[index] = value


def refresh(tensor: DeviceTensor) -> None:
    """Set the shape of a tensor, and its place in the block, from its numbers."""
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


def set_data(tensor: Tensor, other: Tensor) -> None:
    """Let a tensor have the memory of another one: `tensor.data = other`."""
    if isinstance(tensor, DeviceTensor) and isinstance(other, DeviceTensor):
        tensor.numbers, tensor.block = other.numbers, other.block
        tensor.parts = other.parts
        refresh(tensor)
        return
    # One of them is on the host, and the class of the tensor has to change too.
    new = other.detach()
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=False)
    torch.utils.swap_tensors(tensor, new)  # type: ignore[no-untyped-call]  # torch's


def loaded(numbers: Tensor) -> Tensor:
    """Return the device tensor that was pickled."""
    return numbers.to("cuda")


@functools.cache
def device_class(cls: type) -> Any:
    """Return the class of the device tensors that stand for those of a class.

    For a class derived from `Tensor` it is derived from that class too, and whatever
    the class does in `__torch_function__` is done as if its tensors were its own.
    """
    if cls is Tensor or issubclass(cls, (torch.nn.Parameter, DeviceTensor)):
        return DeviceTensor

    def function(
        _: type, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        meant = tuple(getattr(t, "stands_for", t) for t in types)
        return cls.__torch_function__(func, meant, args, kwargs)  # type: ignore[attr-defined]

    disabled = torch._C._disabled_torch_function_impl
    own = cls.__torch_function__ is not disabled  # type: ignore[attr-defined]
    body: dict[str, Any] = {"__torch_function__": classmethod(function)} if own else {}
    return type(cls.__name__, (DeviceTensor, cls), {**body, "stands_for": cls})


def class_of(tensor: Tensor) -> type:
    """Return the class of a tensor, or the one that a device tensor stands for."""
    cls = type(tensor)
    if cls is DeviceTensor:
        return Tensor
    return getattr(cls, "stands_for", cls)
