"""The command `bench` on a machine without an accelerator; no figure is judged.

Speed is measured, never tested: see `tests/bench/`.
"""

import importlib.util
import json
from pathlib import Path

import pytest

import tensorpack
from tensorpack._cli import main, tables
from tensorpack._cli.bench.payloads import SHAPES
from tensorpack._cli.bench.summary import Measured, print_summary
from tensorpack._cli.bench.ways import FLOOR, HAND_WRITTEN, OURS as START, TENSORDICT

OURS = {START, "tensorpack: to_device, record_stream"}
PEER = TENSORDICT


def test_every_way_is_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each payload has a table with a median of each way; absent peers are named."""
    file = tmp_path / "figures.json"
    monkeypatch.setenv("COLUMNS", "200")
    options = ["--device", "cpu", "--details", "--json", str(file)]
    code = main(["bench", "--rounds", "1", *options])
    figures = json.loads(file.read_text())
    printed = capsys.readouterr().out

    assert 0 == code
    assert "host-side costs only" in printed
    for name in SHAPES:
        life = figures["lives"][f"{name}, pageable, warm"]

        assert {HAND_WRITTEN, *OURS} <= set(life)
        assert min(life.values()) > 0
        assert f"{name}, pageable, warm" in printed
    for peer in ("tensordict", "torchrec"):
        if importlib.util.find_spec(peer) is None:
            assert "not installed" in printed
    assert ["8", "16", "24", "48", "96", "192"] == list(figures["growth"])


def measured(mode: str, ours: float, theirs: float | None) -> Measured:
    """Make the figures of a payload whose hand-written loop takes 200."""
    figures = {HAND_WRITTEN: 200.0, START: ours, FLOOR: 10.0}
    return Measured(
        "small", "pinned", mode, figures | ({} if theirs is None else {PEER: theirs})
    )


def test_summary_has_one_number_each_and_marks_the_best(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fractions of the hand-written loop; the floor is not marked, being no way."""
    monkeypatch.setattr(tables, "HAS_RICH", False)
    print_summary([measured("warm", 50, 190), measured("after host work", 230, 210)])
    printed = capsys.readouterr().out

    assert (
        "Pinned sources: host time of a whole life (move, record, free) as a fraction "
        "of the hand-written loop's; the best is bold\n"
        "  payload  way              warm    after host work\n"
        "  small    the loop itself  200 us  *200 us*\n"
        "  small    tensorpack       *0.25*  1.15\n"
        "  small    tensordict       0.95    1.05\n"
        "  small    the floor        0.05    0.05\n\n"
    ) == printed


def test_summary_says_what_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is missing has no number."""
    monkeypatch.setattr(tables, "HAS_RICH", False)
    print_summary([measured("warm", 50, None)])

    assert "tensordict       not installed" in capsys.readouterr().out


def test_what_means_nothing_without_an_accelerator_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ratios of transfers on the host are no measure of transfers."""
    main(["bench", "--rounds", "1", "--device", "meta", "--quick"])
    printed = capsys.readouterr().out

    assert "the ratios of `start` and of the floor mean nothing" in printed
    assert "Pageable sources" in printed
    assert "us, median" not in printed


def test_two_checkouts_are_measured_in_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a process of its own, and nothing else is measured."""
    file = tmp_path / "figures.json"
    here = str(Path(tensorpack.__file__).parent.parent)
    options = ["--device", "cpu", "--quick", "--rounds", "1", "--json", str(file)]
    code = main(["bench", "--against", here, *options])
    both = json.loads(file.read_text())["against"]

    assert 0 == code
    assert {"this", "other"} == set(both["24 small decode tensors, pageable, warm"])
    assert f"other: {here}" in capsys.readouterr().out


def test_folder_without_the_package_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured against what is not a checkout."""
    code = main(["bench", "--against", str(tmp_path)])

    assert 2 == code
    assert (
        f"--against {tmp_path}: there is no `tensorpack/__init__.py` in it\n"
    ) == capsys.readouterr().err


def test_summary_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With matplotlib there is a picture, and without it a sentence."""
    file = tmp_path / "summary.png"
    options = ["--device", "meta", "--quick", "--plot", str(file)]
    main(["bench", "--rounds", "1", *options])
    printed = capsys.readouterr().out
    drawn = importlib.util.find_spec("matplotlib") is not None

    assert drawn == file.exists()
    assert drawn == ("is drawn in" in printed)
    assert drawn != ("matplotlib is not installed" in printed)


@pytest.mark.parametrize("command", ["bench", "demo"])
@pytest.mark.parametrize("device", ["bogus", "cuda:63"])
def test_device_that_is_not_there_is_one_line(
    command: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured or served, and no traceback is shown."""
    code = main([command, "--device", device])
    message = capsys.readouterr().err

    assert 2 == code
    assert message.startswith(f"--device {device}: ")
    assert 1 == message.count("\n")


@pytest.mark.parametrize("rounds", ["0", "-1", "many"])
def test_rounds_are_whole_numbers(
    rounds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that measures nothing is refused."""
    with pytest.raises(SystemExit):
        main(["bench", f"--rounds={rounds}"])

    assert f"`{rounds}` is not a whole number of at least 1" in capsys.readouterr().err
