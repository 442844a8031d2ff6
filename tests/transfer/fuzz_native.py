"""Odd leaves for the compiled core, in a process that must end whole.

python tests/transfer/fuzz_native.py FILE SEED
"""

import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tensorpack.transfer.native import Native, _load

EXPECTED = (RuntimeError, TypeError, ValueError)


class Own(Tensor):
    """A subclass."""


def freed(rng: random.Random) -> Tensor:
    """Make a tensor whose memory has gone, or most of it."""
    found = torch.ones(rng.randint(1, 9))
    found.untyped_storage().resize_(rng.randint(0, 3))
    return found


def odd(rng: random.Random) -> Any:
    """Make a leaf of a random kind."""
    x = torch.arange(float(rng.randint(0, 60)))
    z = torch.complex(x, x)
    makes: list[Callable[[], Any]] = [
        lambda: x,
        lambda: x[rng.randint(0, 5) :],
        lambda: x[::2],
        lambda: freed(rng),
        x.to_sparse,
        lambda: x.to("meta"),
        lambda: x.as_subclass(Own),
        lambda: torch.nn.Parameter(x),
        lambda: None,
        object,
        lambda: 3,
        lambda: Own,
        lambda: Tensor,
        lambda: Tensor.__new__(Tensor),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
        x.to_mkldnn,
        lambda: torch._efficientzerotensor(4),
        z.conj,
        lambda: z.conj().imag,
        lambda: x.expand(3, *x.shape),
        lambda: torch.empty(0, 3).t(),
        lambda: torch.frombuffer(bytearray(24), dtype=torch.float64),
        lambda: torch.as_strided(torch.ones(4), (2, 2), (0, 1)),
        lambda: torch.empty_strided((1, 3), (99, 1)),
        lambda: torch.ones(()),
        lambda: torch.ones(2, requires_grad=True) * 2,
        lambda: torch._to_functional_tensor(torch.ones(3)),
    ]
    return rng.choice(makes)()


def moves(native: Native, rng: random.Random) -> None:
    """Move some odd leaves by a random core."""
    leaves = [odd(rng) for _ in range(rng.randint(0, 6))]
    core = native.Core(
        torch.device(rng.choice(("cpu", "meta"))),
        rng.choice((0, 64, 4096)),
        rng.random() < 0.5,
        0,
        lambda n: torch.empty(n, dtype=torch.uint8),
        None,
        None,
    )
    try:
        core.look(leaves)
        core.move(leaves, [])
    except EXPECTED:
        pass


def wrong_cores(native: Any) -> None:
    """Make cores of what they are not made of."""
    cpu = torch.device("cpu")
    for args in ((), (1,), (cpu,) * 7, (cpu, 99, 1, 1, 1, 1, 1)):
        try:
            native.Core(*args).move([torch.ones(2), torch.ones(2)], [])
        except EXPECTED:
            pass
        else:
            sys.exit(f"{args} were taken")


def main() -> None:
    """Load the core, and move."""
    warnings.simplefilter("ignore")
    native = _load(Path(sys.argv[1]))
    assert native is not None
    rng = random.Random(int(sys.argv[2]))
    for _ in range(1500):
        moves(native, rng)
    wrong_cores(native)
    print("whole")


if __name__ == "__main__":
    main()
