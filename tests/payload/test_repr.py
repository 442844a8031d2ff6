"""The repr of a payload: short, and there whatever its fields hold."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tensorpack import Dynamic, payload


class Loud:
    def __repr__(self) -> str:
        raise RuntimeError


class Broken(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError


@payload
class Batch:
    field: Dynamic[Any]


def jagged() -> Tensor:
    parts = [torch.ones(2), torch.ones(3)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@pytest.mark.filterwarnings("ignore")  # torch warns of what is a prototype
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        jagged,
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: torch.eye(2).to_sparse(),
        Loud,
        lambda: [Loud()],
        lambda: Broken([1]),
        lambda: torch.ones(1, device="meta"),
    ],
    ids=range(8),
)
def test_repr_never_raises(make: Any) -> None:
    """It is read while something else is wrong."""
    assert repr(Batch(make())).startswith("Batch(field=")


def test_repr_of_a_property_that_raises() -> None:
    """A field whose reading raises is named, and the others are shown."""

    @payload
    class Odd:
        ids: Tensor
        size: int = 0

    odd = Odd(torch.ones(2))
    del odd.size

    assert repr(odd).endswith("(ids=float32[2] cpu, size=<unset>)")
