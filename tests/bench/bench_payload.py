"""What moving and recording a payload costs, against the ways that engines use.

    python tests/bench/bench_payload.py [--device cuda] [--rounds 1000] [--json FILE]

All ways take turns in one run, so that a drift of the machine hits them alike; the
table gives medians and ratios to the hand-written loop. On an accelerator a whole life
is timed: move, record the consumer's stream, free; each round starts on an idle device.
On the host leaves move to `meta`, which copies nothing: what is left is bookkeeping.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils import _pytree

from tensorpack import payload

Way = Callable[[], object]
Times = dict[str, list[float]]

SHAPES: tuple[tuple[torch.dtype, tuple[int, ...]], ...] = (
    *[(torch.int64, (256,))] * 12,
    *[(torch.float32, (256,))] * 8,
    *[(torch.int64, (1, 256))] * 2,
    (torch.int32, (256, 128)),
    (torch.int64, (64, 53)),
)
NAMES = tuple(f"field_{i}" for i in range(len(SHAPES)))
NBYTES = 195_072
MANY = 500
LISTS = tuple(f"list_{i}" for i in range(20))
BASELINE = "hand-written"


def small_tensors(*, pinned: bool = False) -> dict[str, Tensor]:
    """Make the 24 small tensors of an engine's step."""
    made = [torch.zeros(shape, dtype=dtype) for dtype, shape in SHAPES]
    assert sum(tensor.nbytes for tensor in made) == NBYTES
    if pinned:
        made = [tensor.pin_memory() for tensor in made]
    return dict(zip(NAMES, made, strict=True))


def lists(*, pinned: bool = False) -> dict[str, list[Tensor]]:
    """Make many tensors in lists."""
    return {
        name: [torch.zeros(64, pin_memory=pinned) for _ in range(MANY // len(LISTS))]
        for name in LISTS
    }


class HandWritten:
    """The methods that engines write by hand over the fields of a dataclass."""

    def to_device(self, device: torch.device, non_blocking: bool = False) -> Any:
        """Move every tensor that is a field, or in a list that is one."""
        moved = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                value = value.to(device, non_blocking=non_blocking)
            elif isinstance(value, list):
                value = [x.to(device, non_blocking=non_blocking) for x in value]
            moved[field.name] = value
        return type(self)(**moved)

    def record_stream(self, stream: torch.Stream) -> None:
        """Record every tensor that is a field, or in a list that is one."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                if value.is_cuda:
                    value.record_stream(stream)
            elif isinstance(value, list):
                for x in value:
                    if x.is_cuda:
                        x.record_stream(stream)


def classes_of(fields: Mapping[str, object]) -> tuple[Any, Any, Any]:
    """Make a hand-written class and payloads, frozen and not, with the same fields."""
    body = {"__annotations__": dict(fields)}
    by_hand = dataclasses.dataclass(type("ByHand", (HandWritten,), dict(body)))
    plain = payload(type("Generated", (), dict(body)))
    frozen = payload(frozen=True)(type("Frozen", (), dict(body)))
    return by_hand, plain, frozen


def ways_of(
    fields: Mapping[str, object],
    make: Callable[[], dict[str, Any]],
    device: torch.device,
    stream: torch.Stream | None,
) -> dict[str, Way]:
    """Give each way to live: move, record if there is a stream, free.

    Each way has tensors of its own, as the payload of a step has.
    """
    by_hand, plain, frozen = (cls(**make()) for cls in classes_of(fields))
    tree = make()

    def methods(value: Any) -> Way:
        def life() -> None:
            twin = value.to_device(device, non_blocking=True)
            if stream is not None:
                twin.record_stream(stream)

        return life

    def pytree() -> None:
        twin = _pytree.tree_map(lambda x: x.to(device, non_blocking=True), tree)
        if stream is not None:
            _pytree.tree_map_(lambda x: x.record_stream(stream), twin)

    flat = [x for v in make().values() for x in (v if isinstance(v, list) else [v])]

    def calls() -> None:
        twin = [x.to(device, non_blocking=True) for x in flat]
        if stream is not None:
            for x in twin:
                x.record_stream(stream)

    ways = {
        BASELINE: methods(by_hand),
        "generated": methods(plain),
        "generated, frozen": methods(frozen),
        "torch.utils._pytree": pytree,
        "the calls alone": calls,
    }
    return {**ways, **_tensordict_way(make(), device, stream)}


def _tensordict_way(
    values: Mapping[str, Any], device: torch.device, stream: torch.Stream | None
) -> dict[str, Way]:
    """Give the way of tensordict, if it is installed and has only tensors to hold."""
    if any(isinstance(value, list) for value in values.values()):
        return {}
    try:
        from tensordict import TensorDict  # noqa: PLC0415  # it may be missing
    except ImportError:
        return {}
    held = TensorDict(dict(values), batch_size=[])

    def life() -> None:
        twin = held.to(device, non_blocking=True)
        if stream is not None:
            twin.record_stream(stream)

    return {"tensordict": life}


def measure(ways: Mapping[str, Way], rounds: int, settle: Way) -> Times:
    """Time each way once per round, in an order of its own for each round.

    A way that always came after a kindred one would find its code in the caches.
    """
    names = list(ways)
    order = random.Random(0)  # the same orders in every run
    times: Times = {name: [] for name in ways}
    for name in names:
        for _ in range(20):
            ways[name]()
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            settle()
            start = time.perf_counter_ns()
            ways[name]()
            times[name].append((time.perf_counter_ns() - start) / 1000)
    settle()
    return times


def definitions() -> dict[str, Way]:
    """Give the ways to define a class of 24 tensors."""

    def plain() -> type:
        return type("Batch", (), {"__annotations__": dict.fromkeys(NAMES, Tensor)})

    return {
        "attrs.define": lambda: attrs.define(plain()),
        "dataclasses.dataclass": lambda: dataclasses.dataclass(plain()),
        "payload": lambda: payload(plain()),
    }


def summary(times: Times, baseline: str) -> dict[str, dict[str, float]]:
    """Give the median, the tenth and ninetieth hundredth, and the ratio of medians."""
    base = statistics.median(times[baseline])
    found = {}
    for name, values in times.items():
        tenths = statistics.quantiles(values, n=10)
        median = statistics.median(values)
        found[name] = {
            "median_us": median,
            "p10_us": tenths[0],
            "p90_us": tenths[-1],
            "ratio": median / base,
        }
    return found


def run(device: torch.device, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Measure everything that makes sense on a device."""
    small = dict.fromkeys(NAMES, Tensor)
    many = dict.fromkeys(LISTS, list[Tensor])
    if device.type == "cpu":
        meta = torch.device("meta")
        cases = {
            "24 tensors to meta": ways_of(small, small_tensors, meta, None),
            f"{MANY} tensors in 20 lists to meta": ways_of(many, lists, meta, None),
        }
        measured = {
            title: measure(ways, rounds, lambda: None) for title, ways in cases.items()
        }
    else:
        measured = _on_accelerator(device, rounds, small, many)
    results = {title: summary(times, BASELINE) for title, times in measured.items()}
    defined = measure(definitions(), max(rounds // 10, 50), lambda: None)
    results["definition of 24 fields"] = summary(defined, "attrs.define")
    return results


def _on_accelerator(
    device: torch.device,
    rounds: int,
    small: Mapping[str, object],
    many: Mapping[str, object],
) -> dict[str, Times]:
    """Measure whole lives: copies on one stream, the consumer on another."""
    copy, consumer = torch.Stream(device), torch.Stream(device)
    cases = {
        f"24 tensors, {NBYTES:,} bytes, pinned": (
            small,
            lambda: small_tensors(pinned=True),
        ),
        f"24 tensors, {NBYTES:,} bytes, pageable": (small, small_tensors),
        f"{MANY} tensors in 20 lists, pinned": (many, lambda: lists(pinned=True)),
    }
    found = {}
    with copy:
        for title, (fields, make) in cases.items():
            ways = ways_of(fields, make, device, consumer)
            found[title] = measure(ways, rounds, torch.accelerator.synchronize)
    return found


def machine(device: torch.device) -> str:
    """Name the device and the versions."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    versions = [f"Python {platform.python_version()}"]
    for package in ("torch", "attrs", "tensordict"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    return f"{device.type} ({name}), {', '.join(versions)}"


def main() -> None:
    """Measure, print the tables, and write the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, type=torch.device)
    parser.add_argument("--rounds", default=1000, type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()

    results = run(args.device, args.rounds)
    title = machine(args.device)
    print(f"{title}, {args.rounds} rounds")
    for case, rows in results.items():
        print(f"\n{case}\n{'':26}{'median us':>12}{'p10':>10}{'p90':>10}{'ratio':>8}")
        for name, row in rows.items():
            print(
                f"  {name:24}{row['median_us']:12.1f}{row['p10_us']:10.1f}"
                f"{row['p90_us']:10.1f}{row['ratio']:8.2f}"
            )
    if args.json is not None:
        found = {"machine": title, "rounds": args.rounds, "results": results}
        args.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
