"""What each rank of the distributed tests runs, and the start of the ranks.

The programs stand in a module of their own, since every rank imports them by name.
"""

import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import random_classes
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

from tensorpack import Borrowed, Derived, HostOnly, Payload, payload
from tensorpack.distributed import broadcast, recv, send
from tensorpack.distributed.channel import receiving, sending
from tensorpack.testing import assert_equal

Program = Callable[[int, int], object]


def run_ranks(programs: Sequence[Program], world: int) -> dict[str, list[Any]]:
    """Run programs on some ranks, one after the other; return what each rank found.

    The text of an error that a program did not expect stands in the place of what it
    would have found.
    """
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank, (world, programs, folder), world)
        found = [torch.load(Path(folder, f"of{rank}")) for rank in range(world)]
    return {name: [of_rank[name] for of_rank in found] for name in found[0]}


def _rank(rank: int, world: int, programs: Sequence[Program], folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    found: dict[str, object] = {}
    for program in programs:
        try:
            found[program.__name__] = program(rank, world)
        except Exception:  # noqa: BLE001  # the test that reads it fails by it
            found[program.__name__] = traceback.format_exc()
        torch.save(found, f"{folder}/of{rank}")
    if dist.is_initialized():
        dist.destroy_process_group()


def said(call: Callable[[], object]) -> str:
    """Return the class and the text of the error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@payload
class Part(Payload):
    rows: Tensor
    names: list[str]


@payload(frozen=True)
class Whole(Payload):
    """Every role that a field may have."""

    leaves: list[Tensor]
    by_name: dict[str, Tensor]
    part: Part
    none: Tensor | None = None
    host: HostOnly[object] = None
    mine: Borrowed[object] = "the default"
    cache: Derived[Tensor | None] = None
    count: int = 0


DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.complex64,
)


def leaves_of(seed: int) -> list[Tensor]:
    """Make leaves of every dtype and of odd shapes."""
    random_bytes = torch.Generator().manual_seed(seed)
    of_dtypes = [
        torch.randint(0, 2, (3, 5), generator=random_bytes).to(d) for d in DTYPES
    ]
    rows = torch.rand(6, 8, generator=random_bytes)
    complex_rows = torch.rand(4, dtype=torch.complex64, generator=random_bytes)
    return [
        *of_dtypes,
        torch.tensor(seed, dtype=torch.bfloat16),
        torch.zeros(0, 3),
        rows,
        rows.t(),
        rows[::2, 1:],
        rows[:, :1].expand(6, 4),
        complex_rows.conj(),
        complex_rows.imag,
        torch.rand(300_000, generator=random_bytes),
        torch.rand(600, 500, generator=random_bytes).t(),
    ]


def whole(
    seed: int, mine: object = "the default", cache: Tensor | None = None
) -> Whole:
    """Make the same payload for the same seed."""
    leaves = leaves_of(seed)
    return Whole(
        leaves=leaves,
        by_name={"shared": leaves[0], "again": leaves[0], "own": torch.ones(seed + 1)},
        part=Part(rows=leaves[0], names=["a", "b" * seed]),
        host={"text": "x" * 100 * seed, "ids": list(range(seed))},
        mine=mine,
        cache=cache,
        count=seed,
    )


def every_leaf(rank: int, world: int) -> None:
    """Broadcast every kind of leaf from each rank, with long and short host parts."""
    for seed in (0, 1, 40, 1, 40):
        source = seed % world
        mine, cache = object(), torch.ones(2)
        value = whole(seed, mine, cache) if rank == source else None
        got = broadcast(value, source)
        assert_equal(got, whole(seed, mine=got.mine))
        assert got.cache is None
        assert got.by_name["shared"] is got.by_name["again"] is got.part.rows
        assert (got.mine == "the default") is (rank != source)
        packed = [x for x in got.leaves if 0 < x.nbytes < (256 << 10)]
        starts = [x.storage_offset() * x.element_size() for x in packed]
        assert rank == source or not any(start % 256 for start in starts)
        version = got.leaves[1]._version
        got.part.rows.add_(1)
        assert got.leaves[1]._version == version
        if rank != source:
            assert not got.leaves[1]._is_view()


def sends(rank: int, world: int) -> None:
    """Pass a payload around the ring of ranks, and a mapping back."""
    for seed in range(3):
        if rank == 0:
            send(whole(seed), 1)
            got = recv(world - 1)
        else:
            got = recv(rank - 1)
            send(got, (rank + 1) % world)
        assert_equal(got, whole(seed))
    if rank == 0:
        send({"ids": torch.arange(3), "step": 7}, 1)
    if rank == 1:
        assert recv(0)["ids"].tolist() == [0, 1, 2]


def subgroups(rank: int, world: int) -> None:
    """Broadcast inside halves of the world at the same time, by global rank."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    headers = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = rank // 2
    source = 2 * own + 1
    got = broadcast(
        whole(own) if rank == source else None,
        source,
        group=halves[own],
        metadata_group=headers[own],
    )
    assert_equal(got, whole(own))
    other = halves[1 - own]
    assert said(lambda: broadcast(None, 0, group=other)) == (
        "RankError: `broadcast`: this rank is not in the group. Call it on the ranks "
        "of the group only."
    )


class NoOwn:
    """Draws classes whose leaves are all tensors, and that have names."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def choice(self, options: Sequence[Any]) -> Any:
        """Pick one of the options that can be sent."""
        return self.dice.choice([o for o in options if not self._is_left_out(o)])

    def _is_left_out(self, option: Any) -> bool:
        named = getattr(option, "__name__", "") == "_named"
        own = random_classes.OWN
        return named or option is own or (isinstance(option, list) and own in option)


def classes_at_random(rank: int, world: int) -> int:
    """Broadcast a value of 500 random classes."""
    done = 0
    for seed in range(125):
        universe = random_classes.Universe(NoOwn(seed))
        classes = [universe.add_class() for _ in range(4)]
        for number, cls in enumerate(classes):
            setattr(random_classes, f"C{number}", cls)
        for cls in classes:
            maker = random_classes.Maker(seed, device=False)
            torch.manual_seed(seed)
            value = universe.makers[cls](maker)
            got = broadcast(value if rank == 0 else None)
            before = random_classes.walk_by_hand(value).leaves
            after = random_classes.walk_by_hand(got).leaves
            assert list(before) == list(after), seed
            assert all(torch.equal(x, after[key]) for key, x in before.items()), seed
            assert type(got) is cls
            done += 1
    return done


def many_layouts(rank: int, world: int) -> tuple[int, int]:
    """Broadcast more layouts than are remembered, in an order that evicts."""
    dice = random.Random(5)
    for _ in range(600):
        sizes = [dice.choice(range(1, 12)) for _ in range(2)]
        made = [torch.full((size,), float(size)) for size in sizes]
        got = broadcast(made if rank == 0 else None)
        assert [x.tolist() for x in got] == [[float(s)] * s for s in sizes]
    group = dist.group.WORLD
    return len(sending(group, "all")), len(receiving(group, ("all", 0)))


def bad_values(rank: int, world: int) -> list[str]:
    """Broadcast what cannot travel, then what can, on the same group."""
    errors = [
        said(lambda v=value: broadcast(v if rank == 0 else None))
        for value in (
            [torch.ones(2, requires_grad=True)],
            {"x": torch.eye(3).to_sparse()},
            Part(rows=torch.nn.Parameter(torch.ones(1)), names=[]),
            Part(rows=torch.ones(1, device="meta"), names=[]),
            Part(rows=3, names=[]),
            [torch.ones(1), lambda: 0],
            Whole(leaves=[], by_name={}, part=Part(torch.ones(1), []), host=said_by(0)),
        )
    ]
    got = broadcast([torch.ones(2)] if rank == 0 else None)
    assert got[0].tolist() == [1, 1]
    return errors


def said_by(number: int) -> Callable[[], int]:
    """Return a function that cannot be pickled."""
    return lambda: number


def other_classes(rank: int, world: int) -> list[str]:
    """Broadcast a class that ranks have in other versions, or not at all."""
    here = sys.modules[__name__]

    def make(kind: Any, order: bool) -> Any:
        names = ("a", "b") if order else ("b", "a")
        body = {"__annotations__": dict.fromkeys(names, kind), "__module__": __name__}
        return payload(type("Version", (), body))

    errors = []
    for cls in (
        make(Tensor, order=rank == 0),
        make(Tensor if rank == 0 else list[Tensor], order=True),
        make(Tensor, order=True) if rank == 0 else None,
        dict,
    ):
        if cls is None:
            del here.Version
        else:
            here.Version = cls
        value = None
        if rank == 0:
            value = cls(a=torch.ones(1), b=torch.ones(1))
        errors.append(said(lambda v=value: broadcast(v)))
    return errors


def bad_device(rank: int, world: int) -> tuple[str, list[float]]:
    """Ask for a device that is not there on one rank only."""
    device = "cuda:5" if rank == 1 else None
    value = [torch.ones(2), torch.ones(100_000)]
    error = said(lambda: broadcast(value if rank == 0 else None, device=device))
    return error, broadcast(value if rank == 0 else None)[0].tolist()


def first_dies(rank: int, world: int) -> str:
    """Kill the source; the others wait for it, and hear of its end."""
    broadcast([torch.ones(2)] if rank == 0 else None)
    if rank == 0:
        dist.destroy_process_group()
        return "gone"
    return said(lambda: broadcast(None))


def no_group(rank: int, world: int) -> str:
    """Call without a process group."""
    dist.destroy_process_group()
    return said(lambda: broadcast(torch.ones(1)))
