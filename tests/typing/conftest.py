"""Projects that mypy judges: they share one cache, since reading torch takes long."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STUBS = HERE.parent.parent / "stubs"
sys.path.append(str(HERE))  # the modules beside the tests

from projects import Project, settings_of  # noqa: E402


@pytest.fixture(scope="session")
def new_project(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[], Project]:
    """Give the maker of projects that share the cache."""
    cache = tmp_path_factory.mktemp("mypy-cache")

    def make() -> Project:
        root = tmp_path_factory.mktemp("project")
        (root / "pyproject.toml").write_text(settings_of(cache, HERE, STUBS))
        return Project(root)

    return make


@pytest.fixture
def project(new_project: Callable[[], Project]) -> Iterator[Project]:
    """Give an empty project; its daemon, if it has one, ends with the test."""
    made = new_project()
    yield made
    if (made.root / "daemon").exists():
        made.run("mypy.dmypy", "--status-file", "daemon", "kill")
