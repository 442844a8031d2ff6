"""What the plugin knows by full name, and the errors that it reports."""

import enum
from collections.abc import Mapping
from typing import Final

from mypy.errorcodes import ErrorCode

__all__ = [
    "ADAPTER",
    "ALIASES",
    "BASE",
    "LIFETIME",
    "MARKERS",
    "PAYLOAD",
    "PROTOCOL",
    "READY_ADAPTERS",
    "REGISTER",
    "TAG",
    "UNDECORATED",
    "Marker",
]

PAYLOAD: Final = "tensorpack._payload.payload"
BASE: Final = "tensorpack._payload.Payload"
REGISTER: Final = "tensorpack._leaves.adapters.register"
ADAPTER: Final = "tensorpack._leaves.adapters.LifetimeAdapter"
PROTOCOL: Final = "tensorpack._leaves.adapters.SupportsLifetime"

TAG: Final = "tensorpack"
"""The key in a class's metadata that marks it a payload; mypy's cache keeps it."""

READY_ADAPTERS: frozenset[str] = frozenset(
    {
        "tensordict.base.TensorDictBase",
        "tensordict.tensorclass.TensorClass",
        "torch.nn.utils.rnn.PackedSequence",
        "torchrec.sparse.jagged_tensor.JaggedTensor",
        "torchrec.sparse.jagged_tensor.KeyedJaggedTensor",
        "torchrec.sparse.jagged_tensor.KeyedTensor",
        "transformers.feature_extraction_utils.BatchFeature",
        "transformers.tokenization_utils_base.BatchEncoding",
    }
)
"""The foreign types for which `tensorpack.integrations.adapters` brings an adapter."""

LIFETIME: Final = ErrorCode(
    "tensorpack-lifetime",
    "Check that each field of a payload has lifetime support",
    "tensorpack",
)
UNDECORATED: Final = ErrorCode(
    "tensorpack-undecorated",
    "Check that a subclass of a payload with fields is decorated",
    "tensorpack",
)


class Marker(enum.Enum):
    """What a field's author says about it, against what its type says."""

    HOST_ONLY = "HostOnly"
    BORROWED = "Borrowed"
    DERIVED = "Derived"
    DYNAMIC = "Dynamic"


ALIASES: Mapping[str, Marker] = {
    f"tensorpack._rules.markers.{marker.value}": marker for marker in Marker
}
"""The generic aliases: `HostOnly[T]`."""

MARKERS: Mapping[str, Marker] = {
    name: marker
    for marker in Marker
    for name in (
        f"tensorpack._rules.markers.{marker.name.lower()}",
        f"tensorpack._rules.markers.Marker.{marker.name}",
    )
}
"""What stands in `Annotated[T, ...]`."""
