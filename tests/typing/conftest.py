"""Projects that mypy judges: they share one cache, since reading torch takes long."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # the modules beside the tests
SETTINGS = """\
[tool.mypy]
strict = true
plugins = ["tensorpack.mypy_plugin"]
mypy_path = {path}
cache_dir = {cache}
cache_fine_grained = true

[[tool.mypy.overrides]]
module = "tensorpack.*"
follow_imports = "silent"

[[tool.mypy.overrides]]
module = ["judged", "vocabulary"]
disallow_any_generics = false
"""
ERROR = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)")


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
        return errors_of(self.run("mypy.dmypy", "--status-file", "daemon", *flags))


def errors_of(output: str) -> list[Error]:
    """Read mypy's output; what is no line of mypy's is a failure of the run."""
    found = []
    for line in output.splitlines():
        match = ERROR.fullmatch(line)
        if match:
            text, _, code = match["text"].rpartition("  [")
            number = int(match["line"])
            found.append(Error(match["file"], number, text, code.rstrip("]")))
        elif ": note: " not in line:
            assert re.match(r"Found \d+ error|Success|Daemon started", line), output
    return found


@pytest.fixture(scope="session")
def new_project(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Project]:
    """Give the maker of projects that share the cache."""
    cache = tmp_path_factory.mktemp("mypy-cache")

    def make(more: str = "", path: tuple[Path, ...] = (HERE,)) -> Project:
        root = tmp_path_factory.mktemp("project")
        found = [str(folder) for folder in path]
        settings = SETTINGS.format(path=repr(found), cache=repr(str(cache)))
        (root / "pyproject.toml").write_text(settings + more)
        return Project(root)

    return make


@pytest.fixture
def project(new_project: Callable[[str], Project]) -> Iterator[Project]:
    """Give an empty project; its daemon, if it has one, ends with the test."""
    made = new_project("")
    yield made
    if (made.root / "daemon").exists():
        made.run("mypy.dmypy", "--status-file", "daemon", "kill")
