"""The command `native`: it builds, it says what is used, and what is missing."""

from pathlib import Path

import pytest

from tensorpack._cli import main
from tensorpack.transfer import native as room
from tensorpack.transfer.native import Native


def test_status_builds_nothing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It says how to build the core, and leaves the cache as it is."""
    monkeypatch.delenv(room.SWITCH, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert 0 == main(["native", "--status"])
    assert (
        "Plain Python: the core is not built. Run `python -m tensorpack native`.\n"
    ) == capsys.readouterr().out
    assert [] == list(tmp_path.iterdir())


MISSING = {
    "compiler": "There is no C++ compiler `no-compiler`. Install g++, or set CXX.\n",
    "ninja": "There is no `ninja`. Run `pip install ninja`.\n",
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_one_line(
    what: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Nothing is built, and the line has the remedy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if what == "compiler":
        monkeypatch.setenv("CXX", "no-compiler")
    else:
        real = room.shutil.which
        monkeypatch.setattr(
            room.shutil, "which", lambda name: None if name == "ninja" else real(name)
        )
        monkeypatch.setenv("CXX", "python3")

    assert 1 == main(["native"])
    assert MISSING[what] == capsys.readouterr().err


def test_failed_build_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    native: Native,
) -> None:
    """The first error of the compiler, and no file that could be taken for a core."""
    source = tmp_path / "core.cpp"
    source.write_text("#error not today\n")
    monkeypatch.setattr(room, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    assert 1 == main(["native"])
    message = capsys.readouterr().err
    assert message.startswith("The build failed: ")
    assert message.rstrip().endswith("not today")
    assert 1 == message.count("\n")
    assert not room.location().exists()
