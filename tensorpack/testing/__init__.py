"""The test kit: prove an engine's lifetimes in CI, on machines without a device.

- `recorded_streams` stands in for the device and writes a log; `device_twin` puts an
  object on it.
- `assert_covers`, `assert_moves`, `assert_honest` and `assert_equal` are for the
  classes that an engine hands over, generated or hand-written.
- `example` makes an instance of a class, `reachable` finds every tensor of an object.

The pytest fixture `recorded_streams` comes with the package.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorpack.testing._assertions import (
        assert_covers as assert_covers,
        assert_honest as assert_honest,
        assert_moves as assert_moves,
    )
    from tensorpack.testing._equality import assert_equal as assert_equal
    from tensorpack.testing._example import example as example
    from tensorpack.testing._log import Entry as Entry, Log as Log
    from tensorpack.testing._oracle import reachable as reachable
    from tensorpack.testing._recording import recorded_streams as recorded_streams
    from tensorpack.testing._twin import device_twin as device_twin

# Imported when first used: pytest loads the plugin in this package at every start, and
# projects that do not use it shall not wait for torch.
_ROOMS = {
    "_assertions": ("assert_covers", "assert_honest", "assert_moves"),
    "_equality": ("assert_equal",),
    "_example": ("example",),
    "_log": ("Entry", "Log"),
    "_oracle": ("reachable",),
    "_recording": ("recorded_streams",),
    "_twin": ("device_twin",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605  # built from the table above


def __getattr__(name: str) -> object:
    """Import a name when it is first used."""
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
