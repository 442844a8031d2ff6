"""The guard on a device: each planted bug is found, no right program is accused.

pytest -m cuda tests/gpu/test_guard.py -s
pytest -m cuda tests/gpu --lifetime-guard
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from guard import programs
from guard.programs import RIGHT, SIZE, WRONG, copied, line_in_danger, take_again

from tensorpack._cli.demo import PROMPTS, serve
from tensorpack.errors import GuardError, HazardError
from tensorpack.guard import lifetime_guard

pytestmark = [pytest.mark.cuda, pytest.mark.unguarded]

ROOT = Path(__file__).parent.parent.parent
DEMO_STEPS = 200
MOST_OVERHEAD = 20


@pytest.fixture(autouse=True)
def _idle() -> None:
    """Let no earlier work reach into a test."""
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", WRONG)
def test_planted_bug_is_found(name: str) -> None:
    """The one report names the operator and the line whose use is in danger."""
    wrong = WRONG[name]
    with lifetime_guard(mode="collect") as report:
        wrong.run()
    torch.cuda.synchronize()
    line = f"programs.py:{line_in_danger(wrong.run)}"

    assert [wrong.kind] == [hazard.kind for hazard in report], str(report)
    assert report.hazards[0].operation.startswith(wrong.operation)
    assert line in str(report)


@pytest.mark.parametrize("name", RIGHT)
def test_right_program_is_not_accused(name: str) -> None:
    """A right program has no hazard, also behind another one in the same process."""
    with lifetime_guard(mode="collect") as report:
        RIGHT[name]()
        RIGHT[name]()
    torch.cuda.synchronize()

    assert "" == str(report)


def test_sanitizer_of_torch_as_the_control() -> None:
    """Print which of the planted bugs torch's own sanitizer finds."""
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "guard.programs", name],
            cwd=ROOT,
            env={
                **os.environ,
                "TORCH_CUDA_SANITIZER": "1",
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in WRONG
    }
    found = []
    for name, process in running.items():
        _, said = process.communicate(timeout=300)
        if "CSAN detected" in said:
            found.append(name)
    print(f"torch's sanitizer finds {len(found)} of {len(WRONG)}: {found}")

    assert len(found) < len(WRONG)


def test_graph_is_captured_and_replayed() -> None:
    """Static buffers, a warm-up on a side stream, a capture and replays are right."""
    with lifetime_guard(mode="collect") as report:
        static = torch.zeros(SIZE, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            (static * 2).sum()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = static * 2
        for step in range(4):
            static.fill_(step)
            graph.replay()
            assert 2 * step == out[0].item()

    assert "" == str(report)


def test_replay_over_a_read_is_found() -> None:
    """A graph's output that another stream reads is overwritten by the next replay."""
    static = torch.zeros(SIZE, device="cuda")
    reader = torch.cuda.Stream()
    with lifetime_guard(mode="collect") as report:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = static * 2
        graph.replay()
        reader.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(reader):
            out.sum()
        graph.replay()
    torch.cuda.synchronize()

    assert ["CUDAGraph.replay"] == [hazard.operation for hazard in report]


def test_training_loop_is_not_accused() -> None:
    """Forward, backward on autograd's threads, and an optimizer, with a side stream."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    copies = torch.cuda.Stream()
    with lifetime_guard(mode="collect") as report:
        for _ in range(10):
            with torch.cuda.stream(copies):
                rows = torch.randn(32, 64).pin_memory().to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            rows.record_stream(torch.cuda.current_stream())
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert "" == str(report)


def test_operators_of_a_backward_pass_are_seen() -> None:
    """What autograd's own thread frees too early is found as well."""
    side = torch.cuda.Stream()
    weight = torch.ones(SIZE, device="cuda", requires_grad=True)
    seen: list[int] = []
    with lifetime_guard(mode="collect") as report:
        with torch.cuda.stream(side):
            x, _ = copied(side)
        torch.cuda.current_stream().wait_stream(side)
        (x * weight).exp().sum().backward()  # saves x, reads it on autograd's thread
        del x
        take_again(side)
        seen.append(len(report))
    torch.cuda.synchronize()

    assert [1] == seen, str(report)


def test_loader_that_pins_is_not_accused() -> None:
    """A DataLoader's pin thread and workers bring no false alarm."""
    data = torch.utils.data.TensorDataset(torch.ones(64, 8))
    loader = torch.utils.data.DataLoader(
        data, batch_size=8, num_workers=1, pin_memory=True
    )
    with lifetime_guard(mode="collect") as report:
        for (rows,) in loader:
            rows.to("cuda", non_blocking=True).sum()

    assert "" == str(report)


def test_demo_is_not_accused_and_overhead_is_bounded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """200 steps of the demo are right, and at most 20 times slower."""
    device = torch.device("cuda")
    serve(device, 10, list(PROMPTS))
    took = []
    for guarded in (False, True):
        start = time.perf_counter()
        if guarded:
            with lifetime_guard(mode="collect") as report:
                serve(device, DEMO_STEPS, list(PROMPTS))
            assert "" == str(report)
        else:
            serve(device, DEMO_STEPS, list(PROMPTS))
        took.append(time.perf_counter() - start)
    with capsys.disabled():
        print(
            f"demo: {took[0]:.2f} s, guarded {took[1]:.2f} s, {took[1] / took[0]:.1f}"
        )

    assert took[1] < MOST_OVERHEAD * took[0]


def test_raise_comes_behind_the_operator() -> None:
    """In the mode `raise` the program stops where the memory is taken again."""
    went_on = False
    with pytest.raises(HazardError, match="may still"), lifetime_guard():  # noqa: PT012  # two steps
        programs.event_wait_without_record()
        went_on = True
    assert not went_on
    torch.cuda.synchronize()


def test_kernel_of_ones_own_can_be_told() -> None:
    """What no operator does counts as soon as the report is told of it."""
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with lifetime_guard(mode="collect") as report:
        x, ready = copied(copies)
        forward.wait_event(ready)
        report.used(x, forward)
        del x
        take_again(copies)

    assert ["a kernel"] == [hazard.operation for hazard in report]


def test_shared_memory_given_back_in_flight_is_found() -> None:
    """Torch does not wait for copies from memory that it does not own."""
    source = torch.ones(1 << 20).share_memory_()
    cudart = torch.cuda.cudart()
    address, nbytes = source.data_ptr(), source.nbytes
    cudart.cudaHostRegister(address, nbytes, 0)
    with lifetime_guard(mode="collect") as report:
        there = source.to("cuda", non_blocking=True)
        torch.cuda.current_stream().query()
        torch.cuda._sleep(1000)
        again = source.to("cuda", non_blocking=True)
        del source
    torch.cuda.synchronize()
    cudart.cudaHostUnregister(address)
    del there, again

    assert "host free" in [hazard.kind for hazard in report]


def test_two_threads_do_not_block_each_other() -> None:
    """Allocator, interpreter and guard: three locks, and no thread waits for ever."""

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for size in range(1, 300):
                x = torch.empty(size * 1000, device="cuda")
                x.add_(1)
                x.record_stream(torch.cuda.current_stream())

    with lifetime_guard(mode="collect") as report:
        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        alive = [thread.is_alive() for thread in threads]

    assert [False] * 4 == alive
    assert "" == str(report)


def test_async_allocator_is_refused() -> None:
    """An allocator without callbacks is refused in words."""
    code = "from tensorpack.guard import lifetime_guard\nwith lifetime_guard(): pass"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert GuardError.__name__ in done.stderr
    assert "`cudaMallocAsync`, which tells nobody what it does" in done.stderr
