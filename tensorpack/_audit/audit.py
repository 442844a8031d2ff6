"""The whole audit: files in, reports out."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensorpack._audit.adoption import Adoption, adoption_of
from tensorpack._audit.annotations import Reader
from tensorpack._audit.bodies import Bodies
from tensorpack._audit.field_rules import forgotten_fields
from tensorpack._audit.files import Skipped, find, read_all
from tensorpack._audit.frames import World
from tensorpack._audit.index import Index
from tensorpack._audit.method_rules import treatments
from tensorpack._audit.modules import Module
from tensorpack._audit.rebuild_rules import one_sided, rebuilds
from tensorpack._audit.reports import CONFIDENCES, Report
from tensorpack._audit.stream_rules import streams
from tensorpack._audit.subjects import subjects
from tensorpack._audit.walker_rules import walkers

__all__ = ["Findings", "audit"]


@dataclass(slots=True)
class Findings:
    """What an audit finds.

    Attributes:
        reports: by file and line.
        silenced: reports that a comment in the source silences.
        skipped: files that could not be audited.
        adoption: what `@payload` would delete.
        files: how many were audited.
        classes: how many they define.
    """

    reports: list[Report] = field(default_factory=list)
    silenced: list[Report] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    adoption: list[Adoption] = field(default_factory=list)
    files: int = 0
    classes: int = 0


def _silent(_done: int, _all: int) -> None:
    """Show no progress."""


def audit(
    paths: Iterable[Path],
    *,
    processes: int | None = None,
    progress: Callable[[int, int], None] = _silent,
) -> Findings:
    """Audit files and folders.

    Args:
        paths: files, and folders that are searched for `*.py`.
        processes: how many read files side by side; None takes one for each core.
        progress: is told how many files of how many are read.
    """
    collects = gc.isenabled()
    gc.disable()  # trees and traces have no cycles worth a search
    try:
        return _audit(paths, processes or os.cpu_count() or 1, progress)
    finally:
        if collects:
            gc.enable()


def _audit(
    paths: Iterable[Path], processes: int, progress: Callable[[int, int], None]
) -> Findings:
    findings = Findings()
    seen: set[str] = set()
    work: list[tuple[Path, Path]] = []
    for path in paths:
        for file, root in find(path, findings.skipped):
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                work.append((file, root))
    modules: list[Module] = []
    for found in read_all(
        work, processes=processes, progress=lambda done: progress(done, len(work))
    ):
        if isinstance(found, Skipped):
            findings.skipped.append(found)
        else:
            modules.append(found)
    index = Index(modules)
    world, reader = World(index, Bodies()), Reader(index)
    findings.files = len(modules)
    findings.classes = sum(len(module.classes) for module in modules)
    reports = _once(_all_reports(world, reader, findings))
    for report in sorted(reports, key=lambda each: (each.path, each.line, each.rule)):
        kept = findings.silenced if _is_silenced(report, index) else findings.reports
        kept.append(report)
    return findings


def _all_reports(world: World, reader: Reader, findings: Findings) -> Iterator[Report]:
    for subject in subjects(world, reader):
        yield from forgotten_fields(subject)
        yield from treatments(subject)
        if (found := adoption_of(subject)) is not None:
            findings.adoption.append(found)
    yield from rebuilds(world, reader)
    yield from one_sided(world)
    yield from walkers(world)
    yield from streams(world)


def _once(reports: Iterable[Report]) -> Iterator[Report]:
    """Yield each defect once: of the first class that has it, its bases come first."""
    seen = set()
    for report in reports:
        key = (report.rule, report.path, report.line, report.fields, report.declared)
        if key not in seen:
            seen.add(key)
            yield report


def _is_silenced(report: Report, index: Index) -> bool:
    """Return whether a comment at the field, in the method or the class silences it."""
    places = [
        *report.declared,
        *(("", 0) for _ in report.fields[len(report.declared) :]),
    ]
    left = set(report.fields) or {"*"}
    for silence in index.home(report.path).silences:
        cls = index.home(report.path).classes.get(report.cls)
        in_method = report.line - 2 <= silence.line <= max(report.last, report.line)
        at_class = cls is not None and cls.line - 1 <= silence.line <= cls.line
        if in_method or at_class:
            left -= left if "*" in silence.fields else set(silence.fields)
    for name, (path, line) in zip(report.fields, places, strict=False):
        for silence in index.home(path).silences if path else ():
            if line - 1 <= silence.line <= line and (
                name in silence.fields or "*" in silence.fields
            ):
                left.discard(name)
    return not left


def at_least(reports: Sequence[Report], confidence: str) -> list[Report]:
    """Return the reports of a confidence and of higher ones."""
    allowed = CONFIDENCES[: CONFIDENCES.index(confidence) + 1]
    return [report for report in reports if report.confidence in allowed]
