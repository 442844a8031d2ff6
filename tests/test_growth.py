"""Work grows with the size of a class, and not faster: counted, not timed."""

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

import tensorpack._plan.annotations
import tensorpack._plan.fields
import tensorpack._plan.namespace
from tensorpack import payload, tensors
from tensorpack._codegen.leaves import write, write_keyed
from tensorpack._rules.markers import PLAN
from tensorpack._walk.walk import Walk

SIZES = (25, 50, 100, 200)
DEPTHS = (5, 10, 20)


class Count:
    """Counts the calls of a function."""

    def __init__(self, owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        function = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            return function(*args, **options)

        patch.setattr(owner, name, counted)

    def taken(self) -> int:
        """Give the count, and begin anew."""
        calls, self.calls = self.calls, 0
        return calls


def wide(fields: int, base: type = object) -> Any:
    """Make an attrs class with fields of several kinds."""
    kinds = (Tensor, Tensor | None, int, list[Tensor], dict[str, Tensor | list[Tensor]])
    names = {f"f{n}": attrs.field(type=kinds[n % len(kinds)]) for n in range(fields)}
    return attrs.make_class(
        "Wide", names, bases=(base,), eq=False, class_body={"__annotations__": {}}
    )


def deep(depth: int) -> Iterator[Any]:
    """Iterate payload classes, each with a field of the one before."""
    inner: Any = int
    for _ in range(depth):
        fields = {"t": attrs.field(type=Tensor), "inner": attrs.field(type=inner)}
        inner = payload(attrs.make_class("Deep", fields, eq=False))
        yield inner


def assert_linear(sizes: tuple[int, ...], counts: list[int]) -> None:
    """Assert that each more of the size adds the same."""
    steps = [
        (after - before) / (larger - smaller)
        for smaller, larger, before, after in zip(
            sizes, sizes[1:], counts, counts[1:], strict=False
        )
    ]

    assert max(steps) <= min(steps) * 1.01 + 1e-9, counts


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (tensorpack._plan.fields, "node_of"),
        (tensorpack._plan.annotations, "node_of"),
        (tensorpack._plan.namespace.Namespace, "of"),
        (tensorpack._plan.fields, "own_annotations"),
        (tensorpack._plan.namespace, "own_annotations"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_definition_reads_each_annotation_once(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field more costs the reading of its annotation; names are looked up once.

    The fields of a plain base each made the namespace of the base anew.
    """
    count = Count(owner, name, monkeypatch)
    for inherits in (False, True):
        counts = []
        for size in SIZES:
            base = wide(size)
            cls = attrs.define(type("Child", (base,), {})) if inherits else base
            count.taken()
            payload(cls)
            counts.append(count.taken())

        assert_linear(SIZES, counts)


def test_generated_text_has_a_line_for_each_field() -> None:
    """The text grows by the lines of a field, whatever stands beside it."""
    for source in (write, write_keyed):
        lines = [
            source(vars(payload(wide(size)))[PLAN]).text.count("\n") for size in SIZES
        ]

        assert_linear(SIZES, lines)


def test_definition_of_nested_classes_is_not_unfolded() -> None:
    """A class's text says nothing of what its nested payloads hold."""
    texts = [write(vars(cls)[PLAN]).text for cls in deep(max(DEPTHS))]

    assert 1 == len({text.count("\n") for text in texts[1:]})


@pytest.mark.parametrize(
    "use",
    [
        lambda value: value.to_device("meta"),
        lambda value: value.record_stream(None),
        lambda value: value.pin_memory(),
        lambda value: list(tensors(value)),
    ],
    ids=["to_device", "record_stream", "pin_memory", "tensors"],
)
def test_use_visits_each_nested_payload_as_often(
    use: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level more is a visit more of each walk."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda leaf: leaf)
    count = Count(Walk, "nested", monkeypatch)
    counts = []
    for depth in DEPTHS:
        value: Any = 3
        for cls in deep(depth):
            value = cls(torch.ones(1), value)
        count.taken()
        use(value)
        counts.append(count.taken())

    assert_linear(DEPTHS, counts)


def test_move_touches_each_leaf_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaf more is a move more."""
    count = Count(Tensor, "to", monkeypatch)
    counts = []
    for size in SIZES:
        cls = payload(
            attrs.make_class(
                "Wide", {f"f{n}": attrs.field(type=Tensor) for n in range(size)}
            )
        )
        cls(*(torch.ones(1) for _ in range(size))).to_device("meta")
        counts.append(count.taken())

    assert list(SIZES) == counts
