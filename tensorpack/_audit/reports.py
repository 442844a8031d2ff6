"""Reports, and how they are written: as text and as JSON."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tensorpack._audit.files import Skipped

__all__ = ["CONFIDENCES", "Report", "as_json", "as_text"]

CONFIDENCES = ("high", "medium", "low")


@dataclass(frozen=True, slots=True)
class Report:
    """A field that a method forgets, or another defect.

    Attributes:
        rule: `TP103`.
        path: file.
        line: of the method, or of the statement.
        cls: qualified name of the class, or "" for a function.
        method: name of the method or function.
        fields: that are forgotten; none where the defect is not of a field.
        why: one sentence or two.
        confidence: "high", "medium" or "low".
        declared: file and line of each field's declaration.
        last: the last line of the method.
    """

    rule: str
    path: str
    line: int
    cls: str
    method: str
    fields: tuple[str, ...]
    why: str
    confidence: str
    declared: tuple[tuple[str, int], ...] = ()
    last: int = 0

    @property
    def key(self) -> str:
        """What tells it from others, whatever lines are added above it."""
        where = f"{self.cls}.{self.method}" if self.cls else self.method
        return f"{self.rule} {self.path} {where} {','.join(self.fields)}"


def place(report: Report) -> str:
    """Return class, method and fields in one phrase."""
    where = f"{report.cls}.{report.method}" if report.cls else report.method
    names = ", ".join(f"`{name}`" for name in report.fields)
    return f"`{where}`: {names}" if names else f"`{where}`"


def as_text(reports: Sequence[Report], skipped: Iterable[Skipped]) -> str:
    """Return reports as lines, file by file."""
    lines = [
        f"{report.path}:{report.line}: {report.rule} [{report.confidence}] "
        f"{place(report)}\n    {report.why}"
        for report in reports
    ]
    lines += [f"{each.path}: not audited: {each.reason}" for each in skipped]
    return "\n".join(lines)


def as_json(reports: Sequence[Report], skipped: Sequence[Skipped]) -> str:
    """Return reports as JSON."""
    found = [
        {key: value for key, value in asdict(report).items() if key != "last"}
        for report in reports
    ]
    left_out = [asdict(each) for each in skipped]
    return json.dumps({"version": 1, "reports": found, "skipped": left_out}, indent=2)
