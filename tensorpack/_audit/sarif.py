"""Reports in SARIF 2.1.0, which code hosts show next to the lines."""

import json
from collections.abc import Sequence
from pathlib import Path

from tensorpack._audit.catalog import RULES
from tensorpack._audit.reports import Report, place

__all__ = ["as_sarif"]

_LEVELS = {"high": "error", "medium": "warning", "low": "note"}


def as_sarif(reports: Sequence[Report]) -> str:
    """Return reports as a SARIF log."""
    rules = [
        {
            "id": rule.number,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": " ".join(rule.text.split())},
        }
        for rule in RULES.values()
    ]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "tensorpack audit", "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(report) for report in reports],
            }
        ],
    }
    return json.dumps(log, indent=2)


def _result(report: Report) -> dict[str, object]:
    location = {
        "artifactLocation": {"uri": Path(report.path).as_posix()},
        "region": {"startLine": report.line},
    }
    return {
        "ruleId": report.rule,
        "level": _LEVELS[report.confidence],
        "message": {"text": f"{place(report)}: {report.why}"},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"tensorpackAudit/v1": report.key},
        "properties": {
            "class": report.cls,
            "method": report.method,
            "fields": list(report.fields),
            "confidence": report.confidence,
        },
    }
