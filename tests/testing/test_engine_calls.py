"""The calls that the engine steps of lmdeploy, vLLM and SGLang make of torch.

Drawn up from `lmdeploy/pytorch` (model agent, cache engine, graph runner),
`vllm/v1/worker` (worker, model runner, buffers, asynchronous outputs) and `sglang/srt`
(model executor, managers). Each runs in the kit as it is written there.
"""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tensorpack.testing import recorded_streams

GiB = 1 << 30


def there(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values or (0, 1, 2), device="cuda", dtype=dtype)


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


FACTORIES: dict[str, Callable[[], Tensor]] = {
    "tensor": lambda: torch.tensor([1, 2], pin_memory=True),
    "tensor, cpu": lambda: torch.tensor([1], device="cpu", pin_memory=True),
    "empty": lambda: torch.empty(2, pin_memory=True),
    "zeros": lambda: torch.zeros(2, dtype=torch.int32, device="cpu", pin_memory=True),
    "ones": lambda: torch.ones(2, pin_memory=True),
    "full": lambda: torch.full((2,), 3, pin_memory=True),
    "arange": lambda: torch.arange(3, pin_memory=True),
    "rand": lambda: torch.rand(2, pin_memory=True),
    "randint": lambda: torch.randint(5, (2,), pin_memory=True),
    "randperm": lambda: torch.randperm(3, pin_memory=True),
    "linspace": lambda: torch.linspace(0, 1, 3, pin_memory=True),
    "eye": lambda: torch.eye(2, pin_memory=True),
    "empty_strided": lambda: torch.empty_strided((2,), (1,), pin_memory=True),
    "empty_like": lambda: torch.empty_like(torch.ones(2), pin_memory=True),
    "zeros_like": lambda: torch.zeros_like(torch.ones(2), pin_memory=True),
    "new_empty": lambda: there().new_empty(2, device="cpu", pin_memory=True),
    "new_zeros": lambda: torch.ones(1).new_zeros(2, pin_memory=True),
    "pin_memory": lambda: torch.from_numpy(np.arange(3)).pin_memory(),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_pinned_factory(name: str) -> None:
    """What is made with `pin_memory=True` says so, and goes to the device."""
    with recorded_streams():
        made = FACTORIES[name]()

        assert made.is_pinned()
        assert made.to("cuda", non_blocking=True).is_cuda


def seeded(seed: int, where: str = "cuda") -> torch.Generator:
    return torch.Generator(device=where).manual_seed(seed)


def restored() -> bool:
    states = torch.cuda.get_rng_state_all()
    one = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state_all(states)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    return torch.equal(one, torch.rand(3, device="cuda"))


def reseeded(seed: Callable[[int], object]) -> bool:
    seed(3)
    one = torch.rand(3, device="cuda")
    seed(3)
    return torch.equal(one, torch.rand(3, device="cuda"))


def forked() -> bool:
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed_all(1)
    return True


def drawn(seed: int) -> list[float]:
    values: list[float] = (
        torch.empty(3, device="cuda").exponential_(generator=seeded(seed)).tolist()
    )
    return values


RANDOM: dict[str, Callable[[], object]] = {
    "device": lambda: torch.device("cuda:0") == torch.Generator("cuda").device,
    "on the host": lambda: torch.Generator().device.type == "cpu",
    "seed": lambda: torch.Generator(device=device()).manual_seed(3).initial_seed() == 3,
    "state": lambda: seeded(1).set_state(seeded(2).get_state()).initial_seed() == 2,
    "exponential_": lambda: drawn(1) == drawn(1) != drawn(2),
    "rand": lambda: torch.rand(3, generator=seeded(1), device="cuda").is_cuda,
    "multinomial": lambda: torch.multinomial(there(1, 1), 1, generator=seeded(0)),
    "isinstance": lambda: isinstance(torch.default_generator, torch.Generator),
    "default": lambda: torch.cuda.default_generators[0].manual_seed(1),
    "torch.manual_seed": lambda: reseeded(torch.manual_seed),
    "cuda.manual_seed": lambda: reseeded(torch.cuda.manual_seed),
    "cuda.manual_seed_all": lambda: reseeded(torch.cuda.manual_seed_all),
    "initial_seed": lambda: isinstance(torch.cuda.initial_seed(), int),
    "states": restored,
    "fork_rng": forked,
}


def entered(context: Any, check: Callable[[], object]) -> object:
    with context:
        return check()


def no_device(index: int) -> bool:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(index)
    return True


DEVICES: dict[str, Callable[[], object]] = {
    "set_device": lambda: [
        torch.cuda.set_device(d) for d in (0, "cuda", "cuda:0", device())
    ],
    "set_device that is not there": lambda: no_device(1),
    "current_device": lambda: torch.cuda.current_device() == 0,
    "device_count": lambda: torch.cuda.device_count() == 1,
    "is_available": lambda: torch.cuda.is_available() and torch.cuda.is_initialized(),
    "init": lambda: torch.cuda.init() is None,
    "device": lambda: entered(torch.cuda.device(0), lambda: there().is_cuda),
    "device_of": lambda: entered(torch.cuda.device_of(there()), lambda: True),
    "capability": lambda: torch.cuda.get_device_capability() >= (8, 0),
    "capability of": lambda: torch.cuda.get_device_capability(there().device)[0] >= 8,
    "name": lambda: torch.cuda.get_device_name(0),
    "total_memory": lambda: torch.cuda.get_device_properties(0).total_memory > GiB,
    "processors": lambda: (
        torch.cuda.get_device_properties("cuda").multi_processor_count
    ),
    "warp_size": lambda: torch.cuda.get_device_properties(device()).warp_size == 32,
    "bf16": lambda: torch.cuda.is_bf16_supported() is True,
    "arch_list": lambda: len(torch.cuda.get_arch_list()) > 0,
    "peer": lambda: torch.cuda.can_device_access_peer(0, 0) is False,
    "sync debug": lambda: torch.cuda.set_sync_debug_mode("warn") is None,
    "cudart": lambda: torch.cuda.cudart().cudaHostRegister(0, 8, 0) == 0,
    "profiler": lambda: torch.cuda.profiler.start() is torch.cuda.profiler.stop(),
    "nvtx": lambda: entered(torch.cuda.nvtx.range("step"), lambda: True),
    "module": lambda: torch.get_device_module("cuda").current_stream().device,
    "accelerator": lambda: (
        torch.accelerator.current_accelerator() == torch.device("cuda")
    ),
    "accelerator index": lambda: torch.accelerator.current_device_index() == 0,
    "accelerator set": lambda: torch.accelerator.set_device_index(0) is None,
    "with torch.device": lambda: entered(device(), lambda: torch.zeros(2).is_cuda),
    "to(current_device)": lambda: (
        torch.nn.Linear(1, 1).to(torch.cuda.current_device()).weight.is_cuda
    ),
    "Tensor.to(0)": lambda: torch.ones(1).to(0).is_cuda,
}


def peak() -> bool:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = torch.empty(GiB // 1024, dtype=torch.uint8, device="cuda")
    del kept
    stats = torch.cuda.memory_stats()
    assert before == torch.cuda.memory_allocated()
    assert before == stats["allocated_bytes.all.current"]
    return stats["allocated_bytes.all.peak"] - before == GiB // 1024


def freed() -> bool:
    free, total = torch.cuda.mem_get_info()
    kept = there()
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    return free - torch.cuda.mem_get_info(kept.device)[0] == 12 and free <= total


MEMORY: dict[str, Callable[[], object]] = {
    "mem_get_info": freed,
    "peak": peak,
    "max_memory_allocated": lambda: torch.cuda.max_memory_allocated() >= 0,
    "memory_reserved": lambda: torch.cuda.memory_reserved(0) >= 0,
    "retries": lambda: torch.cuda.memory_stats().get("num_alloc_retries", 0) == 0,
    "unknown": lambda: torch.cuda.memory_stats()["num_ooms"] == 0,
    "snapshot": lambda: torch.cuda.memory_snapshot() == [],
    "pool": lambda: entered(
        torch.cuda.use_mem_pool(torch.cuda.MemPool()), lambda: there().is_cuda
    ),
    "fraction": lambda: torch.cuda.set_per_process_memory_fraction(0.5) is None,
}


def swapped() -> bool:
    """Do what a light form of `torch.cuda.stream` does."""
    one, other = torch.cuda.current_stream(), torch.cuda.Stream()
    torch.cuda.set_stream(other)
    assert other == torch.cuda.current_stream()
    torch.cuda.set_stream(one)
    return one == torch.cuda.current_stream()


def external() -> bool:
    stream = torch.cuda.Stream()
    found = torch.cuda.ExternalStream(stream.cuda_stream, device="cuda")
    with torch.cuda.stream(found):
        return found == stream == torch.cuda.current_stream()


STREAMS: dict[str, Callable[[], object]] = {
    "None": lambda: entered(torch.cuda.stream(None), torch.cuda.current_stream),
    "set_stream": swapped,
    "accelerator.set_stream": lambda: (
        torch.accelerator.set_stream(torch.accelerator.current_stream()) is None
    ),
    "StreamContext": lambda: entered(
        torch.cuda.StreamContext(torch.cuda.Stream()),
        lambda: torch.cuda.current_stream() != torch.cuda.default_stream(),
    ),
    "ExternalStream": external,
    "priority": lambda: torch.cuda.Stream(priority=-1).priority == -1,
    "no priority": lambda: torch.cuda.current_stream().priority == 0,
    "priority_range": lambda: torch.cuda.Stream.priority_range()[0] == 0,
    "a set of streams": lambda: len({torch.cuda.Stream(), torch.cuda.Stream()}) == 2,
    "event": lambda: torch.cuda.Event(blocking=True, interprocess=True).query(),
    "elapsed_time": lambda: (
        torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event()) == 0
    ),
    "synchronize": lambda: torch.cuda.synchronize(device()) is None,
    "not capturing": lambda: not torch.cuda.is_current_stream_capturing(),
}


def assigned(target: Tensor, value: Tensor) -> bool:
    target.data = value
    return (
        target.device == value.device
        and target.tolist() == value.tolist()
        and (target * 2).tolist() == (value * 2).tolist()
    )


def parameter(where: str) -> Tensor:
    return torch.nn.Linear(2, 1, bias=False).to(where).weight


def is_parameter_still() -> bool:
    module = torch.nn.Linear(2, 1)
    module.weight.data = module.weight.data.to("cuda")
    return isinstance(module.weight, torch.nn.Parameter) and module.weight.is_cuda


def split(at: Tensor) -> list[int]:
    return [len(part) for part in torch.tensor_split(there(1, 2, 3), at)]


def lost(where: str) -> Tensor:
    chances = torch.ones(5, 2, 3, device="cuda").log_softmax(2)
    targets = torch.ones(2, 2, dtype=torch.long, device="cuda")
    lengths = torch.tensor([5, 5], device=where), torch.tensor([2, 2], device=where)
    loss: Tensor = functional.ctc_loss(chances, targets, *lengths)
    expected = functional.ctc_loss(
        chances.cpu(), targets.cpu(), *(x.cpu() for x in lengths)
    )
    assert torch.allclose(expected, loss.cpu())
    return loss


def cast(dtype: torch.dtype) -> torch.dtype:
    with torch.autocast("cuda", dtype=dtype):
        return (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype


def copied_out() -> bool:
    event = torch.cuda.Event()
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        array = there().to("cpu", non_blocking=True).numpy()
        event.record()
    event.synchronize()
    return array.tolist() == [0, 1, 2]


TENSORS: dict[str, Callable[[], object]] = {
    "data": lambda: assigned(there(1, 2), there(3, 4)),
    "data of another shape": lambda: assigned(there(1, 2), there(3)),
    "data of a parameter": lambda: assigned(parameter("cuda"), there(3, 4)),
    "data of the host": lambda: assigned(torch.ones(2), there(3, 4)),
    "data to the host": lambda: assigned(there(1, 2), torch.ones(2)),
    "data of a host parameter": lambda: assigned(parameter("cpu"), there(3, 4)),
    "a parameter stays one": is_parameter_still,
    "data.copy_": lambda: there(1, 2).data.copy_(torch.ones(2)).tolist() == [1, 1],
    "data_ptr": lambda: there(1, 2)[1:].data_ptr() != 0,
    "storage.data_ptr": lambda: (
        (x := there(1)).untyped_storage().data_ptr() == x.data_ptr()
    ),
    "storage.nbytes": lambda: there(1, 2).untyped_storage().nbytes() == 8,
    "storage.device": lambda: there().untyped_storage().device == device(),
    "storage.resize_": lambda: there().untyped_storage().resize_(0).nbytes() == 0,
    "set_": lambda: there(1, 2).set_(there(3).untyped_storage()).tolist() == [3],
    "get_device": lambda: there().get_device() == 0,
    "nonzero": lambda: torch.nonzero(there()).tolist() == [[1], [2]],
    "nonzero, tuple": lambda: (
        torch.nonzero(there(), as_tuple=True)[0].tolist() == [1, 2]
    ),
    "where": lambda: torch.where(there() > 0)[0].tolist() == [1, 2],
    "argwhere": lambda: torch.argwhere(there()).tolist() == [[1], [2]],
    "tensor_split": lambda: split(torch.tensor([1])) == [1, 2],
    "tensor_split, method": lambda: len(there().tensor_split(torch.tensor([1]))) == 2,
    "tensor_split, list": lambda: len(there().tensor_split([1, 2])) == 3,
    "ctc_loss": lambda: lost("cpu").is_cuda,
    "ctc_loss, lengths there": lambda: lost("cuda").is_cuda,
    "autocast": lambda: cast(torch.bfloat16) is torch.bfloat16,
    "autocast, half": lambda: cast(torch.float16) is torch.float16,
    "autocast, disabled": lambda: entered(
        torch.autocast("cuda", enabled=False), lambda: there().dtype is torch.float32
    ),
    "numpy": copied_out,
    "from_numpy": lambda: (
        torch.from_numpy(np.arange(3)).to("cuda").tolist() == [0, 1, 2]
    ),
    "pickle": lambda: pickle.loads(pickle.dumps(there())).is_cuda,  # noqa: S301  # ours
    "unique": lambda: torch.unique(there(1, 1)).tolist() == [1],
    "repeat_interleave": lambda: (
        there(1, 2).repeat_interleave(there(1, 2, dtype=torch.int64)).tolist()
        == [1, 2, 2]
    ),
    "index_copy_": lambda: there().index_copy_(
        0, there(1, dtype=torch.int64), there(5)
    ),
}

GROUPS = {
    f"{group}: {name}": call
    for group, table in {
        "random": RANDOM,
        "devices": DEVICES,
        "memory": MEMORY,
        "streams": STREAMS,
        "tensors": TENSORS,
    }.items()
    for name, call in table.items()
}


@pytest.mark.parametrize("name", GROUPS)
def test_engine_call(name: str) -> None:
    """It neither asks a driver nor answers what is wrong; nothing is left behind."""
    before = torch.cuda.current_device, torch.Generator, torch.cuda.CUDAGraph
    with recorded_streams():
        answer = GROUPS[name]()

        assert answer is not None
        assert answer is not False
    assert before == (torch.cuda.current_device, torch.Generator, torch.cuda.CUDAGraph)


# Graphs.


def test_replayed_graph_computes_from_what_its_inputs_are_then() -> None:
    """Static inputs are written, the graph is replayed, static outputs are read."""
    with recorded_streams() as log:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        ids = torch.zeros(3, device="cuda")
        with torch.cuda.graph(graph, pool=None, stream=stream):
            assert torch.cuda.is_current_stream_capturing()
            doubled = ids * 2
            total = doubled.sum()
        assert not torch.cuda.is_current_stream_capturing()
        for value in (1.0, 5.0):
            ids[:].copy_(torch.full((3,), value), non_blocking=True)
            graph.replay()

            assert [2 * value] * 3 == doubled.tolist()
            assert 6 * value == total.item()
        assert graph.pool() == graph.pool()
        assert [] == log.hazards()


def test_capture_gives_a_stream_no_work() -> None:
    """The log has the operators where they are replayed, on the stream of then."""
    with recorded_streams() as log:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        ids = torch.zeros(3, device="cuda")
        with torch.cuda.graph(graph, stream=stream):
            ids.add_(1)
        captured = len(log.of("write", stream=stream))
        with stream:
            graph.replay()

        assert 0 == captured
        assert 1 == len(log.of("write", stream=stream))
        assert [1.0] * 3 == ids.tolist()
        assert 1 == len(log.hazards())  # the replay does not wait for the first write


def test_stream_that_waits_for_a_captured_one_is_captured_too() -> None:
    """A fork and a join inside a graph, as engines with two streams write them."""
    with recorded_streams():
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        ids = torch.zeros(3, device="cuda")
        with torch.cuda.graph(graph):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                more = ids + 1
            torch.cuda.current_stream().wait_stream(side)
            both = more * 2
        ids.fill_(4)
        graph.replay()

        assert [10.0] * 3 == both.tolist()


def test_host_must_not_block_for_what_is_captured() -> None:
    """A real device refuses it in the same words."""
    with recorded_streams():
        ids = torch.zeros(3, device="cuda")
        with (
            pytest.raises(RuntimeError, match="when stream is capturing"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            ids.sum().item()
