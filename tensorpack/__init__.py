"""Lifetime-safe payloads between host and device for PyTorch engines."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorpack._functions import (
        clone as clone,
        compact as compact,
        evolve as evolve,
        map_tensors as map_tensors,
        opaque as opaque,
        record_stream as record_stream,
        tensors as tensors,
        to_device as to_device,
    )
    from tensorpack._leaves.adapters import (
        LifetimeAdapter as LifetimeAdapter,
        SupportsLifetime as SupportsLifetime,
        register as register,
    )
    from tensorpack._payload import (
        Payload as Payload,
        payload as payload,
    )
    from tensorpack._rules.axes import (
        Axis as Axis,
        Index as Index,
        Offsets as Offsets,
        Size as Size,
    )
    from tensorpack._rules.markers import (
        Borrowed as Borrowed,
        Derived as Derived,
        Dynamic as Dynamic,
        HostOnly as HostOnly,
        Resident as Resident,
        borrowed as borrowed,
        derived as derived,
        dynamic as dynamic,
        host_only as host_only,
        resident as resident,
    )
    from tensorpack.errors import (
        AxisError as AxisError,
        CaptureError as CaptureError,
        CycleError as CycleError,
        DefinitionError as DefinitionError,
        GuardError as GuardError,
        HandoffError as HandoffError,
        HazardError as HazardError,
        LeafCountError as LeafCountError,
        LeafError as LeafError,
        LifetimeError as LifetimeError,
        RankError as RankError,
        StreamError as StreamError,
        TensorpackError as TensorpackError,
        UndecoratedError as UndecoratedError,
    )
    from tensorpack.integrations.pytree import (
        register_pytree as register_pytree,
    )
    from tensorpack.transfer import (
        CopyStream as CopyStream,
        Counters as Counters,
        Fetch as Fetch,
        Handoff as Handoff,
    )
    from tensorpack.transfer.prefetch import (
        prefetch as prefetch,
    )

# A name's module is imported when the name is first used: `import tensorpack` alone,
# as the mypy plugin causes, must not import torch.
_ROOMS = {
    "tensorpack._functions": (
        "clone",
        "compact",
        "evolve",
        "map_tensors",
        "opaque",
        "record_stream",
        "tensors",
        "to_device",
    ),
    "tensorpack._leaves.adapters": (
        "LifetimeAdapter",
        "SupportsLifetime",
        "register",
    ),
    "tensorpack._rules.axes": ("Axis", "Index", "Offsets", "Size"),
    "tensorpack._rules.markers": (
        "Borrowed",
        "Derived",
        "Dynamic",
        "HostOnly",
        "Resident",
        "borrowed",
        "derived",
        "dynamic",
        "host_only",
        "resident",
    ),
    "tensorpack._payload": ("Payload", "payload"),
    "tensorpack.transfer.prefetch": ("prefetch",),
    "tensorpack.integrations.pytree": ("register_pytree",),
    "tensorpack.transfer": ("CopyStream", "Counters", "Fetch", "Handoff"),
    "tensorpack.errors": (
        "AxisError",
        "CaptureError",
        "CycleError",
        "DefinitionError",
        "GuardError",
        "HandoffError",
        "HazardError",
        "LeafCountError",
        "LeafError",
        "LifetimeError",
        "RankError",
        "StreamError",
        "TensorpackError",
        "UndecoratedError",
    ),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605  # built from the table above


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
