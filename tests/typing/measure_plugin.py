"""Measure what the plugin costs: mypy over 400 payload classes, with it and without.

    python tests/typing/measure_plugin.py

Everything that the classes import comes from a warm cache; the classes themselves are
checked anew each time. The two ways take turns, and processor time is compared.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES, CLASSES, ROUNDS = 20, 20, 15
HEAD = """\
import torch
from torch import Tensor
from tensorpack import HostOnly, Payload, payload
"""
CLASS = """
@payload
class P{m}_{c}(Payload):
    ids: Tensor
    lengths: Tensor
    mask: Tensor | None = None
    images: list[list[Tensor]] | None = None
    named: dict[str, Tensor] | None = None
    pair: tuple[Tensor, int] | None = None
    other: {other} | None = None
    size: int = 1
    scale: float = 1.0
    name: str = ""
    dtype: torch.dtype | None = None
    meta: HostOnly[dict[str, object] | None] = None

def use_{m}_{c}(x: P{m}_{c}) -> Tensor:
    return x.to_device("cuda").ids
"""
SETTINGS = '[tool.mypy]\nstrict = true\ncache_dir = "cache"\n'


def write(folder: Path, comment: str) -> None:
    """Write the modules; the comment makes them new to mypy."""
    for m in range(MODULES):
        text = HEAD
        for c in range(CLASSES):
            text += CLASS.format(m=m, c=c, other=f"P{m}_{c - 1}" if c else f"'P{m}_0'")
        (folder / f"m{m}.py").write_text(f"{text}# {comment}\n")


def check(folder: Path) -> float:
    """Check the modules and give the seconds of processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    names = [f"m{m}.py" for m in range(MODULES)]
    command = [sys.executable, "-m", "mypy", *names]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure, and print the medians and the ratio."""
    ways = {"without": "", "with": 'plugins = ["tensorpack.mypy_plugin"]\n'}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as root:
        for way, plugins in ways.items():
            folder = Path(root) / way
            folder.mkdir()
            (folder / "pyproject.toml").write_text(SETTINGS + plugins)
            write(folder, "warm")
            check(folder)
        for number in range(ROUNDS):
            for way in ways:
                write(Path(root) / way, f"round {number}")
                seconds[way].append(check(Path(root) / way))
    plain, plugged = (statistics.median(seconds[way]) for way in ways)
    pairs = zip(seconds["with"], seconds["without"], strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    count = MODULES * CLASSES
    print(f"{count} classes: {plain:.2f} s without the plugin, {plugged:.2f} s with it")
    print(f"ratio {ratio:.3f}, the median of {ROUNDS} pairs")


if __name__ == "__main__":
    main()
