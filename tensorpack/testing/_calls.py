"""One operator: run on host memory, and recorded by what it does to device memory."""

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tensorpack._leaves.streams import StreamId, stream_id
from tensorpack.testing._device import DeviceTensor, getitem, is_strided, refresh
from tensorpack.testing._devices import indexed
from tensorpack.testing._log import Log
from tensorpack.testing._pinned import is_pinned, mark_pinned

__all__ = ["Call"]

_aten = torch.ops.aten
_HOST = torch.device("cpu")
_COPIES = (_aten._to_copy.default, _aten.copy_.default, _aten._foreach_copy_.default)


class _World(Protocol):
    """What a call asks of its world."""

    real: bool
    log: Log
    graphs: dict[StreamId, Any]

    def current(self, device: torch.device | None = None) -> StreamId: ...
    def on_device(self, tensor: object) -> bool: ...
    def number(self, tensor: Tensor) -> int: ...
    def storages(self, tensor: Tensor) -> list[int]: ...
    def claim(self, numbers: Tensor, device: torch.device) -> DeviceTensor: ...
    def recorder(self) -> AbstractContextManager[object]: ...


class Call:
    """One operator with its arguments."""

    def __init__(self, world: _World, func: Any, args: Any, kwargs: Any) -> None:
        self.world = world
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.flat = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self.devices = [x for x in self.flat if world.on_device(x)]

    def run(self) -> Any:
        """Run it; give what the device would have given."""
        func = self.func
        if func is _aten.record_stream.default:
            return self._record_stream()
        if _is_composite(func):
            # Inference mode leaves such operators whole: take them apart.
            with self.world.recorder():
                return func.decompose(*self.args, **self.kwargs)
        if not self.world.real:
            if _asks_for_library(func):
                return False  # cuDNN, say: the host has a kernel of its own
            if func is _aten.is_pinned.default:
                return is_pinned(self.args[0])
            if func in (_aten._pin_memory.default, _aten.pin_memory.default):
                return mark_pinned(self.args[0].clone())
        if self.world.real:
            out = func(*self.args, **self.kwargs)
            self._record(out)
            return out
        graph = self._graph()
        self.out = self._on_host() if graph is None else self._captured()
        if graph is None or not (self.devices or self._made(self.out)):
            self._record(self.out)
            return self.out
        if self._blocks(self.out):
            msg = "CUDA error: operation not permitted when stream is capturing"
            raise RuntimeError(msg)
        graph.add(self)
        return self.out

    # In a graph: see Note [recorded graphs].

    def _graph(self) -> Any:
        """Return the graph that the current stream is captured into, if any."""
        graphs = self.world.graphs
        return graphs.get(self.world.current()) if graphs else None

    def _captured(self) -> Any:
        """Run it for the shapes of its results; leave what it writes to as it was."""
        written = [_to_host(x) for x in _written(self.func, self.args, self.kwargs)]
        before = [x.clone() for x in written]
        out = self._on_host()
        for tensor, numbers in zip(written, before, strict=True):
            tensor.copy_(numbers)
        return out

    def again(self) -> None:
        """Run it again, on the same memory: a graph that holds it is replayed."""
        args, kwargs = tree_map(_to_host, (self.args, self._kwargs_on_host()))
        new = tree_leaves(self.func(*args, **kwargs))
        for old, fresh in zip(tree_leaves(_hosted(self.out)), new, strict=True):
            if isinstance(old, Tensor) and not _shares_memory(old, fresh):
                old.copy_(fresh)
        self._record(self.out)

    def _record_stream(self) -> None:
        """Record a stream on the block of a tensor."""
        tensor, stream = self.args
        if not isinstance(tensor, DeviceTensor):
            self.func(tensor, stream)
        for storage in self.world.storages(tensor):
            self.world.log.add("record", stream_id(stream), storage)

    # On the host.

    def _on_host(self) -> Any:
        """Run the operator on host memory; claim what it makes for the device."""
        target = self._target()
        self._check_devices()
        kwargs = self._kwargs_on_host()
        pinned = self.kwargs.get("pin_memory") and target in (None, _HOST)
        args, kwargs = tree_map(_to_host, (self.args, kwargs))
        out = self.func(*args, **kwargs)
        given = {id(_to_host(x)): x for x in self.flat}
        for tensor in self.devices:
            self._refresh(tensor)

        def back(made: Any) -> Any:
            if not isinstance(made, Tensor) or made.device.type == "meta":
                return made
            if id(made) in given:
                return given[id(made)]
            if target is not None and target.type == "cuda":
                return self.world.claim(made, target)
            if target is None and self.devices and not pinned:
                return self.world.claim(made, self.devices[0].device)
            return mark_pinned(made) if pinned else made

        return tree_map(back, out)

    def _kwargs_on_host(self) -> dict[str, Any]:
        """Return the keyword arguments without what the host cannot do."""
        kwargs = {k: v for k, v in self.kwargs.items() if k != "pin_memory"}
        if self.func is _aten._to_copy.default:
            kwargs.pop("layout", None)  # a device tensor's is that of its numbers
        return kwargs

    def _refresh(self, tensor: Any) -> None:
        """Follow a change of a tensor's shape, or of the memory it lies in."""
        numbers = tensor.numbers
        if not is_strided(numbers):
            return
        storage = numbers.untyped_storage()
        if storage._cdata != tensor.block.memory._cdata:
            tensor.block = self.world.claim(numbers, tensor.device).block
        elif (
            numbers.shape == tensor.shape
            and numbers.stride() == tensor.stride()
            and numbers.storage_offset() == tensor.storage_offset()
        ):
            return
        refresh(tensor)

    def _target(self) -> torch.device | None:
        """Return the device that the operator is asked to make its result on."""
        found = self.kwargs.get("device")
        for arg in self.args:
            if isinstance(arg, torch.device):
                found = arg
        target: torch.device | None = indexed(found)
        return target

    def _check_devices(self) -> None:
        """Refuse to mix host and device tensors, as kernels do."""
        if not self.devices or self.func in _COPIES or _takes_any(self.func):
            return
        for x in self.flat:
            if not isinstance(x, DeviceTensor) and x.dim() and x.device.type == "cpu":
                msg = (
                    "Expected all tensors to be on the same device, but found at least "
                    f"two devices, {self.devices[0].device} and cpu! ({self.func})"
                )
                raise RuntimeError(msg)

    # In the log.

    def _record(self, out: Any) -> None:
        """Enter what the operator did to device memory, on the current stream."""
        made = self._made(out)
        if not made and not self.devices:
            return
        stream = self.world.current((made or self.devices)[0].device)
        accesses = [
            (call, storage)
            for call, tensor in self._accesses(out, made)
            for storage in self._numbers(tensor)
        ]
        for call, storage in dict.fromkeys(accesses):
            self.world.log.add(call, stream, storage)
        if self._blocks(out):
            self.world.log.add_synchronize(stream)

    def _made(self, out: Any) -> list[Any]:
        """List the device tensors of a result."""
        return [x for x in tree_leaves(out) if self.world.on_device(x)]

    def _numbers(self, tensor: Tensor) -> list[int]:
        if isinstance(tensor, DeviceTensor):
            return [part.block.number for part in tensor.parts or (tensor,)]
        return self.world.storages(tensor)

    def _accesses(self, out: Any, made: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Iterate what is done to which device tensor."""
        if self.func in _COPIES:
            for new, old in self._copied(out):
                yield from self._copy(new, old)
            return
        if _touches_nothing(self.func):
            return
        if self.func is _aten._local_scalar_dense.default:
            yield from (("fetch", x) for x in self.devices)
            return
        written = [
            x
            for x in _written(self.func, self.args, self.kwargs)
            if self.world.on_device(x)
        ]
        owned = {n for x in self.devices for n in self._numbers(x)}
        fresh = [x for x in made if not owned.issuperset(self._numbers(x))]
        if made and not fresh and not written:
            return  # another view of the same memory
        for x in self.devices:
            if not any(x is w for w in written):
                yield "read", x
        for x in (*written, *fresh):
            yield "write", x

    def _copied(self, out: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate the pairs that a copy copies, target first."""
        if self.func is _aten._to_copy.default:
            yield out, self.args[0]
        elif self.func is _aten.copy_.default:
            yield self.args[0], self.args[1]
        else:
            yield from zip(self.args[0], self.args[1], strict=True)

    def _copy(self, new: Tensor, old: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name a copy by its direction."""
        there, here = self.world.on_device(new), self.world.on_device(old)
        if there and here:
            yield "read", old
            yield "write", new
        elif there:
            yield "copy", new
        elif here:
            yield "fetch", old

    def _blocks(self, out: Any) -> bool:
        """Return whether the host blocks for the current stream."""
        if self.func is _aten._to_copy.default:
            return self._crosses(out, self.args[0]) and not self.kwargs.get(
                "non_blocking"
            )
        if self.func is _aten.copy_.default:
            flags = (*self.args[2:3], self.kwargs.get("non_blocking"))
            return self._crosses(*self.args[:2]) and not any(flags)
        if self.func is _aten.index.Tensor or self.func is getitem:
            return any(x.dtype is torch.bool for x in self.flat[1:])
        return self.func in _READ_BY_HOST and bool(self.devices)

    def _crosses(self, new: Tensor, old: Tensor) -> bool:
        """Return whether a copy goes from the host to the device or back."""
        return self.world.on_device(new) is not self.world.on_device(old)


_READ_BY_HOST = (
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.equal.default,
    _aten.masked_select.default,
)


def _hosted(out: Any) -> Any:
    """Return a result with the host tensors that its device tensors stand for."""
    return tree_map(lambda x: x.numbers if isinstance(x, DeviceTensor) else x, out)


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two host tensors lie in the same memory."""
    if one.layout is not torch.strided:
        return one is other
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _to_host(x: Any) -> Any:
    """Return what an argument is on the host."""
    if isinstance(x, DeviceTensor):
        return x.numbers
    if isinstance(x, torch.device):
        return x if x.type == "meta" else _HOST
    return x


@functools.cache
def _is_composite(func: Any) -> bool:
    """Return whether an operator is only made of others."""
    return isinstance(
        func, torch._ops.OpOverload
    ) and torch._C._dispatch_has_kernel_for_dispatch_key(
        _name(func), "CompositeImplicitAutograd"
    )


@functools.cache
def _asks_for_library(func: Any) -> bool:
    """Return whether an operator asks if a library of the device can do something."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    return "aten::_use_" in _name(func)


@functools.cache
def _touches_nothing(func: Any) -> bool:
    """Return whether an operator reads and writes no numbers."""
    if torch.Tag.inplace_view in getattr(func, "tags", ()):
        return True
    name = str(func).removeprefix("aten.").partition(".")[0]
    return name.startswith(("empty", "new_empty")) or name in ("set_", "is_same_size")


@functools.cache
def _takes_any(func: Any) -> bool:
    """Return whether an operator takes tensors of several devices."""
    if not isinstance(func, torch._ops.OpOverload):
        return True
    return any(part in _name(func) for part in ("index", "set_", "ctc_loss"))


def _name(func: Any) -> str:
    name: str = func.name()
    return name


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Iterate the arguments that an operator writes to."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        if func.__name__ == "setitem":
            yield args[0]
        return
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else None
            given = kwargs.get(argument.name, given)
            yield from (x for x in tree_leaves(given) if isinstance(x, Tensor))
