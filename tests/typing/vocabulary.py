"""The names that the annotations of `annotations.txt` speak of."""

import abc
import collections
import dataclasses
import enum
import threading
from collections.abc import Callable, Sequence
from typing import (
    Annotated,
    ClassVar,
    Generic,
    NamedTuple,
    NewType,
    Optional,
    Protocol,
    TypeVar,
)

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import TypedDict

from tensorpack import (
    Borrowed,
    Derived,
    Dynamic,
    HostOnly,
    LifetimeAdapter,
    Payload,
    host_only,
    payload,
    register,
)

T = TypeVar("T")
TensorT = TypeVar("TensorT", bound=Tensor)
LeafOrInt = TypeVar("LeafOrInt", Tensor, int)


@payload
class Inner(Payload):
    """A payload."""

    x: Tensor


@payload
class InnerNoBase:
    """A payload without the base."""

    x: Tensor


@payload
@dataclasses.dataclass
class InnerData:
    """A payload over a dataclass."""

    x: Tensor


@payload
class Box(Payload, Generic[TensorT]):
    """A generic payload."""

    x: TensorT


class Bare(Inner):
    """A subclass of a payload without the decorator."""


class KV:
    """A foreign class with an adapter."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class KVChild(KV):
    """A subclass of a class with an adapter."""


class KV2(KV):
    """A foreign class with an adapter by functions."""


class KV3:
    """A foreign class without an adapter."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class KVAdapter(LifetimeAdapter[KV]):
    """The adapter of `KV`."""

    def leaves(self, value: KV) -> list[Tensor]:
        return [value.keys]

    def rebuild(self, value: KV, leaves: Sequence[Tensor]) -> KV:
        return KV(leaves[0])


register(KV2, leaves=lambda kv: [kv.keys], rebuild=lambda _, new: KV2(new[0]))


class Adopted:
    """A class that cannot be edited, and is made a payload from outside."""


@attrs.define
class Foreign:
    """The same, with fields."""

    x: Tensor


payload(Foreign)


class Own:
    """Moves and records itself."""

    device = torch.device("cpu")

    def to_device(self, device: torch.device) -> "Own":
        return self

    def record_stream(self, stream: torch.Stream) -> None: ...


class OwnBySlots:
    """Moves and records itself, and keeps its device in a slot."""

    __slots__ = ("device",)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to(self, device: torch.device) -> "OwnBySlots":
        return self

    def record_stream(self, stream: torch.Stream) -> None: ...


class HalfOwn:
    """Records itself, and nobody can tell where it is."""

    def to_device(self, device: torch.device) -> "HalfOwn":
        return self

    def record_stream(self, stream: torch.Stream) -> None: ...


class LateOwn:
    """The same: its device is only known once `__init__` has run."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def to_device(self, device: torch.device) -> "LateOwn":
        return self

    def record_stream(self, stream: torch.Stream) -> None: ...


class OwnProtocol(Protocol):
    """What moves and records itself."""

    device: torch.device

    def to_device(self, device: torch.device) -> "OwnProtocol": ...

    def record_stream(self, stream: torch.Stream) -> None: ...


@attrs.define
class Plain:
    """An attrs class with a tensor, and no payload."""

    x: Tensor


@attrs.frozen
class HostAttrs:
    """An attrs class of host types."""

    n: int
    names: tuple[str, ...] = ()


@dataclasses.dataclass
class HostData:
    """A dataclass of host types, with one inside."""

    limit: ClassVar[int] = 8

    sizes: list[int]
    inside: HostAttrs | None = None


@dataclasses.dataclass
class MoreData(HostData):
    """A dataclass of host types that derives from one."""

    name: str = ""


@dataclasses.dataclass
class InitData:
    """A dataclass that takes what it does not keep."""

    sizes: list[int]
    kind: dataclasses.InitVar[int] = 0


@attrs.define
class HostGeneric(Generic[T]):
    """A generic struct."""

    value: T


@dataclasses.dataclass
class DataWithObject:
    """A dataclass that is no host struct."""

    extra: object


@dataclasses.dataclass
class HostBase:
    """A base without fields, whose subclasses may hold anything."""


@attrs.define
class HostTree:
    """A host struct that holds itself."""

    name: str
    children: "list[HostTree]"


class NT(NamedTuple):
    """A named tuple with a leaf."""

    x: Tensor
    n: int = 0


class NTBad(NamedTuple):
    """A named tuple with a member without support."""

    x: KV3


class NTMethod(NamedTuple):
    """A named tuple with a method of its own."""

    x: Tensor

    def double(self) -> Tensor:
        return self.x * 2


class NTChild(NT):
    """A class derived from a named tuple."""


class NTGeneric(NamedTuple, Generic[T]):
    """A generic named tuple."""

    x: T


class Paired(TypedDict, Generic[T]):
    """A generic typed dictionary."""

    first: T
    second: list[T]


class NTTree(NamedTuple):
    """A named tuple that holds itself."""

    x: Tensor
    trees: "list[NTTree]"


class TDTree(TypedDict):
    """A typed dictionary that holds itself."""

    x: Tensor
    trees: "list[TDTree]"


NTUntyped = collections.namedtuple("NTUntyped", "x y")  # noqa: PYI024


class TD(TypedDict):
    """A typed dictionary with a leaf."""

    x: Tensor
    n: int


class TDTotal(TD, total=False):
    """A typed dictionary that adds a key that may be missing."""

    more: list[Tensor]


class TDBad(TypedDict):
    """A typed dictionary with a member without support."""

    x: KV3


class TDHost(TypedDict):
    """A typed dictionary of host types."""

    n: int


class Color(enum.Enum):
    """An enumeration."""

    RED = 1


class IntColor(enum.IntEnum):
    """An enumeration of numbers."""

    RED = 1


class Speed(enum.Enum):
    """An enumeration with an adapter, which is no host type any more."""

    FAST = 1


register(Speed, leaves=lambda _: [], rebuild=lambda speed, _: speed)


class Noticed:
    """A class of annotations without a decorator."""

    x: Tensor


class MyInt(int):
    """A subclass of a host type, which may carry more."""


class MyList(list[Tensor]):
    """A container class of its own."""


class SubTensor(Tensor):
    """A tensor class of its own."""


class Abstract(abc.ABC):
    """An abstract class."""

    @abc.abstractmethod
    def run(self) -> None: ...


UserId = NewType("UserId", int)
TensorId = NewType("TensorId", Tensor)
LockId = NewType("LockId", object)
Meta = HostOnly[dict[str, object]]
Opt = Optional[Tensor]
Marked = Annotated[threading.Event, host_only]
Noted = Annotated[Tensor, "shape"]
Listed = list[T]
Nested = dict[str, "Nested | Tensor"]
NestedBad = dict[str, "NestedBad | object"]
Array = np.ndarray
Handler = Callable[[], int]

__all__ = [
    "KV",
    "KV2",
    "KV3",
    "NT",
    "TD",
    "Abstract",
    "Adopted",
    "Array",
    "Bare",
    "Borrowed",
    "Box",
    "Color",
    "DataWithObject",
    "Derived",
    "Dynamic",
    "Foreign",
    "HalfOwn",
    "Handler",
    "HostAttrs",
    "HostBase",
    "HostData",
    "HostGeneric",
    "HostOnly",
    "HostTree",
    "InitData",
    "Inner",
    "InnerData",
    "InnerNoBase",
    "IntColor",
    "KVChild",
    "LateOwn",
    "LeafOrInt",
    "Listed",
    "LockId",
    "Marked",
    "Meta",
    "MoreData",
    "MyInt",
    "MyList",
    "NTBad",
    "NTChild",
    "NTGeneric",
    "NTMethod",
    "NTTree",
    "NTUntyped",
    "Nested",
    "NestedBad",
    "Noted",
    "Noticed",
    "Opt",
    "Own",
    "OwnBySlots",
    "OwnProtocol",
    "PackedSequence",
    "Paired",
    "Payload",
    "Plain",
    "Speed",
    "SubTensor",
    "T",
    "TDBad",
    "TDHost",
    "TDTotal",
    "TDTree",
    "TensorId",
    "TensorT",
    "UserId",
]
