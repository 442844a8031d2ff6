"""cloudpickle sends classes of a script by value: small, whole, without globals."""

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tensorpack import Payload, payload, tensors

pytest.importorskip("cloudpickle")

HEAD = """
import dataclasses, functools, pickle, sys, threading
from typing import Generic, TypeVar
import attrs, cloudpickle, torch
from torch import Tensor
from tensorpack import Derived, payload
T = TypeVar("T", bound=Tensor)
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
    x: T | None
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
    seen: Derived[dict[str, Tensor] | None] = None
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


SENT = """
import dataclasses, functools, sys, threading
from typing import Generic, NamedTuple, TypeVar
import cloudpickle, torch
from torch import Tensor
from tensorpack import Derived, payload, tensors

LARGE = "x" * 1_000_000
LOCK = threading.Lock()
T = TypeVar("T", bound=Tensor)

def uses() -> object:
    return LARGE, LOCK

@dataclasses.dataclass
class Plain:
    a: Tensor
    b: list[Tensor]
    n: int = 1

@payload
class Batch:
    a: Tensor
    b: list[Tensor]
    n: int = 1

@payload
class Child(Batch):
    c: Derived[Tensor | None] = None

    @functools.cached_property
    def total(self) -> Tensor:
        return self.a.sum()

@payload(slots=True)
class Slotted:
    a: Tensor

    @functools.cached_property
    def total(self) -> Tensor:
        return self.a.sum()

@payload
class Of(Generic[T]):
    a: T

@payload
@dataclasses.dataclass
class Data:
    a: Tensor
    n: int = dataclasses.field(init=False)

class Boxes:
    def __init__(self, a):
        self.a = a
payload(Boxes, fields={"a": Tensor})

def local():
    class Mode: ...
    large = "y" * 1_000_000

    @payload
    class Local:
        a: "Tensor"
        many: "list[Later]"

    return Local(ONE, [Later(ONE)])

@payload
class Later:
    a: Tensor

class Row(NamedTuple):
    later: "Later"

@payload
class Written:
    a: "Tensor"
    rows: "list[Row]"
    more: "Derived[list[Later]]" = ()

ONE = torch.ones(2)
VALUES = {
    "alone": lambda: Batch(ONE, [ONE]),
    "child": lambda: Child(ONE, [ONE]),
    "slots": lambda: Slotted(ONE),
    "generic": lambda: Of(ONE),
    "dataclass": lambda: Data(ONE),
    "adopted": lambda: Boxes(ONE),
    "local": local,
    "written": lambda: Written(ONE, [Row(Later(ONE))], []),
}
plain = len(cloudpickle.dumps(Plain(ONE, [ONE])))
for name, make in VALUES.items():
    value = make()
    fresh = len(cloudpickle.dumps(value))
    value.to_device("meta"), list(tensors(value))
    text = cloudpickle.dumps(value)
    open(f"{sys.argv[1]}/{name}", "wb").write(text)
    print(name, fresh, len(text), plain)
"""
RECEIVED = """
import os, pickle, sys, torch
for name in os.listdir(sys.argv[1]):
    value = pickle.load(open(f"{sys.argv[1]}/{name}", "rb"))
    moved = value.to_device("meta")
    assert type(moved) is type(value) and moved.a.is_meta and not value.a.is_meta
    plan = type(value).__tensorpack_plan__
    print(name, type(value).payload_keys(), type(value).host_keys(),
          [f.name for f in plan.fields if f.may_lack], [f.name for f in plan.cached])
"""


def test_class_of_a_main_module_is_sent_by_value(tmp_path: Path) -> None:
    """With what it uses, not with its module; its plan is made anew on the other side.

    All globals of the module were sent: a megabyte here, and a lock that cannot be.
    """
    pytest.importorskip("cloudpickle")
    (tmp_path / "sent.py").write_text(SENT)
    (tmp_path / "values").mkdir()

    sent, received = (
        subprocess.run(
            [sys.executable, *arguments, str(tmp_path / "values")],
            capture_output=True,
            text=True,
            check=False,
        )
        for arguments in ([str(tmp_path / "sent.py")], ["-c", RECEIVED])
    )

    assert ("", "") == (sent.stderr, received.stderr)
    assert [
        "adopted ('a',) () ['a'] []",
        "alone ('a', 'b') ('n',) [] []",
        "child ('a', 'b') ('n',) [] ['total']",
        "dataclass ('a',) ('n',) ['n'] []",
        "generic ('a',) () [] []",
        "local ('a', 'many') () [] []",
        "slots ('a',) () [] ['total']",
        "written ('a', 'rows') () [] []",
    ] == sorted(received.stdout.splitlines())
    sizes = {n: list(map(int, m)) for n, *m in map(str.split, sent.stdout.splitlines())}
    assert all(used - fresh < 500 for fresh, used, _ in sizes.values())
    assert sizes["alone"][1] - sizes["alone"][2] < 1024


def test_class_comes_back_to_its_own_process() -> None:
    """There it is the same class, and still works."""
    cloudpickle = pytest.importorskip("cloudpickle")

    @payload
    class Local(Payload):
        t: Tensor
        child: "Local | None" = None

    value = Local(torch.ones(2), Local(torch.ones(2)))
    value.to_device("meta")

    again = pickle.loads(cloudpickle.dumps(value))  # noqa: S301  # our own

    assert type(again) is Local
    assert ["t", "child.t"] == [key for key, _ in tensors(again)]
    assert again.to_device("meta").child.t.is_meta
