"""`python -m tensorpack check`: what it finds in modules, and its exit codes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorpack._cli import main

GOOD = """
from torch import Tensor
from tensorpack import Derived, payload

@payload
class Batch:
    ids: Tensor
    size: int = 1
    mask: Derived[Tensor | None] = None

    @payload
    class Part:
        grid: Tensor
"""
BAD = """
from tensorpack import payload

@payload
class Broken:
    callback: object
    rest: list
"""
TWINS = """
from torch import Tensor
from tensorpack import payload

@payload
class Twice:
    ids: Tensor

    def to_device(self, device):
        return self
"""

Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Give a function that makes the package `checked` of the given modules."""

    def make(**modules: str) -> None:
        folder = tmp_path / "checked"
        folder.mkdir()
        (folder / "__init__.py").touch()
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)

    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"checked", "adopter"}:
            del sys.modules[name]


def test_check_reports_the_payloads_of_all_modules_inside(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package is walked, a class is reported once, where it is defined."""
    package(good=GOOD, uses="from checked.good import Batch\n")

    code = main(["check", "checked", "checked.good"])

    assert 0 == code
    assert (
        "`checked.good:Batch`: 1 field travel, 1 stay, 1 derived.\n"
        "`checked.good:Batch.Part`: 1 field travel, 0 stay.\n"
        "\n"
        "3 modules, 2 payloads, 0 refusals, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_reports_each_refusal_in_full(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """All bad fields are named, the other modules are still walked, exit code 1."""
    package(bad=BAD, good=GOOD, twins=TWINS)

    code = main(["check", "checked"])

    printed = capsys.readouterr().out
    assert 1 == code
    assert "`checked.bad`: refused.\n`Broken.callback`: `object`" in printed
    assert "\n`Broken.rest`: `list`" in printed
    assert "`checked.twins`: refused.\n" in printed
    assert "`to_device`" in printed
    assert printed.endswith("4 modules, 2 payloads, 2 refusals, 0 not imported\n")


def test_check_reports_a_refusal_once_for_all_it_stops(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that imports the refused one is stopped by the same refusal."""
    package(bad=BAD, user="from checked.bad import Broken\n")

    main(["check", "checked"])

    printed = capsys.readouterr().out
    assert 1 == printed.count("Broken.callback")
    assert "The same stops the import of `checked.user`.\n" in printed
    assert printed.endswith("3 modules, 0 payloads, 1 refusal, 0 not imported\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_thing", "it needs `no_such_thing`, which is not there"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_check_names_a_module_that_cannot_be_imported(
    text: str, reason: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault that is none of a payload gives exit code 2, and the walk goes on."""
    package(fault=text, good=GOOD)

    code = main(["check", "checked"])

    printed = capsys.readouterr().out
    assert 2 == code
    assert f"`checked.fault`: cannot be imported: {reason}.\n" in printed
    assert printed.endswith("3 modules, 2 payloads, 0 refusals, 1 not imported\n")


@pytest.mark.parametrize("name", ["no_such_module", "json.no_such_module"])
def test_check_names_a_module_that_is_not_there(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong spelling is said to be one."""
    code = main(["check", name])

    assert 2 == code
    assert (
        f"`{name}`: cannot be imported: there is no module `{name}`.\n\n"
        "1 module, 0 payloads, 0 refusals, 1 not imported\n"
    ) == capsys.readouterr().out


def test_check_does_not_run_a_main_module(package: Package) -> None:
    """A package's `__main__` is a program, not a module to import."""
    package(__main__="raise AssertionError")

    assert 0 == main(["check", "checked"])


def test_check_reports_a_foreign_class_that_a_module_adopts(
    package: Package,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A class of another project counts where `payload(TheirClass)` is applied."""
    package(theirs="import dataclasses, torch\n@dataclasses.dataclass\nclass Theirs:\n")
    with (tmp_path / "checked" / "theirs.py").open("a") as file:
        file.write("    ids: torch.Tensor\n")
    (tmp_path / "adopter.py").write_text(
        "from tensorpack import payload\nfrom checked.theirs import Theirs\n"
        "payload(Theirs)\n"
    )

    main(["check", "adopter"])

    assert "`checked.theirs:Theirs`: 1 field travel" in capsys.readouterr().out
