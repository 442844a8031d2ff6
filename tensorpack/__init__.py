"""Lifetime-safe payloads between host and device for PyTorch engines."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorpack._functions import (
        clone as clone,
    )
    from tensorpack._functions import (
        evolve as evolve,
    )
    from tensorpack._functions import (
        opaque as opaque,
    )
    from tensorpack._functions import (
        record_stream as record_stream,
    )
    from tensorpack._functions import (
        tensors as tensors,
    )
    from tensorpack._functions import (
        to_device as to_device,
    )
    from tensorpack._lifetime import (
        Borrowed as Borrowed,
    )
    from tensorpack._lifetime import (
        Derived as Derived,
    )
    from tensorpack._lifetime import (
        Dynamic as Dynamic,
    )
    from tensorpack._lifetime import (
        HostOnly as HostOnly,
    )
    from tensorpack._lifetime import (
        LifetimeAdapter as LifetimeAdapter,
    )
    from tensorpack._lifetime import (
        SupportsLifetime as SupportsLifetime,
    )
    from tensorpack._lifetime import (
        borrowed as borrowed,
    )
    from tensorpack._lifetime import (
        derived as derived,
    )
    from tensorpack._lifetime import (
        dynamic as dynamic,
    )
    from tensorpack._lifetime import (
        host_only as host_only,
    )
    from tensorpack._lifetime import (
        register as register,
    )
    from tensorpack._payload import Payload as Payload
    from tensorpack._payload import payload as payload
    from tensorpack.errors import (
        CaptureError as CaptureError,
    )
    from tensorpack.errors import (
        CycleError as CycleError,
    )
    from tensorpack.errors import (
        DefinitionError as DefinitionError,
    )
    from tensorpack.errors import (
        HandoffError as HandoffError,
    )
    from tensorpack.errors import (
        LeafCountError as LeafCountError,
    )
    from tensorpack.errors import (
        LeafError as LeafError,
    )
    from tensorpack.errors import (
        LifetimeError as LifetimeError,
    )
    from tensorpack.errors import (
        StreamError as StreamError,
    )
    from tensorpack.errors import (
        TensorpackError as TensorpackError,
    )
    from tensorpack.errors import (
        UndecoratedError as UndecoratedError,
    )

# A name's module is imported when the name is first used: `import tensorpack` alone,
# as the mypy plugin causes, must not import torch.
_ROOMS = {
    "tensorpack._functions": (
        "clone",
        "evolve",
        "opaque",
        "record_stream",
        "tensors",
        "to_device",
    ),
    "tensorpack._lifetime": (
        "Borrowed",
        "Derived",
        "Dynamic",
        "HostOnly",
        "LifetimeAdapter",
        "SupportsLifetime",
        "borrowed",
        "derived",
        "dynamic",
        "host_only",
        "register",
    ),
    "tensorpack._payload": ("Payload", "payload"),
    "tensorpack.errors": (
        "CaptureError",
        "CycleError",
        "DefinitionError",
        "HandoffError",
        "LeafCountError",
        "LeafError",
        "LifetimeError",
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
