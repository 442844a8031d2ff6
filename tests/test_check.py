"""`python -m tensorpack check`: what it finds in modules, and its exit codes."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorpack import LifetimeError, clone, tensors
from tensorpack._cli import main
from tensorpack._refusals import collected

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
MANY = """
import dataclasses, enum
from torch import Tensor
from tensorpack import Payload, payload

@payload
class First(Payload):
    bad: object
    ids: Tensor

FIRST = First(bad=1, ids=None)

@payload
class Child(First):
    bad_too: list

@payload
class Quiet(First):
    more: Tensor

@payload
class Around:
    first: First

@payload
class Twice:
    ids: Tensor

    def to_device(self, device):
        return self

@payload
@dataclasses.dataclass
class Data:
    bad: dict
"""
ADAPTER = """
from tensorpack import LifetimeAdapter

class Empty(LifetimeAdapter[range]):
    pass
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


def test_check_reports_every_refusal_of_a_module(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module goes on after a refusal: it used to end at its first one."""
    package(many=MANY)

    code = main(["check", "checked"])

    printed = capsys.readouterr().out
    refused = [
        line.partition(":")[0] for line in printed.splitlines() if ".bad" in line
    ]
    assert 1 == code
    assert ["`First.bad`", "`Child.bad_too`", "`Data.bad`"] == refused
    assert 4 == printed.count("`checked.many`: refused.\n")
    assert "`Twice`: its body defines `to_device`" in printed
    assert "`checked.many:Around`: 1 field travel, 0 stay.\n" in printed
    assert printed.endswith("2 modules, 1 payload, 4 refusals, 0 not imported\n")


def test_check_reports_a_refusal_once_for_all_that_use_it(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that imports the refused class is checked as any other."""
    package(bad=BAD, user=f"from checked.bad import Broken\n{GOOD}")

    main(["check", "checked.user", "checked"])

    printed = capsys.readouterr().out
    assert 1 == printed.count("Broken.callback")
    assert "`checked.bad`: refused.\n" in printed
    assert printed.endswith("3 modules, 2 payloads, 1 refusal, 0 not imported\n")


def test_check_reports_a_refusal_that_stops_imports(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused class that is used, or an adapter, ends the import that it is in."""
    package(adapter=ADAPTER, use=f"{BAD}\nBroken(1, []).to_device('meta')\n{GOOD}")

    main(["check", "checked"])

    printed = capsys.readouterr().out
    assert "`checked.adapter`: refused.\n`Empty`: an adapter needs" in printed
    assert "The same stops the import of `checked.use`.\n" in printed
    assert (
        "What follows the refusal in `checked.adapter`, `checked.use` is not checked "
        "yet.\n"
    ) in printed
    assert printed.endswith("3 modules, 0 payloads, 2 refusals, 0 not imported\n")


def test_refused_class_of_a_check_raises_at_every_use(package: Package) -> None:
    """Whoever imports it afterwards gets its refusal, not half a payload."""
    package(bad=BAD)
    main(["check", "checked.bad"])
    broken = importlib.import_module("checked.bad").Broken(1, [])

    for use in (
        lambda: broken.to_device("meta"),
        lambda: broken.record_stream(object()),
        lambda: clone([broken]),
        lambda: list(tensors(broken)),
    ):
        with pytest.raises(LifetimeError, match=r"`Broken\.callback`"):
            use()


def test_imports_raise_as_ever(package: Package) -> None:
    """Refusals are collected by `check` alone, and in its own thread."""
    package(bad=BAD)
    raised: list[BaseException] = []

    def import_it() -> None:
        try:
            importlib.import_module("checked.bad")
        except LifetimeError as error:
            raised.append(error)

    with collected() as found:
        thread = threading.Thread(target=import_it)
        thread.start()
        thread.join()
    with pytest.raises(LifetimeError):
        importlib.import_module("checked.bad")

    assert 1 == len(raised)
    assert [] == found


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
