"""After an edit the verdict follows, in a warm cache and in the daemon.

Every class of `inputs.py` depends on another module in another way. Each step takes
the support of one of them away, where it stands; the last step puts all back.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from projects import Error, Project, settings_of

MODULES: Mapping[str, str] = {
    "foreign.py": """
class KV: ...
class Registered: ...
class Adopted: ...
""",
    "support.py": """
from collections.abc import Sequence
from torch import Tensor
from foreign import KV, Registered
from tensorpack import HostOnly, LifetimeAdapter, register

class KVAdapter(LifetimeAdapter[KV]):
    def leaves(self, value: KV) -> list[Tensor]:
        return []
    def rebuild(self, value: KV, leaves: Sequence[Tensor]) -> KV:
        return value

register(Registered, leaves=lambda r: [], rebuild=lambda r, leaves: r)
""",
    "words.py": """
from tensorpack import HostOnly
Meta = HostOnly[dict[str, object]]
""",
    "nested.py": """
from torch import Tensor
from tensorpack import Payload, payload

@payload
class Nested:
    x: Tensor

@payload
class Based(Payload):
    x: Tensor
""",
    "deep.py": """
import attrs

@attrs.define
class Deep:
    n: int
""",
    "config.py": """
import attrs
from deep import Deep

@attrs.define
class Config:
    deep: Deep
""",
    "inputs.py": """
from torch import Tensor
import support
from config import Config
from foreign import KV, Registered
from nested import Based, Nested
from tensorpack import payload
from words import Meta

@payload
class OfField:
    x: Tensor

@payload
class OfAdapter:
    x: dict[str, KV]

@payload
class OfCall:
    x: Registered

@payload
class OfNested:
    x: Nested

@payload
class OfBased:
    x: Based | None

@payload
class OfStruct:
    x: Config

@payload
class OfAlias:
    x: Meta
""",
}
STEPS = [
    # Of another length: mypy takes a file of the same size and second for the same.
    ("inputs.py", "x: Tensor", "x: list[object]", "OfField"),
    ("support.py", "KVAdapter(LifetimeAdapter[KV])", "KVAdapter", "OfAdapter"),
    ("support.py", "register(Registered,", "dict(", "OfCall"),
    ("nested.py", "@payload\nclass Nested", "class Nested", "OfNested"),
    ("nested.py", "@payload\nclass Based", "class Based", "OfBased"),
    ("deep.py", "n: int", "n: object", "OfStruct"),
    ("words.py", "HostOnly[dict[str, object]]", "dict[str, object]", "OfAlias"),
]


def refused(errors: list[Error]) -> set[str]:
    """Name the classes of `inputs.py` that were refused."""
    return {
        error.text.strip("`").partition(".")[0]
        for error in errors
        if error.file == "inputs.py" and error.code == "tensorpack-lifetime"
    }


@pytest.fixture(params=["mypy", "dmypy"])
def check(request: pytest.FixtureRequest, project: Project) -> Callable[[], set[str]]:
    """Give the check of the modules, by mypy with its cache or by the daemon."""
    for name, text in MODULES.items():
        project.write(name, text)
    run = getattr(project, request.param)
    return lambda: refused(run("inputs.py"))


def test_verdict_follows_each_edit(
    check: Callable[[], set[str]], project: Project
) -> None:
    """Each edit takes one class's support away, whichever module it stands in."""
    lost = set[str]()
    assert lost == check()
    for name, old, new, hit in STEPS:
        path = project.root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        lost.add(hit)
        assert lost == check(), (name, new)
    for name, text in MODULES.items():
        project.write(name, text)
    assert set() == check()


def test_parallel_workers_agree(project: Project) -> None:
    """Workers see of other modules only what the cache keeps: it is enough."""
    for name, text in MODULES.items():
        project.write(name, text)
    assert set() == refused(project.mypy("-n", "2", "inputs.py"))
    for name, old, new, _ in STEPS:
        path = project.root / name
        path.write_text(path.read_text().replace(old, new, 1))

    assert {hit for *_, hit in STEPS} == refused(project.mypy("-n", "2", "inputs.py"))


WITHOUT_TORCH = """
[[tool.mypy.overrides]]
module = "torch.*"
follow_imports = "skip"
"""
SECTION = "[tool.tensorpack]\n"
"""A change of the settings has mypy read everything again, which takes long."""


def test_settings_follow(tmp_path: Path) -> None:
    """An adapter that only the settings name counts, and no longer when they do not."""
    cache = tmp_path / "cache"
    (tmp_path / "pyproject.toml").write_text(settings_of(cache) + WITHOUT_TORCH)
    project = Project(tmp_path)
    for name, text in MODULES.items():
        project.write(name, text.replace("import support\n", ""))
    settings = project.root / "pyproject.toml"
    plain = settings.read_text()
    assert {"OfAdapter", "OfCall"} == refused(project.mypy("inputs.py"))
    settings.write_text(plain.replace(SECTION, f'{SECTION}adapters = ["support"]\n'))
    assert set() == refused(project.mypy("inputs.py"))
    settings.write_text(plain)
    assert {"OfAdapter", "OfCall"} == refused(project.mypy("inputs.py"))


def test_unknown_setting_is_an_error(project: Project) -> None:
    """A misspelt key is no silent no-op."""
    settings = project.root / "pyproject.toml"
    text = settings.read_text()
    settings.write_text(text.replace(SECTION, f'{SECTION}adapter = ["x"]\n'))
    project.write("inputs.py", "")

    output = project.run("mypy", "inputs.py")
    assert "the key `adapter` is unknown" in output
    assert "pyproject.toml" in output
