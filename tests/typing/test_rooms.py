"""The plugin's rooms: what they import, and what they know of the run time by name."""

import subprocess
import sys

from tensorpack._leaves import adapters as _lifetime
from tensorpack._rules import markers
from tensorpack.integrations import adapters
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
    assert {name for name in ours if "mypy_plugin" not in name} == {"tensorpack"}


def test_plugin_knows_every_ready_adapter() -> None:
    """A type with a ready adapter has support for mypy too."""
    assert adapters.__name__ == "tensorpack.integrations.adapters"
    assert set(_lifetime._late) == READY_ADAPTERS


def test_plugin_knows_every_marker() -> None:
    """The markers are those of the run time, under each of their names."""
    for marker in markers.Marker:
        alias = f"tensorpack._rules.markers.{marker.value}"
        assert marker.value == ALIASES[alias].value
        assert (
            marker.value
            == MARKERS[f"tensorpack._rules.markers.Marker.{marker.name}"].value
        )
        assert marker is getattr(markers, marker.name.lower())
