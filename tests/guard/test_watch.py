"""The watch, told by hand what torch's callbacks and operators would tell it."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch.cuda import _gpu_trace

from tensorpack.errors import HazardError
from tensorpack.guard import trace
from tensorpack.guard.blocks import Shaped
from tensorpack.guard.extents import Extent
from tensorpack.guard.guarding import _Deliverer
from tensorpack.guard.model import Use
from tensorpack.guard.operators import recipe_of
from tensorpack.guard.order import StreamKey
from tensorpack.guard.places import here
from tensorpack.guard.report import Report
from tensorpack.guard.trace import Driver
from tensorpack.guard.watch import CUDA, Touch

HOME, READER, OTHER = 11, 22, 33
A, B = 0x1000, 0x9000


class FakeDriver(Driver):
    """A device that is not there."""

    def __init__(self) -> None:
        self.stream = HOME

    def device(self) -> int:
        return 0

    def current_stream(self, device: int) -> int:
        return self.stream


class Machine:
    """A program, as the callbacks of torch and the dispatch mode tell of it."""

    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.report = Report(self.driver)
        self.watch = self.report.watch

    def on(self, stream: int) -> "Machine":
        self.driver.stream = stream
        return self

    def allocate(self, address: int, nbytes: int = 1024) -> None:
        _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(address)
        self.use(address, nbytes, writes=True)

    def use(
        self, address: int, nbytes: int = 1024, *, writes: bool = False, offset: int = 0
    ) -> None:
        what = Shaped(torch.float32, (nbytes // 4,), "cuda:0")
        use = Use(writes, "aten.op", what, here(), Extent(offset, nbytes))
        self.watch.ran(key(self.driver.stream), [Touch(address, nbytes, use)])

    def wait(self, later: int, earlier: int, event: int = 5) -> None:
        _gpu_trace.EventRecordCallbacks.fire_callbacks(event, earlier)
        _gpu_trace.EventWaitCallbacks.fire_callbacks(event, later)

    def free(self, address: int) -> None:
        _gpu_trace.MemoryDeallocationCallbacks.fire_callbacks(address)

    def record(self, address: int, stream: int) -> None:
        self.watch.recorded(address, key(stream), here())

    @property
    def kinds(self) -> list[str]:
        return [hazard.kind for hazard in self.report]


def key(stream: int) -> StreamKey:
    return (CUDA, 0, stream)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    trace.listen(made.watch)
    yield made
    trace.listen(None)


def handed_over(machine: Machine) -> None:
    """Fill a block on its stream, and read it on another that waits."""
    machine.on(HOME).allocate(A)
    machine.wait(READER, HOME)
    machine.on(READER).use(A)


def test_memory_that_is_taken_again_is_reported_then(machine: Machine) -> None:
    """Not at the free, but at the next allocation of the stream."""
    handed_over(machine)
    machine.free(A)
    at_free = machine.kinds
    machine.on(HOME).allocate(A)

    assert [] == at_free
    assert ["lifetime"] == machine.kinds


def test_allocation_of_another_stream_takes_nothing(machine: Machine) -> None:
    """Blocks go back to the stream that they were allocated on."""
    handed_over(machine)
    machine.free(A)
    machine.on(OTHER).allocate(B)

    assert [] == machine.kinds


@pytest.mark.parametrize("how", ["record", "join", "late join", "synchronize", "query"])
def test_protected_memory_is_not_reported(how: str, machine: Machine) -> None:
    """A record, a join before or behind the free, and what the host knows."""
    handed_over(machine)
    if how == "record":
        machine.record(A, READER)
    if how == "join":
        machine.wait(HOME, READER)
    if how == "synchronize":
        _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(READER)
    if how == "query":
        _gpu_trace.EventRecordCallbacks.fire_callbacks(9, READER)
        machine.watch.event_synchronized(9)
    machine.free(A)
    if how == "late join":
        machine.wait(HOME, READER)
    machine.on(HOME).allocate(A)

    assert [] == machine.kinds


def test_record_of_a_stream_that_is_behind_protects_as_well(machine: Machine) -> None:
    """The allocator waits for all that a recorded stream has waited for."""
    handed_over(machine)
    machine.wait(OTHER, READER)
    machine.record(A, OTHER)
    machine.free(A)
    machine.on(HOME).allocate(A)

    assert [] == machine.kinds


def test_event_marks_what_was_queued_at_its_record(machine: Machine) -> None:
    """Work that is queued behind the record is not waited for."""
    machine.on(HOME).allocate(A)
    _gpu_trace.EventRecordCallbacks.fire_callbacks(5, HOME)
    machine.on(HOME).use(A, writes=True)
    _gpu_trace.EventWaitCallbacks.fire_callbacks(5, READER)
    machine.on(READER).use(A)

    assert ["order"] == machine.kinds


def test_parts_of_a_block_do_not_meet(machine: Machine) -> None:
    """Two streams may write two parts of one block, and not the same part."""
    machine.on(HOME).allocate(A, 2048)
    machine.wait(READER, HOME)
    machine.on(HOME).use(A, 1024, writes=True)
    machine.on(READER).use(A, 2048, writes=True, offset=1024)
    apart = machine.kinds
    machine.on(READER).use(A, 2048, writes=True, offset=512)

    assert [] == apart
    assert ["order"] == machine.kinds


def test_block_that_spans_freed_ones_has_their_past(machine: Machine) -> None:
    """Two freed neighbours merge; who fills the new block waits for both lives."""
    machine.on(HOME).allocate(A, 1024)
    machine.allocate(A + 1024, 1024)
    machine.free(A)
    machine.free(A + 1024)
    _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(A)
    machine.on(READER).use(A, 2048, writes=True)

    assert "order" in machine.kinds
    assert all("in the memory's life before" in h.problem for h in machine.report)


def test_part_of_a_freed_block_has_its_past(machine: Machine) -> None:
    """A block that is split off in the middle of a freed one is not new memory."""
    machine.on(HOME).allocate(A, 4096)
    machine.free(A)
    _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(A + 1024)
    machine.on(READER).use(A + 1024, 512, writes=True)

    assert ["order"] == machine.kinds


def test_new_memory_has_no_past(machine: Machine) -> None:
    """Memory that was not used before may be filled on any stream."""
    _gpu_trace.MemoryAllocationCallbacks.fire_callbacks(A)
    machine.on(READER).use(A, writes=True)

    assert [] == machine.kinds


def test_same_mistake_is_told_once_and_counted(machine: Machine) -> None:
    """A loop brings one report."""
    for _ in range(3):
        handed_over(machine)
        machine.free(A)
        machine.on(HOME)

    assert 1 == len(machine.report)
    assert [2] == machine.report.counts
    assert "Found 2 times." in str(machine.report)


def test_captured_work_counts_at_each_replay(machine: Machine) -> None:
    """What is captured is not run; a replay uses all of it on its stream."""
    machine.on(HOME).allocate(A)
    machine.watch.capture_began()
    machine.use(A, writes=True)
    machine.watch.capture_ended(1)
    machine.wait(READER, HOME)
    machine.on(READER).use(A)
    before = machine.kinds
    machine.on(HOME).watch.replayed(1)

    assert [] == before
    assert ["CUDAGraph.replay"] == [hazard.operation for hazard in machine.report]


def test_stream_that_joins_a_capture_captures(machine: Machine) -> None:
    """Forks inside of a capture order nothing outside of it."""
    machine.on(HOME).allocate(A)
    machine.watch.capture_began()
    machine.wait(READER, HOME)
    machine.on(READER).use(A)
    inside = machine.kinds
    machine.watch.capture_ended(1)
    machine.on(READER).use(A)

    assert [] == inside
    assert ["order"] == machine.kinds


def test_callbacks_in_a_garbage_collection_are_taken_later(machine: Machine) -> None:
    """What comes while the model is at work goes into the inbox, in order."""
    machine.on(HOME).allocate(A)
    with machine.watch._busy:
        machine.free(A)
        waiting = len(machine.watch._inbox)
    machine.on(HOME).allocate(B)

    assert 1 == waiting
    assert 0 == len(machine.watch._inbox)
    assert [] == machine.kinds


def test_two_threads_never_wait_for_each_other(machine: Machine) -> None:
    """Each puts what it has into the inbox, and both come to an end."""

    def work(first: int) -> None:
        for count in range(500):
            machine.allocate(first + count * 4096)
            machine.free(first + count * 4096)

    threads = [threading.Thread(target=work, args=(A + (i << 40),)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    machine.on(HOME).use(B)

    assert [False, False] == [thread.is_alive() for thread in threads]
    assert 0 == len(machine.watch._inbox)
    assert 0 == len([b for b in machine.watch.model.blocks.values() if b.home])


def test_each_mode_delivers_in_its_way(machine: Machine) -> None:
    """It raises, warns or keeps still; what was delivered is not again."""
    handed_over(machine)
    machine.free(A)
    machine.on(HOME).allocate(A)
    raising = _Deliverer("raise", machine.report)
    with pytest.raises(HazardError, match="freed while") as caught:
        raising()
    raising()
    with pytest.warns(RuntimeWarning, match="freed while"):
        _Deliverer("warn", machine.report)()
    _Deliverer("collect", machine.report)()

    assert 1 == len(caught.value.hazards)


def test_host_memory_in_flight(machine: Machine) -> None:
    """Pinned memory may be written when the host knows that the copy is done."""
    source = torch.ones(8)
    use = Use(writes=False, operation="aten.copy_")
    touch = Touch(source.data_ptr(), source.nbytes, use)
    write = Touch(source.data_ptr(), source.nbytes, Use(writes=True, operation="w"))
    machine.on(HOME).allocate(A)
    machine.watch.host_copied(source.untyped_storage(), key(HOME), touch)
    machine.watch.host_used([write])
    early = machine.kinds
    _gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(HOME)
    machine.watch.host_used([write])

    assert ["host write"] == early == machine.kinds


@pytest.mark.parametrize("shared", [False, True])
def test_host_memory_given_back_in_flight(shared: bool, machine: Machine) -> None:
    """Copies are waited for in memory of torch's own, not in shared memory."""
    source = torch.ones(8)
    if shared:
        source.share_memory_()
    touch = Touch(source.data_ptr(), source.nbytes, Use(writes=False))
    machine.on(HOME).allocate(A)
    machine.watch.host_copied(source.untyped_storage(), key(HOME), touch)
    del source

    assert (["host free"] if shared else []) == machine.kinds


RECIPES = {
    "add.Tensor": (["self", "other", "alpha"], [], True),
    "add_.Tensor": (["other", "alpha"], ["self"], False),
    "add.out": (["self", "other", "alpha"], ["out"], False),
    "zeros_like.default": ([], [], True),
}


@pytest.mark.parametrize("name", RECIPES)
def test_schema_says_what_an_operator_does(name: str) -> None:
    """Reads, writes and results come from the operator's schema."""
    operator, _, overload = name.partition(".")
    recipe = recipe_of(getattr(getattr(torch.ops.aten, operator), overload))
    assert recipe is not None
    reads, writes, makes = RECIPES[name]

    assert set(reads) <= {n for _, n in recipe.reads}
    assert writes == [n for _, n in recipe.writes]
    assert makes is recipe.makes


@pytest.mark.parametrize(
    "name", ["view.default", "empty.memory_format", "_unsafe_view.default"]
)
def test_operators_without_numbers_are_passed_over(name: str) -> None:
    """Views and new empty memory use nothing."""
    operator, _, overload = name.partition(".")

    assert recipe_of(getattr(getattr(torch.ops.aten, operator), overload)) is None
