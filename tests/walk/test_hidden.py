"""Objects of unknown class are searched; what cannot be is said to be so."""

import asyncio
import collections
import contextvars
import enum
import functools
import gc
import logging.handlers
import mmap
import operator
import pathlib
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tensorpack import Dynamic, LeafError, payload
from tensorpack._walk.hidden import FAR, hidden_in
from tensorpack._walk.host_values import is_host_value

ONE = torch.ones(1)
META = torch.device("meta")


class Helper:
    def __init__(self, inner: object) -> None:
        self.inner = inner


def wraps(make: Callable[[], object]) -> list[Callable[[], object]]:
    """Give a value as it is, in a helper, and in a container of one."""
    return [make, lambda: Helper(make()), lambda: [{"a": Helper([make()])}]]


class Array(np.ndarray[Any, Any]):
    """Has room for attributes."""


class Path(pathlib.PurePosixPath):
    """Has room for attributes."""


class Stream(torch.Stream):
    """Has room for attributes."""


class Generator(torch.Generator):
    """Has room for attributes."""


class Color(enum.Enum):
    RED = 1
    SHADES = (1, 2)


def with_attribute(value: Any) -> Any:
    """Hang a tensor on a value."""
    value.kept = ONE
    return value


def of_objects(*shape: int) -> Any:
    """Make an array of objects, one of them a tensor."""
    array = np.empty(shape, dtype=object)
    array.flat[0] = ONE
    return array


def in_context() -> contextvars.Context:
    """Make a context in which many variables are set, one to a tensor."""
    context = contextvars.Context()
    for number in range(40):
        context.run(contextvars.ContextVar(f"{number}").set, number or ONE)
    return context


def member() -> Any:
    """Make an enumeration that has a tensor as a value."""
    return enum.Enum("Kept", {"ONE": (ONE,)}).ONE  # type: ignore[attr-defined]


ROWS = np.array([(1, ONE)], dtype=[("a", int), ("b", object)])
BRANCH = (torch.ones(1, requires_grad=True) * 2).relu()

HOLD: dict[str, Callable[[], object]] = {
    "array": lambda: of_objects(2, 2),
    "array of none": of_objects,
    "rows": lambda: ROWS,
    "row": lambda: ROWS[0],
    "array of arrays": lambda: np.array([of_objects(1), None], dtype=object),
    "part of an array": lambda: of_objects(2)[2:],
    "field of rows": lambda: ROWS["a"],
    "array with an attribute": lambda: with_attribute(np.zeros(2).view(Array)),
    "slice": lambda: slice(ONE),
    "slice's last": lambda: slice(None, None, ONE),
    "slices": lambda: (slice(1), [slice((ONE,))]),
    "path": lambda: with_attribute(Path("a")),
    "stream": lambda: with_attribute(
        Stream(stream_id=7, device_index=0, device_type=1)
    ),
    "generator": lambda: with_attribute(Generator()),
    "enum": member,
    "context": in_context,
    "ordered": lambda: collections.OrderedDict(a=ONE).values(),
}
UNSEEN: dict[str, Callable[[], object]] = {
    "graph node": lambda: BRANCH.grad_fn,
    "graph edges": lambda: BRANCH.grad_fn.next_functions,  # type: ignore[union-attr]
    "accumulator": lambda: (
        torch.autograd.graph.get_gradient_edge(torch.ones(1, requires_grad=True)).node
    ),
    "capsule": lambda: torch.utils.dlpack.to_dlpack(torch.ones(1)),
    "a method's capsule": lambda: torch.ones(1).__dlpack__().__dir__,
    "storage": lambda: torch.ones(1).untyped_storage(),
    "future": torch.futures.Future,
    "iterator of an array": lambda: of_objects(2).flat,
    "iterator of numpy": lambda: np.nditer(of_objects(2), flags=["refs_ok"]),
    "function of numpy": lambda: np.frompyfunc(lambda _: ONE, 1, 1),
}
HOLD_NONE: dict[str, Callable[[], object]] = {
    "arrays": lambda: [np.zeros(2), np.array(["a"]), np.array([None, {}], object)],
    "rows": lambda: np.zeros(2, dtype=[("a", int), ("b", object)]),
    "array with an attribute": lambda: np.ma.masked_array([1, 2], [True, False]),
    "array of a file": lambda: np.frombuffer(mmap.mmap(-1, 16), dtype=np.uint8),
    "numbers of numpy": lambda: [np.float32(1), np.int64(2), np.bool_(1), np.str_("a")],
    "of numpy": lambda: [np.dtype(int), np.add, np.sum, np.random.default_rng(1)],
    "slices": lambda: [slice(None), slice(1, "a", (2,))],
    "paths": lambda: [pathlib.Path(), Path("a"), pathlib.PureWindowsPath("b")],
    "enums": lambda: [Color.RED, Color.SHADES, Color],
    "of a device": lambda: [Generator(), torch.Generator(), torch.device("cpu")],
    "limits": lambda: [torch.finfo(torch.float32), torch.iinfo(torch.int8)],
    "schemes": lambda: [torch.per_tensor_affine, torch.strided, torch.channels_last],
    "operators": lambda: [torch.ops.aten.relu.default, torch.ops.aten.relu],
    "an operator's schema": lambda: torch.ops.aten.relu.default._schema,
    "tags": lambda: torch.Tag.core,
    "functions": lambda: (
        [torch.relu, torch._C._cuda_getDeviceCount, len, np.mean]
        if hasattr(torch._C, "_cuda_getDeviceCount")
        else [torch.relu, torch.set_num_threads, len, np.mean]
    ),
    "no graph": torch.no_grad,
    "hook": lambda: torch.ones(1, requires_grad=True).register_hook(lambda g: g),
    "iterators": lambda: [iter(x) for x in ("", b"", (), [], {}, set(), range(1))],
    "older iterators": lambda: [reversed([]), iter(int, 0), zip(), map(len, [])],
    "views": lambda: [{}.keys(), {}.values(), {}.items(), memoryview(b"")],
    "context": contextvars.copy_context,
    "lazy": lambda: [functools.partial(len), operator.itemgetter(1)],
    "threads": lambda: [threading.Event(), threading.Condition(), threading.local()],
    "loop": asyncio.Event,
    "generic": lambda: [list[int], int | None, types.SimpleNamespace(a=1)],
    "collector": lambda: gc,
}


def cached(value: object) -> Any:
    """Make a payload that keeps a value in a cached property."""

    @payload(slots=False)
    class Batch:
        ids: Tensor

        @functools.cached_property
        def found(self) -> object:
            return value

    batch = Batch(ONE + 1)
    batch.found  # noqa: B018  # fills the cache
    return batch


@payload
class Walked:
    held: Dynamic[object]


@pytest.mark.parametrize("make", HOLD.values(), ids=HOLD)
def test_a_tensor_is_found(make: Callable[[], object]) -> None:
    """Host types passed whatever they hold, since their classes were trusted."""
    for way in wraps(make):
        assert isinstance(hidden_in(way(), ()), Tensor)
        with pytest.raises(LeafError, match=r"found.*holds a `Tensor`"):
            cached(way()).to_device(META)


@pytest.mark.parametrize("make", HOLD.values(), ids=HOLD)
def test_a_dynamic_field_refuses_it(make: Callable[[], object]) -> None:
    """An array of objects and a slice passed there too, neither moved nor recorded."""
    assert not is_host_value(make())
    for value in (make(), [make()], {"a": (make(),)}):
        with pytest.raises(LeafError, match=r"held.*has no lifetime support"):
            Walked(value).record_stream(None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", UNSEEN.values(), ids=UNSEEN)
def test_what_nobody_can_look_into(make: Callable[[], object]) -> None:
    """A class without a module is not one of Python's for that."""
    for way in wraps(make):
        with pytest.raises(LeafError, match="nobody can see whether"):
            cached(way()).to_device(META)


@pytest.mark.parametrize("make", HOLD_NONE.values(), ids=HOLD_NONE)
def test_others_pass(make: Callable[[], object]) -> None:
    """What holds no tensor, and what belongs to a module, is not refused."""
    for way in wraps(make):
        assert None is hidden_in(way(), ())
        cached(way()).to_device(META)


@pytest.mark.parametrize(
    "make", [*(HOLD_NONE[k] for k in ("arrays", "slices", "paths"))]
)
def test_dynamic_fields_take_host_values(make: Callable[[], Any]) -> None:
    """Host types without a tensor inside stay, by reference."""
    values = make()

    moved = Walked(values).to_device(META)  # type: ignore[attr-defined]

    assert all(a is b for a, b in zip(values, moved.held, strict=True))
    assert all(map(is_host_value, (*values, np.ma.masked_array([1]), Color.SHADES)))


def test_host_values_that_are_shared_or_lead_back() -> None:
    """A host value was walked as a tree, and one that leads back had no end."""
    shared: Any = {1}
    for _ in range(60):
        shared = (shared, shared)
    around: list[object] = [1]
    around.append(around)

    assert is_host_value(shared)
    assert is_host_value(around)


class TestWhatBelongsToTheProcess:
    """Shared by all, it is nobody's cache."""

    def test_logger_is_an_end(self) -> None:
        """What another logger's handler keeps for later is no matter of this one."""
        kept = logging.handlers.MemoryHandler(100)
        other = logging.getLogger("tests.hidden.other")
        other.addHandler(kept)
        try:
            other.warning("a tensor: %s", ONE)
            mine = logging.getLogger("tests.hidden.mine")

            for found in (mine, Helper(mine), logging.LoggerAdapter(mine, {})):
                assert hidden_in(found, ()) is None
        finally:
            other.removeHandler(kept)

    @pytest.mark.parametrize(
        "value",
        [
            torch.nn.attention.SDPBackend.MATH,
            torch.profiler.ProfilerActivity.CPU,
        ],
        ids=str,
    )
    def test_named_numbers_of_compiled_code_hold_nothing(self, value: object) -> None:
        """They are enumerations, as pybind makes them."""
        for make in wraps(lambda: value):
            assert hidden_in(make(), ()) is None

    def test_structs_are_searched(self) -> None:
        """Members of a msgspec struct are seen like attributes."""
        msgspec = pytest.importorskip("msgspec")
        struct = msgspec.defstruct("Options", ["n", "names"])

        assert hidden_in(Helper(struct(1, ["a"])), ()) is None
        assert hidden_in(Helper(struct(1, [ONE])), ()) is ONE

    def test_search_is_given_up(self) -> None:
        """What leads to half of the program would be searched at each use."""
        chain = [Helper(n) for n in range(20_000)]

        assert hidden_in(Helper(chain), ()) is FAR
        assert hidden_in(Helper(list(range(100_000))), ()) is None


@payload(slots=False)
class Changing:
    """Keeps what another thread goes on changing."""

    ids: Tensor

    @functools.cached_property
    def pending(self) -> Any:
        return None


@pytest.mark.parametrize("kind", [collections.deque, list, dict])
def test_cached_container_may_change_meanwhile(kind: Any) -> None:
    """It is looked at as it is when its turn comes."""
    batch: Any = Changing(ONE)
    held = kind(dict.fromkeys(range(500)))
    batch.__dict__["pending"] = held
    stop = threading.Event()

    def change() -> None:
        n = 500
        while not stop.is_set():
            n += 1
            if kind is dict:
                held[n] = Color.RED
                held.pop(next(iter(held)))
            else:
                held.append(Color.RED)
                del held[0]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            batch.record_stream(object())
            batch.to_device(META)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
