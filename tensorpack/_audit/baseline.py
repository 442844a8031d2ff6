"""A baseline: the reports that are known already, so that CI fails on new ones only."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tensorpack._audit.reports import Report

__all__ = ["known", "unknown", "write"]


def _key(report: Report, folder: Path) -> str:
    """Return what tells a report from others, with its path seen from a folder."""
    path = os.path.relpath(report.path, folder)
    return replace(report, path=Path(path).as_posix()).key


def write(path: Path, reports: Iterable[Report]) -> None:
    """Write a baseline: line numbers are not in it, so edits elsewhere change nothing.

    Raises:
        OSError: it cannot be written.
    """
    keys = sorted(_key(report, path.parent) for report in reports)
    path.write_text(json.dumps({"version": 1, "known": keys}, indent=2) + "\n")


def known(path: Path) -> Counter[str]:
    """Read a baseline.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a baseline.
    """
    try:
        keys = json.loads(path.read_text())["known"]
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{path} is not a baseline of `audit`"
        raise ValueError(msg) from error
    return Counter(map(str, keys))


def unknown(reports: Iterable[Report], path: Path, old: Counter[str]) -> list[Report]:
    """Return the reports that a baseline does not have."""
    left = Counter(old)
    new = []
    for report in reports:
        key = _key(report, path.parent)
        if left[key]:
            left[key] -= 1
        else:
            new.append(report)
    return new
