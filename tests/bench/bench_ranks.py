"""A payload from one rank to the others, side by side with what engines write by hand.

    python tests/bench/bench_ranks.py [--backend gloo] [--world 2] [--rounds 300]
    python tests/bench/bench_ranks.py --steps 10000 --world 4     # is memory flat?

Every round runs each way once, in turn, with the ranks in step before each. Printed is
the median time of the slowest rank, as a fraction of the best hand-written way, and as
a multiple of the floor: a header of 64 bytes and one broadcast of the same bytes.
"""

import argparse
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

from tensorpack import Payload, payload, tensors
from tensorpack.distributed import broadcast
from tensorpack.distributed.channel import BOUND, receiving, sending

SIZES = [8, 64, 256, 1024, 4096, 8192]


@payload
class Step(Payload):
    """Twenty-four small tensors and some host fields, as an engine's step has."""

    leaves: dict[str, Tensor]
    is_decoding: bool = True
    max_length: int = 4096
    names: tuple[str, ...] = ("prefill", "decode")


def step(device: str) -> Step:
    """Make the payload on the source."""
    leaves = {
        f"x{n}": torch.arange(SIZES[n % len(SIZES)], device=device)
        .to(torch.int32 if n % 2 else torch.int64)
        .clone()
        for n in range(24)
    }
    return Step(leaves)


def per_tensor(value: Step | None, like: Step, _: Any) -> object:
    """Broadcast each tensor; the shapes are known beforehand."""
    found = {}
    for key, leaf in like.leaves.items():
        x = value.leaves[key] if value is not None else torch.empty_like(leaf)
        dist.broadcast(x, 0)
        found[key] = x
    return found


def object_list(value: Step | None, like: Step, _: Any) -> object:
    """Pickle all of it."""
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def by_dictionary(value: Step | None, like: Step, headers: Any) -> object:
    """Pickle what describes the tensors over the host group, then each tensor."""
    device = next(iter(like.leaves.values())).device
    rows: Any = None
    if value is not None:
        rows = [(k, x.dtype, x.shape) for k, x in value.leaves.items()]
        rows = (rows, value.is_decoding, value.max_length, value.names)
    box = [rows]
    dist.broadcast_object_list(box, 0, group=headers)
    found, works = {}, []
    for key, dtype, shape in box[0][0]:
        x = value.leaves[key] if value is not None else None
        x = torch.empty(shape, dtype=dtype, device=device) if x is None else x
        works.append(dist.broadcast(x, 0, async_op=True))
        found[key] = x
    for work in works:
        work.wait()
    return found


def floor(value: Step | None, like: Step, headers: Any) -> object:
    """Move as many bytes in one call, with a header of 64 bytes."""
    head = torch.zeros(64, dtype=torch.uint8)
    dist.broadcast(head, 0, group=headers)
    size = sum(-(-x.nbytes // 256) * 256 for x in like.leaves.values())
    row = torch.empty(
        size, dtype=torch.uint8, device=next(iter(like.leaves.values())).device
    )
    dist.broadcast(row, 0)
    return row


def ours(value: Step | None, like: Step, headers: Any) -> object:
    """Broadcast the payload."""
    return broadcast(value, 0, metadata_group=headers)


WAYS: dict[str, Callable[[Step | None, Step, Any], object]] = {
    "one broadcast per tensor": per_tensor,
    "broadcast_object_list": object_list,
    "dictionary by hand": by_dictionary,
    "floor": floor,
    "tensorpack": ours,
}


def measure(rank: int, options: argparse.Namespace, headers: Any) -> None:
    """Time all ways, rounds interleaved."""
    device = f"cuda:{rank}" if options.backend == "nccl" else "cpu"
    value, like = step(device), step(device)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(options.rounds + 20):
        for name, way in WAYS.items():
            dist.barrier(headers)
            start = time.perf_counter()
            kept = way(value if rank == 0 else None, like, headers)
            if device != "cpu":
                torch.cuda.synchronize()
            took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX, group=headers)
            if number >= 20:
                times[name].append(took.item() * 1e6)
            del kept
    if rank:
        return
    median = {name: statistics.median(of_way) for name, of_way in times.items()}
    best = min(t for n, t in median.items() if n not in ("floor", "tensorpack"))
    nbytes = sum(x.nbytes for _, x in tensors(value))
    print(f"{options.world} ranks, {options.backend}, {nbytes} bytes in 24 tensors")
    for name, us in median.items():
        print(
            f"{name:26} {us:8.1f} us  {us / best:5.2f} of the best by hand  "
            f"{us / median['floor']:5.2f} floors"
        )


def soak(rank: int, options: argparse.Namespace) -> None:
    """Broadcast changing layouts; print how memory and the layout caches grow."""
    dice = random.Random(7)
    begin = 0
    for number in range(options.steps):
        sizes = [dice.randrange(1, 40) for _ in range(3)]
        value = [torch.full((size,), number) for size in sizes]
        got = broadcast(value if rank == 0 else None)
        assert [x.tolist() for x in got] == [[number] * size for size in sizes]
        if number == options.steps // 5:
            begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin) >> 10
    world = dist.group.WORLD
    known = len(sending(world, "all") if rank == 0 else receiving(world, ("all", 0)))
    assert known <= BOUND
    print(f"rank {rank}: {options.steps} steps, grown {grown} MB, {known} layouts")


def run(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    if options.backend == "nccl":
        torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", options.world)
    dist.init_process_group(
        options.backend, store=store, rank=rank, world_size=options.world
    )
    headers = dist.new_group(backend="gloo")
    if options.steps:
        soak(rank, options)
    else:
        measure(rank, options, headers)
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run, (options, folder), options.world)


if __name__ == "__main__":
    main()
