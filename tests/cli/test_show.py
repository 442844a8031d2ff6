"""`python -m tensorpack show`: what it prints of a class, and how it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from tensorpack._cli import main, tables

MODULE = """
import functools
from torch import Tensor
from tensorpack import HostOnly, Payload, payload

SIZE = 3

class Plain:
    pass

@payload
class Batch(Payload):
    ids: Tensor
    images: list[Tensor] | None = None
    size: int = 1
    owner: HostOnly[object] = None

    @functools.cached_property
    def total(self) -> Tensor: ...

    @functools.cached_property
    def count(self) -> int: ...

    @payload
    class Part(Payload):
        grid: Tensor
"""
BAD = """
from tensorpack import payload

@payload
class Broken:
    callback: object
"""


@pytest.fixture(params=[True, False], ids=["rich", "plain"])
def printer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print through `rich` where it is installed, then without it."""
    monkeypatch.setattr(tables, "HAS_RICH", request.param and tables.HAS_RICH)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules `shown_good` and `shown_bad` for one test."""
    (tmp_path / "shown_good.py").write_text(MODULE)
    (tmp_path / "shown_bad.py").write_text(BAD)
    (tmp_path / "shown_lost.py").write_text("import no_such_dependency\n")
    (tmp_path / "shown_exit.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "shown_typo.py").write_text("class Batch\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shown_good", "shown_bad", "shown_lost", "shown_exit", "shown_typo"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("printer", "shown")
def test_show_prints_each_field_with_its_role(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line of the table holds a field or cached property, its role and why."""
    code = main(["show", "shown_good:Batch"])

    lines = capsys.readouterr().out.splitlines()
    assert 0 == code
    for cells in (
        ("ids", "Tensor", "leaf", "a tensor"),
        ("images", "list[Tensor] | None", "leaves", "a tensor"),
        ("size", "int", "host", "a host type"),
        ("owner", "HostOnly[object]", "host only", "marked `HostOnly`"),
        ("total", "Tensor", "cached", "a cached property: a tensor"),
        ("count", "int", "host", "a cached property: a host type"),
    ):
        assert any(all(c in line for c in cells) for line in lines), cells


@pytest.mark.usefixtures("shown")
def test_show_prints_the_source_that_is_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The printed text is the text of the traversals, and compiles."""
    main(["show", "shown_good:Batch"])

    printed = capsys.readouterr().out
    source = printed[printed.index("def leaves(") :]
    compile(source, "shown", "exec")
    assert "self.ids" in source
    assert "def rebuild(" in source


@pytest.mark.usefixtures("shown")
def test_show_finds_a_class_inside_a_class(capsys: pytest.CaptureFixture[str]) -> None:
    """A dotted name after the colon reaches a nested class."""
    code = main(["show", "shown_good:Batch.Part"])

    assert 0 == code
    assert "Plan of Batch.Part" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("shown_good", "`shown_good`: does not name a class. Write `pkg.mod:Class`."),
        (":Batch", "`:Batch`: does not name a class. Write `pkg.mod:Class`."),
        (
            "shown_god:Batch",
            "`shown_god`: cannot be imported: there is no module `shown_god`.",
        ),
        (
            "shown_good.inner:Batch",
            "`shown_good.inner`: cannot be imported: there is no module "
            "`shown_good.inner`.",
        ),
        (
            "shown_good:Bach",
            "`shown_good:Bach`: there is no `Bach`. Its payloads: `shown_good:Batch`.",
        ),
        ("sys:Batch", "`sys:Batch`: there is no `Batch`. The module has no payloads."),
        (
            "shown_good:SIZE",
            "`shown_good:SIZE`: is not a class but a value of type `int`. "
            "Name a class.",
        ),
        (
            "shown_good:Plain",
            "`shown_good:Plain`: is not a payload. Decorate it with `@payload`.",
        ),
    ],
)
@pytest.mark.usefixtures("shown")
def test_show_names_what_is_wrong_with_a_target(
    target: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong spelling ends with exit code 2 and one sentence."""
    code = main(["show", target])

    assert 2 == code
    assert f"{text}\n" == capsys.readouterr().err


def test_show_asks_lazy_objects_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lazy object used to end the search for near names with its own error."""
    (tmp_path / "shown_lazy.py").write_text(
        "class Lazy:\n    @property\n    def __class__(self):\n"
        "        raise RuntimeError('not loaded')\nlazy = Lazy()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert [2, 2] == [main(["show", f"shown_lazy:{name}"]) for name in ("Bach", "lazy")]
    assert (
        "`shown_lazy:Bach`: there is no `Bach`. The module has no payloads.\n"
        "`shown_lazy:lazy`: is not a class but a value of type `Lazy`. Name a class.\n"
    ) == capsys.readouterr().err


@pytest.mark.usefixtures("shown")
def test_show_prints_the_refusal_of_a_class(capsys: pytest.CaptureFixture[str]) -> None:
    """A class that is refused is no wrong spelling: exit code 1 and the whole text."""
    code = main(["show", "shown_bad:Broken"])

    printed = capsys.readouterr().err
    assert 1 == code
    assert printed.startswith("`shown_bad:Broken`: refused.\n`Broken.callback`: ")


def test_command_line_without_a_command_says_which_there_are() -> None:
    """The package runs as a module, and its help does not import torch."""
    code = "import sys; from tensorpack._cli import main; import contextlib\n"
    code += "with contextlib.suppress(SystemExit): main(['--help'])\n"
    code += "print('torch' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert "demo" in done.stdout
    assert done.stdout.endswith("False\n")


def test_plain_table_wraps_its_last_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long last cell goes on under itself, and empty tables keep their head."""
    monkeypatch.setenv("COLUMNS", "34")

    lines = tables.plain_table("T", ["a", "why"], [["one", "two words " * 3]])

    assert [
        "T",
        "  a    why",
        "  one  two words two words two",
        "       words",
    ] == lines
    assert ["T", "  a  b"] == tables.plain_table("T", ["a", "b"], [])


def test_show_prints_the_layout_of_a_pack(capsys: pytest.CaptureFixture[str]) -> None:
    """With `--layout` the function that packs an example is readable."""
    target = "tensorpack._cli.demo.inputs:SamplingInputs"

    code = main(["show", target, "--layout"])

    printed = capsys.readouterr().out
    assert 0 == code
    assert "def pack(leaves, device, pinned):" in printed
    assert "cat((x0" in printed


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("shown_exit", "SystemExit: 0"),
        ("shown_typo", "SyntaxError: expected ':' (shown_typo.py, line 1)"),
        ("shown_lost", "it needs `no_such_dependency`, which cannot be found"),
    ],
)
def test_show_says_why_a_module_cannot_be_imported(
    module: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and exit code 2, whatever ends the import: it ended the command."""
    code = main(["show", f"{module}:Batch"])

    assert 2 == code
    assert f"`{module}`: cannot be imported: {reason}.\n" == capsys.readouterr().err
