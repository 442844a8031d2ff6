"""What the type checkers say of the probes; the table has what they say here."""

import json
from collections.abc import Mapping
from pathlib import Path

import compare_checkers
import pytest
from projects import Project

HERE = Path(__file__).parent
FILES = ("probes.txt", "beyond.txt")
NEEDS_PLUGIN = {"a class without the base has the methods"}
Verdicts = Mapping[str, str]


def of_mypy(name: str, project: Project) -> Verdicts:
    """Judge a file of probes by mypy with the plugin."""
    text = (HERE / name).read_text()
    project.write("probes.py", text)
    lines = frozenset(error.line for error in project.mypy("probes.py"))
    return compare_checkers.verdicts(text, lines)


def of_pyright(name: str) -> Verdicts:
    """Judge a file of probes by pyright."""
    return compare_checkers.judge((HERE / name).read_text(), "pyright")


def column(checker: str) -> Verdicts:
    """Read a checker's column of the tables."""
    found = {}
    for line in (HERE / "README.md").read_text().splitlines():
        title, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(compare_checkers.CHECKERS) and title not in ("", "probe"):
            found[title] = dict(zip(compare_checkers.CHECKERS, cells, strict=True))
    return {t: row[checker] for t, row in found.items() if not t.startswith("---")}


@pytest.mark.parametrize("name", FILES)
def test_mypy_with_the_plugin_is_right_on_every_probe(
    name: str, project: Project
) -> None:
    """All that is right is accepted, all that is wrong is reported."""
    judged = of_mypy(name, project)

    assert {} == {title: said for title, said in judged.items() if said != "ok"}
    assert set(judged) <= {*column("mypy + plugin"), "what all probes use"}


def test_there_are_thirty_probes() -> None:
    """The head of the file is no probe."""
    assert 30 == len(list(compare_checkers.probes((HERE / FILES[0]).read_text()))) - 1


def test_pyright_reports_nothing_false_with_the_base() -> None:
    """The base shows pyright all that it needs, and the table says what it saw."""
    judged = of_pyright("probes.txt")
    false = {title for title, said in judged.items() if "false" in said}

    assert NEEDS_PLUGIN == false
    assert judged.items() - {("what all probes use", "ok")} <= column("pyright").items()


def test_package_is_completely_typed() -> None:
    """Every public symbol has a type that all checkers agree on."""
    command = ("--verifytypes", "tensorpack", "--ignoreexternal", "--outputjson")
    report = json.loads(compare_checkers.run(HERE, "pyright", *command))

    assert 1 == report["typeCompleteness"]["completenessScore"], report


def test_no_checker_reports_anything_false_with_the_base() -> None:
    """The table has a false error only where the base is left out on purpose."""
    titles = {t for t, _ in compare_checkers.probes((HERE / FILES[0]).read_text())}
    for checker in compare_checkers.CHECKERS:
        false = {t for t, said in column(checker).items() if "false" in said}

        assert false & titles <= NEEDS_PLUGIN, checker
