"""The class you decorate is the class you get; a refused one is as it was before."""

import dataclasses
import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import (
    DefinitionError,
    Derived,
    LifetimeError,
    TensorpackError,
    evolve,
    payload,
)


def one() -> Tensor:
    """Return a new tensor."""
    return torch.ones(1)


class Base:
    """Has a method for `super()`, and knows its subclasses."""

    def size(self) -> int:
        """Return 1."""
        return 1


def plain(*, bad: bool) -> type[Any]:
    """Return a new plain class, which can be a payload unless it is to be bad."""

    class Boxes(Base):
        """Boxes, as a foreign library writes them."""

        boxes: Tensor
        scores: "Tensor | None" = None
        label: str = "box"

        def size(self) -> int:
            return super().size() + 1

        @functools.cached_property
        def total(self) -> Tensor:
            return self.boxes.sum()

        @classmethod
        def owner(cls) -> type:
            return __class__  # type: ignore[name-defined,no-any-return]

    if bad:
        Boxes.__annotations__["label"] = object
    return Boxes


def own_fill() -> type[Any]:
    """Return a plain class that fills its instances itself."""

    class Boxes(Base):
        def __init__(self, n: int) -> None:
            self.boxes = torch.ones(n)
            self.n = n

        def size(self) -> int:
            return super().size() + self.n

    return Boxes


REFUSED: dict[str, Callable[[], tuple[type[Any], dict[str, Any]]]] = {
    "a bad field": lambda: (plain(bad=True), {}),
    "a bad field, with slots": lambda: (plain(bad=True), {"slots": True}),
    "a bad correction": lambda: (plain(bad=False), {"fields": {"label": object}}),
    "an unknown correction": lambda: (plain(bad=False), {"fields": {"none": Tensor}}),
    "an unknown option": lambda: (plain(bad=False), {"bogus": True}),
    "a bad declaration": lambda: (own_fill(), {"fields": {"boxes": object}}),
    "no declaration": lambda: (own_fill(), {}),
    "a bad field over attrs": lambda: (attrs.define(slots=False)(plain(bad=True)), {}),
    "a bad field over a dataclass": lambda: (
        dataclasses.dataclass(plain(bad=True)),
        {},
    ),
}


@pytest.mark.parametrize("case", list(REFUSED.values()), ids=list(REFUSED))
def test_refused_class_is_as_it_was(
    case: Callable[[], tuple[type[Any], dict[str, Any]]],
) -> None:
    """Its names, bases, annotations, subclasses and instances."""
    cls, options = case()
    instance = object.__new__(cls)
    instance.n = 1
    child = type("Child", (cls,), {})
    names = dict(vars(cls))
    bases, mro = cls.__bases__, cls.__mro__
    annotations = inspect.get_annotations(cls)

    with pytest.raises((TensorpackError, TypeError)):
        payload(**options)(cls)

    gc.collect()
    assert names.keys() == vars(cls).keys()
    assert all(vars(cls)[name] is value for name, value in names.items())
    assert (bases, mro) == (cls.__bases__, cls.__mro__)
    assert annotations == inspect.get_annotations(cls)
    assert [child] == cls.__subclasses__()
    assert type(instance) is cls
    assert 2 == instance.size()


def test_decorated_class_is_the_same_class() -> None:
    """Classes and instances made before see it; `super()` and `__class__` hold."""
    cls = plain(bad=False)
    child = type("Child", (cls,), {})

    made = payload(cls)

    assert made is cls
    assert issubclass(child, made)
    assert 2 == made(one()).size()
    assert made.owner() is cls
    assert ("boxes", "scores") == made.payload_keys()
    assert "__slots__" not in vars(made)


def test_slots_are_made_where_they_are_asked_for() -> None:
    """Then it is another class, as attrs makes it, and `super()` knows that."""
    cls = plain(bad=False)

    made = payload(slots=True)(cls)

    assert made is not cls
    assert 2 == made(one()).size()
    assert made.owner() is made


def test_foreign_class_keeps_its_constructor() -> None:
    """`fields=` declares what a class without annotations holds."""
    cls = own_fill()
    before = cls(3)
    init = cls.__init__

    made = payload(fields={"boxes": Tensor, "n": int})(cls)

    assert made is cls
    assert init is cls.__init__
    assert 4 == before.to_device("meta").size()
    assert before.to_device("meta").boxes.is_meta
    assert (("boxes",), ("n",)) == (made.payload_keys(), made.host_keys())


class TestUnusableDefaults:
    """What a plain class would share or never call is refused at its definition."""

    def test_default_of_dataclasses(self) -> None:
        """The `Field` object would be the default itself."""
        with pytest.raises(LifetimeError) as caught:

            @payload
            class Batch:
                x: Tensor
                rows: list[int] = dataclasses.field(default_factory=list)

        assert (
            "Batch.rows`: `rows` has a default made by `dataclasses.field`, which is "
            "not read here. Write `attrs.field`, whose `default_factory` is called "
            "`factory`. Or write `@dataclasses.dataclass` under `@payload`."
        ) in str(caught.value)

    @pytest.mark.parametrize("default", [[], {}, set()], ids=["list", "dict", "set"])
    def test_mutable_default(self, default: object) -> None:
        """All instances would share it."""
        kind = type(default).__name__
        body = {"__annotations__": {"rows": list[int]}, "rows": default}

        with pytest.raises(LifetimeError) as caught:
            payload(type("Batch", (), body))

        assert (
            f"`Batch.rows`: `rows` has a `{kind}` as its default, which all instances "
            f"would share. Write `rows: list[int] = attrs.field(factory={kind})`."
        ) == str(caught.value)

    def test_post_init(self) -> None:
        """Attrs would never call it."""
        with pytest.raises(DefinitionError) as caught:

            @payload
            class Batch:
                x: Tensor

                def __post_init__(self) -> None: ...

        assert "`__post_init__`, which only `dataclasses` calls" in str(caught.value)
        assert "Rename it to `__attrs_post_init__`" in str(caught.value)

    def test_the_same_is_right_in_a_dataclass(self) -> None:
        """There the three mean what their author meant."""

        @payload
        @dataclasses.dataclass
        class Batch:
            x: Tensor
            rows: list[int] = dataclasses.field(default_factory=list)

            def __post_init__(self) -> None:
                self.rows.append(1)

        assert [1] == Batch(one()).rows
        assert Batch(one()).rows is not Batch(one()).rows

    def test_class_variables_may_be_mutable(self) -> None:
        """They are shared on purpose."""

        @payload
        class Batch:
            x: Tensor
            seen = ["a"]  # noqa: RUF012  # the point of this test

        assert ["a"] == Batch(one()).seen


class TestInitVar:
    """A copy is made without `__init__`, so what only that takes is no obstacle."""

    def test_own(self) -> None:
        """A dataclass may take what it does not store."""

        @payload
        @dataclasses.dataclass
        class Batch:
            x: Tensor
            scale: dataclasses.InitVar[float] = 1.0

            def __post_init__(self, scale: float) -> None:
                self.x = self.x * scale

        moved = Batch(one(), 3.0).to_device("meta")

        assert moved.x.is_meta
        assert ("x",) == Batch.payload_keys()

    def test_in_a_base_that_cannot_be_edited(self) -> None:
        """The base's author need not know."""

        @dataclasses.dataclass
        class Base:
            x: Tensor
            scale: dataclasses.InitVar[float]

            def __post_init__(self, scale: float) -> None:
                self.x = self.x * scale

        @payload
        @dataclasses.dataclass
        class Batch(Base):
            y: Tensor | None = None

        assert ("x", "y") == Batch.payload_keys()
        assert 3.0 == Batch(torch.ones(1), 3.0).to_device("cpu").x.item()

    def test_as_text(self) -> None:
        """Annotations of `from __future__ import annotations` are read alike."""
        body = {
            "__annotations__": {"x": "Tensor", "scale": "dataclasses.InitVar[int]"},
            "__module__": __name__,
            "__post_init__": lambda self, scale: None,
        }

        made: Any = payload(dataclasses.dataclass(type("Batch", (), body)))

        assert ("x",) == made.payload_keys()


class TestUnsetFields:
    """A field that the class's own `__init__` leaves unset stays unset in a copy."""

    @pytest.mark.parametrize(
        "make",
        [
            attrs.define(init=False),
            attrs.define(init=False, slots=False),
            dataclasses.dataclass(init=False),
        ],
        ids=["attrs slots", "attrs", "dataclass"],
    )
    def test_stays_unset(self, make: Callable[[type], type[Any]]) -> None:
        """Neither a leaf nor a host field raises an `AttributeError`."""

        class Batch:
            x: Tensor
            mask: Tensor
            name: str

            def __init__(self, x: Tensor) -> None:
                self.x = x

        made: Any = payload(make(Batch))
        moved = made(one()).to_device("meta")

        assert moved.x.is_meta
        assert not hasattr(moved, "mask")
        assert not hasattr(moved, "name")

    def test_of_a_foreign_class(self) -> None:
        """What `fields=` declares may be set later, too."""
        cls = own_fill()
        payload(fields={"boxes": Tensor, "n": int, "later": Tensor})(cls)

        moved = cls(2).to_device("meta")

        assert not hasattr(moved, "later")


class TestDefaultsThatReadSelf:
    """A derived field is filled before the copies are done, so it may not read them."""

    def test_method(self) -> None:
        """`@mask.default` takes the instance."""
        with pytest.raises(LifetimeError) as caught:

            @payload
            class Batch:
                x: Tensor
                mask: Derived[Tensor | None] = attrs.field()

                @mask.default
                def _mask(self) -> Tensor:
                    return self.x > 0

        assert (
            "Batch.mask`: `Derived[Tensor | None]` has a default that reads other "
            "fields, so a copy would compute it before their tensors are there. "
            "Compute it in a cached property instead: `def mask(self)`."
        ) in str(caught.value)

    def test_factory(self) -> None:
        """So does a factory with `takes_self`."""
        default = attrs.Factory(lambda self: self.x, takes_self=True)

        with pytest.raises(
            LifetimeError, match="has a default that reads other fields"
        ):

            @payload
            class Batch:
                x: Tensor
                mask: Derived[Tensor] = attrs.field(default=default)

    def test_factory_that_reads_nothing(self) -> None:
        """It makes the default of each copy anew."""

        @payload
        class Batch:
            x: Tensor
            seen: Derived[dict[str, Tensor]] = attrs.field(factory=dict)

        batch = Batch(one())
        batch.seen["x"] = batch.x

        assert {} == batch.to_device("meta").seen

    def test_plain_field_may_read_self(self) -> None:
        """Its value is made by `__init__` alone, and travels."""

        @payload
        class Batch:
            x: Tensor
            y: Tensor = attrs.field()

            @y.default
            def _y(self) -> Tensor:
                return self.x + 1

        batch = Batch(one())

        assert batch.y is evolve(batch, x=one()).y
        assert batch.to_device("meta").y.is_meta


class TestConstructionInCompiledCode:
    """A class is constructed inside `torch.compile`, whatever makes its defaults."""

    @pytest.mark.parametrize("fullgraph", [True, False])
    @pytest.mark.parametrize("kind", ["factory", "default", "plain"])
    def test_constructs(self, kind: str, fullgraph: bool) -> None:
        """`factory=` and `@x.default` used to end in an internal error."""
        fields: dict[str, Any] = {
            "factory": attrs.field(factory=dict),
            "default": attrs.field(
                default=attrs.Factory(lambda self: {"x": self.x}, takes_self=True)
            ),
            "plain": None,
        }

        body = {
            "__annotations__": {"x": Tensor, "more": dict[str, Tensor] | None},
            "more": fields[kind],
            "__module__": __name__,
        }
        made: Any = payload(type("Batch", (), body))

        def step(x: Tensor) -> Tensor:
            batch = made(x + 1)
            found: Tensor = batch.x * 2
            return found

        torch.compiler.reset()
        compiled = torch.compile(step, backend="eager", fullgraph=fullgraph)

        assert torch.equal(step(torch.ones(2)), compiled(torch.ones(2)))


def test_refused_class_keeps_the_order_of_its_names() -> None:
    """Attrs takes defaults out of the body; they could not be put back in place."""

    class Batch:
        bad: object
        size: int = 1
        names: list[str] = attrs.field(factory=list)

        @functools.cached_property
        def found(self) -> int:
            return 1

        def area(self) -> int:
            return 2

    before = list(vars(Batch).items())

    for options in ({}, {"slots": True}, {"frozen": True}):
        with pytest.raises(LifetimeError):
            payload(**options)(Batch)  # type: ignore[call-overload]  # any options
        assert before == list(vars(Batch).items())

    made: Any = payload(Batch, fields={"bad": Tensor})

    assert Batch is made
    assert not hasattr(made, "size")
    assert (1, [], 2) == (made(one()).size, made(one()).names, made(one()).area())


def test_child_of_a_class_that_fills_itself() -> None:
    """It inherits the constructor and the fields, and declares its own."""

    class Boxes:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    base = payload(Boxes, fields={"tensor": Tensor})

    class Rotated(base):  # type: ignore[misc,valid-type]  # a class all the same
        def turn(self) -> Any:
            self.angle = self.tensor
            return self

    made: Any = payload(Rotated, fields={"angle": Tensor})

    assert ("tensor", "angle") == made.payload_keys()
    assert made(one()).turn().to_device("meta").angle.is_meta
    assert not hasattr(made(one()).to_device("meta"), "angle")


def test_constructor_of_a_script_is_its_own() -> None:
    """Code that is run as text was taken for what `dataclasses` generates."""
    names: dict[str, Any] = {}
    exec("class Boxes:\n    def __init__(self, x):\n        self.x = x\n", names)  # noqa: S102

    made = payload(names["Boxes"], fields={"x": Tensor})

    assert made(one()).to_device("meta").x.is_meta
