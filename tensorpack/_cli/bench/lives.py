"""Measures `start` and `take` of one checkout, on commands from its standard input.

A script of its own, run with another checkout in `PYTHONPATH`: of tensorpack it uses
what every version has. Each line is a JSON object: what to measure; the answer is one,
too: microseconds of each life. See `against`.
"""

import gc
import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import torch

from tensorpack import CopyStream, payload

_SETTLE = 3


def _filled(shape: list[int], dtype: str, *, pinned: bool) -> torch.Tensor:
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    return tensor.pin_memory() if pinned else tensor


def _payload_of(shapes: list[Any], *, pinned: bool) -> Any:
    made = {f"f{i}": _filled(*s, pinned=pinned) for i, s in enumerate(shapes)}
    fields = {name: attrs.field(type=torch.Tensor) for name in made}
    cls: Any = payload(attrs.make_class("Inputs", fields, slots=False, eq=False))
    return cls(**made)


def main() -> None:
    """Answer until the input ends."""
    work = runpy.run_path(str(Path(__file__).with_name("work.py")))["WORK"]
    device = torch.device(sys.argv[1])
    hosted = device.type in ("cpu", "meta")
    copies = CopyStream(device, max_in_flight=64)
    copies.warm(64 << 20)
    consumer = None if hosted else torch.Stream(device)
    known: dict[str, Any] = {}
    gc.disable()
    for line in sys.stdin:
        task = json.loads(line)
        name = json.dumps([task["shapes"], task["pinned"], task["mode"]])
        if name not in known:
            value = _payload_of(task["shapes"], pinned=task["pinned"])
            known = {name: (value, work[task["mode"]](device, consumer))}
        value, before = known[name]
        spent = []
        if not hosted:
            torch.accelerator.synchronize(device)
        for _ in range(_SETTLE + task["rounds"]):
            if before is not None:
                before()
            start = time.perf_counter_ns()
            copies.start(value).take(consumer)
            spent.append((time.perf_counter_ns() - start) / 1000)
        gc.collect(0)
        print(json.dumps(spent[_SETTLE:]), flush=True)


if __name__ == "__main__":
    main()
