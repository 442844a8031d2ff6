"""Every message in full. Read each as somebody who meets it at two in the night.

Those of the transfer layer stand in `test_messages_transfer.py`, those of the kit and
of the commands in `test_messages_kit.py`, `test_testing_assertions.py` and
`test_show.py`, those of the mypy plugin beside the lines that they are about, in
`tests/typing`. `test_every_message_is_tested` looks through all of them.
"""

import ast
import collections
import dataclasses
import enum
import functools
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypedDict, TypeVar

import attrs
import numpy as np
import pytest
import torch
from subjects import Opaque
from torch import Tensor

import tensorpack
from tensorpack import (
    Borrowed,
    CaptureError,
    CopyStream,
    Derived,
    Dynamic,
    HandoffError,
    HostOnly,
    LifetimeAdapter,
    LifetimeError,
    Payload,
    StreamError,
    borrowed,
    clone,
    evolve,
    host_only,
    payload,
    register,
    to_device,
)
from tensorpack.testing import device_twin

META = torch.device("meta")
ONE = torch.ones(1)
TWO = torch.ones(2)
T = TypeVar("T")


class Undecorated:
    ids: Tensor


@dataclasses.dataclass
class Cacher:
    size: int

    @functools.cached_property
    def mask(self) -> Tensor:
        return torch.ones(self.size)


FIELD_AND_CACHE = [("field", Tensor, functools.cached_property(lambda _: ONE))]


class Bare:
    pass


class Shouting:
    def record_stream(self, stream: object) -> None: ...


class Speaker(Protocol):
    ids: Tensor


class NoClone:
    device: torch.device = torch.device("cpu")

    def to_device(self, device: object) -> "NoClone":
        return self

    def record_stream(self, stream: object) -> None: ...


class Mine(list[Tensor]):
    pass


class Handle:
    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class Derivation(Handle):
    pass


class HandleAdapter(LifetimeAdapter[Handle]):
    def leaves(self, value: Handle) -> Sequence[Tensor]:
        return [value.keys]

    def rebuild(self, value: Handle, leaves: Sequence[Tensor]) -> Handle:
        return Handle(leaves[0])


ITSELF = "ITSELF"


class Late:
    """Stands for `type Late = Later`, which Python 3.11 cannot read."""

    __type_params__ = ()

    def __init__(self, name: str) -> None:
        self.__name__ = name

    @property
    def __value__(self) -> object:
        raise NameError("name 'Later' is not defined")

    def __repr__(self) -> str:
        return self.__name__


Late.__name__ = "TypeAliasType"


@dataclasses.dataclass
class Settings:
    size: int


@dataclasses.dataclass
class Data:
    ids: Tensor


class ByHand:
    def __init__(self) -> None:
        self.mask = ONE


@dataclasses.dataclass
class OverHand(ByHand):
    size: int


@dataclasses.dataclass
class DataBase:
    mask: Tensor


class PlainBase:
    mask: Tensor


class SlotBase:
    __slots__ = ("mask",)


class Point(NamedTuple):
    x: Tensor
    n: int


class Tree(NamedTuple):
    x: Tensor
    trees: "list[Tree]"


class Entry(TypedDict, total=False):
    a: Tensor


class Other(TypedDict, total=False):
    b: Tensor


class Colour(enum.Enum):
    RED = 1


class Descriptor:
    def __get__(self, *_: object) -> None: ...

    def __set__(self, *_: object) -> None: ...


@payload
class Part(Payload):
    grid: Tensor
    part: "Part | None" = None


class Child(Part):
    mask: Tensor
    size: int


@attrs.define
@payload
class Below(Payload):
    ids: Tensor


class OnlyBase(Payload):
    pass


@payload(slots=False)
class Loose(Payload):
    ids: Tensor


def define(
    annotation: Any = Tensor,
    *bases: type,
    make: Callable[[type], type] = lambda cls: cls,
    fields: dict[str, Any] | None = None,
    keep: Any = (),
    **body: Any,
) -> Any:
    """Decorate a class `Batch` with one field."""
    cls = type("Batch", bases, {"__annotations__": {"field": annotation}, **body})
    return payload(fields=fields, keep=keep)(make(cls))


def message(act: Callable[[], object]) -> str:
    """Give the text of the error that an action raises."""
    with pytest.raises((tensorpack.TensorpackError, TypeError)) as caught:
        act()
    return str(caught.value)


OPEN = (
    "does not say what it contains. Name the types (`list[Tensor]`, `dict[str, "
    "Tensor]`)."
)

REFUSED: list[tuple[Any, str]] = [
    (
        Any,
        (
            f"`Any` {OPEN} Or write `Dynamic[Any]` to have its values walked at run "
            "time. Or write `HostOnly[Any]` if it stays on the host."
        ),
    ),
    (
        dict[str, object],
        (
            f"`object` (in `dict[str, object]`) {OPEN} Or write `Dynamic[object]` to "
            "have its values walked at run time. Or write `HostOnly[object]` if it "
            "stays on the host."
        ),
    ),
    (
        list,
        (
            f"`list` {OPEN} Or write `Dynamic[list]` to have its values walked at run "
            "time. Or write `HostOnly[list]` if it stays on the host."
        ),
    ),
    (
        list[Undecorated] | None,
        (
            "`Undecorated` (in `list[Undecorated] | None`) has no lifetime support. "
            "Decorate `Undecorated` with `@payload`, or write a "
            "`LifetimeAdapter[Undecorated]`. Or write `HostOnly[Undecorated]` if it "
            "never holds device memory."
        ),
    ),
    (
        Bare,
        (
            "`Bare` has no lifetime support. Write a `LifetimeAdapter[Bare]`. Or write "
            "`HostOnly[Bare]` if it never holds device memory."
        ),
    ),
    (
        Data,
        (
            "`Data` has fields that are not host types, and is not a payload. "
            "Decorate `Data` with `@payload`, or call `payload(Data)`. Or write "
            "`HostOnly[Data]` if it never holds device memory."
        ),
    ),
    (
        Child,
        (
            "`Child` derives from a payload but is not decorated itself. Decorate "
            "`Child` with `@payload`."
        ),
    ),
    (
        torch.nn.Linear,
        (
            "`Linear` is a module, which moves in place and cannot be recorded. "
            "Write `Borrowed[Linear]` to pass on the same object."
        ),
    ),
    (
        torch.Stream,
        (
            "`Stream` belongs to a device and does not travel. Write "
            "`Borrowed[Stream]` to pass on the same object."
        ),
    ),
    (
        Mine,
        (
            "`Mine` is a custom container, which tensorpack cannot rebuild. "
            "Write a `LifetimeAdapter[Mine]`. Or write `HostOnly[Mine]` if it "
            "never holds device memory."
        ),
    ),
    (
        Shouting,
        (
            "`Shouting` has `record_stream` but no `to_device`/`to`, or no "
            "`is_cuda`/`device`. Add a `to_device` or `to`, and an `is_cuda` or "
            "`device`, to `Shouting`. Or write a `LifetimeAdapter[Shouting]`."
        ),
    ),
    (
        Callable[[], int],
        (
            "`Callable[[], int]` is a callable, which may capture tensors. Write "
            "`HostOnly[Callable[[], int]]` if it never holds device memory."
        ),
    ),
    (
        Iterable[Tensor],
        (
            "`Iterable[Tensor]` is abstract, so a move could not rebuild the "
            "same class. Write `Sequence[...]`, `Mapping[...]` or the name of a "
            "container. Or write `HostOnly[Iterable[Tensor]]` if it never holds "
            "device memory."
        ),
    ),
    (
        "list[Nobody]",
        (
            "`Nobody` (in `list[Nobody]`) is a name that cannot be resolved when the "
            "class is made. Import it at run time (not under `TYPE_CHECKING`), "
            "before the class. Or write "
            '`Dynamic["Nobody"]` to have its values walked at run time. Or write '
            '`HostOnly["Nobody"]` if it stays on the host.'
        ),
    ),
    (
        "int[Tensor]",
        (
            "`int[Tensor]` cannot be read: TypeError: type 'int' is not "
            "subscriptable. Fix the annotation."
        ),
    ),
    (
        "Nobody(3)",
        (
            "`Nobody(3)` cannot be read: TypeError: the name `Nobody` is not "
            "known. Fix the annotation."
        ),
    ),
    (
        "ITSELF",
        "`ITSELF` refers to itself. Fix the annotation.",
    ),
    (
        Late("Late"),
        (
            "`Late` cannot be read: name 'Later' is not defined. Define the name "
            "before the class."
        ),
    ),
    (
        torch.tensor,
        (
            "`tensor` is a function, not a type. Write the type: `Tensor` for "
            "`torch.tensor`, `np.ndarray` for `np.array`. Or mark the field "
            "`HostOnly` if it stays on the host."
        ),
    ),
    (
        [Tensor],
        (
            "`[Tensor]` is a list, not a type. Write `list[...]`: "
            "`list[Tensor]`, `dict[str, Tensor]`."
        ),
    ),
    (
        dict[str, [int]],  # type: ignore[misc]
        (
            "`[int]` (in `dict[str, [int]]`) is a list, not a type. Write "
            "`list[...]`: `list[Tensor]`, `dict[str, Tensor]`."
        ),
    ),
    (
        {"a": int},
        (
            "`{'a': <class 'int'>}` is a dict, not a type. Write `dict[...]`: "
            "`list[Tensor]`, `dict[str, Tensor]`."
        ),
    ),
    (
        3,
        (
            "`3` is not a type tensorpack can move and record. Write the type of "
            "the value, or mark the field `HostOnly`."
        ),
    ),
    (
        list[T],
        (
            "`T` (in `list[T]`) is a type variable that nothing binds. Bind it in a "
            "subclass (`class Child(Base[Tensor])`) and decorate that. Or give it a "
            "bound: `TypeVar('T', bound=Tensor)`."
        ),
    ),
    (
        set[Tensor],
        (
            "`set[Tensor]` contains leaves, whose hashes change when they move. "
            "Write `list[Tensor]`."
        ),
    ),
    (
        dict[Tensor, int],
        (
            "`Tensor` (in `dict[Tensor, int]`) is the key of a mapping, and keys "
            "stay on the host. Use a host type as the key, or write a "
            "`LifetimeAdapter` for the mapping."
        ),
    ),
    (
        list[Tensor, int],  # type: ignore[misc]
        (
            "`list[Tensor, int]` is not a valid annotation: `list` takes one "
            "type. Write `list[Tensor]`, or `tuple[Tensor, ...]`."
        ),
    ),
    (
        tuple[int, *tuple[Tensor, ...]],
        (
            "`tuple[int, *tuple[Tensor, ...]]` unpacks a tuple inside. Write "
            "`tuple[X | Y, ...]`, or a `NamedTuple` with one member for each "
            "part."
        ),
    ),
    (
        Annotated[int, host_only, borrowed],
        "`HostOnly[int]` has 2 markers: `HostOnly`, `Borrowed`. Keep one of them.",
    ),
    (
        Borrowed[Tensor] | list[Tensor],
        (
            "`Borrowed[Tensor] | list[Tensor]` has a marker on one arm that another "
            "arm contradicts. Mark the whole field with one of them."
        ),
    ),
    (
        list[Derived[Tensor]],
        (
            "`Derived[Tensor]` (in `list[Derived[Tensor]]`) is inside another "
            "type, but only a whole field gets its default. Mark the whole field "
            "`Derived`."
        ),
    ),
    (
        Derived[Tensor],
        (
            "`Derived[Tensor]` needs a default, which a moved copy gets in its place. "
            "Write `field: Derived[Tensor] = None`."
        ),
    ),
    (
        OverHand,
        (
            "`OverHand` derives from `ByHand`, which may hold more than its fields. "
            "Write a `LifetimeAdapter[OverHand]`. Or write `HostOnly[OverHand]` if it "
            "never holds device memory."
        ),
    ),
    (
        Entry | Other,
        (
            "`Entry | Other` has two dictionary types that a value cannot tell "
            "apart. Keep one of them, or write `Dynamic[...]`."
        ),
    ),
    (
        list[Tensor] | list[Point],
        (
            "`list[Tensor] | list[Point]` has two `list` arms that a value cannot tell "
            "apart. Write `list[Tensor | Point]`."
        ),
    ),
    (
        Sequence[Tensor] | list[Point],
        (
            "`Sequence[Tensor] | list[Point]` has `Sequence` and `list` arms that a "
            "value cannot tell apart. Write `Sequence[Tensor | Point]`."
        ),
    ),
    (
        collections.namedtuple("Untyped", "x"),  # noqa: PYI024
        (
            "`Untyped` does not say what `x` is. Write `class Untyped(NamedTuple)` "
            "with typed members."
        ),
    ),
    (Tree, "`Tree` contains itself without end. Write `Dynamic[Tree]`."),
]


@pytest.mark.parametrize(("annotation", "text"), REFUSED, ids=lambda x: str(x)[:40])
def test_refused_annotation(annotation: Any, text: str) -> None:
    """A refusal names class, field, culprit and reason, and gives the ways out."""
    assert f"`Batch.field`: {text}" == message(lambda: define(annotation))


def test_two_refused_fields() -> None:
    """Each field has a line of its own."""
    body = {"__annotations__": {"a": set[Tensor], "ids": Tensor, "b": torch.Event}}

    assert (
        "`Batch.a`: `set[Tensor]` contains leaves, whose hashes change when they "
        "move. Write `list[Tensor]`.\n"
        "`Batch.b`: `Event` belongs to a device and does not travel. Write "
        "`Borrowed[Event]` to pass on the same object."
    ) == message(lambda: payload(type("Batch", (), body)))


def test_refused_correction() -> None:
    """An annotation given in `fields=` is judged like one in the class."""
    assert (
        "`Batch.field`: `Event` belongs to a device and does not travel. Write "
        "`Borrowed[Event]` to pass on the same object."
    ) == message(lambda: define(Tensor, fields={"field": torch.Event}))


LOST: list[tuple[Callable[[], object], str]] = [
    (
        lambda: define(Tensor, PlainBase),
        (
            "`Batch.mask`: `Tensor` is annotated in `PlainBase` but is not a "
            "field of `Batch`, so its value would be lost. Decorate `PlainBase` "
            "with `@attrs.define` or `@payload`. Or write `ClassVar[Tensor]` if "
            "it belongs to the class."
        ),
    ),
    (
        lambda: define(Tensor, DataBase),
        (
            "`Batch.mask`: `Tensor` is annotated in `DataBase` but is not a "
            "field of `Batch`, so its value would be lost. Decorate `Batch` with "
            "`@dataclasses.dataclass` under `@payload`. Or write "
            "`ClassVar[Tensor]` if it belongs to the class."
        ),
    ),
    (
        lambda: define(Tensor, SlotBase),
        (
            "`Batch.mask`: `mask` is a slot of `SlotBase` but not a field, so "
            "its value would be lost. Make it a field."
        ),
    ),
    (
        lambda: payload(dataclasses.make_dataclass("Batch", FIELD_AND_CACHE)),
        (
            "`Batch.field`: `Tensor` is the type of a field, and a cached property has "
            "the same name, so a copy could keep only one of the two. Keep one of them."
        ),
    ),
    (
        lambda: define(Cacher),
        (
            "`Batch.field`: `Cacher` keeps `mask` in a cached property whose "
            "type is not a host type. Annotate what `mask` returns with a host "
            "type. Or decorate `Cacher` with `@payload`, or call "
            "`payload(Cacher)`. Or write `HostOnly[Cacher]` if it never holds "
            "device memory."
        ),
    ),
    (
        lambda: define(dataclasses.InitVar[int]),
        (
            "`Batch.field`: `InitVar[int]` is passed to `__init__` but not "
            "stored, so it cannot travel. Make it a field, or compute from it "
            "before the class is made."
        ),
    ),
    (
        lambda: define(Derived[int], field=attrs.Factory(len, takes_self=True)),
        (
            "`Batch.field`: `Derived[int]` has a default that reads other fields, so a "
            "copy would compute it before their tensors are there. Compute it in a "
            "cached property instead: `def field(self)`. Or write a default that reads "
            "nothing: `field: Derived[int] = None`."
        ),
    ),
    (
        lambda: payload(attrs.make_class("Batch", ["field"])),
        "`Batch.field`: `field` has no annotation. For example, write `field: Tensor`.",
    ),
    (
        lambda: define(
            Tensor, make=dataclasses.dataclass(init=False), field=Descriptor()
        ),
        (
            "`Batch.field`: `field` is a descriptor (`Descriptor`), so reading it runs "
            "code. Keep the value in a plain field."
        ),
    ),
]


@pytest.mark.parametrize(("act", "text"), LOST, ids=range(len(LOST)))
def test_storage_that_would_be_lost(act: Callable[[], object], text: str) -> None:
    """What is no field, or no plain one, says where it comes from."""
    assert text == message(act)


DEFINITIONS: list[tuple[Callable[[], object], str]] = [
    (
        lambda: payload(type("Batch", (), {"__init__": lambda self: None})),
        (
            "`Batch`: it has its own `__init__` and no fields, so tensorpack "
            "cannot tell what its instances hold. Annotate its attributes in "
            "the class (`ids: Tensor`), or declare them: `payload(cls, "
            "fields={'ids': Tensor})`."
        ),
    ),
    (
        lambda: define(Tensor, extra=ONE),
        (
            "`Batch.extra`: `extra` is a `Tensor` of the class and not a field,"
            " so it would be neither moved nor recorded. Write `extra: Tensor ="
            " ...` for a field. Or write `ClassVar[Tensor]` if it belongs to "
            "the class."
        ),
    ),
    (
        lambda: define(int, extra=Part(ONE)),
        (
            "`Batch.extra`: `extra` is a `Part` of the class and not a field, "
            "so it would be neither moved nor recorded. Write `extra: Part = "
            "...` for a field. Or write `ClassVar[Part]` if it belongs to the "
            "class."
        ),
    ),
    (
        lambda: payload(3),  # type: ignore[call-overload]
        "`3`: expected a class, got an instance of `int`. Decorate a class.",
    ),
    (
        lambda: payload(Point),
        (
            "`Point`: it is a named tuple, which travels without being a payload. "
            "Use it as the type of a field."
        ),
    ),
    (
        lambda: payload(Entry),
        (
            "`Entry`: it is a typed dictionary, which travels without being a "
            "payload. Use it as the type of a field."
        ),
    ),
    (
        lambda: payload(Colour),
        (
            "`Colour`: it is an enumeration, which stays on the host. Use it as the "
            "type of a field."
        ),
    ),
    (
        lambda: payload(Tensor),
        (
            "`Tensor`: it is a tensor, which travels without being a payload. Use it "
            "as the type of a field."
        ),
    ),
    (
        lambda: payload(torch.nn.Linear),
        (
            "`Linear`: it is a module, whose parameters are not in fields. Hold its "
            "tensors in a class of their own."
        ),
    ),
    (
        lambda: define(Tensor, dict),
        (
            "`Batch`: it derives from `dict`, whose own content is not in a "
            "field, so a moved copy would lose it. Hold the `dict` in a field, "
            "or write a `LifetimeAdapter[Batch]`."
        ),
    ),
    (
        lambda: payload(Part),
        "`Part`: it is a payload already. Decorate it once.",
    ),
    (
        lambda: define(Tensor, to_device=1, record_stream=2),
        (
            "`Batch`: its body defines `to_device`, `record_stream`, which `@payload` "
            "generates. Delete `to_device`, `record_stream`, or write "
            "`@payload(keep=('to_device', 'record_stream'))` to keep your own."
        ),
    ),
    (
        lambda: define(Tensor, keep="to"),
        "`Batch`: `keep=` is one string, 'to'. Write `keep=('to',)`.",
    ),
    (
        lambda: define(Tensor, keep=("to_device", "size"), size=1),
        (
            "`Batch`: `keep=` names `to_device`, `size`, which the class body "
            "does not define or `@payload` does not generate. Remove "
            "`to_device`, `size` from `keep=`."
        ),
    ),
    (
        lambda: payload(
            type("Batch", (), {"__annotations__": {"record_stream": Tensor}})
        ),
        (
            "`Batch`: `record_stream` would be a field and a generated method. "
            "Rename the field."
        ),
    ),
    (
        lambda: payload(Speaker),
        (
            "`Speaker`: it is a protocol, which has no instances. Decorate the classes "
            "that implement it."
        ),
    ),
    (
        lambda: payload(type("Batch", (), {}), unsafe_hash=True, cache_hash=True),
        (
            "`Batch`: it caches its hash, which a moved copy would keep. Remove "
            "`cache_hash=True`."
        ),
    ),
    (
        lambda: payload(type("Batch", (), {"__msgspec_cached_hash__": None})),
        (
            "`Batch`: it caches its hash, which a moved copy would keep. Remove"
            " `cache_hash=True`."
        ),
    ),
    (
        lambda: payload(frozen=True)(attrs.make_class("Batch", {})),
        (
            "`Batch`: attrs, `dataclasses` or msgspec has made it already, so "
            "`frozen` cannot apply. Pass the options to the decorator that "
            "makes the class."
        ),
    ),
    (
        lambda: payload(attrs.make_class("Batch", {}), fields={"x": Tensor}),
        "`Batch`: `fields=` names `x`, which it does not have. It has no fields.",
    ),
    (
        lambda: define(Tensor, fields={"x": Tensor, "y": Tensor}),
        (
            "`Batch`: `fields=` names `x`, `y`, which it does not have. Its fields are "
            "`field`."
        ),
    ),
    (
        lambda: payload(
            attrs.make_class("Batch", {"\ufb01eld": attrs.field(type=Tensor)})
        ),
        ("`Batch`: the field name 'ﬁeld' is not an identifier. Rename the field."),
    ),
    (
        lambda: payload(
            attrs.make_class("Batch", {"__len__": attrs.field(type=Tensor)})
        ),
        ("`Batch`: the field name `__len__` is one of Python's own. Rename the field."),
    ),
    (
        lambda: type(
            "Half",
            types.resolve_bases((LifetimeAdapter[Bare],)),
            {
                "__orig_bases__": (LifetimeAdapter[Bare],),
                "leaves": lambda self, value: [],
            },
        ),
        "`Half`: an adapter needs its own `rebuild`. Define `rebuild` in `Half`.",
    ),
    (
        lambda: type(
            "Wide",
            (LifetimeAdapter,),
            {"__orig_bases__": (LifetimeAdapter[int | str],)},
        ),
        (
            "`Wide`: `int | str` is not a class, so it cannot be adapted. Name a "
            "class: `LifetimeAdapter[Handle]`."
        ),
    ),
    (
        lambda: register(object, leaves=lambda _: [], rebuild=lambda value, _: value),
        (
            "`object`: an adapter for it would take the place of all others. Name the "
            "class that lacks lifetime support."
        ),
    ),
    (
        lambda: register(Handle, leaves=lambda _: [], rebuild=lambda value, _: value),
        (
            "`Handle`: it already has the adapter <HandleAdapter for Handle>. Keep one "
            "adapter for each type."
        ),
    ),
]


@pytest.mark.parametrize(("act", "text"), DEFINITIONS, ids=range(len(DEFINITIONS)))
def test_wrong_use_of_the_decorator(act: Callable[[], object], text: str) -> None:
    """A class that cannot be decorated so says what to do instead."""
    assert text == message(act)


CORRECT = "Correct the value, or the annotation."

LIES: list[tuple[Any, object, str]] = [
    (
        int,
        Part(ONE),
        (
            "`Batch.field`: a `Part` was found where a host value is annotated, so it "
            "would be neither moved nor recorded. Annotate the field `Part`, or "
            "`HostOnly[Part]` if it never leaves the host."
        ),
    ),
    (
        Tensor,
        3,
        f"`Batch.field`: an `int` was found where a tensor is annotated. {CORRECT}",
    ),
    (
        dict[str, list[Tensor]],
        {"a": [ONE, "x"]},
        (
            "`Batch.field['a'][1]`: a `str` was found where a tensor is annotated. "
            f"{CORRECT}"
        ),
    ),
    (
        Tensor,
        Part(ONE),
        (
            "`Batch.field`: a `Part` was found where a tensor is annotated. Annotate "
            "the field `Part`."
        ),
    ),
    (
        list[Tensor],
        [np.ones(1)],
        (
            "`Batch.field[0]`: a `ndarray` was found where a tensor is annotated. Pass "
            "`torch.from_numpy(array)`, or annotate the field `np.ndarray` if it stays "
            "on the host."
        ),
    ),
    (
        int,
        ONE,
        (
            "`Batch.field`: a `Tensor` was found where a host value is annotated, so "
            "it would be neither moved nor recorded. Annotate the field `Tensor`, or "
            "`HostOnly[Tensor]` if it never leaves the host."
        ),
    ),
    (
        HostOnly[object],
        device_twin(ONE),
        (
            "`Batch.field`: a `DeviceTensor` is in a `HostOnly` field but lives on "
            "`cuda:0`. Annotate the field `Tensor`, or mark it `Borrowed` if it is "
            "owned and recorded elsewhere."
        ),
    ),
    (
        Dynamic[dict[str, Any]],
        {"k": Bare()},
        (
            "`Batch.field['k']`: a `Bare` has no lifetime support. Decorate `Bare` "
            "with `@payload`, write a `LifetimeAdapter[Bare]`, or move it to a "
            "`HostOnly` field."
        ),
    ),
    (
        Dynamic[dict[str, Any]],
        {"k": object()},
        (
            "`Batch.field['k']`: an `object` has no lifetime support. Move it to a "
            "`HostOnly` field."
        ),
    ),
    (
        Dynamic[dict[Any, int]],
        {ONE: 1},
        (
            "`Batch.field`: a `Tensor` is the key of a mapping, and keys stay on the "
            "host. Use a host value as the key."
        ),
    ),
    (
        Settings,
        Part(ONE),
        (
            "`Batch.field`: a `Part` is not a host struct, but the field is annotated "
            "as one. Annotate the field `Part`, a payload."
        ),
    ),
    (
        Part,
        Bare(),
        (
            "`Batch.field`: a `Bare` was found where a payload is annotated. Decorate "
            "`Bare` with `@payload`, or correct the value or the annotation."
        ),
    ),
    (
        Part,
        ONE,
        f"`Batch.field`: a `Tensor` was found where a payload is annotated. {CORRECT}",
    ),
    (
        Handle,
        Bare(),
        (
            "`Batch.field`: a `Bare` has no adapter, but the annotated class has one. "
            "Write a `LifetimeAdapter[Bare]`, or correct the value or the annotation."
        ),
    ),
    (
        Handle,
        3,
        (
            "`Batch.field`: an `int` has no adapter, but the annotated class has one. "
            f"{CORRECT}"
        ),
    ),
    (
        Handle,
        Handle(3),  # type: ignore[arg-type]
        (
            "`Batch.field[0]`: an `int` is not a tensor, but <HandleAdapter for "
            "Handle> lists it as a leaf. List tensors only."
        ),
    ),
    (
        Handle,
        Derivation(ONE),
        (
            "<HandleAdapter for Handle> made a `Handle` from a `Derivation`. Write an "
            "adapter for `Derivation` itself."
        ),
    ),
    (
        Tensor | int,
        object(),
        (
            "`Batch.field`: an `object` does not match any arm of the annotated "
            "union. "
            f"{CORRECT}"
        ),
    ),
    (
        list[Tensor] | int,
        ONE,
        (
            "`Batch.field`: a `Tensor` does not match any arm of the annotated union. "
            "Add `Tensor` to the union, or correct the value."
        ),
    ),
    (
        list[Tensor],
        (ONE,),
        f"`Batch.field`: a `tuple` was found where `list` is annotated. {CORRECT}",
    ),
    (
        list[Tensor],
        ONE,
        (
            "`Batch.field`: a `Tensor` was found where `list` is annotated. Wrap the "
            "tensor in a `list`, or annotate the field `Tensor | list[...]`."
        ),
    ),
    (
        list[Tensor],
        Mine([ONE]),
        (
            "`Batch.field`: a `Mine` was found where `list` is annotated. tensorpack "
            "cannot rebuild a `Mine`: pass a plain `list`, or write a "
            "`LifetimeAdapter[Mine]`."
        ),
    ),
    (
        tuple[Tensor],
        (ONE, ONE),
        (
            "`Batch.field`: a `tuple` has 2 items, and its annotation says 1. For a "
            "tuple of any length write `tuple[Tensor, ...]`."
        ),
    ),
    (
        tuple[Tensor, Tensor],
        (ONE,),
        "`Batch.field`: a `tuple` has 1 item, and its annotation says 2. " + CORRECT,
    ),
    (
        Entry,
        {"x": 1},
        (
            "`Batch.field`: a `dict` has the key 'x', which its `TypedDict` does not "
            "declare. Declare it, or take it out."
        ),
    ),
    (
        Entry,
        {"x": 1, "y": 2},
        (
            "`Batch.field`: a `dict` has the keys 'x', 'y', which its `TypedDict` "
            "does not declare. Declare them, or take them out."
        ),
    ),
    (
        list[Part],
        [Child(ONE)],
        (
            "`Batch.field[0]`: `Child` derives from the payload `Part` but is not "
            "decorated with `@payload`. Its fields `mask`, `size` would be lost. "
            "Decorate `Child` with `@payload`."
        ),
    ),
]


@pytest.mark.parametrize(
    ("annotation", "value", "text"), LIES, ids=[str(lie[0])[:40] for lie in LIES]
)
def test_value_that_lies(annotation: Any, value: object, text: str) -> None:
    """A wrong value says where it stands, what it is, and what was declared."""
    assert text == message(lambda: define(annotation)(value).to_device(META))


def loose() -> Loose:
    value = Loose(ONE)
    value.mask = 3  # type: ignore[attr-defined]
    return value


def circle() -> Part:
    part = Part(ONE)
    part.part = Part(ONE, part)
    return part


def ring() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


class Sly(Opaque):
    """Changes its owner while it is being moved."""

    def __init__(self, change: Callable[[list[Any]], object]) -> None:
        super().__init__()
        self.change = change

    def to_device(self, device: Any, non_blocking: bool = False) -> "Sly":
        self.change(self.owner.field)
        return self

    owner: Any


def changing(change: Callable[[list[Any]], object]) -> object:
    sly = Sly(change)
    sly.owner = define(list[Sly | Tensor])([sly, ONE])
    return sly.owner.to_device(META)


class Wrapper(Tensor):
    is_cuda = True  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: E501  # fmt: skip
        raise NotImplementedError


def wrapped() -> None:
    leaf = Tensor._make_wrapper_subclass(Wrapper, (2,))  # type: ignore[attr-defined]
    define(Tensor)(leaf).record_stream(object())


USES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: loose().to_device(META),
        (
            "`Loose.mask`: an `int` is an attribute of this `Loose` but not a field, "
            "so it would be lost. Declare the field in the class: `mask: ...`."
        ),
    ),
    (
        lambda: circle().to_device(META),
        (
            "`Part.part.part`: this `Part` holds itself, so it has no end. Break the "
            "cycle, or mark the field that closes it `Borrowed`."
        ),
    ),
    (
        lambda: to_device(ring(), META),
        (
            "`[0]`: this `list` holds itself, so it has no end. Break the cycle, or "
            "mark the field that closes it `Borrowed`."
        ),
    ),
    (
        lambda: Child(ONE).to_device(META),
        (
            "`Child` derives from the payload `Part` but is not decorated with "
            "`@payload`. Its fields `mask`, `size` would be lost. Decorate `Child` "
            "with `@payload`."
        ),
    ),
    (
        lambda: type("Plain", (Part,), {})(ONE).to_device(META),
        (
            "`Plain` derives from the payload `Part` but is not decorated with "
            "`@payload`. Decorate `Plain` with `@payload`."
        ),
    ),
    (
        lambda: Below(ONE).to_device(META),
        (
            "`Below` was made anew by a decorator above `@payload`, and the new "
            "class is no payload. Put `@payload` on top."
        ),
    ),
    (
        lambda: OnlyBase().to_device(META),
        (
            "`OnlyBase` is not decorated with `@payload`. Decorate `OnlyBase` with "
            "`@payload`."
        ),
    ),
    (
        lambda: define(Tensor, __payload_prepare__=lambda _: None)(ONE).to_device(META),
        (
            "`Batch.__payload_prepare__()`: `None` was returned, and only a `Batch` "
            "can travel here. Return `self`, or a changed copy made by "
            "`tensorpack.evolve`."
        ),
    ),
    (
        lambda: define(Tensor, __payload_prepare__=lambda _: 3)(ONE).to_device(META),
        (
            "`Batch.__payload_prepare__()`: an `int` was returned, and only a "
            "`Batch` can travel here. Return `self`, or a changed copy made by "
            "`tensorpack.evolve`."
        ),
    ),
    (
        lambda: evolve(3),
        (
            "`evolve` takes a payload, and this is an `int`. Pass an instance of a "
            "class decorated with `@payload`."
        ),
    ),
    (
        lambda: evolve(payload(attrs.make_class("Batch", {}))(), x=1),
        "`Batch` has no field `x`. It has no fields.",
    ),
    (
        lambda: evolve(Part(ONE), girth=3, n=1),
        "`Part` has no field `girth`, `n`. Its fields are `grid`, `part`.",
    ),
    (
        lambda: clone({"a": NoClone()}),
        (
            "`['a']`: the `NoClone` has no method `clone`. Give `NoClone` a `clone`, "
            "or write a `LifetimeAdapter[NoClone]`."
        ),
    ),
    (
        lambda: define(NoClone)(NoClone()).pin_memory(),
        (
            "`Batch.field`: the `NoClone` has no method `pin_memory`. Give `NoClone` a "
            "`pin_memory`, or write a `LifetimeAdapter[NoClone]`."
        ),
    ),
    (
        lambda: to_device([ONE], META, keys=["a"]),
        (
            "`keys=` goes with a mapping, and this is a `list`. Leave `keys=` out, "
            "or pass the mapping."
        ),
    ),
    (
        lambda: to_device({}, META, keys="inputs"),
        "`keys=` is one text, 'inputs'. Write `keys=('inputs',)`.",
    ),
    (
        lambda: to_device(types.MappingProxyType({}), META, keys=["a"]),
        "a `mappingproxy` cannot be copied with other entries. Pass `dict(mapping)`.",
    ),
    (
        lambda: to_device({"inputs": object()}, META, keys=["inputs"]),
        (
            "`inputs`: an `object` is under a key that travels, but has no lifetime "
            "support. Decorate its class with `@payload`, or take 'inputs' out of the "
            "keys."
        ),
    ),
    (
        lambda: changing(lambda field: field.append(ONE)),
        (
            "`Batch`: 2 leaves were given, and the object now has more. It was changed "
            "while it was being moved. Hand over a payload that no other code changes."
        ),
    ),
    (
        lambda: changing(lambda field: field.pop()),
        (
            "`Batch`: 2 leaves were given, and the object now has fewer. It was "
            "changed while it was being moved. Hand over a payload that no other "
            "code changes."
        ),
    ),
    (
        wrapped,
        (
            "`Batch.field`: a `Wrapper` wraps memory that only it knows, so a stream "
            "cannot be recorded on all of it. Give its class `__tensor_flatten__`, or "
            "pass the tensors inside it."
        ),
    ),
]


@pytest.mark.parametrize(("act", "text"), USES, ids=range(len(USES)))
def test_wrong_use_of_an_instance(act: Callable[[], object], text: str) -> None:
    """What cannot be done says why, and what to do instead."""
    assert text == message(act)


def test_transfer_errors() -> None:
    """Errors of transfers compose their sentences from their fields."""
    assert (
        "`start`: the copy stream is capturing a graph, and a replay would neither "
        "copy again nor keep the memory. Transfer before the capture: "
        "`start(x, into=static)` before each replay; what is on the device already, "
        "`axes.copy_(static, x)` copies inside the graph."
    ) == str(CaptureError(call="start", stream="copy"))
    assert "`wait`: it was taken. Wait once." == str(
        HandoffError(call="wait", problem="it was taken", remedy="Wait once.")
    )
    assert "The stream is bad. Pass another." == str(
        StreamError(problem="The stream is bad", remedy="Pass another.")
    )


def test_unknown_name_of_the_package() -> None:
    """A name that the package does not have is reported as by any module."""
    with pytest.raises(
        AttributeError, match="module 'tensorpack' has no attribute 'Nobody'"
    ):
        tensorpack.Nobody  # type: ignore[attr-defined]  # noqa: B018


def test_no_message_is_sloppy() -> None:
    """Every message ends with a full stop, begs for nothing, and closes its quotes."""
    texts = [text for _, text in (*REFUSED, *LOST, *DEFINITIONS, *USES)]
    texts += [text for _, _, text in LIES]

    for text in texts:
        assert text.endswith("."), text
        assert "please" not in text.lower(), text
        assert 0 == text.count("`") % 2, text
        assert "  " not in text, text


def test_errors_are_of_the_class_that_fits() -> None:
    """A refusal is a `TypeError`, so that callers need not know this package."""
    with pytest.raises(TypeError):
        define(Any)
    with pytest.raises(LifetimeError):
        define(Any)


OUTSIDE_OF_FIELDS: list[tuple[Any, str]] = [
    (
        {"k": Bare()},
        (
            "`['k']`: a `Bare` has no lifetime support. Decorate `Bare` with "
            "`@payload`, write a `LifetimeAdapter[Bare]`, or pass only the entries "
            "that travel (`keys=`, where the call takes it)."
        ),
    ),
    (
        {"k": [object()]},
        (
            "`['k'][0]`: an `object` has no lifetime support. Pass only values that "
            "have it."
        ),
    ),
    (
        [Bare()],
        (
            "`[0]`: a `Bare` has no lifetime support. Decorate `Bare` with `@payload`, "
            "write a `LifetimeAdapter[Bare]`, or pass only values that have it."
        ),
    ),
    (
        (1, object()),
        "`[1]`: an `object` has no lifetime support. Pass only values that have it.",
    ),
]


@pytest.mark.parametrize(("value", "text"), OUTSIDE_OF_FIELDS)
def test_value_outside_of_any_field(value: Any, text: str) -> None:
    """The way out is one that there is: no field can be marked."""
    assert text == message(lambda: to_device(value, "meta"))
    assert text == message(lambda: CopyStream("cpu").start(value))


# Completeness: what the sources can say is what the tests have read.

PACKAGE = Path(tensorpack.__file__).parent
SPEAKS_WITHOUT_RAISING = ("_proofs.py",)
WORD = re.compile(r"\b[A-Za-z]{2,}\b")
HOLE = re.compile(r"\{\w*\}")
BETWEEN = "\x01"


def texts_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Iterate the texts of a module that are no documentation, each hole as `{}`."""
    named = {
        ast.unparse(node.targets[0]): node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Expr, ast.JoinedStr, ast.BinOp))
        for part in ast.iter_child_nodes(node)
    }

    def spelled(node: ast.AST) -> str:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=values):
                return "".join(spelled(value) or "{}" for value in values)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                both = (spelled(left), spelled(right))
                return "".join(side or "{}" for side in both) if any(both) else ""
            case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name):
                return spelled(named[name]) if name in named else ""
            case _:
                return ""

    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and id(node) not in inside and spelled(node):
            yield id(node), spelled(node)


def said_by(path: Path) -> Iterator[str]:
    """Iterate what a module of the package may say in an error.

    That is every text of three words in a module that raises. A command also prints:
    of its texts those count that are raised.
    """
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    raises = any(isinstance(node, ast.Raise) for node in nodes)
    if not raises and path.name not in SPEAKS_WITHOUT_RAISING:
        return
    annotations = {
        id(part)
        for node in nodes
        for name in ("annotation", "returns")
        for part in ast.walk(getattr(node, name, None) or ast.Pass())
    }
    raised = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "msg"
    }
    for node, text in texts_in(tree):
        counts = node in raised if "_cli" in path.parts else node not in annotations
        if counts and min(len(text.split()), len(WORD.findall(text))) >= 3:
            yield text


NOT_YET_WHOLE = (
    "is inside another type, but only a whole field stays resident",
    "Mark the whole field `Resident`.",
    "has {} dims in one and {} in another",
    "Give both one shape.",
    "is not a dense tensor",
    "Leave it out of the static.",
    "has {} on dim {}, and its static has {}",
    "Give the dim an `Axis` if it varies.",
    "has {} items on the axis `{}`, and the leaves have {}",
    "is a list of leaves along `{}`, which cannot be padded",
    "Make it longer before, or leave it out with None.",
    'Declare one: `Annotated[Tensor, Axis("requests")]`.',
    "was changed by other code while it was read",
    "Pass `combine=` for it, or give both one.",
    "has mappings of different keys",
    "Give all of them the same keys, or pass `combine=` for it.",
    "has different numbers of tensors inside",
    "Pass `combine=` for it.",
    "was returned, and only {} fits here",
    "the sender refers to layout {}, which this rank does not know",
    "Every rank of the group must take part in every call, in the same order.",
    "these bytes are not the header of a payload",
    (
        "Send a dense plain tensor, such as `x.detach()`, or mark the field "
        "`HostOnly` or `Borrowed`."
    ),
    "this rank is not in the group",
    "Call it on the ranks of the group only.",
    "Import the same modules, in the same version, on every rank.",
    "its static is not pinned, so the host would wait for the copy",
)
"""Messages of axes, static memory and ranks that no test raises yet, listed by hand."""


def test_every_message_is_tested() -> None:
    """What a module may say stands in a test, from its first word to its last.

    Where the source fills something in, the test may have anything short.
    """
    tested = BETWEEN.join(
        text
        for path in Path(__file__).parents[1].rglob("test_*.py")
        for _, text in texts_in(ast.parse(path.read_text()))
    )
    said = [
        (path.relative_to(PACKAGE), text)
        for path in sorted(PACKAGE.rglob("*.py"))
        if "mypy_plugin" not in path.parts
        for text in said_by(path)
    ]

    assert len(said) > 200
    for path, text in said:
        pattern = f"[^{BETWEEN}]{{0,80}}?".join(map(re.escape, HOLE.split(text)))
        assert re.search(pattern, tested), f"{path}: {text}"
