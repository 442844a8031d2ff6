"""Payloads through `pickle`, `copy` and other processes: the same, and nothing else."""

import copy
import dataclasses
import functools
import io
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import Derived, Dynamic, HostOnly, Payload, clone, payload, tensors


class Pair(NamedTuple):
    left: Tensor
    right: int


@payload
class Slotted(Payload):
    t: Tensor
    _private: Tensor | None = None


@payload(slots=False)
class InDict(Payload):
    t: Tensor

    @functools.cached_property
    def total(self) -> Tensor:
        return self.t.sum()


@payload(frozen=True)
class Frozen(Payload):
    t: Tensor
    inner: Slotted
    many: list[dict[str, InDict]]


@payload(frozen=True, slots=False)
class FrozenInDict(Payload):
    t: Tensor
    pair: Pair
    cache: Derived[Tensor | None] = None


@payload
@dataclasses.dataclass
class Data:
    t: Tensor
    n: int = dataclasses.field(default=0, init=False)


@payload
@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData:
    t: Tensor
    open: Dynamic[Any] = None


@payload
class Child(Slotted):
    u: Tensor | None = None
    host: HostOnly[object] = None


def one() -> Tensor:
    """Make a small leaf."""
    return torch.rand(3)


def data() -> Data:
    """Make a dataclass with a field that its `__init__` does not take."""
    made = Data(one())
    made.n = 7
    return made


MADE: dict[str, Callable[[], Any]] = {
    "slots": lambda: Slotted(one(), one()),
    "dict": lambda: InDict(one()),
    "frozen": lambda: Frozen(one(), Slotted(one()), [{"a": InDict(one())}]),
    "frozen, dict": lambda: FrozenInDict(one(), Pair(one(), 3), one()),
    "dataclass": data,
    "frozen dataclass": lambda: FrozenData(one(), {"a": [Slotted(one())]}),
    "child": lambda: Child(one(), None, one(), ("x", 1)),
    "nested": lambda: FrozenData(one(), [Frozen(one(), Child(one()), [])]),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),  # noqa: S301  # our own
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "moved, then pickled": lambda value: pickle.loads(  # noqa: S301  # our own
        pickle.dumps(clone(value).to_device("cpu"))
    ),
}


def content(value: Any) -> Any:
    """Describe a value by its classes and all that its fields hold."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: content(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [content(v) for v in value]
    if hasattr(type(value), "__tensorpack_plan__"):
        names = (
            [a.name for a in attrs.fields(type(value))]
            if attrs.has(type(value))
            else [f.name for f in dataclasses.fields(value)]
        )
        return type(value), {name: content(getattr(value, name)) for name in names}
    return value


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_equal_object_of_the_same_class(
    make: Callable[[], Any], way: Callable[[Any], Any]
) -> None:
    """Every field comes back, private and `init=False` ones included."""
    value = make()
    before = content(value)
    again = way(value)
    after = content(again)
    if way is WAYS["moved, then pickled"] and isinstance(value, FrozenInDict):
        before[1]["cache"] = None

    assert before == after
    assert [key for key, _ in tensors(value)] == [key for key, _ in tensors(again)]


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_state_holds_no_stream_event_or_plan(make: Callable[[], Any]) -> None:
    """A payload that was moved and recorded carries nothing of it along."""
    value = make()
    value.record_stream(torch.Stream(stream_id=7, device_index=0, device_type=1))
    moved = value.to_device("cpu")

    for text in (pickle.dumps(moved), pickle.dumps(value)):
        named: set[str] = set()

        class Naming(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                named.add(name)  # noqa: B023  # used at once
                return super().find_class(module, name)

        Naming(io.BytesIO(text)).load()

        assert not {n for n in named if "Stream" in n or "Event" in n or "Plan" in n}


def test_twin_of_a_row_does_not_ship_its_base() -> None:
    """A leaf that is one row of a big tensor is pickled with all of it; a clone alone.

    So it is for a row that has travelled: what is moved is a tensor of its own.
    """
    row = torch.zeros(1000, 1000)[5]
    batch = Slotted(row)
    whole, own = (len(pickle.dumps(value)) for value in (batch, clone(batch)))

    assert whole > row.numel() * 1000 * 4
    assert own < row.numel() * 4 + 2000
    assert torch.equal(clone(batch).t, row)


def test_one_object_stays_one() -> None:
    """An object in two fields is one object again, also inside a payload."""
    leaf = one()
    value = FrozenData(leaf, [leaf, Slotted(leaf)])

    for again in (copy.deepcopy(value), value.to_device("cpu"), clone(value)):
        assert again.t is again.open[0] is again.open[1].t


def _echo(inbox: Any, outbox: Any) -> None:
    """Send back what arrives, in another process."""
    value = inbox.get()
    keys = [key for key, _ in tensors(value)]
    outbox.put((keys, value.to_device("cpu")))
    inbox.get()  # the other side still opens the memory that they share


def test_queue_between_processes() -> None:
    """A payload crosses to a spawned process, is moved there, and comes back."""
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=_echo, args=(inbox, outbox), daemon=True)
    process.start()
    value = MADE["nested"]()

    inbox.put(value)
    keys, again = outbox.get(timeout=60)
    found = content(again)
    inbox.put("done")
    process.join(timeout=60)

    assert [key for key, _ in tensors(value)] == keys
    assert content(value) == found


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


def test_class_of_a_main_module_is_sent_by_value(tmp_path: Any) -> None:
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
    class Local:
        t: Tensor
        child: "Local | None" = None

    value = Local(one(), Local(one()))
    value.to_device("meta")  # type: ignore[attr-defined]

    again = pickle.loads(cloudpickle.dumps(value))  # noqa: S301  # our own

    assert type(again) is Local
    assert ["t", "child.t"] == [key for key, _ in tensors(again)]
    assert again.to_device("meta").child.t.is_meta
