"""Run five type checkers over the probes, and write what each of them saw.

    python tests/typing/compare_checkers.py        # prints the table
    python tests/typing/compare_checkers.py -w     # and writes README.md

The checkers come from `pip install -e '.[typing]'`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
README = HERE / "README.md"
MYPY = "[tool.mypy]\nstrict = true\n"
PLUGIN = 'plugins = ["tensorpack.mypy_plugin"]\n'
PYREFLY = '[tool.pyrefly]\npreset = "default"\n'
Lines = frozenset[int]


def run(folder: Path, *command: str) -> str:
    """Run a program of this environment in a folder, and give its output."""
    program, *arguments = command
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"  # as if activated
    done = subprocess.run(
        [programs / program, *arguments],
        cwd=folder,
        env={**os.environ, "PATH": path, "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def mypy_lines(folder: Path, settings: str) -> Lines:
    """Give the lines that mypy reports."""
    (folder / "pyproject.toml").write_text(settings)
    output = run(folder, "mypy", "--cache-dir", str(folder / "cache"), "probes.py")
    lines = re.findall(r"^probes\.py:(\d+): error", output, re.MULTILINE)
    return frozenset(map(int, lines))


def pyright_lines(folder: Path, program: str) -> Lines:
    """Give the lines that pyright or basedpyright reports as errors."""
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    found = json.loads(run(folder, program, "--outputjson", "probes.py"))
    return frozenset(
        entry["range"]["start"]["line"] + 1
        for entry in found["generalDiagnostics"]
        if entry["severity"] == "error"
    )


def ty_lines(folder: Path) -> Lines:
    """Give the lines that ty reports as errors."""
    options = ("--output-format", "concise", "--python", sys.prefix)
    output = run(folder, "ty", "check", *options, "probes.py")
    return frozenset(map(int, re.findall(r"probes\.py:(\d+):\d+: error", output)))


def pyrefly_lines(folder: Path) -> Lines:
    """Give the lines that pyrefly reports as errors."""
    (folder / "pyproject.toml").write_text(PYREFLY)
    options = ("--output-format", "json", "--python-interpreter-path", sys.executable)
    found = json.loads(run(folder, "pyrefly", "check", *options, "probes.py"))
    return frozenset(
        entry["line"] for entry in found["errors"] if entry["severity"] == "error"
    )


CHECKERS: Mapping[str, Callable[[Path], Lines]] = {
    "mypy": lambda folder: mypy_lines(folder, MYPY),
    "mypy + plugin": lambda folder: mypy_lines(folder, MYPY + PLUGIN),
    "pyright": lambda folder: pyright_lines(folder, "pyright"),
    "basedpyright": lambda folder: pyright_lines(folder, "basedpyright"),
    "ty": ty_lines,
    "pyrefly": pyrefly_lines,
}


def probes(text: str) -> Iterator[tuple[str, range]]:
    """Yield each probe of a text with its lines; the head is a probe of its own."""
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines, 1) if line.startswith("# probe: ")]
    yield "what all probes use", range(1, starts[0])
    for start, end in zip(starts, [*starts[1:], len(lines) + 1], strict=True):
        yield lines[start - 1].removeprefix("# probe: "), range(start, end)


def verdicts(text: str, reported: Lines) -> dict[str, str]:
    """Say of each probe what a checker saw that reports some lines."""
    lines = text.splitlines()
    expected = {n for n, line in enumerate(lines, 1) if line.endswith("# E")}
    found = {}
    for title, span in probes(text):
        false = [n for n in span if n in reported - expected]
        missed = [n for n in span if n in expected - reported]
        words = ["false error"] * bool(false) + ["missed"] * bool(missed)
        found[title] = " and ".join(words) or "ok"
    return found


def judge(text: str, checker: str) -> dict[str, str]:
    """Run a checker over a text of probes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "probes.py").write_text(text)
        return verdicts(text, CHECKERS[checker](folder))


def table(name: str) -> str:
    """Make the table of one file of probes: probe by checker."""
    text = (HERE / name).read_text()
    seen = {checker: judge(text, checker) for checker in CHECKERS}
    titles = list(seen["mypy"])[1:]
    rows = ["| probe | " + " | ".join(CHECKERS) + " |", "|---" * 7 + "|"]
    for title in titles:
        cells = " | ".join(seen[checker][title] for checker in CHECKERS)
        rows.append(f"| {title} | {cells} |")
    return "\n".join(rows)


def page() -> str:
    """Write the page about what each checker sees."""
    names = ("mypy", "pyright", "basedpyright", "ty", "pyrefly")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"""\
# What each type checker sees

Written by `python tests/typing/compare_checkers.py -w`; do not edit.
With {versions}.

- **ok**: everything right is accepted, everything wrong is reported.
- **missed**: something wrong is not reported.
- **false error**: something right is reported.

## Thirty probes

The text is [probes.txt](probes.txt).

{table("probes.txt")}

## Beyond `dataclass_transform`

What attrs can do and no decorator can tell a checker of; the text is
[beyond.txt](beyond.txt).

{table("beyond.txt")}
"""


def main() -> None:
    """Print the page, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-w", "--write", action="store_true", help=f"write {README}")
    text = page()
    print(text)
    if parser.parse_args().write:
        README.write_text(text)


if __name__ == "__main__":
    main()
