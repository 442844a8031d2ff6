"""The command `bench` on a machine without an accelerator; no figure is judged.

Speed is measured, never tested: see `tests/bench/`.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from tensorpack._cli import main
from tensorpack._cli.bench.payloads import SHAPES
from tensorpack._cli.bench.ways import HAND_WRITTEN

OURS = {"tensorpack: start, wait", "tensorpack: to_device, record_stream"}


def test_every_way_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each payload has a table with a median of each way; absent peers are named."""
    file = tmp_path / "figures.json"
    code = main(["bench", "--rounds", "1", "--device", "cpu", "--json", str(file)])
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


def test_growth_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With matplotlib there is a picture, and without it a sentence."""
    file = tmp_path / "growth.png"
    main(["bench", "--rounds", "1", "--device", "meta", "--plot", str(file)])
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

    assert f"`{rounds}` is no whole number of at least 1" in capsys.readouterr().err
