"""Payloads through `pickle`, `copy` and other processes: the same, and nothing else."""

import copy
import dataclasses
import functools
import io
import multiprocessing
import pickle
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
