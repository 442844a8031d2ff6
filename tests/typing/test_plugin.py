"""What the plugin says of the modules in `cases/`, each expectation on its line."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from projects import Error, Project

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.txt"))
MARK = "  # E: "


@pytest.fixture(scope="module")
def said(new_project: Callable[[], Project]) -> Sequence[Error]:
    """Give the errors of one run of mypy over all cases."""
    project = new_project()
    for name in NAMES:
        project.write(f"{name}.py", (CASES / f"{name}.txt").read_text())
    return project.mypy(*(f"{name}.py" for name in NAMES))


def expected(name: str) -> dict[int, str]:
    """Read what has to be said, by line."""
    lines = (CASES / f"{name}.txt").read_text().splitlines()
    parts = {n: line.partition(MARK)[2] for n, line in enumerate(lines, 1)}
    return {line: text for line, text in parts.items() if text}


@pytest.mark.parametrize("name", NAMES)
def test_each_expectation_is_met(name: str, said: Sequence[Error]) -> None:
    """Each marked line is reported in these words, and no other line at all."""
    found = {
        error.line: f"{error.text}  [{error.code}]"
        for error in said
        if error.file == f"{name}.py"
    }
    wanted = expected(name)

    assert wanted.keys() == found.keys(), found
    assert {} == {n: found[n] for n, words in wanted.items() if words not in found[n]}


BARE = """\
from collections.abc import Mapping, Sequence
from torch import Tensor
from tensorpack import payload

@payload
class Batch:
    a: dict  # type: ignore[type-arg, unused-ignore]
    b: list[dict]  # type: ignore[type-arg, unused-ignore]
    c: tuple  # type: ignore[type-arg, unused-ignore]
    d: Sequence  # type: ignore[type-arg, unused-ignore]
    e: Mapping  # type: ignore[type-arg, unused-ignore]
    f: set  # type: ignore[type-arg, unused-ignore]
    g: list[Missing]  # type: ignore[name-defined]
"""


@pytest.mark.parametrize("strict", [False, True])
def test_bare_containers_are_refused_in_any_mode(
    strict: bool, new_project: Callable[[], Project]
) -> None:
    """What `--strict` says of them itself may be ignored; the refusal stays."""
    project = new_project()
    project.write("bare.py", BARE)
    said = project.mypy(*(["--strict"] if strict else []), "bare.py")
    found = {e.line: e.text for e in said if e.code == "tensorpack-lifetime"}

    assert [7, 8, 9, 10, 11, 12] == sorted(found)
    assert found[7].startswith("`Batch.a`: `dict` does not say what it contains.")
    assert found[8].startswith(
        "`Batch.b`: `dict` (in `list[dict]`) does not say what it contains"
    )
