"""The plugin's modules: what they import, what they know of the run time by name."""

import subprocess
import sys

from tensorpack._leaves import adapters as _lifetime
from tensorpack._plan import type_table as at_run_time
from tensorpack._rules import markers
from tensorpack._rules.refusals import CLASSES
from tensorpack._rules.type_table import Row
from tensorpack.integrations import adapters
from tensorpack.mypy_plugin import type_table as in_mypy
from tensorpack.mypy_plugin.names import ALIASES, MARKERS, READY_ADAPTERS


def test_importing_the_plugin_imports_neither_torch_nor_attrs() -> None:
    """A run of mypy pays for no import that it does not need."""
    code = "import sys, tensorpack.mypy_plugin; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    loaded = done.stdout.split()
    ours = {name for name in loaded if name.partition(".")[0] == "tensorpack"}

    assert "tensorpack.mypy_plugin.hooks" in ours
    assert not {"torch", "attrs", "attr", "numpy"} & set(loaded)
    beside = {name for name in ours if "mypy_plugin" not in name}
    rules = {name for name in beside if name.startswith("tensorpack._rules")}
    assert {"tensorpack", "tensorpack.errors"} == beside - rules


def test_plugin_knows_every_ready_adapter() -> None:
    """A type with a ready adapter has support for mypy too."""
    assert adapters.__name__ == "tensorpack.integrations.adapters"
    assert set(_lifetime._late) == READY_ADAPTERS


def test_plugin_knows_every_marker() -> None:
    """Each marker has its alias and its names, all of them in the module of markers."""
    for marker in markers.Marker:
        named = {name for name, known in MARKERS.items() if known is marker}
        assert marker is getattr(markers, marker.name.lower())
        assert hasattr(markers, marker.value)
        assert {
            f"{markers.__name__}.{marker.name.lower()}",
            f"{markers.__name__}.Marker.{marker.name}",
        } == named
        assert marker is ALIASES[f"{markers.__name__}.{marker.value}"]


def test_both_readers_have_every_row() -> None:
    """The order of the rows is the table's; a reader only says which row applies."""
    assert set(Row) == set(at_run_time._ROWS) == set(in_mypy._ROWS)
    assert set(CLASSES) == set(at_run_time._REFUSED) == set(in_mypy._REFUSED)
