"""What the plugin knows by full name, and the errors that it reports."""

from collections.abc import Mapping
from typing import Final

from mypy.errorcodes import ErrorCode

from tensorpack._rules import markers
from tensorpack._rules.markers import Marker

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

ALIASES: Mapping[str, Marker] = {
    f"{markers.__name__}.{marker.value}": marker for marker in Marker
}
"""The generic aliases: `HostOnly[T]`."""

MARKERS: Mapping[str, Marker] = {
    name: marker
    for marker in Marker
    for name in (
        f"{markers.__name__}.{marker.name.lower()}",
        f"{markers.__name__}.{Marker.__name__}.{marker.name}",
    )
}
"""The metadata of `Annotated[T, ...]`."""
