"""`python -m tensorpack audit PATH`: fields that hand-written methods forget."""

import argparse
import io
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tensorpack._audit import baseline
from tensorpack._audit.adoption import as_lines
from tensorpack._audit.audit import Findings, at_least, audit
from tensorpack._audit.catalog import RULES, chosen
from tensorpack._audit.reports import CONFIDENCES, Report, as_json, as_text
from tensorpack._audit.rule import explain
from tensorpack._audit.sarif import as_sarif

__all__ = ["add_arguments", "run"]

_WIDTH = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="files and folders; nothing in them is imported",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write reports there")
    parser.add_argument(
        "--sarif", type=Path, metavar="FILE", help="the same in SARIF 2.1.0"
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="reports in this file are known and are not told",
    )
    parser.add_argument(
        "--update-baseline",
        action="store_true",
        help="write the reports of this run into the baseline",
    )
    parser.add_argument(
        "--select", metavar="RULES", help="only these: TP101,TP11 (default: all)"
    )
    parser.add_argument("--ignore", metavar="RULES", help="all but these")
    parser.add_argument(
        "--confidence",
        choices=CONFIDENCES,
        default="medium",
        help="tell reports from this on (default: medium)",
    )
    parser.add_argument(
        "--adoption",
        action="store_true",
        help="list the methods that `@payload` would delete, and the markers it needs",
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="default: one for each core"
    )
    parser.add_argument("--explain", metavar="RULE", help="say all about a rule")


def run(args: argparse.Namespace) -> int:
    """Audit paths and print what is found.

    Returns:
        The exit code: 0 if nothing is found, 1 if something is, 2 if the audit cannot
        run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files and fields need not be in the encoding of the terminal.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if args.explain is not None:
            return _explain(args.explain)
        return _audit(args)
    except BrokenPipeError:
        # Whoever read the output has closed it: the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 2
    except (OSError, ValueError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2


def _explain(number: str) -> int:
    rule = RULES.get(number.upper())
    if rule is None:
        msg = f"no rule `{number}`: there are {min(RULES)} to {max(RULES)}"
        raise ValueError(msg)
    print(explain(rule), end="")
    return 0


def _audit(args: argparse.Namespace) -> int:
    if not args.paths:
        msg = "name a file or a folder"
        raise ValueError(msg)
    if args.update_baseline and args.baseline is None:
        msg = "--update-baseline needs --baseline FILE"
        raise ValueError(msg)
    for path in args.paths:
        if not path.exists():
            msg = f"{path}: there is no such file or folder"
            raise ValueError(msg)
    rules = chosen(args.select, args.ignore)
    old: Counter[str] = Counter()
    if args.baseline is not None and not args.update_baseline:
        old = baseline.known(args.baseline)
    findings = audit(args.paths, processes=args.processes, progress=_Progress())
    if not findings.files:
        for skipped in findings.skipped:
            print(f"{skipped.path}: not audited: {skipped.reason}", file=sys.stderr)
        msg = "no Python file could be audited"
        raise ValueError(msg)
    allowed = [each for each in findings.reports if each.rule in rules]
    reports = at_least(allowed, args.confidence)
    hidden = len(allowed) - len(reports)
    if args.update_baseline:
        baseline.write(args.baseline, reports)
        print(f"{args.baseline}: {len(reports)} reports are known from now on")
        return 0
    if args.baseline is not None:
        reports = baseline.unknown(reports, args.baseline, old)
    if args.json is not None:
        args.json.write_text(as_json(reports, findings.skipped) + "\n", "utf-8")
    if args.sarif is not None:
        args.sarif.write_text(as_sarif(reports) + "\n", "utf-8")
    _print(findings, reports, hidden, adoption=args.adoption)
    if sys.stdout is not None:
        sys.stdout.flush()
    return 1 if reports else 0


def _print(
    findings: Findings, reports: Sequence[Report], hidden: int, *, adoption: bool
) -> None:
    if text := as_text(reports, findings.skipped):
        print(text)
        print()
    lines = as_lines(findings.adoption)
    for line in lines if adoption else lines[:1]:
        print(line if adoption else line.rstrip(":") + " (--adoption lists them)")
    counts = Counter(report.confidence for report in reports)
    found = ", ".join(f"{counts[each]} {each}" for each in CONFIDENCES if counts[each])
    parts = [
        f"{findings.files} files, {findings.classes} classes",
        f"{len(reports)} reports" + (f" ({found})" if found else ""),
    ]
    if hidden:
        parts.append(f"{hidden} of lower confidence not shown")
    if findings.silenced:
        parts.append(f"{len(findings.silenced)} silenced")
    if findings.skipped:
        parts.append(f"{len(findings.skipped)} not audited")
    print("; ".join(parts))


class _Progress:
    """Shows on a terminal how many files are read."""

    def __init__(self) -> None:
        stream = sys.stderr
        self.shows = stream is not None and stream.isatty()
        self.last = -1

    def __call__(self, done: int, total: int) -> None:
        """Show progress, and remove it at the end."""
        share = _WIDTH * done // max(total, 1)
        if not self.shows or (share == self.last and done < total):
            return
        self.last = share
        bar = "#" * share + "." * (_WIDTH - share)
        end = "\r" + " " * (_WIDTH + 24) + "\r" if done >= total else ""
        sys.stderr.write(f"\r[{bar}] {done} of {total} files{end}")
        sys.stderr.flush()
