"""Annotations and classes, judged by `@payload` and by the mypy plugin.

What a type means is written once, in `tensorpack._rules`, but a class and mypy's
picture of one are asked in two ways. This test compares the answers.
"""

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import pytest
from projects import Project

from tensorpack import LifetimeError

HERE = Path(__file__).parent
ANNOTATIONS = (HERE / "annotations.txt").read_text()
CLASSES = (HERE / "classes.txt").read_text()
HEADER = """\
import collections, collections.abc, dataclasses, datetime, functools, pathlib
import threading, typing, uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import (TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Literal,
    LiteralString, NoReturn, Optional, Protocol, Self, Union)
import attr, attrs, numpy, numpy.typing as npt, torch
from torch import Tensor
import tensorpack
from tensorpack import LifetimeAdapter, SupportsLifetime, derived, host_only, payload
from vocabulary import *
if TYPE_CHECKING:
    from vocabulary import Inner as Checked
"""
FOOTER = """
@payload
class Later:
    x: Tensor
"""
FUTURE = "from __future__ import annotations\n"
Judged = Mapping[str, str]
"""Why each case is refused; nothing for one that is accepted."""


@attrs.frozen
class Case:
    """A piece of code with its verdict."""

    title: str
    accepted: bool
    code: str


def annotations(text: str) -> Iterator[Case]:
    """Make a case of each annotation: a payload whose one field has it."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for number, line in enumerate(lines):
        verdict, annotation = line.split(maxsplit=1)
        variable = annotation if annotation in ("T", "TensorT", "LeafOrInt") else ""
        bases = f"(Generic[{variable}])" if variable else ""
        code = f"\n@payload\nclass P{number}{bases}:\n    x: {annotation}\n"
        yield Case(annotation, accepts(verdict), code)


def classes(text: str) -> Iterator[Case]:
    """Make a case of each block of classes."""
    for block in text.split("\n## ")[1:]:
        title, _, code = block.partition("\n")
        yield Case(title, accepts(title.split()[0]), f"\n{code}\n")


def accepts(verdict: str) -> bool:
    """Read a verdict."""
    return {"ok": True, "bad": False}[verdict]


CASES = [*annotations(ANNOTATIONS), *classes(CLASSES)]


def disagreements(cases: Sequence[Case], *judges: Judged) -> list[str]:
    """List the cases on whose verdict a judge differs."""
    return [
        case.title
        for case in cases
        for judge in judges
        if case.accepted is bool(judge[case.title])
    ]


def judge_at_run_time(*, future: bool) -> dict[str, str]:
    """Run each case, and keep what was said."""
    module = types.ModuleType("judged")
    sys.modules["judged"] = module
    run(HEADER, module)
    found = {}
    for case in CASES:
        try:
            run(FUTURE + case.code if future else case.code, module)
        except LifetimeError as error:
            found[case.title] = "\n".join(
                f"{r.reason}. {' '.join(r.remedies)}" for r in error.refusals
            )
        else:
            found[case.title] = ""
    return found


def run(text: str, module: types.ModuleType) -> None:
    """Run text in a module, without the future statement of this one."""
    exec(compile(text, "judged.py", "exec", dont_inherit=True), vars(module))  # noqa: S102


@pytest.fixture(scope="module")
def run_time() -> Iterator[tuple[Judged, Judged]]:
    """Give the verdicts of the validator, of written and of quoted annotations."""
    yield judge_at_run_time(future=False), judge_at_run_time(future=True)
    del sys.modules["judged"]


@pytest.fixture(scope="module")
def plugin(new_project: Callable[[], Project]) -> tuple[Judged, Judged]:
    """Give the verdicts of the plugin, from a cold and from a warm cache."""
    text, titles = FUTURE + HEADER, [""] * (FUTURE + HEADER).count("\n")
    for case in CASES:
        text += case.code
        titles += [case.title] * case.code.count("\n")
    project = new_project()
    runs = []
    for ending in (FOOTER, f"{FOOTER}\n"):  # the change has mypy judge the module again
        project.write("judged.py", text + ending)
        said = dict.fromkeys((case.title for case in CASES), "")
        for error in project.mypy("judged.py"):
            if error.code == "tensorpack-lifetime":
                said[titles[error.line - 1]] += f"{error.text}\n"
        runs.append(said)
    return runs[0], runs[1]


def test_corpus_is_large() -> None:
    """There are at least 90 annotations, and no case twice."""
    assert len(list(annotations(ANNOTATIONS))) >= 90
    assert len(CASES) == len({case.title for case in CASES})


def test_validator_gives_the_verdicts(run_time: tuple[Judged, Judged]) -> None:
    """`@payload` gives each case its verdict, with quoted annotations too."""
    assert [] == disagreements(CASES, *run_time)


def test_plugin_gives_the_verdicts(plugin: tuple[Judged, Judged]) -> None:
    """The plugin gives each case its verdict, also from a warm cache."""
    assert [] == disagreements(CASES, *plugin)


def test_plugin_gives_the_reasons_of_the_validator(
    run_time: tuple[Judged, Judged], plugin: tuple[Judged, Judged]
) -> None:
    """What mypy prints has the words of the run-time error, remedies included."""
    differing = [
        case.title
        for case in CASES
        for reason in run_time[1][case.title].splitlines()
        if reason not in plugin[0][case.title]
    ]

    # Here mypy has put `Any` where nothing was written, or another name for the type.
    assert [
        "typing.List",
        "NTGeneric",
        "memoryview",
        "bad a generic base that the child leaves open",
    ] == differing


@pytest.mark.parametrize("title", ["Tensor", "object", "HostOnly[Tensor]"])
def test_flipped_verdict_is_noticed(
    run_time: tuple[Judged, Judged], plugin: tuple[Judged, Judged], title: str
) -> None:
    """A wrong verdict in the corpus makes the comparison fail, for both judges."""
    right = next(line for line in ANNOTATIONS.splitlines() if line[5:] == title)
    wrong = f"{'bad ' if right.startswith('ok') else 'ok  '} {title}"
    flipped = list(annotations(ANNOTATIONS.replace(f"\n{right}\n", f"\n{wrong}\n")))

    assert [title] * 2 == disagreements(flipped, *run_time)
    assert [title] * 2 == disagreements(flipped, *plugin)
