"""cloudpickle sends classes of a script by value: small, whole, without globals."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("cloudpickle")

HEAD = """
import dataclasses, functools, pickle, sys, threading
from typing import Generic, TypeVar
import attrs, cloudpickle, torch
from torch import Tensor
from tensorpack import Derived, payload
T = TypeVar("T")
LOCK = threading.Lock()
WEIGHTS = torch.ones(1_000_000)
"""

CLASSES = {
    "plain": """
@payload
class Batch:
    x: Tensor
    n: int = 1
value = Batch(torch.ones(2))
""",
    "text annotations": """
@payload
class Batch:
    x: "Tensor"
    rest: "list[Tensor] | None" = None
value = Batch(torch.ones(2))
""",
    "dataclass": """
@payload
@dataclasses.dataclass
class Batch:
    x: Tensor
    n: int = 1
value = Batch(torch.ones(2))
""",
    "foreign": """
class Batch:
    def __init__(self, x):
        self.x = x
payload(fields={"x": Tensor})(Batch)
value = Batch(torch.ones(2))
""",
    "in a function": """
def make():
    lock, Item = threading.Lock(), Tensor
    @payload
    class Batch:
        x: "Item"
    return Batch
value = make()(torch.ones(2))
""",
    "generic": """
@payload
class Open(Generic[T]):
    x: T | Tensor | None
@payload
class Batch(Open[Tensor]):
    n: int = 1
value = Batch(torch.ones(2))
""",
    "subclass": """
@payload
class Base:
    x: Tensor
@payload
class Batch(Base):
    y: Tensor | None = None
value = Batch(torch.ones(2))
""",
    "cached": """
@payload
class Batch:
    x: Tensor
    seen: Derived[dict | None] = None
    @functools.cached_property
    def total(self) -> float:
        return float(self.x.sum())
value = Batch(torch.ones(2))
""",
}

SEND = """
value.to_device("meta")  # its generated code is on the class now
sys.stdout.buffer.write(cloudpickle.dumps(value))
"""
RECEIVE = """
import pickle, sys
value = pickle.loads(sys.stdin.buffer.read())
moved = value.to_device("meta")
print(type(moved) is type(value), moved.x.is_meta, type(value).payload_keys()[0])
value.record_stream(None)
"""


def run(text: str, given: bytes = b"") -> bytes:
    """Run a script in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", text], input=given, capture_output=True, check=False
    )
    assert 0 == done.returncode, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("text", list(CLASSES.values()), ids=list(CLASSES))
def test_class_is_used_where_it_arrives(text: str) -> None:
    """Neither the lock nor the weights of the script travel, and the copy is whole."""
    sent = run(f"{HEAD}{text}{SEND}")

    assert len(sent) < 10_000
    assert b"True True x\n" == run(textwrap.dedent(RECEIVE), sent)


def test_size_is_that_of_a_plain_dataclass() -> None:
    """What `@payload` adds to a class takes at most 1 KB."""
    plain = CLASSES["dataclass"].replace("@payload\n", "")
    measured = "sys.stdout.buffer.write(cloudpickle.dumps(value))"

    with_payload = len(run(f"{HEAD}{CLASSES['dataclass']}{SEND}"))
    without = len(run(f"{HEAD}{plain}{measured}"))

    assert with_payload - without <= 1024
