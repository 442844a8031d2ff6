"""Recorded streams, device tensors, the log, and twins on the device."""

import copy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

import tensorpack.testing
from tensorpack import Borrowed, HostOnly, Payload, payload, prefetch, record_stream
from tensorpack.testing import Log, device_twin, reachable, recorded_streams

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log() -> Iterator[Log]:
    with recorded_streams() as made:
        yield made


def calls(log: Log, start: int = 0) -> list[tuple[str, int]]:
    """List what streams were given: the call and the stream's number."""
    return [(entry.call, entry.stream[2]) for entry in log.entries[start:]]


# Device tensors.


def test_tensors_of_a_recorded_machine_say_that_they_are_on_it(log: Log) -> None:
    """Whatever makes them, they have a device, numbers, and the way back."""
    row = torch.arange(6)
    made = {
        "to": row.to("cuda"),
        "to index": row.to("cuda:0"),
        "to keyword": row.to(device=torch.device("cuda"), non_blocking=True),
        "cuda": row.cuda(),
        "tensor": torch.tensor([0, 1, 2, 3, 4, 5], device="cuda"),
        "as_tensor": torch.as_tensor(row.numpy(), device="cuda"),
        "arange": torch.arange(6, device="cuda"),
        "pinned": row.pin_memory().to("cuda", non_blocking=True),
    }
    for name, tensor in made.items():
        assert tensor.is_cuda, name
        assert torch.device("cuda:0") == tensor.device, name
        assert [0, 1, 2, 3, 4, 5] == tensor.tolist(), name
        assert type(tensor.cpu()) is Tensor, name
        assert torch.equal(row, tensor.cpu()), name


def test_device_tensors_compute(log: Log) -> None:
    """Operators, views, indexing, in-place changes and host reads work as ever."""
    x = torch.arange(6, device="cuda").view(2, 3)
    x[0] = 7
    x[1, 1].add_(10)
    y = torch.cat([x, x.t().contiguous().view(2, 3)]).float()

    assert [[7, 7, 7], [3, 14, 5]] == x.tolist()
    assert (4, 3) == y.shape
    assert y.is_cuda
    assert 14.0 == y.max().item()
    assert 43 == int(x.sum())
    assert 1 == len(x[x > 7])
    assert [[1, 1]] == (x > 7).nonzero().tolist()
    assert "device='cuda:0'" in repr(x)
    assert x is x.to("cuda")
    assert x.untyped_storage()._cdata == x[1:].untyped_storage()._cdata
    assert torch.equal(x.cpu(), copy.deepcopy(x).cpu())


def test_modules_run_on_a_recorded_machine(log: Log) -> None:
    """A model moves there with its parameters, which want no gradient there."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    expected = model(torch.ones(2, 3))
    with torch.enable_grad():
        found = model.to("cuda")(torch.ones(2, 3, device="cuda"))

    assert all(p.is_cuda and not p.requires_grad for p in model.parameters())
    assert torch.allclose(expected, found.cpu())
    assert not torch.ones(1, device="cuda", requires_grad=True).requires_grad


def test_kernels_that_only_devices_have_are_not_chosen(log: Log) -> None:
    """What the host has no kernel for is taken apart: attention, recurrent cells."""
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert not torch.backends.cuda.mem_efficient_sdp_enabled()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert not torch.backends.cudnn.enabled
    for module in (
        torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        torch.nn.LSTM(4, 5),
        torch.nn.GRU(4, 5),
        torch.nn.BatchNorm1d(4),
    ):
        x = torch.ones(2, 3, 4)[(0,) * isinstance(module, torch.nn.BatchNorm1d)]
        expected = module.eval()(x)
        found = module.to("cuda")(x.to("cuda"))
        if isinstance(found, tuple):
            expected, found = expected[0], found[0]

        assert found.is_cuda
        assert torch.allclose(expected, found.cpu(), atol=1e-6)


def test_host_and_device_tensors_do_not_mix(log: Log) -> None:
    """A leaf that was left on the host fails where the model reads it."""
    device = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="on the same device"):
        device + torch.ones(3)
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        device.numpy()

    assert [2.0, 2.0, 2.0] == (device + torch.tensor(1)).tolist()


def test_inference_mode_records_too(log: Log) -> None:
    """Engines move under inference mode: the log is the same."""
    with torch.inference_mode():
        moved = torch.ones(3).to("cuda", non_blocking=True)
        moved.add_(1)

    assert [("copy", 0), ("write", 0)] == calls(log)


def test_views_and_metadata_are_no_use_of_memory(log: Log) -> None:
    """What reads no numbers is not in the log."""
    x = torch.ones(6).to("cuda", non_blocking=True)
    start = len(log)
    x.view(2, 3).t()[0].detach()
    torch.empty_like(x)
    x.unsqueeze_(0).resize_(3, 2).as_strided_((2,), (1,))

    assert (2,) == x.shape
    assert {"free"} >= {call for call, _ in calls(log, start)}


def test_pinned_memory_is_told_from_other(log: Log) -> None:
    """What was pinned says so, its views too; nothing else does."""
    assert torch.ones(2).pin_memory()[1:].is_pinned()
    assert torch.empty(2, pin_memory=True).is_pinned()
    assert not torch.ones(2).is_pinned()


def test_sparse_and_jagged_tensors_have_blocks(log: Log) -> None:
    """A stream must be recorded on each part of a leaf that has several."""
    forward = torch.Stream("cuda")
    jagged = torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(1)], layout=torch.jagged
    )
    twin = device_twin({"sparse": torch.eye(3).to_sparse(), "jagged": jagged})

    assert ["['sparse']", "['jagged']"] == log.missing(twin, forward)
    twin["sparse"]._values().record_stream(forward)
    assert ["['sparse']", "['jagged']"] == log.missing(twin, forward)
    record_stream(twin, forward)
    assert [] == log.missing(twin, forward)


# Streams and events.


def test_engine_written_by_hand_is_recorded(log: Log) -> None:
    """torch.cuda's streams, events and current stream go into the log, in order."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(copies):
        ids = torch.ones(3).to("cuda", non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
    forward.wait_event(ready)
    ids.record_stream(forward)
    with torch.cuda.stream(forward):
        ids.sum()

    assert [
        ("copy", 1),
        ("event", 1),
        ("wait", 2),
        ("record", 2),
        ("read", 2),
        ("write", 2),
        ("free", 2),
    ] == calls(log)
    log.assert_handed_over(ids, forward)
    assert [] == log.hazards()


def test_generic_streams_are_recorded(log: Log) -> None:
    """The same with torch.Stream, torch.Event and wait_stream."""
    copies, forward = torch.Stream("cuda"), torch.Stream(device="cuda:0")
    with copies:
        assert copies == torch.accelerator.current_stream()
        ids = torch.ones(3).to("cuda", non_blocking=True)
    forward.wait_stream(copies)
    ids.record_stream(forward)
    event = torch.Event("cuda")
    event.record(forward)
    event.wait(copies)

    log.assert_handed_over(ids, forward)
    assert ["event", "wait", "record", "event", "wait"] == [
        c for c, _ in calls(log)[1:]
    ]
    assert isinstance(forward, torch.Stream)
    assert isinstance(event, torch.Event)


def test_default_stream_is_current_where_none_was_entered(log: Log) -> None:
    """Each thread begins on the default stream and has its own current one."""
    stream = torch.cuda.Stream()
    seen = []

    def look() -> None:
        seen.append(torch.cuda.current_stream())
        torch.cuda.set_stream(stream)
        seen.append(torch.cuda.current_stream())

    with stream:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(look).result()
        seen.append(torch.cuda.current_stream())
    seen.append(torch.cuda.current_stream())

    default = torch.cuda.default_stream()
    assert [default, stream, stream, default] == seen


def test_threads_are_recorded(log: Log) -> None:
    """What another thread moves is on the recorded machine."""
    found = []
    thread = threading.Thread(
        target=lambda: found.append(torch.ones(2, device="cuda").is_cuda)
    )
    thread.start()
    thread.join()

    assert [True] == found


def test_order_is_followed_through_other_streams_and_the_host(log: Log) -> None:
    """A consumer may wait by way of a third stream, or after the host did."""
    one, two, three = (torch.cuda.Stream() for _ in range(3))
    with one:
        first = torch.ones(2, device="cuda")
        second = torch.ones(2, device="cuda")
    two.wait_stream(one)
    three.wait_stream(two)
    first.record_stream(three)
    log.assert_handed_over(first, three)
    four = torch.cuda.Stream()
    one.synchronize()
    second.record_stream(four)

    log.assert_handed_over(second, four)


def test_held_stream_is_not_done(log: Log) -> None:
    """Events behind a hold are pending until its end, on other streams as well."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    before = copies.record_event()
    with log.held(copies):
        ready = copies.record_event()
        forward.wait_event(ready)
        behind = forward.record_event()
        assert [True, False, False] == [e.query() for e in (before, ready, behind)]
        assert not copies.query()

    assert ready.query()
    assert behind.query()
    assert copies.query()


def test_blocking_for_a_held_stream_raises(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that synchronizes with what the test holds would block for ever."""
    monkeypatch.setattr("tensorpack.testing._clocks._PATIENCE", 0.01)
    stream = torch.cuda.Stream()
    with stream, log.held(stream), pytest.raises(RuntimeError, match="for ever"):
        torch.ones(1, device="cuda").item()


def test_host_that_blocks_is_in_the_log(log: Log) -> None:
    """Blocking copies, reads of numbers and synchronizations are told."""
    x = torch.ones(2).to("cuda", non_blocking=True)
    quiet = log.of("synchronize")
    loud: list[Callable[[], Any]] = [
        lambda: torch.ones(2).to("cuda"),
        x.cpu,
        x.tolist,
        lambda: bool(x.any()),
        x.nonzero,
        lambda: x[x > 0],
        lambda: torch.ones(2).copy_(x),
        torch.cuda.current_stream().synchronize,
        torch.cuda.synchronize,
        torch.accelerator.synchronize,
        lambda: torch.cuda.current_stream().record_event().synchronize(),
    ]

    assert [] == quiet
    for count, call in enumerate(loud):
        call()
        assert count + 1 == len(log.of("synchronize"))


def test_streams_are_made_inside_the_context_only() -> None:
    """Everything is as it was behind it, and a stream kept from it makes no more."""
    before = (torch.Stream, torch.Event, torch.cuda.Stream, torch.cuda.current_stream)
    with recorded_streams() as log, recorded_streams() as same:
        kept = torch.cuda.Stream
        assert log is same
    after = (torch.Stream, torch.Event, torch.cuda.Stream, torch.cuda.current_stream)

    assert before == after
    with pytest.raises(RuntimeError, match="inside `recorded_streams"):
        kept()


def test_tensors_outlive_the_context() -> None:
    """A tensor that is still held can be looked at."""
    with recorded_streams():
        x = torch.ones(2, device="cuda")

    assert [2.0, 2.0] == (x + 1).tolist()


def test_shared_copy_streams_do_not_outlive_the_context() -> None:
    """Loaders share a copy stream of the recorded machine, and give it up with it."""
    numbers = []
    for _ in range(2):
        with recorded_streams() as log:
            list(prefetch([torch.ones(2)], "cuda"))
            numbers.append({e.stream for e in log.of("copy")})

    assert numbers[0] == numbers[1]


# The log.


def test_log_reads_as_a_table(log: Log) -> None:
    """One line for each entry: the call, the stream, and what it is about."""
    forward = torch.cuda.Stream()
    ids = device_twin({"ids": torch.ones(2)})["ids"]
    forward.wait_event(torch.cuda.current_stream().record_event())
    ids.record_stream(forward)

    assert str(log).splitlines() == [
        "event       stream 0   event 0",
        "wait        stream 1   event 0",
        "record      stream 1   storage 0 (['ids'])",
    ]


def test_missing_names_what_no_stream_was_recorded_on(log: Log) -> None:
    """By keys of the payload, for one stream, without what is ignored or borrowed."""

    @payload
    class Batch(Payload):
        ids: Tensor
        images: list[Tensor]
        cache: Borrowed[Tensor]
        stays: HostOnly[Tensor]

    forward, other = torch.cuda.Stream(), torch.cuda.Stream()
    batch = device_twin(
        Batch(
            torch.ones(1), [torch.ones(2), torch.ones(3)], torch.ones(4), torch.ones(5)
        )
    )
    batch.images[1].record_stream(forward)
    batch.ids.record_stream(other)

    assert ["ids", "images[0]"] == log.missing(batch, forward)
    assert ["ids"] == log.missing(batch, forward, ignore=["images"])
    assert ["images[0]", "images[1]"] == log.missing(batch, other)


def test_recorded_names_every_record_in_order(log: Log) -> None:
    """Twice is twice, and what is no leaf of the payload is named by its number."""

    @payload
    class Batch(Payload):
        ids: Tensor
        again: Tensor
        images: list[Tensor]
        cache: Borrowed[Tensor]

    forward, other = torch.cuda.Stream(), torch.cuda.Stream()
    ids = torch.ones(1)
    batch = device_twin(Batch(ids, ids, [torch.ones(2), torch.ones(3)], torch.ones(4)))
    batch.record_stream(forward)

    assert ["ids", "images[0]", "images[1]"] == log.recorded(batch, forward)
    assert [] == log.recorded(batch, other)

    batch.ids.record_stream(other)
    batch.cache.record_stream(other)
    batch.images[0][1:].record_stream(forward)

    assert ["ids", "images[0]", "images[1]", "ids", "storage 3", "images[0]"] == (
        log.recorded(batch)
    )
    assert ["ids", "storage 3"] == log.recorded(batch, other)


def test_recorded_names_leaves_of_one_block_together(log: Log) -> None:
    """The allocator is told of blocks, so a record of one leaf holds for its views."""
    block = torch.ones(4, device="cuda")
    block[2:].record_stream(torch.cuda.Stream())

    assert ["['head'], ['tail']"] == log.recorded({"head": block, "tail": block[2:]})
    assert ["storage 0"] == log.recorded({"host": torch.ones(2)})


def test_recorded_reaches_every_tensor_inside(log: Log) -> None:
    """A sparse leaf has two blocks, so it is recorded twice."""
    leaf = torch.eye(2).to_sparse().to("cuda")
    record_stream(leaf, torch.Stream("cuda"))

    assert ["", ""] == log.recorded(leaf)


def test_payload_without_a_device_leaf_is_not_handed_over(log: Log) -> None:
    """The assertion does not pass for the payload that was not moved at all."""
    with pytest.raises(AssertionError, match="no leaf on a device"):
        log.assert_handed_over([torch.ones(2)], torch.cuda.Stream())


def test_memory_that_is_written_again_is_not_handed_over(log: Log) -> None:
    """A write by another stream behind the record is the producer's mistake."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with copies:
        ids = torch.ones(2, device="cuda")
    forward.wait_stream(copies)
    ids.record_stream(forward)
    with copies:
        ids.zero_()

    with pytest.raises(AssertionError, match="written by another stream after"):
        log.assert_handed_over(ids, forward)


HAZARDS = {
    "read": "stream 2 `two` reads what stream 1 `one` writes, and does not wait for it",
    "write": "writes what stream 1 `one` reads, and does not wait for it",
    "free": "freed while stream 2 `two` may still use it.",
}


@pytest.mark.parametrize("kind", HAZARDS)
def test_hazards_say_what_is_in_danger(kind: str, log: Log) -> None:
    """A race, or memory that is handed out while somebody reads it."""
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    with one:
        x = torch.ones(2).to("cuda", non_blocking=True)
    if kind != "read":
        two.wait_stream(one)
    with one:
        x.sum()
    with two:
        x.zero_() if kind == "write" else x.sum()
    if kind != "free":
        x.record_stream(two)
    del x

    assert any(HAZARDS[kind] in hazard for hazard in log.hazards())
    assert {"storage 0"} == {hazard.partition(":")[0] for hazard in log.hazards()}


def test_memory_is_safe_if_its_own_stream_waits_before_the_free(log: Log) -> None:
    """References kept until the allocation stream waits keep the lifetime as well."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with copies:
        x = torch.ones(2).to("cuda", non_blocking=True)
    forward.wait_stream(copies)
    with forward:
        x.sum()
    copies.wait_stream(forward)
    del x

    assert [] == log.hazards()


# Twins.


def test_twin_needs_no_method_of_the_class(log: Log) -> None:
    """Tensors in slots, dictionaries and containers arrive; the rest is the same."""

    @attrs.frozen
    class Inner:
        leaf: Tensor
        lock: object

    class Outer:
        def __init__(self) -> None:
            self.inner = [Inner(torch.ones(1), threading.Lock())]
            self.by_name = {"x": (torch.zeros(2), "y")}
            self.callback = self.method
            self.session = object()

        def method(self) -> None:
            raise AssertionError

    one = Outer()
    twin = device_twin(one)

    assert [True, True] == [t.is_cuda for _, t in reachable(twin)]
    assert [False, False] == [t.is_cuda for _, t in reachable(one)]
    assert one.inner[0].lock is twin.inner[0].lock
    assert one.session is twin.session
    assert one.callback == twin.callback
    assert [0.0, 0.0] == twin.by_name["x"][0].tolist()


def test_twin_keeps_host_only_fields_and_what_is_ignored(log: Log) -> None:
    """Their tensors are the same objects; one tensor in two places stays one."""

    @payload
    class Batch(Payload):
        ids: Tensor
        again: Tensor
        stays: HostOnly[Tensor]
        other: Tensor

    ids = torch.ones(2)
    one = Batch(ids, ids, torch.ones(2), torch.ones(2))
    twin = device_twin(one, ignore=["other"])

    assert twin.ids is twin.again
    assert twin.ids.is_cuda
    assert one.stays is twin.stays
    assert one.other is twin.other


def test_twin_wants_no_gradient() -> None:
    """Parameters and leaves with a gradient lose it; no context is needed."""
    twin = device_twin([torch.nn.Parameter(torch.ones(2)), torch.ones(1) * 2])

    assert [False, False] == [t.requires_grad for t in twin]
    assert all(t.is_cuda for t in twin)


# The package.


def test_public_names_are_listed_and_found() -> None:
    """Each name of the kit can be imported, and no other."""
    assert [
        "Entry",
        "Log",
        "assert_covers",
        "assert_equal",
        "assert_honest",
        "assert_moves",
        "device_twin",
        "example",
        "reachable",
        "recorded_streams",
    ] == dir(tensorpack.testing)
    for name in dir(tensorpack.testing):
        assert getattr(tensorpack.testing, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tensorpack.testing.nothing  # noqa: B018


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project with the plugin and no other."""
    plugin = ["-p", "tensorpack.testing.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugin, *options, str(folder)]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )


def test_fixture_gives_the_log(tmp_path: Path) -> None:
    """A project's test asks for `recorded_streams` and imports nothing for it."""
    (tmp_path / "test_engine.py").write_text(
        "import torch\n\n\n"
        "def test_engine(recorded_streams):\n"
        "    x = torch.ones(2).to('cuda', non_blocking=True)\n"
        "    stream = torch.cuda.Stream()\n"
        "    assert [''] == recorded_streams.missing(x, stream)\n"
    )
    done = run_pytest(tmp_path, "-q")

    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_plugin_imports_no_torch_until_it_is_used(tmp_path: Path) -> None:
    """A project that does not use the fixture does not wait for torch."""
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n\n"
        "def test_other():\n"
        "    assert 'tensorpack.testing.pytest_plugin' in sys.modules\n"
        "    assert 'torch' not in sys.modules\n"
        "    assert 'attrs' not in sys.modules\n"
    )
    done = run_pytest(tmp_path, "-q")

    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_plugin_is_announced_to_pytest() -> None:
    """Installing the package is enough to have the fixture."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert {"tensorpack": "tensorpack.testing.pytest_plugin"} == project[
        "entry-points"
    ]["pytest11"]
