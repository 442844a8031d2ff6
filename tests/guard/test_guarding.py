"""The guard itself where there is no device: what it replaces, refuses and runs."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tensorpack.errors import GuardError
from tensorpack.guard import Report, lifetime_guard


def test_program_without_a_device_runs_as_it_is() -> None:
    """Models, backward passes and inference mode work under the guard."""
    model = torch.nn.Linear(3, 3)
    with lifetime_guard() as report:
        model(torch.ones(2, 3)).sum().backward()
        with torch.inference_mode():
            total = model(torch.ones(2, 3)).reshape(-1).to(torch.float64).sum().item()

    assert total == model(torch.ones(2, 3)).double().sum().item()
    assert [] == report.hazards


def test_everything_is_as_before_behind_the_guard() -> None:
    """What was replaced is put back."""
    names = [(torch.cuda.Stream, "__new__"), (torch.cuda.Event, "query")]
    names += [(threading.Thread, "start"), (torch.cuda.CUDAGraph, "replay")]
    before = [vars(cls)[name] for cls, name in names]
    with lifetime_guard():
        inside = [vars(cls)[name] for cls, name in names]

    assert before == [vars(cls)[name] for cls, name in names]
    assert not any(a is b for a, b in zip(before, inside, strict=True))


def test_two_guards_are_refused() -> None:
    """A guard inside of another one is an error in words."""
    with lifetime_guard(), pytest.raises(GuardError) as caught, lifetime_guard():
        pass

    assert (
        "`lifetime_guard`: another guard is watching this process. Use the report of "
        "that one."
    ) == str(caught.value)


def test_unknown_mode_is_refused() -> None:
    """A mode that does not exist is named with those that do."""
    mode: object = "print"
    with pytest.raises(ValueError, match="mode") as caught, lifetime_guard(mode):  # type: ignore[arg-type]
        pass

    text = '`mode` is \'print\'. Choose "raise", "warn" or "collect".'
    assert text == str(caught.value)


def test_allocator_without_callbacks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the allocator and the setting."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    with pytest.raises(GuardError) as caught, lifetime_guard():
        pass

    assert (
        "`lifetime_guard`: the allocator is `cudaMallocAsync`, which tells nobody what "
        "it does. Leave `backend:` out of `PYTORCH_CUDA_ALLOC_CONF`."
    ) == str(caught.value)


def test_command_runs_a_script_with_its_arguments(tmp_path: Path) -> None:
    """The program sees its own arguments, and its exit code comes back."""
    script = tmp_path / "program.py"
    script.write_text("import sys\nprint(__name__, sys.argv[1:])\nsys.exit(3)\n")
    done = subprocess.run(
        [sys.executable, "-m", "tensorpack", "guard", str(script), "a", "--b"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (3, "__main__ ['a', '--b']\n") == (done.returncode, done.stdout)


def test_command_names_a_script_that_is_not_there() -> None:
    """A missing script is one line and the exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "tensorpack", "guard", "no_such.py"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (2, "`no_such.py`: no such file. Name a script to run.\n") == (
        done.returncode,
        done.stderr,
    )


def test_fixture_watches_the_test(lifetime_guard: Report) -> None:
    """The fixture gives the report."""
    assert [] == lifetime_guard.hazards
