"""The guard: finds cross-stream lifetime bugs in any PyTorch program, at run time.

What happens to blocks of device memory enters as events (an allocation, a use by a
stream, a record, a free, events, waits); hazards with their lines come out. The model
(`model`, `order`, `blocks`, `hazards`) knows no torch and serves the test kit as well;
`watch`, `dispatch`, `trace` and `patches` tell it what torch does.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorpack.guard.guarding import lifetime_guard as lifetime_guard
    from tensorpack.guard.hazards import Hazard as Hazard, Step as Step
    from tensorpack.guard.report import Report as Report

# Imported when first used: the transfer layer asks `queries` only.
_ROOMS = {
    "guarding": ("lifetime_guard",),
    "hazards": ("Hazard", "Step"),
    "report": ("Report",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = ["Hazard", "Report", "Step", "lifetime_guard"]


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
