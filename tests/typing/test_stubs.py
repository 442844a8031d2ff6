"""The stubs that `python -m tensorpack stubs` writes."""

import re
from pathlib import Path

import compare_checkers
import pytest
from projects import Project

ENGINE = (Path(__file__).parent / "engine.txt").read_text()
ALLOWED = """\
.*\\.__attrs_.*__
.*\\.__tensorpack_.*__
.*\\.__dataclass_.*__
"""
SETTINGS = """\
[mypy]
mypy_path = out
[mypy-torch.*]
follow_imports = skip
[mypy-tensorpack.*]
follow_imports = silent
"""
"""What is compared is the stub with its module: that needs no knowledge of torch."""

USER = """\
from typing import assert_type
import torch
from engine import Adopted, Box, Child, Data, Inner, Inputs, Writes
t = torch.zeros(1)
assert_type(Inner(t, hidden=2).to_device("cuda"), Inner)
assert_type(Child(t, y=[t]).to("cuda"), Child)
assert_type(Inputs(t, "1", toks=t, names=["a"]).to_device(0), Inputs)
assert_type(Data(t, n=2).pin_memory(), Data)
assert_type(Data.Nested(t).to_device("cuda"), Data.Nested)
assert_type(Box(t).to_device("cuda"), Box[torch.Tensor])
assert_type(Adopted(t).to_device("cuda"), Adopted)
assert_type(Writes(3).to, int)
Inner(t).record_stream(torch.Stream())
Inner(t, _hidden=2)  # E
Inputs(t, tokens=t)  # E
Inputs(t).ids = t  # E
Data(t, 2)  # E
Inner(t).to_device(1.5)  # E
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Write the stub of a module, and of a copy of it in a package."""
    project = Project(tmp_path_factory.mktemp("stubs"))
    project.write("engine.py", ENGINE)
    project.write("pkg/__init__.py", "")
    project.write("pkg/engine.py", ENGINE)
    output = project.run("tensorpack", "stubs", "engine", "pkg.engine", "-o", "out")
    assert "out/engine.pyi\nout/pkg/engine.pyi\n" == output
    return project


def test_stub_shows_methods_and_init(written: Project) -> None:
    """A class without the base gets both, in full; nothing is said twice."""
    text = (written.root / "out/engine.pyi").read_text()
    inner = text[text.index("class Inner") : text.index("class Inputs")]

    assert "def __init__(self, x: Tensor, hidden: int=...) -> None: ..." in inner
    assert (
        "def to_device(self, device: _torch.device | str | int, "
        "non_blocking: bool=False) -> _Self: ..."
    ) in inner
    assert "def record_stream(self, stream: _torch.Stream, /) -> None: ..." in inner
    assert len(set(re.findall(r"def (\w+)", inner))) == inner.count("def ") == 7


def test_stub_is_true_and_stubtest_would_notice(written: Project) -> None:
    """The stubtest finds nothing in one stub, and a misspelt name in the other."""
    wrong = written.root / "out/pkg/engine.pyi"
    wrong.write_text(wrong.read_text().replace(", hidden: int", ", hiden: int", 1))
    written.write("out/pkg/__init__.pyi", "")
    written.write("allowed.txt", ALLOWED)
    written.write("mypy.ini", SETTINGS)
    options = ("--allowlist", "allowed.txt", "--mypy-config-file", "mypy.ini")
    output = written.run(
        "mypy.stubtest", "engine", "pkg.engine", *options, "--ignore-unused-allowlist"
    )
    found = re.findall(r"^error: (\S+) (.*)$", output, re.MULTILINE)

    assert ["pkg.engine.Inner.__init__"] == [name for name, _ in found], output
    assert "hiden" in output


def test_stub_serves_a_checker_without_plugin(written: Project) -> None:
    """It shows pyright the methods and the `__init__` of classes without the base."""
    written.write("out/probes.py", USER)
    lines = compare_checkers.pyright_lines(written.root / "out", "pyright")

    assert {n for n, line in enumerate(USER.splitlines(), 1) if "# E" in line} == lines


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("no_such.module", "`no_such.module`: there is no module `no_such`."),
        ("pkg", "`pkg`: holds no payload."),
    ],
)
def test_module_without_payloads_is_refused(
    written: Project, module: str, said: str
) -> None:
    """The command says what is wrong, and writes nothing."""
    output = written.run("tensorpack", "stubs", module, "-o", "elsewhere")

    assert output.startswith(said)
    assert not (written.root / "elsewhere").exists()
