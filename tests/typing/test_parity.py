"""One corpus of annotations, judged by `@payload` and by the mypy plugin: no difference.

The rule is written twice, for a class and for mypy's picture of one. This test is what
keeps the two one rule.
"""

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CORPUS = (HERE / "annotations.txt").read_text()
HEADER = """\
import collections, collections.abc, datetime, pathlib, threading, typing, uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import (TYPE_CHECKING, Annotated, Any, Final, Generic, Literal,
    LiteralString, NoReturn, Optional, Self, Union)
import numpy, numpy.typing as npt, torch
from torch import Tensor
import tensorpack
from tensorpack import SupportsLifetime, derived, host_only, payload
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
"""Why each annotation is refused; nothing for one that is accepted."""


def corpus(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each annotation with its verdict."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            verdict, annotation = line.split(maxsplit=1)
            yield annotation, {"ok": True, "bad": False}[verdict]


ANNOTATIONS = [annotation for annotation, _ in corpus(CORPUS)]


def class_text(number: int, annotation: str) -> str:
    """Write the payload whose one field has the annotation."""
    variable = annotation if annotation in ("T", "TensorT", "LeafOrInt") else ""
    bases = f"(Generic[{variable}])" if variable else ""
    return f"\n@payload\nclass P{number}{bases}:\n    x: {annotation}\n"


def disagreements(text: str, *judges: Judged) -> list[str]:
    """List the annotations of a corpus on which a judge differs from its verdict."""
    return [
        annotation
        for annotation, accepted in corpus(text)
        for judge in judges
        if accepted is bool(judge[annotation])
    ]


def judge_at_run_time(*, future: bool) -> dict[str, str]:
    """Decorate one class for each annotation, and keep what was said."""
    module = types.ModuleType("judged")
    sys.modules["judged"] = module
    run(HEADER, module)
    found = {}
    for number, annotation in enumerate(ANNOTATIONS):
        text = class_text(number, annotation)
        try:
            run(FUTURE + text if future else text, module)
        except importlib.import_module("tensorpack").LifetimeError as error:
            found[annotation] = error.refusals[0].reason
        else:
            found[annotation] = ""
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
def plugin(new_project: Callable[[], Any]) -> tuple[Judged, Judged]:
    """Give the verdicts of the plugin, from a cold and from a warm cache."""
    text, lines = FUTURE + HEADER, {}
    for number, annotation in enumerate(ANNOTATIONS):
        text += class_text(number, annotation)
        lines[text.count("\n")] = annotation
    project = new_project()
    runs = []
    for ending in (FOOTER, f"{FOOTER}\n"):  # the change has mypy judge the module again
        project.write("judged.py", text + ending)
        runs.append(dict.fromkeys(ANNOTATIONS, ""))
        for error in project.mypy("judged.py"):
            if error.code == "tensorpack-lifetime":
                runs[-1][lines[error.line]] = error.text
    return runs[0], runs[1]


def test_corpus_is_large() -> None:
    """The corpus has at least 90 annotations, and none twice."""
    assert len(ANNOTATIONS) >= 90
    assert len(ANNOTATIONS) == len(set(ANNOTATIONS))


def test_validator_agrees_with_corpus(run_time: tuple[Judged, Judged]) -> None:
    """`@payload` gives each annotation its verdict, quoted or not."""
    assert [] == disagreements(CORPUS, *run_time)


def test_plugin_agrees_with_corpus(plugin: tuple[Judged, Judged]) -> None:
    """The plugin gives each annotation its verdict, also from a warm cache."""
    assert [] == disagreements(CORPUS, *plugin)


def test_plugin_gives_the_reason_of_the_validator(
    run_time: tuple[Judged, Judged], plugin: tuple[Judged, Judged]
) -> None:
    """What mypy prints has the words of the run-time error."""
    differing = [
        annotation
        for annotation in ANNOTATIONS
        if run_time[0][annotation] not in plugin[0][annotation]
    ]

    assert ["NTGeneric"] == differing  # mypy has put `Any` where nothing was written


@pytest.mark.parametrize("annotation", ["Tensor", "object", "HostOnly[Tensor]", "TDBad"])
def test_flipped_verdict_is_noticed(
    run_time: tuple[Judged, Judged], plugin: tuple[Judged, Judged], annotation: str
) -> None:
    """A wrong verdict in the corpus makes the comparison fail, for both judges."""
    right = next(line for line in CORPUS.splitlines() if line[5:] == annotation)
    wrong = f"{'bad ' if right.startswith('ok') else 'ok  '} {annotation}"
    flipped = CORPUS.replace(f"\n{right}\n", f"\n{wrong}\n")

    assert [annotation] * 2 == disagreements(flipped, *run_time)
    assert [annotation] * 2 == disagreements(flipped, *plugin)
