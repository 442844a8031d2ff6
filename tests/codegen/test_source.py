"""The generated source: read by people in `show`, in tracebacks and in a debugger.

`python tests/test_source.py` writes the golden files anew: read what has changed.
"""

import collections
import dataclasses
import functools
import inspect
import linecache
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pytest
import torch
from subjects import Opaque
from torch import Tensor

from tensorpack import (
    Borrowed,
    Derived,
    Dynamic,
    HostOnly,
    LifetimeAdapter,
    Payload,
    payload,
    tensors,
)
from tensorpack._codegen.leaves import write, write_keyed

GOLDEN = Path(__file__).parent / "golden"
META = torch.device("meta")
ONE = torch.ones(1)


@payload
class Sampling(Payload):
    """Plain fields: one line for each."""

    temperature: Tensor
    top_k: Tensor | None = None
    max_top_k: int = 1
    names: list[str] | None = None
    session: HostOnly[list[dict[str, object]] | None] = None


@payload
class Forward(Payload):
    """Nested payloads and containers."""

    input_ids: Tensor
    sampling: Sampling
    embeddings: list[list[Tensor]] | None = None
    many: tuple[Tensor, ...] = ()
    pair: tuple[Tensor, int] | None = None
    states: dict[str, Tensor] | None = None
    parts: dict[str, list[Sampling]] | None = None
    queue: collections.deque[Tensor] | None = None
    order: collections.OrderedDict[str, Tensor] | None = None
    some: Sequence[Tensor] = ()
    table: Mapping[int, Tensor | None] | None = None


@payload
class Choices(Payload):
    """Unions: the value decides."""

    one: Tensor | int
    two: Tensor | list[Tensor] | None
    three: Sampling | dict[str, Tensor] | str | None
    four: list[Tensor | Sampling]
    five: Tensor | HostOnly[object]


@payload(frozen=True)
class Frozen(Payload):
    """A frozen class is filled past its `__setattr__`."""

    ids: Tensor
    size: int
    images: list[list[Tensor]] | None = None
    either: Tensor | list[Tensor] | None = None


@payload
@dataclasses.dataclass
class Cached(Payload):
    """An instance `__dict__`, a field that may be unset, and caches."""

    ids: Tensor
    later: Tensor = dataclasses.field(init=False)
    mask: Derived[Tensor | None] = None
    masks: Derived[list[Tensor]] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def total(self) -> Tensor:
        """Look for it in the `__dict__`, where it is once it is computed."""
        return self.ids.sum()

    @functools.cached_property
    def size(self) -> int:
        """Leave it alone: a host type."""
        return self.ids.numel()


@payload
class InSlots(Payload):
    """Cached properties that attrs keeps in slots, of which one has marked parts."""

    ids: Tensor

    @functools.cached_property
    def total(self) -> Tensor:
        return self.ids.sum()

    @functools.cached_property
    def parts(self) -> tuple[Tensor, Borrowed[Tensor], HostOnly[object]]:
        return self.ids, self.ids, None


class Point(NamedTuple):
    x: Tensor
    n: int
    many: list[Tensor] | None = None


class Entry(TypedDict, total=False):
    a: Tensor
    n: int
    many: list[Tensor]


class Handle:
    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class HandleAdapter(LifetimeAdapter[Handle]):
    def leaves(self, value: Handle) -> Sequence[Tensor]:
        return [value.keys]

    def rebuild(self, value: Handle, leaves: Sequence[Tensor]) -> Handle:
        return Handle(leaves[0])


@payload
class Odd(Payload):
    """Every other kind of field."""

    point: Point
    entry: Entry
    handle: Handle
    opaque: Opaque
    meta: Dynamic[dict[str, Any]]
    cache: Borrowed[list[Tensor]]
    points: list[Point]


CLASSES: tuple[Any, ...] = (
    Sampling,
    Forward,
    Choices,
    Frozen,
    Cached,
    InSlots,
    Odd,
)


def golden() -> dict[str, str]:
    """Give the text of every golden file."""
    texts = {cls.__name__: write(cls.__tensorpack_plan__).text for cls in CLASSES}
    keyed = write_keyed(Forward.__tensorpack_plan__)  # type: ignore[attr-defined]
    return {**texts, "Forward_keyed": keyed.text}


def source_of(annotation: Any, **body: Any) -> str:
    """Give the source of a payload with one field."""
    cls: Any = payload(
        type("Batch", (), {"__annotations__": {"field": annotation}, **body})
    )
    return write(cls.__tensorpack_plan__).text


@pytest.mark.parametrize("name", golden())
def test_source_reads_as_if_written_by_hand(name: str) -> None:
    """The text is the one that somebody has read and found good."""
    expected = (GOLDEN / f"{name}.txt").read_text()

    assert expected == golden()[name]


def test_every_golden_file_is_compared() -> None:
    """No file is left over from a class that is gone."""
    assert {f"{name}.txt" for name in golden()} == {p.name for p in GOLDEN.iterdir()}


@pytest.mark.parametrize("cls", CLASSES)
def test_same_class_gives_the_same_text(cls: Any) -> None:
    """The text depends on the plan alone, not on order, addresses or time."""
    plan = cls.__tensorpack_plan__

    assert write(plan) == write(plan)
    assert write_keyed(plan) == write_keyed(plan)


def test_another_process_gives_the_same_text() -> None:
    """Neither hashes nor addresses enter the text."""
    code = (
        f"import sys; sys.path[:0] = {[str(p) for p in Path(__file__).parents[:2]]}\n"
        "import test_source\n"
        "print(repr(test_source.golden()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    assert repr(golden()) == done.stdout.strip()


def test_keyed_text_differs_by_the_keys_alone() -> None:
    """The keyed walk visits what the plain one visits, in the same order."""
    for cls in CLASSES:
        plan = cls.__tensorpack_plan__
        plain, keyed = write(plan).text, write_keyed(plan).text

        assert plain.partition("def rebuild")[0].count("add(") == keyed.count("add((")


@pytest.mark.parametrize("cls", CLASSES)
def test_inspect_finds_the_source(cls: Any) -> None:
    """`inspect.getsource` gives the text of each traversal."""
    value = object.__new__(cls)
    for name in ("leaves", "keyed"):
        with pytest.raises(AttributeError):  # it is compiled when it is first used
            getattr(cls, f"__tensorpack_{name}__")(value, None, "")
    plan = cls.__tensorpack_plan__
    both = [cls.__tensorpack_leaves__, cls.__tensorpack_rebuild__]

    assert write(plan).text == "\n\n".join(map(inspect.getsource, both))
    assert write_keyed(plan).text == inspect.getsource(cls.__tensorpack_keyed__)
    assert [f"{cls.__qualname__}.{n}" for n in ("leaves", "rebuild")] == [
        function.__qualname__ for function in both
    ]
    assert {cls.__module__} == {function.__module__ for function in both}


def test_traceback_shows_the_line() -> None:
    """An error points at the line of the field, in a file that names the class."""
    try:
        Sampling(3).to_device(META)  # type: ignore[arg-type]
        Forward(ONE, 3).to_device(META)  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        Forward(ONE, 3).to_device(META)  # type: ignore[arg-type]
    except TypeError:
        text = traceback.format_exc()

    assert f'File "<tensorpack generated {__name__}.Forward>", line 5, in' in text
    assert (
        'if (x := self.sampling) is not None: walk.nested(x, at + "sampling")' in text
    )


def test_source_survives_a_check_of_the_line_cache() -> None:
    """The lines stay when a debugger or test runner cleans the cache."""
    Sampling(ONE).to_device(META)
    linecache.checkcache()

    assert inspect.getsource(Sampling.__tensorpack_leaves__)  # type: ignore[attr-defined]


def test_two_classes_of_one_name_have_their_own_source() -> None:
    """A class that is defined again does not show the lines of the first."""
    classes: list[Any] = []
    for annotation in (Tensor, list[Tensor]):

        @payload
        class Batch(Payload):
            field: annotation  # type: ignore[valid-type]

        classes.append(Batch)
    classes[0](ONE).to_device(META)
    classes[1]([ONE]).to_device(META)
    sources = [inspect.getsource(cls.__tensorpack_leaves__) for cls in classes]

    assert "add(x)" in sources[0]
    assert "for x1 in x" in sources[1]


def test_defining_a_class_compiles_nothing() -> None:
    """The text is written and compiled when the class is first used."""
    before = set(linecache.cache)

    @payload
    class Unused(Payload):
        ids: Tensor

    assert not [f for f in set(linecache.cache) - before if f.startswith("<tensorpack")]


def test_first_use_may_be_in_many_threads() -> None:
    """Threads that use a new class at once all get the same, whole traversals."""

    @payload
    class Batch(Payload):
        ids: Tensor
        many: list[Tensor]

    batch = Batch(ONE, [ONE])
    start = threading.Barrier(8)

    def use(_: int) -> list[str]:
        start.wait()
        twin = batch.to_device(META)
        return [key for key, _ in tensors(twin)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(use, range(8)))

    assert [["ids", "many[0]"]] * 8 == found


class TestNames:
    """Only identifiers and quoted strings enter the text."""

    @pytest.mark.parametrize(
        "name",
        [
            "this",
            "walk",
            "at",
            "add",
            "new",
            "take",
            "build",
            "x",
            "x1",
            "i1",
            "stores",
            "keys",
            "Tensor",
            "isinstance",
            "like",
            "k",
            "object",
            "tuple",
        ],
    )
    def test_field_may_have_the_name_of_a_variable(self, name: str) -> None:
        """Fields are attributes, so no local name hides them."""
        body = {"__annotations__": {name: list[Tensor | int]}}
        cls: Any = payload(type("Batch", (), body))
        arguments = [[ONE, 3]]
        twin = cls(*arguments).to_device(META)

        assert META == getattr(twin, name)[0].device

    @pytest.mark.parametrize(
        "name",
        [
            "Tensor",
            "walk",
            "self",
            "new",
            "list",
            "object",
            "isinstance",
            "x",
            "like",
            "class",
            "two words",
            "",
            "größe",
            "leaves",
            "take",
            "None",
            "True",
        ],
    )
    def test_class_may_have_any_name(self, name: str) -> None:
        """A class is named by an identifier that nothing else in the text uses."""
        cls: Any = payload(type(name, (), {"__annotations__": {"ids": Tensor}}))
        handle = type(name or "x", (Handle,), {})
        holder = type("Holder", (), {"__annotations__": {"h": handle, "t": Tensor}})
        made: Any = payload(holder)

        assert META == cls(ONE).to_device(META).ids.device
        assert ["t"] == [k for k, _ in tensors(made(None, ONE).to_device(META))]

    def test_private_names_are_found(self) -> None:
        """A name with two underscores has the class's name in it, here as there."""

        @payload
        class Batch(Payload):
            _ids: Tensor
            __mask: Tensor

        batch = Batch(ONE, ONE + 1)

        assert ["_ids", "_Batch__mask"] == [key for key, _ in tensors(batch)]
        assert META == batch.to_device(META)._Batch__mask.device  # type: ignore[attr-defined]

    def test_two_classes_of_one_name_are_told_apart(self) -> None:
        """A second class of the same name gets a number."""
        names = [
            NamedTuple("Same", [("x", Tensor), ("n", int)]),
            NamedTuple("Same", [("y", Tensor), ("m", int)]),
        ]
        body = {"__annotations__": {"a": names[0], "b": names[1]}}
        cls: Any = payload(type("Batch", (), body))
        twin = cls(names[0](ONE, 1), names[1](ONE, 2)).to_device(META)  # type: ignore[call-arg]

        assert (META, META) == (twin.a.x.device, twin.b.y.device)
        assert "type(x) is not Same_2" in write(cls.__tensorpack_plan__).text

    @pytest.mark.parametrize("key", ['a"b', "a'b", "a\\b", "a{b}", "a\nb", "a b", "é"])
    def test_keys_of_typed_dictionaries_are_quoted(self, key: str) -> None:
        """Whatever a key is, the address shows it and the text stays legal."""
        entry: Any = TypedDict("Entry", {key: Tensor, "n": int})  # type: ignore[misc]
        body = {"__annotations__": {"field": entry, "many": list[entry]}}
        cls: Any = payload(type("Batch", (), body))
        value = cls({key: ONE, "n": 3}, [{key: ONE}])
        twin = value.to_device(META)

        assert [f"field[{key!r}]", f"many[0][{key!r}]"] == [
            k for k, _ in tensors(value)
        ]
        assert (META, 3) == (twin.field[key].device, twin.field["n"])

    def test_strange_name_of_a_class_does_not_break_its_docstring(self) -> None:
        """A name is text in the docstring, whatever characters it has."""
        for name in ('a"""b', "a\\", "a\nb", "a{b}"):
            cls: Any = payload(type(name, (), {"__annotations__": {"ids": Tensor}}))

            assert META == cls(ONE).to_device(META).ids.device


class TestForm:
    """The text asks nothing twice and says nothing that does not matter."""

    def test_plain_field_is_one_line(self) -> None:
        """One line for a leaf in each traversal."""
        text = source_of(Tensor | None)

        assert 1 == text.count("if (x := self.field) is not None: add(x)")
        assert 1 == text.count("new.field = None if self.field is None else take()")

    def test_borrowed_field_is_not_walked(self) -> None:
        """A value that nobody may look at is handed on, and that is all."""
        text = source_of(Borrowed[object])

        assert 1 == text.count("self.field")

    def test_tensor_is_not_asked_twice(self) -> None:
        """After `isinstance` nothing needs to know whether it is None."""
        text = source_of(Tensor | int)

        assert "if isinstance(x, Tensor): add(x)\n" in text

    def test_two_payloads_of_a_union_are_one_test(self) -> None:
        """Any payload goes by its own class, so one test is enough."""
        text = source_of(Sampling | Forward | Tensor)

        assert 2 == text.count("is_payload(x)")

    def test_host_items_are_not_rebuilt(self) -> None:
        """A member that stays is no part of the new entries."""
        text = source_of(Entry)

        assert '"n"' not in text.partition("def rebuild")[2]

    @pytest.mark.parametrize("cls", CLASSES)
    def test_no_line_is_longer_than_a_screen(self, cls: Any) -> None:
        """Long expressions are broken between their pieces."""
        lines = write(cls.__tensorpack_plan__).text.splitlines()

        assert [] == [line for line in lines if len(line) > 88]

    def test_no_try_and_no_device(self) -> None:
        """What is asked of a leaf at run time is asked elsewhere."""
        for text in golden().values():
            assert "try:" not in text
            assert "device" not in text
            assert "0x" not in text


if __name__ == "__main__":
    for name, text in golden().items():
        (GOLDEN / f"{name}.txt").write_text(text)
