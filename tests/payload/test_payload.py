"""The decorator: what it makes of a class, what it refuses, what it leaves alone."""

import abc
import dataclasses
import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import attrs
import pytest
import torch
from torch import Tensor

import tensorpack
from tensorpack import (
    DefinitionError,
    Derived,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeError,
    Payload,
    UndecoratedError,
    payload,
    tensors,
)

META = torch.device("meta")
STREAM: Any = object()  # a leaf on the host never looks at it

MAKERS = {
    "attrs.define": attrs.define,
    "attrs.define(slots=False)": attrs.define(slots=False),
    "attrs.define(kw_only=True)": attrs.define(kw_only=True),
    "attrs.frozen": attrs.frozen,
    "attrs.frozen(slots=False)": attrs.frozen(slots=False),
    "attrs.mutable": attrs.mutable,
    "dataclass": dataclasses.dataclass,
    "dataclass(frozen=True)": dataclasses.dataclass(frozen=True),
    "dataclass(slots=True)": dataclasses.dataclass(slots=True),
    "dataclass(frozen=True, slots=True)": dataclasses.dataclass(
        frozen=True, slots=True
    ),
    "dataclass(kw_only=True)": dataclasses.dataclass(kw_only=True),
    "dataclass(eq=False)": dataclasses.dataclass(eq=False),
    "dataclass(order=True)": dataclasses.dataclass(order=True),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"frozen": True},
    {"frozen": True, "slots": False},
    {"slots": False},
    {"kw_only": True},
    {"weakref_slot": False},
    {"str": True},
    {"repr": False},
    {"eq": True},
    {"eq": True, "order": True},
    {"unsafe_hash": True},
    {"unsafe_hash": True, "frozen": True},
    {"unsafe_hash": True, "slots": False},
    {"auto_attribs": True},
    {"auto_detect": False},
    {"auto_exc": False},
    {"getstate_setstate": True},
    {"match_args": False},
    {"on_setattr": attrs.setters.NO_OP},
    {"on_setattr": attrs.setters.validate},
    {"field_transformer": lambda _, fields: list(fields)},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=repr)


class TestAlone:
    """`@payload` on a plain class."""

    def test_makes_an_attrs_class(self) -> None:
        """A plain class becomes an attrs class with slots and no comparison."""

        @payload
        class Batch(Payload):
            ids: Tensor
            size: int = 1

        batch = Batch(torch.ones(2))

        assert ["ids", "size"] == [a.name for a in attrs.fields(Batch)]
        assert not hasattr(batch, "__dict__")
        assert batch != Batch(batch.ids)
        assert Batch.__lt__ is object.__lt__

    @each_option
    def test_takes_every_option_of_attrs_define(self, options: dict[str, Any]) -> None:
        """With any option a twin has its leaves moved and its host fields kept."""

        @payload(**options)
        class Batch(Payload):
            ids: Tensor
            _private: Tensor | None = None
            count: int = 3

        batch = Batch(ids=torch.ones(2), private=torch.ones(1), count=4)
        twin = batch.to_device(META)

        assert Batch is type(twin)
        assert ["ids", "_private"] == [key for key, _ in tensors(twin)]
        assert [META, META] == [leaf.device for _, leaf in tensors(twin)]
        assert 4 == twin.count

    def test_takes_fields_from_these(self) -> None:
        """A class whose fields are given by `these=` travels like any other."""

        @payload(these={"ids": attrs.field(type=Tensor)})
        class Batch(Payload):
            pass

        batch: Any = Batch
        assert META == batch(torch.ones(2)).to_device(META).ids.device

    def test_takes_a_hand_written_init(self) -> None:
        """A class with its own `__init__` keeps it, and a twin does not run it."""
        calls = []

        @payload
        class Batch(Payload):
            ids: Tensor
            size: int

            def __init__(self, ids: Tensor) -> None:
                calls.append(ids)
                self.ids = ids
                self.size = 7

        twin = Batch(torch.ones(2)).to_device(META)

        assert (META, 7, 1) == (twin.ids.device, twin.size, len(calls))

    @pytest.mark.parametrize("slots", [True, False])
    def test_cached_hash_is_refused(self, slots: bool) -> None:
        """A copy would take along the hash that attrs has cached of the original."""

        class Batch:
            ids: Tensor

        with pytest.raises(DefinitionError, match="caches its hash"):
            payload(frozen=True, eq=True, cache_hash=True, slots=slots)(Batch)
        with pytest.raises(DefinitionError, match="caches its hash"):
            payload(attrs.frozen(cache_hash=True, slots=slots)(Batch))

    def test_repr_is_short(self) -> None:
        """The repr tells what each field holds, and no numbers."""

        @payload
        class Part(Payload):
            grid: Tensor

        @payload
        class Batch(Payload):
            ids: Tensor
            part: Part
            images: list[Tensor]
            table: dict[str, Tensor]
            pair: tuple[Tensor]
            secret: int = attrs.field(default=1, repr=False)
            name: str = "x"

        one = torch.zeros(1, 2, dtype=torch.int64)
        batch = Batch(one, Part(one), [one] * 5, {"a": one}, (one,))

        assert (
            "Batch(ids=int64[1, 2] cpu, part=Part(grid=int64[1, 2] cpu), "
            "images=[int64[1, 2] cpu, int64[1, 2] cpu, int64[1, 2] cpu, ... 2 more], "
            "table={'a': int64[1, 2] cpu}, pair=(int64[1, 2] cpu,), name='x')"
        ) == repr(batch)

    def test_repr_of_any_container_names_shapes(self) -> None:
        """Numbers on a device would be waited for, only to be put into a log."""

        class Row(NamedTuple):
            ids: Tensor
            n: int

        @payload
        class Batch:
            found: Dynamic[Any]

        one = torch.ones(1)
        texts = {
            "[float32[1] cpu]": [one],
            "(float32[1] cpu,)": (one,),
            "{'a': float32[1] cpu}": {"a": one},
            "deque([float32[1] cpu])": deque([one]),
            "OrderedDict({'a': float32[1] cpu})": OrderedDict(a=one),
            "defaultdict({'a': [float32[1] cpu]})": defaultdict(list, a=[one]),
            "Row(ids=float32[1] cpu, n=2)": Row(one, 2),
            "deque([1, 1, 1, ... 2 more])": deque([1] * 5),
        }
        for text, value in texts.items():
            assert f"Batch(found={text})" == repr(Batch(value))

    def test_repr_of_a_subclass_and_of_an_unset_field(self) -> None:
        """A tensor subclass is named, and an unset field does not break the repr."""

        @payload
        class Batch(Payload):
            weight: Tensor
            later: Tensor = attrs.field(init=False)

        batch = Batch(torch.nn.Parameter(torch.ones(2)))

        assert "Batch(weight=Parameter float32[2] cpu, later='<unset>')" == repr(batch)

    def test_own_repr_stays(self) -> None:
        """A repr of the class body is not replaced."""

        @payload
        class Batch(Payload):
            ids: Tensor

            def __repr__(self) -> str:
                return "mine"

        assert "mine" == repr(Batch(torch.ones(1)))

    def test_works_without_the_base(self) -> None:
        """The typed base may be left out."""

        @payload
        class Batch:
            ids: Tensor

        batch: Any = Batch(torch.ones(1))
        assert META == batch.to_device(META).ids.device

    def test_works_called_with_nothing(self) -> None:
        """`@payload()` is `@payload`."""

        @payload()
        class Batch(Payload):
            ids: Tensor

        assert ("ids",) == Batch.payload_keys()

    def test_no_leaves_is_legal(self) -> None:
        """A payload without leaves is its own kind of payload, not a mistake."""

        @payload
        class Empty(Payload):
            size: int = 1

        twin = Empty(2).to_device(META)

        assert ((), ("size",), 2) == (
            Empty.payload_keys(),
            Empty.host_keys(),
            twin.size,
        )


class TestAdopted:
    """`@payload` over a class that attrs or `dataclasses` has made."""

    @each_maker
    def test_only_adds_methods(self, make: Callable[[type], type]) -> None:
        """The class stays the very same class, and its instances travel."""

        class Batch:
            ids: Tensor
            size: int

        made: Any = make(Batch)
        before = set(vars(made))
        decorated = payload(made)
        twin = decorated(ids=torch.ones(2), size=3).to_device(META)

        assert made is decorated
        assert made is type(twin)
        assert (META, 3) == (twin.ids.device, twin.size)
        assert {
            "to_device",
            "record_stream",
            "payload_keys",
            "host_keys",
            "to",
            "pin_memory",
            "__tensorpack_plan__",
            "__tensorpack_leaves__",
            "__tensorpack_keyed__",
            "__tensorpack_rebuild__",
        } == set(vars(made)) - before - {"__abstractmethods__"}

    @each_maker
    def test_inherits_the_typed_base(self, make: Callable[[type], type]) -> None:
        """The typed base fits under every way to make a class."""

        class Batch(Payload):
            ids: Tensor

        made: Any = payload(make(Batch))

        assert META == made(ids=torch.ones(2)).to_device(META).ids.device

    @each_maker
    def test_a_decorated_child_covers_its_base(
        self, make: Callable[[type], type]
    ) -> None:
        """A child made in the same way moves the base's fields and its own."""

        class Base(Payload):
            ids: Tensor

        base: Any = payload(make(Base))
        child: Any = payload(
            make(type("Child", (base,), {"__annotations__": {"mask": Tensor}}))
        )
        twin = child(ids=torch.ones(1), mask=torch.ones(2)).to_device(META)

        assert ("ids", "mask") == child.payload_keys()
        assert (META, META) == (twin.ids.device, twin.mask.device)

    def test_nothing_of_the_class_runs_again(self) -> None:
        """No init, converter, validator, post-init or setter runs for a twin."""
        ran = []

        def note(*_: object) -> None:
            ran.append(1)

        @payload
        @attrs.define(on_setattr=[lambda *a: ran.append(1) or a[2]])
        class Batch(Payload):
            ids: Tensor = attrs.field(validator=note, converter=lambda x: x)
            size: int = attrs.field(default=1, converter=lambda x: ran.append(1) or x)

            def __attrs_post_init__(self) -> None:
                ran.append(1)

        batch = Batch(torch.ones(2))
        ran.clear()
        batch.to_device(META)
        tensorpack.clone(batch)
        tensorpack.evolve(batch, size=2)

        assert [] == ran

    def test_post_init_of_a_dataclass_does_not_run_again(self) -> None:
        """A value that post-init has computed is kept, not computed anew."""

        @payload
        @dataclasses.dataclass
        class Batch(Payload):
            ids: Tensor
            count: int = dataclasses.field(init=False)

            def __post_init__(self) -> None:
                self.count = self.ids.numel()

        batch = Batch(torch.ones(2))
        batch.count = 17

        assert 17 == batch.to_device(META).count

    def test_private_and_aliased_fields_keep_their_values(self) -> None:
        """A twin is filled by attribute names, whatever `__init__` calls them."""

        @payload
        class Batch(Payload):
            _ids: Tensor
            mask: Tensor = attrs.field(alias="attention_mask")
            count: int = attrs.field(init=False, default=3)

        batch = Batch(ids=torch.ones(2), attention_mask=torch.ones(3))
        batch.count = 5
        twin = batch.to_device(META)

        assert (META, META, 5) == (twin._ids.device, twin.mask.device, twin.count)

    def test_unset_field_stays_unset(self) -> None:
        """A field that nobody has set yet is no reason to fail, and stays unset."""

        @payload
        class Batch(Payload):
            ids: Tensor
            later: Tensor = attrs.field(init=False)

        batch = Batch(torch.ones(2))

        assert not hasattr(batch.to_device(META), "later")
        batch.later = torch.ones(1)
        assert META == batch.to_device(META).later.device

    def test_cached_property_is_computed_anew(self) -> None:
        """A cached property is no field: a twin computes its own."""

        @payload
        @attrs.define(slots=False)
        class Batch(Payload):
            ids: Tensor

            @functools.cached_property
            def where(self) -> str:
                return self.ids.device.type

        batch = Batch(torch.ones(2))

        assert "cpu" == batch.where
        assert "meta" == batch.to_device(META).where

    def test_class_variable_is_no_field(self) -> None:
        """What belongs to the class does not travel."""

        @payload
        class Batch(Payload):
            ids: Tensor
            table: ClassVar[Tensor] = torch.ones(3)

        assert ("ids",) == Batch.payload_keys()
        assert "cpu" == Batch(torch.ones(1)).to_device(META).table.device.type

    def test_fields_correct_annotations_that_lie(self) -> None:
        """`fields=` replaces the annotation of a class that cannot be edited."""

        @attrs.define
        class Theirs:
            ids: Tensor
            meta: dict[str, Any]

        decorated: Any = payload(Theirs, fields={"meta": Dynamic[dict[str, Any]]})
        twin = decorated(torch.ones(1), {"grid": torch.ones(2), "n": 3}).to_device(META)

        assert Theirs is decorated
        assert (META, 3) == (twin.meta["grid"].device, twin.meta["n"])

    def test_fields_of_a_class_count_for_its_children(self) -> None:
        """A correction of a base's field need not be said again."""

        @attrs.define
        class Base:
            meta: Any

        payload(Base, fields={"meta": HostOnly[Any]})

        @payload
        class Child(Base):
            ids: Tensor

        assert (("ids",), ("meta",)) == (
            Child.payload_keys(),
            Child.host_keys(),
        )

    def test_options_do_not_fit_a_made_class(self) -> None:
        """Options of `attrs.define` for a class that is made already are refused."""

        @attrs.define
        class Batch:
            ids: Tensor

        with pytest.raises(DefinitionError, match="`frozen`, `slots` cannot apply"):
            payload(frozen=True, slots=False)(Batch)


class TestNames:
    """Generated names that the class uses itself."""

    def test_hand_written_twins_are_refused_all_at_once(self) -> None:
        """One error lists every generated name that the class body defines."""

        class Batch:
            ids: Tensor

            def to_device(self, device: object) -> None: ...

            def record_stream(self, stream: object) -> None: ...

            @classmethod
            def payload_keys(cls) -> None: ...

            host_keys = property(lambda self: ())

        with pytest.raises(DefinitionError) as caught:
            payload(Batch)

        assert (
            "its body defines `to_device`, `record_stream`, `payload_keys`, "
            "`host_keys`, which `@payload` generates"
        ) == caught.value.problem

    def test_kept_names_stay_the_classs_own(self) -> None:
        """A kept method serves calls on the object, and is noted in the plan."""

        @payload(keep=("to_device",))
        class Batch(Payload):
            ids: Tensor

            def to_device(self, device: Any, non_blocking: bool = False) -> "Batch":
                moved = super().to_device(device, non_blocking)
                return tensorpack.evolve(moved, ids=moved.ids + 1)

        batch: Any = Batch(torch.ones(2))

        assert META == batch.to_device(META).ids.device
        assert [2.0, 2.0] == batch.to_device("cpu").ids.tolist()
        assert ("`to_device` is the class's own (`keep`)",) == (
            Batch.__tensorpack_plan__.notes
        )

    def test_kept_method_is_passed_by_where_others_move_the_object(self) -> None:
        """Inside another payload, and by the free function, the plan counts."""

        @payload(keep=("to_device",))
        class Part(Payload):
            ids: Tensor

            def to_device(self, device: Any, non_blocking: bool = False) -> "Part":
                raise AssertionError

        @payload
        class Whole(Payload):
            part: Part

        part: Any = Part(torch.ones(1))

        assert META == Whole(part).to_device(META).part.ids.device
        assert META == tensorpack.to_device(part, META).ids.device

    @pytest.mark.parametrize("name", ["to_device", "record_stream", "payload_keys"])
    def test_field_with_a_generated_name_is_refused(self, name: str) -> None:
        """A field cannot have the name of a generated method."""
        body = {"__annotations__": {name: Tensor}}

        with pytest.raises(DefinitionError, match=f"`{name}` would be a field and"):
            payload(type("Batch", (), dict(body)))
        with pytest.raises(DefinitionError, match=f"`{name}` would be a field and"):
            payload(attrs.define(type("Batch", (), dict(body))))
        with pytest.raises(DefinitionError, match=f"`{name}` would be a field and"):
            payload(dataclasses.dataclass(type("Batch", (), dict(body))))

    def test_courtesy_is_left_out_where_the_class_uses_its_name(self) -> None:
        """A method or field of the class called `to` or `pin_memory` stays."""

        @payload
        class Batch:
            ids: Tensor
            pin_memory: bool = True

            def to(self, text: str) -> str:
                return text

        batch: Any = Batch(torch.ones(1))

        assert ("x", True) == (batch.to("x"), batch.to_device(META).pin_memory)
        assert (
            "`to` is left out: `Batch` uses the name itself",
            "`pin_memory` is left out: `Batch` uses the name itself",
        ) == Batch.__tensorpack_plan__.notes  # type: ignore[attr-defined]

    def test_courtesy_that_a_payload_base_uses_itself_stays(self) -> None:
        """A child does not replace what its base has said to be its own."""

        @payload
        class Base:
            ids: Tensor

            def to(self, text: str) -> str:
                return text

        @payload
        class Child(Base):
            mask: Tensor | None = None

        assert "x" == Child(torch.ones(1)).to("x")
        assert ("`to` is left out: `Base` uses the name itself",) == (
            Child.__tensorpack_plan__.notes  # type: ignore[attr-defined]
        )

    def test_inherited_hand_written_methods_are_overridden(self) -> None:
        """A twin that an undecorated base has written by hand does not live on."""

        class Base:
            def to_device(self, device: object) -> str:
                return "by hand"

            def record_stream(self, stream: object) -> str:
                return "by hand"

            def to(self, device: object) -> str:
                return "by hand"

        @payload
        class Batch(Base):
            ids: Tensor

        batch: Any = Batch(torch.ones(1))

        assert META == batch.to_device(META).ids.device
        assert META == batch.to(META).ids.device
        assert None is batch.record_stream(STREAM)

    def test_abstract_methods_are_refreshed(self) -> None:
        """Generated methods implement what an abstract base asks for."""

        class Base(abc.ABC):
            @abc.abstractmethod
            def to_device(self, device: object) -> object: ...

            @abc.abstractmethod
            def record_stream(self, stream: object) -> None: ...

        @payload
        class Batch(Base):
            ids: Tensor

        @payload
        @dataclasses.dataclass
        class Other(Base):
            ids: Tensor

        assert (frozenset(), frozenset()) == (
            Batch.__abstractmethods__,
            Other.__abstractmethods__,
        )
        Batch(torch.ones(1))
        Other(torch.ones(1))

    def test_other_abstract_methods_stay_abstract(self) -> None:
        """A payload that still has an abstract method cannot be made."""

        @payload
        class Base(abc.ABC, Payload):
            ids: Tensor

            @abc.abstractmethod
            def step(self) -> None: ...

        with pytest.raises(TypeError, match="abstract"):
            Base(torch.ones(1))  # type: ignore[abstract]

    def test_override_in_an_undecorated_way_reaches_the_base(self) -> None:
        """`super().to_device()` in a decorated child covers the child's fields."""

        @payload
        class Base(Payload):
            ids: Tensor

        @payload(keep=("to_device",))
        class Child(Base):
            mask: Tensor

            def to_device(self, device: Any, non_blocking: bool = False) -> "Child":
                return super().to_device(device, non_blocking)

        child: Any = Child
        twin = child(torch.ones(1), torch.ones(2)).to_device(META)

        assert (child, META, META) == (type(twin), twin.ids.device, twin.mask.device)


class TestRefusal:
    """After a refusal the class is as before."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda cls: cls,
            attrs.define(slots=False),
            dataclasses.dataclass,
            dataclasses.dataclass(slots=True),
        ],
        ids=["plain", "attrs", "dataclass", "slots"],
    )
    def test_leaves_no_half_made_payload(self, make: Callable[[type], type]) -> None:
        """Nothing of a refused class has changed, and once mended it is accepted."""

        class Batch:
            ids: Tensor
            bad: object
            size: int = 1

        made: Any = make(Batch)
        before = dict(vars(made))
        options = {"slots": False} if made is Batch and made.__dict__ else {}
        if hasattr(made, "__attrs_attrs__") or dataclasses.is_dataclass(made):
            options = {}

        with pytest.raises(LifetimeError):
            payload(**options)(made)

        assert before == dict(vars(made))
        fixed: Any = payload(fields={"bad": HostOnly[object]}, **options)(made)
        twin = fixed(torch.ones(1), None, 2).to_device(META)
        assert (META, 2) == (twin.ids.device, twin.size)

    def test_reports_options_that_attrs_does_not_know(self) -> None:
        """A misspelt option is attrs' own error, and leaves the class alone."""

        class Batch:
            ids: Tensor

        with pytest.raises(TypeError, match="froze"):
            payload(froze=True)(Batch)  # type: ignore[call-overload]

        assert not hasattr(Batch, "__attrs_attrs__")

    def test_twice_is_refused(self) -> None:
        """A payload is decorated once."""

        @payload
        class Batch:
            ids: Tensor

        with pytest.raises(DefinitionError, match="a payload already"):
            payload(Batch)


class TestPrepare:
    """`__payload_prepare__`: the object may change just before it travels."""

    @staticmethod
    def lazy() -> tuple[Any, list[str]]:
        """Make a payload that fills a field when it travels, and its log."""
        log: list[str] = []

        @payload
        class Lazy(Payload):
            host: HostOnly[list[int]]
            ids: Tensor | None = None

            def __payload_prepare__(self) -> Any:
                log.append("prepare")
                if self.ids is not None:
                    return self
                return tensorpack.evolve(self, ids=torch.tensor(self.host))

        return Lazy, log

    def test_is_asked_once_per_move(self) -> None:
        """Each of `to_device`, `to` and the free function asks once."""
        cls, log = self.lazy()
        moves: list[Callable[[Any], Any]] = [
            lambda x: x.to_device(META),
            lambda x: x.to(META),
            lambda x: tensorpack.to_device(x, META),
            lambda x: tensorpack.to_device({"x": x}, META, keys=["x"])["x"],
            lambda x: tensorpack.to_device([x], META)[0],
        ]
        for move in moves:
            log.clear()
            twin = move(cls([1, 2]))

            assert (META, ["prepare"]) == (twin.ids.device, log)

    def test_is_asked_for_pinned_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`pin_memory` pins what has been prepared."""
        cls, log = self.lazy()
        monkeypatch.setattr(Tensor, "pin_memory", lambda self: self + 1)
        twin = cls([1, 2]).pin_memory()

        assert ([2, 3], ["prepare"]) == (twin.ids.tolist(), log)

    def test_is_not_asked_otherwise(self) -> None:
        """Listing, recording, cloning and evolving do not prepare."""
        cls, log = self.lazy()
        lazy = cls([1])
        list(tensors(lazy))
        lazy.record_stream(STREAM)
        tensorpack.clone(lazy)
        tensorpack.evolve(lazy, host=[2])

        assert [] == log

    def test_does_not_change_the_original(self) -> None:
        """A hook that fills `self` fills the object that travels."""

        @payload
        class Lazy(Payload):
            ids: Tensor | None = None

            def __payload_prepare__(self) -> "Lazy":
                self.ids = torch.ones(1)
                return self

        lazy = Lazy()
        twin = lazy.to_device(META)

        assert lazy.ids is None
        assert twin.ids is not None
        assert META == twin.ids.device

    def test_children_come_first(self) -> None:
        """A parent's hook sees its children prepared, wherever they stand."""
        log: list[str] = []

        @payload
        class Child(Payload):
            name: str
            ids: Tensor | None = None

            def __payload_prepare__(self) -> "Child":
                log.append(self.name)
                return tensorpack.evolve(self, ids=torch.ones(1))

        @payload
        class Parent(Payload):
            one: Child
            more: list[Child]
            table: Dynamic[dict[str, Any]]

            def __payload_prepare__(self) -> "Parent":
                log.append("parent")
                assert None not in (self.one.ids, self.more[0].ids)
                return self

        parent = Parent(Child("a"), [Child("b")], {"c": Child("c")})
        twin = parent.to_device(META)

        assert ["a", "b", "c", "parent"] == log
        assert META == twin.table["c"].ids.device

    def test_object_in_two_places_is_asked_once(self) -> None:
        """One object that stands in two fields is prepared once, into one."""
        cls, log = self.lazy()

        @payload
        class Pair(Payload):
            one: HostOnly[int]
            left: Payload
            right: Payload

        lazy = cls([1, 2])
        twin = Pair(1, lazy, lazy).to_device(META)

        assert ["prepare"] == log
        assert twin.left is not twin.right
        assert twin.left.ids is twin.right.ids  # type: ignore[attr-defined]

    def test_inherited_hook_counts(self) -> None:
        """A child is prepared by the hook of its base."""
        cls, log = self.lazy()

        @payload
        class Child(cls):  # type: ignore[misc]
            mask: Tensor | None = None

        Child([1]).to_device(META)

        assert ["prepare"] == log

    def test_preparing_twice_changes_nothing(self) -> None:
        """A payload that has travelled travels again as it is."""
        cls, _ = self.lazy()
        once = cls([1, 2]).to_device(META)

        assert once.ids is once.to_device(META).ids

    @pytest.mark.parametrize("wrong", [None, 3, "Other"])
    def test_another_class_raises(self, wrong: object) -> None:
        """What travels has the class of what was asked."""

        @payload
        class Other(Payload):
            ids: Tensor | None = None

        @payload
        class Lazy(Payload):
            ids: Tensor | None = None

            def __payload_prepare__(self) -> Any:
                return Other() if wrong == "Other" else wrong

        with pytest.raises(LeafError, match="only a `Lazy` can travel here"):
            Lazy().to_device(META)

    def test_error_in_the_hook_is_the_users_own(self) -> None:
        """What the hook raises arrives as it is."""

        @payload
        class Lazy(Payload):
            ids: Tensor | None = None

            def __payload_prepare__(self) -> "Lazy":
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            Lazy().to_device(META)


class TestOrder:
    """`@payload` belongs on top of the other decorators."""

    def test_class_made_anew_above_says_so(self) -> None:
        """A decorator above `@payload` that makes another class is named as cause."""

        @attrs.define
        @payload
        class Batch(Payload):
            ids: Tensor

        with pytest.raises(UndecoratedError, match="Put `@payload` on top"):
            Batch(torch.ones(1)).to_device(META)

    def test_class_that_only_derives_from_the_base_says_so(self) -> None:
        """It went round in circles until the recursion limit: now it says why."""

        class Batch(Payload):
            ids: Tensor

        for use in (
            lambda x: x.to_device(META),
            lambda x: x.record_stream(STREAM),
            lambda x: x.pin_memory(),
            lambda x: x.payload_keys(),
            lambda x: tensorpack.to_device(x, META),
            lambda x: tensorpack.record_stream([x], STREAM),
        ):
            with pytest.raises(UndecoratedError, match="not decorated"):
                use(Batch())


def test_derived_field_gets_its_default() -> None:
    """A cache is not carried over: every new object gets the field's default."""

    @payload
    class Batch(Payload):
        ids: Tensor
        cache: Derived[Tensor | None] = None
        table: Derived[dict[str, Tensor]] = attrs.field(factory=dict)

    batch = Batch(torch.ones(1), torch.ones(2), {"a": torch.ones(3)})

    assert (None, {}) == (
        batch.to_device(META).cache,
        batch.to_device(META).table,
    )
    assert (("ids",), ()) == (Batch.payload_keys(), Batch.host_keys())
