"""The class that is decorated comes back, and a refusal changes nothing of it."""

import collections
import dataclasses
import functools
import gc
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

import tensorpack
from tensorpack import (
    DefinitionError,
    Derived,
    LifetimeError,
    UndecoratedError,
    payload,
)

ONE = torch.ones(2)
META = torch.device("meta")


class Shape:
    """A base that is not decorated."""

    def area(self) -> int:
        return 1


def boxes() -> Any:
    """Make a class of others: it fills its instances itself, and annotates nothing."""

    class Boxes(Shape):
        """Boxes, as a detection library has them."""

        kind: ClassVar[str] = "boxes"

        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor * 2

        def area(self) -> int:
            return super().area() + 1

        def __len__(self) -> int:
            return len(self.tensor)

        def __repr__(self) -> str:
            return "Boxes()"

    return Boxes


def annotated() -> Any:
    """Make a plain class with all that attrs takes apart."""

    class Annotated(Shape):
        bad: object
        size: int = 1
        names: list[str] = attrs.field(factory=list)
        count: int = attrs.field()

        @count.default
        def _count(self) -> int:
            return 2

        @functools.cached_property
        def found(self) -> int:
            return super().area()

        @property
        def asked(self) -> int:
            return super().area()

        @classmethod
        def made(cls) -> str:
            return super().__name__

        def area(self) -> int:
            return super().area() + 1

    return Annotated


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "declared": (boxes, {"fields": {"tensor": object}}),
    "nothing declared": (boxes, {}),
    "annotated": (annotated, {}),
    "options": (annotated, {"frozen": True, "eq": True, "order": True}),
    "unknown name": (annotated, {"fields": {"bad": Tensor, "other": Tensor}}),
    "slots": (annotated, {"slots": True}),
    "slots, declared": (boxes, {"slots": True, "fields": {"tensor": object}}),
}


@pytest.mark.parametrize(("make", "options"), REFUSED.values(), ids=REFUSED)
def test_refused_class_is_as_it_was(
    make: Callable[[], Any], options: dict[str, Any]
) -> None:
    """In every name and its place, with its annotations, bases and subclasses."""
    cls = make()
    child = type("Child", (cls,), {})
    before = list(vars(cls).items())
    annotations = dict(vars(cls).get("__annotations__", {}))
    old: Any = object.__new__(cls)

    with pytest.raises((LifetimeError, DefinitionError)):
        payload(**options)(cls)
    gc.collect()

    assert before == list(vars(cls).items())
    assert annotations == vars(cls).get("__annotations__", {})
    assert (Shape,) == cls.__bases__
    assert cls.__subclasses__() == [child]
    assert cls in Shape.__subclasses__()
    assert 2 == old.area() == child.area(old)


def test_refused_class_can_be_decorated_again() -> None:
    """What was wrong is mended, and nothing of the first try is left."""
    cls = annotated()
    with pytest.raises(LifetimeError):
        payload(cls)

    assert cls is payload(cls, fields={"bad": Tensor})

    value = cls(ONE)
    assert ("bad",) == cls.payload_keys()
    assert (1, [], 2, 1, 2) == (
        value.size,
        value.names,
        value.count,
        value.asked,
        value.area(),
    )


@pytest.mark.parametrize("frozen", [True, False])
def test_plain_class_is_changed_in_place(frozen: bool) -> None:
    """References from before the decoration see the payload too."""

    class Batch(Shape):
        ids: Tensor
        size: int = 3

        def area(self) -> int:
            return super().area() + self.size

    before = Batch
    made: Any = payload(frozen=frozen)(Batch)

    assert before is made
    assert 4 == made(ONE).to_device(META).area()
    assert not hasattr(made, "size")


def test_slots_are_there_on_request() -> None:
    """Then the class has to be made anew, as attrs and `dataclasses` do."""

    class Batch:
        ids: Tensor

        def area(self) -> int:
            return len(super().__doc__ or "") * 0 + 2

    made: Any = payload(slots=True)(Batch)

    assert Batch is not made
    assert not hasattr(made(ONE), "__dict__")
    assert 2 == made(ONE).to_device(META).area()


def test_class_that_fills_itself_is_adopted() -> None:
    """Its fields are declared, and all else stays its own."""
    cls = boxes()
    old = cls(ONE)
    constructor = cls.__init__

    assert cls is payload(cls, fields={"tensor": Tensor})

    moved = old.to_device(META)
    assert constructor is cls.__init__
    assert ("tensor",) == cls.payload_keys()
    assert moved.tensor.is_meta
    assert torch.equal(ONE * 2, tensorpack.clone(old).tensor)
    assert ("Boxes()", 2, 2) == (repr(moved), len(moved), moved.area())


def test_child_of_an_adopted_class() -> None:
    """It inherits the constructor and the fields, and declares its own."""
    base = payload(boxes(), fields={"tensor": Tensor})

    class Rotated(base):  # type: ignore[misc,valid-type]  # a class all the same
        def turn(self) -> Any:
            self.angle = ONE
            return self

    with pytest.raises(UndecoratedError):
        Rotated(ONE).to_device(META)

    made: Any = payload(Rotated, fields={"angle": Tensor})

    assert ("tensor", "angle") == made.payload_keys()
    assert made(ONE).turn().to_device(META).angle.is_meta
    assert not hasattr(made(ONE).to_device(META), "angle")


def test_names_beside_annotations_are_not_declared() -> None:
    """Where a class does annotate, another name is a spelling mistake."""

    class Batch:
        ids: Tensor

        def __init__(self, ids: Tensor) -> None:
            self.ids = ids

    with pytest.raises(DefinitionError, match="`fields=` names `idss`, which it does"):
        payload(Batch, fields={"idss": Tensor})


SHARED: dict[str, Any] = {
    "list": [],
    "dict": {},
    "set": set(),
    "filled": [1],
    "deque": collections.deque(),
    "attrs.field": attrs.field(default=[]),
    "dataclasses.field": dataclasses.field(default_factory=list),
    "dataclasses.field with a value": dataclasses.field(default=1),
}


@pytest.mark.parametrize("default", SHARED.values(), ids=SHARED)
def test_default_that_all_would_share_is_refused(default: Any) -> None:
    """And one that only `dataclasses` reads: it was the value of the field."""
    body = {"__annotations__": {"ids": Tensor, "x": list[int]}, "x": default}
    cls = type("Batch", (), body)

    with pytest.raises(LifetimeError) as caught:
        payload(cls)

    assert ["x"] == [refusal.field for refusal in caught.value.refusals]
    assert default is vars(cls)["x"]


@pytest.mark.parametrize(
    "default",
    [ONE, (1, 2), frozenset(), attrs.field(factory=list), attrs.Factory(list), None],
    ids=["tensor", "tuple", "frozenset", "field", "factory", "none"],
)
def test_other_defaults_are_taken(default: Any) -> None:
    """What nobody changes may be shared, and what is made anew is not."""
    body = {"__annotations__": {"x": Tensor | tuple[int, ...] | None}, "x": default}
    body["__annotations__"]["x"] = tensorpack.HostOnly[object]
    if default is ONE:
        body["__annotations__"]["x"] = Tensor

    made: Any = payload(type("Batch", (), body))

    assert made().to_device(META) is not None


class PostInit:
    ids: Tensor

    def __post_init__(self) -> None:
        self.ids = self.ids + 1


class Both:
    ids: Tensor

    def __post_init__(self) -> None:
        self.ids = self.ids + 1

    __attrs_post_init__ = __post_init__


class Calls:
    ids: Tensor

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids
        self.__post_init__()

    def __post_init__(self) -> None:
        self.ids = self.ids + 1


@pytest.mark.parametrize("inherited", [False, True])
def test_post_init_of_a_plain_class_is_refused(inherited: bool) -> None:
    """Attrs calls another method, so this one never ran."""
    body = {"__annotations__": {"ids": Tensor}}
    cls = type("Batch", (PostInit,), body) if inherited else PostInit

    with pytest.raises(DefinitionError, match="it has a `__post_init__`, which only"):
        payload(cls)


@pytest.mark.parametrize(
    "make",
    [
        lambda: payload(Both),
        lambda: payload(Calls),
        lambda: payload(dataclasses.dataclass(type("Data", (PostInit,), {}))),
    ],
    ids=["both", "own init", "dataclass"],
)
def test_post_init_that_runs_is_fine(make: Callable[[], Any]) -> None:
    """Because attrs, the class itself or `dataclasses` calls it."""
    try:
        made = make()
    except LifetimeError:  # the base of the dataclass annotates what is not a field
        made = payload(dataclasses.dataclass(PostInit))

    assert torch.equal(ONE + 1, made(ONE).ids)


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_derived_default_that_reads_self_is_refused(slots: bool, written: bool) -> None:
    """It was computed while the leaves that it reads were still being copied."""
    if written:

        class Batch:
            ids: Tensor
            mask: Derived[Tensor] = attrs.field()

            @mask.default
            def _mask(self) -> Tensor:
                return self.ids > 0

    else:

        class Batch:  # type: ignore[no-redef]  # the other spelling
            ids: Tensor
            mask: Derived[Tensor] = attrs.Factory(
                lambda self: self.ids > 0, takes_self=True
            )

    with pytest.raises(LifetimeError, match="Compute it in a cached property"):
        payload(slots=slots)(Batch)


def test_default_of_another_field_may_read_self() -> None:
    """Only a copy's default runs during a transfer; those of `__init__` do not."""

    @payload
    class Batch:
        ids: Tensor
        mask: Tensor = attrs.Factory(lambda self: self.ids > 0, takes_self=True)

    assert Batch(ONE).to_device("meta").mask.is_meta  # type: ignore[attr-defined]


@attrs.define(slots=False, init=False)
class Attrs:
    ids: Tensor
    size: int = 3
    names: list[str] = attrs.field(factory=list)
    mask: Derived[Tensor | None] = None

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids


@attrs.define(init=False)
class Slotted:
    ids: Tensor
    size: int = 3
    names: list[str] = attrs.field(factory=list)
    mask: Derived[Tensor | None] = None

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids


@dataclasses.dataclass(init=False)
class Data:
    ids: Tensor
    size: int = 3
    names: list[str] = dataclasses.field(default_factory=list)
    mask: Derived[Tensor | None] = None

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids


@pytest.mark.parametrize("cls", [Attrs, Slotted, Data])
def test_field_that_an_own_init_leaves_unset(cls: Any) -> None:
    """It stays unset in a copy, with a default or without."""
    made = payload(cls)
    value = made(ONE)

    moved = value.to_device(META)

    assert moved.ids.is_meta
    assert [("ids", ONE)] == list(tensorpack.tensors(value))
    assert not hasattr(moved, "names")
    assert hasattr(value, "size") == hasattr(moved, "size")


@payload
class Made:
    ids: Tensor
    names: list[int] = attrs.field(factory=list)
    count: int = attrs.field()

    @count.default
    def _count(self) -> int:
        return 2


@payload
class Reads:
    ids: Tensor
    rows: int = attrs.field()

    @rows.default
    def _rows(self) -> int:
        return self.ids.shape[0]


@payload(frozen=True, slots=True)
class FrozenMade:
    ids: Tensor
    names: dict[str, int] = attrs.field(factory=dict)


@pytest.mark.parametrize("whole", [True, False], ids=["fullgraph", "graph breaks"])
@pytest.mark.parametrize("cls", [Made, Reads, FrozenMade])
def test_default_that_is_made_inside_a_compiled_function(cls: Any, whole: bool) -> None:
    """Its constructor looks up names that only attrs knows, and is traced."""
    torch._dynamo.reset()

    @torch.compile(fullgraph=whole, backend="eager")
    def run(ids: Tensor) -> Tensor:
        value = cls(ids * 2)
        found: Tensor = value.ids + 1
        return found

    assert torch.equal(ONE * 3, run(ONE))
