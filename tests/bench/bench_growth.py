"""How cost grows with the size of a class: `python tests/bench/bench_growth.py`.

Prints the time of a class's definition and of its first and later moves, for classes of
more and more fields and for deeper and deeper nesting; and what each grows by for one
field or level more, which stays the same where growth is linear.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack import payload

WIDTHS = (25, 50, 100, 200)
DEPTHS = (1, 5, 10, 20)
ROUNDS = 20


def wide(fields: int) -> Any:
    """Make an attrs class of many fields, of the kinds that inputs have."""
    kinds = (Tensor, Tensor | None, int, list[Tensor], dict[str, Tensor])
    names = {f"f{n}": attrs.field(type=kinds[n % len(kinds)]) for n in range(fields)}
    return attrs.make_class("Wide", names, eq=False)


def wide_value(cls: Any) -> Any:
    """Fill a wide class."""
    made = {
        Tensor: one(),
        int: 3,
        list[Tensor]: [one()],
        dict[str, Tensor]: {"a": one()},
    }
    return cls(*(made.get(a.type, one()) for a in attrs.fields(cls)))


def deep(depth: int) -> Iterator[Any]:
    """Iterate attrs classes, each with a field of the one before."""
    inner: Any = int
    for _ in range(depth):
        cls = attrs.make_class(
            "Deep",
            {"t": attrs.field(type=Tensor), "inner": attrs.field(type=inner)},
            eq=False,
        )
        yield cls
        inner = cls


def deep_value(classes: list[Any]) -> Any:
    """Fill nested classes, the innermost first."""
    value: Any = 3
    for cls in classes:
        value = cls(one(), value)
    return value


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


def least_us(calls: Iterable[Callable[[], object]]) -> float:
    """Give the least time of some calls in microseconds: what the work itself takes."""
    times = []
    for call in calls:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def of_width(fields: int) -> tuple[float, float, float]:
    """Measure definition, first move and later moves of a class of many fields."""
    classes = [wide(fields) for _ in range(ROUNDS)]
    definition = least_us([partial(payload, cls) for cls in classes])
    values = [wide_value(cls) for cls in classes]
    first = least_us([partial(value.to_device, "cpu") for value in values])
    return definition, first, least_us([partial(values[0].to_device, "cpu")] * ROUNDS)


def of_depth(depth: int) -> tuple[float, float, float]:
    """Measure the same of nested classes; a definition is that of all of them."""
    families = [list(deep(depth)) for _ in range(ROUNDS)]
    definition = least_us([partial(define_all, classes) for classes in families])
    values = [deep_value(classes) for classes in families]
    first = least_us([partial(value.to_device, "cpu") for value in values])
    return definition, first, least_us([partial(values[0].to_device, "cpu")] * ROUNDS)


def define_all(classes: list[Any]) -> None:
    """Make payloads of classes, the innermost first."""
    for cls in classes:
        payload(cls)


def table(title: str, sizes: tuple[int, ...], measure: Callable[[int], Any]) -> None:
    """Print a table, with what one more of the size adds since the row before."""
    print(f"{title:>8} {'define':>18} {'first move':>18} {'later move':>18}")
    before: tuple[int, tuple[float, ...]] | None = None
    for size in sizes:
        times = measure(size)
        cells = []
        for index, found in enumerate(times):
            more = (
                (found - before[1][index]) / (size - before[0])
                if before
                else found / size
            )
            cells.append(f"{found:9.0f} ({more:6.1f})")
        print(f"{size:>8} {' '.join(cells)}")
        before = (size, times)


def main() -> None:
    """Print both tables: microseconds, and in brackets what one more of it adds."""
    table("fields", WIDTHS, of_width)
    table("depth", DEPTHS, of_depth)


if __name__ == "__main__":
    main()
