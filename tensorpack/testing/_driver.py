"""What the driver of the recorded machine answers: `torch.cuda`, `torch.accelerator`.

The names are those that the engine steps of lmdeploy, vLLM and SGLang use. Each is
replaced only where torch has it.
"""

import collections
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import attrs
import torch

from tensorpack.testing._devices import check_index, indexed
from tensorpack.testing._generators import RecordedGenerator
from tensorpack.testing._graphs import RecordedGraph, graph_pool_handle
from tensorpack.testing._memory import Memory

__all__ = ["Patch", "driver"]

Patch = tuple[Any, str, object]


class _World(Protocol):
    """What the driver asks of its world."""

    memory: Memory


@attrs.frozen
class DeviceProperties:
    """What the recorded device says of itself: numbers of a large accelerator."""

    name: str = "recorded device"
    major: int = 9
    minor: int = 0
    total_memory: int = Memory.TOTAL
    multi_processor_count: int = 132
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    L2_cache_size: int = 50 << 20
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    gcnArchName: str = ""  # noqa: N815  # AMD's name
    uuid: str = "00000000-0000-0000-0000-000000000000"


_PROPERTIES = DeviceProperties()
_CAPABILITY = (_PROPERTIES.major, _PROPERTIES.minor)


class RecordedPool:
    """A memory pool; takes the place of `torch.cuda.MemPool`."""

    def __init__(self, allocator: object = None, *_: object, **__: object) -> None:
        self.allocator = allocator
        self.id = graph_pool_handle()

    def use_count(self) -> int:
        """Return that its maker alone uses it."""
        return 1

    def snapshot(self) -> list[object]:
        """Return no segments."""
        return []


class _Runtime:
    """The CUDA runtime: every call succeeds and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *_, **__: 0


def driver(world: _World) -> Iterator[Patch]:
    """Iterate what is replaced, where torch has it."""
    tables = (_devices(), _memory(world.memory), _random(), _graphs(world), _tools())
    for target, name, value in itertools.chain(*tables):
        if hasattr(target, name) or target is torch._C:
            yield target, name, value


def _devices() -> Iterator[Patch]:
    """Iterate what is asked of devices."""
    cuda, accelerator = torch.cuda, torch.accelerator

    def properties(device: Any = None) -> DeviceProperties:
        check_index(device)
        return _PROPERTIES

    def set_device(device: Any) -> None:
        check_index(device)

    def exchange(index: int) -> int:
        return 0 if index < 0 else check_index(index)

    for name, value in {
        "_lazy_init": _nothing,
        "init": _nothing,
        "is_initialized": lambda: True,
        "get_device_properties": properties,
        "get_device_capability": lambda _=None: _CAPABILITY,
        "get_device_name": lambda _=None: _PROPERTIES.name,
        "get_arch_list": lambda: ["sm_{}{}".format(*_CAPABILITY)],
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda: True,
        "set_device": set_device,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "can_device_access_peer": lambda *_: False,
        "current_device": lambda: 0,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_sync_debug_mode": _nothing,
        "get_sync_debug_mode": lambda: 0,
        "_sleep": _nothing,
        "cudart": _Runtime,
    }.items():
        yield cuda, name, value
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),  # noqa: ARG005
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": set_device,
        "set_device_idx": set_device,
        "device_index": lambda _: nullcontext(),
    }.items():
        yield accelerator, name, value
    yield torch._C._nn, "_parse_to", _parse_to


def _memory(memory: Memory) -> Iterator[Patch]:
    """Iterate what is asked of the allocator."""

    def use_mem_pool(*_: object, **__: object) -> AbstractContextManager[None]:
        return nullcontext()

    both = {
        "empty_cache": _nothing,
        "memory_allocated": lambda _=None: memory.current,
        "memory_reserved": lambda _=None: memory.current,
        "max_memory_allocated": lambda _=None: memory.peak,
        "max_memory_reserved": lambda _=None: memory.peak,
        "memory_stats": lambda _=None: memory.stats(),
        "reset_peak_memory_stats": lambda _=None: memory.reset_peak(),
        "reset_accumulated_memory_stats": _nothing,
    }
    for module in (torch.cuda, torch.accelerator):
        yield from ((module, name, value) for name, value in both.items())
    for name, value in {
        "mem_get_info": lambda _=None: memory.info(),
        "reset_max_memory_allocated": lambda _=None: memory.reset_peak(),
        "reset_max_memory_cached": lambda _=None: memory.reset_peak(),
        "memory_snapshot": lambda *_, **__: [],
        "memory_summary": lambda *_, **__: "",
        "host_memory_stats": collections.Counter[str],
        "set_per_process_memory_fraction": _nothing,
        "get_allocator_backend": lambda: "native",
        "ipc_collect": _nothing,
        "MemPool": RecordedPool,
        "use_mem_pool": use_mem_pool,
    }.items():
        yield torch.cuda, name, value
        yield torch.cuda.memory, name, value
    yield torch.accelerator, "get_memory_info", lambda _=None: memory.info()
    yield torch.accelerator, "empty_host_cache", _nothing
    yield torch._C, "_host_emptyCache", _nothing


def _random() -> Iterator[Patch]:
    """Iterate what makes random numbers: the host's generator, on the device too."""
    host: Any = torch.default_generator

    def set_states(states: Any) -> None:
        for state in states:
            host.set_state(state)

    yield torch, "Generator", RecordedGenerator
    for name, value in {
        "default_generators": (host,),
        "manual_seed": host.manual_seed,
        "manual_seed_all": host.manual_seed,
        "seed": host.seed,
        "seed_all": host.seed,
        "initial_seed": host.initial_seed,
        "get_rng_state": lambda _=None: host.get_state(),
        "get_rng_state_all": lambda: [host.get_state()],
        "set_rng_state": lambda new_state, _=None: host.set_state(new_state),
        "set_rng_state_all": set_states,
    }.items():
        yield torch.cuda, name, value


def _graphs(world: Any) -> Iterator[Patch]:
    """Iterate what captures graphs."""
    graph = type("CUDAGraph", (RecordedGraph,), {"world": world})
    for module in (torch.cuda, torch.cuda.graphs):
        yield module, "CUDAGraph", graph
        yield module, "graph_pool_handle", graph_pool_handle
    # It keeps the stream that it has made for itself.
    yield torch.cuda.graph, "default_capture_stream", None


def _tools() -> Iterator[Patch]:
    """Iterate what tells a profiler."""
    nvtx, profiler = torch.cuda.nvtx, torch.cuda.profiler
    yield from ((nvtx, name, _zero) for name in ("range_push", "range_pop"))
    yield from ((nvtx, name, _zero) for name in ("range_start", "range_end", "mark"))
    yield from ((profiler, name, _nothing) for name in ("start", "stop"))


def _nothing(*_: object, **__: object) -> None:
    """Do nothing, as nothing can be seen of it on a machine without a device."""


def _zero(*_: object, **__: object) -> int:
    return 0


_real_parse_to = torch._C._nn._parse_to


def _parse_to(*args: Any, **kwargs: Any) -> Any:
    """Read the arguments of `Module.to`, where a number is a device."""
    if "device" in kwargs:
        kwargs["device"] = indexed(kwargs["device"])
    return _real_parse_to(*map(indexed, args), **kwargs)
