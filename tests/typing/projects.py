"""Folders of modules that mypy judges."""

import re
import subprocess
import sys
from pathlib import Path

import attrs

__all__ = ["Error", "Project", "settings_of"]

_SETTINGS = """\
[tool.mypy]
strict = true
plugins = ["tensorpack.mypy_plugin"]
mypy_path = {path}
cache_dir = {cache}
cache_fine_grained = true

[[tool.mypy.overrides]]
module = "tensorpack.*"
follow_imports = "silent"

[tool.tensorpack]
decorators = ["wrapped.engine_payload"]

[[tool.mypy.overrides]]
module = ["judged", "vocabulary"]
disallow_any_generics = false
"""
_ERROR = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)")


def settings_of(cache: Path, *search: Path) -> str:
    """Write the settings of a project: where its cache is, and where stubs are."""
    found = [str(folder) for folder in search]
    return _SETTINGS.format(path=repr(found), cache=repr(str(cache)))


@attrs.frozen
class Error:
    """An error of mypy: where it is, what it says, and its code."""

    file: str
    line: int
    text: str
    code: str


@attrs.frozen
class Project:
    """A folder of modules, with settings for mypy."""

    root: Path

    def write(self, name: str, text: str) -> Path:
        """Write a module, or change it."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *command: str) -> str:
        """Run a command of the environment in the folder, and give what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def mypy(self, *arguments: str) -> list[Error]:
        """Check modules."""
        return errors_of(self.run("mypy", *arguments))

    def dmypy(self, *arguments: str) -> list[Error]:
        """Check modules in the daemon, which starts from the common cache."""
        flags = ("run", "--", "--use-fine-grained-cache", *arguments)
        output = self.run("mypy.dmypy", "--status-file", "daemon", *flags)
        assert "Success" in output or "Found" in output, output
        return errors_of(output)


def errors_of(output: str) -> list[Error]:
    """Read mypy's output; what is no line of mypy's is a failure of the run."""
    found = []
    for line in output.splitlines():
        match = _ERROR.fullmatch(line)
        if match:
            text, _, code = match["text"].rpartition("  [")
            number = int(match["line"])
            found.append(Error(match["file"], number, text, code.rstrip("]")))
        elif ": note: " not in line:
            assert re.match(r"Found \d+ error|Success|Daemon started", line), output
    return found
