"""The kit with leaves that are not plain tensors: subclasses, sparse, nested."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import Payload, payload, record_stream
from tensorpack.testing import (
    assert_covers,
    assert_equal,
    assert_moves,
    device_twin,
    recorded_streams,
)


@payload
class Batch(Payload):
    leaf: Tensor


class Plain(Tensor):
    """Changes nothing."""


class WithInit(Tensor):
    """Sets an attribute where it is called."""

    def __init__(self, *_: object) -> None:
        self.extra = 3


class Counting(Tensor):
    """Sees every function, and stays itself."""

    seen = 0

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Unwrapping(Tensor):
    """Stays itself where it is moved or copied, as image tensors of torchvision do."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        keeps = func in (Tensor.to, Tensor.cpu, Tensor.clone, Tensor.detach)
        return made.as_subclass(cls) if keeps else made


SUBCLASSES = [Plain, WithInit, Counting, Unwrapping]


@pytest.mark.parametrize("cls", SUBCLASSES, ids=lambda cls: cls.__name__)
def test_subclass_is_covered_and_moved(cls: type[Tensor]) -> None:
    """Whether the field names it or holds it, and by an example of its class."""
    leaf = torch.arange(3.0).as_subclass(cls)
    made: Any = payload(attrs.make_class("Made", {"leaf": attrs.field(type=cls)}))

    assert_covers(Batch(leaf))
    assert_moves(Batch(leaf), "cuda")
    assert_covers(made)
    assert_moves(made(leaf), "cuda")


@pytest.mark.parametrize("cls", SUBCLASSES, ids=lambda cls: cls.__name__)
def test_subclass_is_itself_on_the_device(cls: type[Tensor]) -> None:
    """Its class, its numbers, its own functions, the way back."""
    leaf = torch.arange(3.0).as_subclass(cls)
    with recorded_streams() as log:
        moved, stream = leaf.to("cuda"), torch.cuda.Stream()
        moved.record_stream(stream)

        assert isinstance(moved, cls)
        assert moved.is_cuda
        assert [1.0, 2.0, 3.0] == (moved + 1).tolist()
        assert type(moved.cpu()) is cls
        assert [] == log.missing({"leaf": moved}, stream)
        assert_equal(leaf, moved)
        assert isinstance(device_twin([leaf])[0], cls)


def test_functions_of_a_subclass_are_called_on_the_device() -> None:
    """Its `__torch_function__` sees what is done there."""
    with recorded_streams():
        moved: Any = torch.arange(3.0).as_subclass(Counting).to("cuda")
        before = Counting.seen
        moved.add(1)

    assert before + 1 == Counting.seen


KINDS: dict[str, Callable[[], Tensor]] = {
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "coo": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
}


each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
# torch warns that these are prototypes.
quiet = pytest.mark.filterwarnings("ignore")


@quiet
@each_kind
def test_kind_is_covered_moved_and_shown(kind: Callable[[], Tensor]) -> None:
    """Sparse, nested and quantized leaves are leaves as any other."""
    assert_covers(Batch(kind()))
    for device in ("cpu", "cuda"):
        assert_moves(Batch(kind()), device)
    assert "Batch(leaf=" in repr(Batch(kind()))


@quiet
@each_kind
def test_kind_on_the_device(kind: Callable[[], Tensor]) -> None:
    """It has blocks to be recorded, and the numbers that it had."""
    with recorded_streams() as log:
        moved, stream = kind().to("cuda"), torch.cuda.Stream()

        assert moved.is_cuda
        assert moved.layout is kind().layout
        assert [""] == log.missing(moved, stream)
        record_stream(moved, stream)
        assert [] == log.missing(moved, stream)
        assert_equal(kind(), moved)
        assert_equal(kind(), moved.cpu())
        assert_equal(kind(), device_twin(kind()))
        assert "cuda:0" in repr(moved)


def test_interpreter_exits_in_silence() -> None:
    """Device tensors may be alive then: nothing is left to tell the log."""
    code = """
import torch
from tensorpack.testing import device_twin, recorded_streams
with recorded_streams() as log:
    tensor = torch.ones(2, device="cuda")
    sparse = device_twin({"a": torch.eye(2).to_sparse()})
    event = torch.cuda.Stream().record_event()
    cycle = [torch.ones(2, device="cuda")]
    cycle.append(cycle)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        check=True,
        capture_output=True,
        text=True,
    )

    assert "" == done.stderr
