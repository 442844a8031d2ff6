"""Every message of the commands and of the compiled core, in full."""

import io
import os
import shutil
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import pytest
import torch.utils
from torch import Tensor

from tensorpack import DefinitionError, payload
from tensorpack._audit.baseline import known
from tensorpack._cli.bench import against
from tensorpack.transfer import native


def test_file_that_is_not_a_baseline(tmp_path: Path) -> None:
    """The file is named, whatever is in it."""
    path = tmp_path / "known.json"
    path.write_text("[]")

    with pytest.raises(ValueError, match="baseline") as caught:
        known(path)
    assert f"{path} is not a baseline of `audit`" == str(caught.value)


def test_measuring_process_that_ends() -> None:
    """What the process printed is on the screen already."""
    ended: Any = object.__new__(against._Checkout)
    ended.process = types.SimpleNamespace(stdin=io.StringIO(), stdout=io.StringIO())

    with pytest.raises(RuntimeError) as caught:
        ended.measure({})
    assert "a measuring process has ended; what it said stands above" == str(
        caught.value
    )


def test_post_init_of_a_plain_class() -> None:
    """Attrs, which makes the class, would never call it."""

    class Batch:
        ids: Tensor

        def __post_init__(self) -> None: ...

    with pytest.raises(DefinitionError) as caught:
        payload(Batch)
    assert (
        "`test_post_init_of_a_plain_class.<locals>.Batch`: "
        "it has a `__post_init__`, which only `dataclasses` calls. "
        "Rename it to `__attrs_post_init__`, or write `@dataclasses.dataclass` under "
        "`@payload`."
    ) == str(caught.value)


def test_core_that_does_not_load(tmp_path: Path) -> None:
    """It is said once, and plain Python goes on."""
    path = tmp_path / f"{native.NAME}.so"
    path.write_text("no library")

    with pytest.warns(RuntimeWarning) as caught:
        assert native._load(path) is None
    text = str(caught[0].message)
    why = f"{path}: file too short"
    assert (
        f"the compiled core was not loaded, plain Python does its work: {why}. "
        f"Delete {path}, or run `python -m tensorpack native` again."
    ) == text


def test_what_a_build_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each thing that is missing is one sentence with its remedy."""
    other = types.SimpleNamespace(name="nt", environ={})
    monkeypatch.setattr(native, "os", other)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    said = list(native._missing())
    monkeypatch.undo()

    assert [
        "The core is built on Linux and macOS only.",
        "There is no C++ compiler `c++`. Install g++, or set CXX.",
        "There is no `ninja`. Run `pip install ninja`.",
        f"There is no {tmp_path / 'Python.h'}. Install the headers of this Python.",
    ] == said


def test_builder_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's builder asks for `setuptools`."""
    monkeypatch.setattr(native, "_missing", lambda: iter(()))
    monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)
    monkeypatch.delattr(torch.utils, "cpp_extension", raising=False)
    monkeypatch.setenv("PATH", os.environ["PATH"])

    with pytest.raises(native.BuildError) as caught:
        native.build()
    why = "import of torch.utils.cpp_extension halted; None in sys.modules"
    assert (f"torch's builder cannot be imported: {why}. Install `setuptools`.") == str(
        caught.value
    )
