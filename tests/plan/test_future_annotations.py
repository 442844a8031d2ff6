"""Annotations that are text: whose names are known where, and what is not."""

from __future__ import annotations

import dataclasses
import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    NamedTuple,
    Optional,
    Self,
    TypedDict,
    Union,
)

import pytest
import torch
from torch import Tensor

from tensorpack import (
    Borrowed,
    Dynamic,
    HostOnly,
    LeafError,
    LifetimeError,
    Payload,
    payload,
    tensors,
)

if TYPE_CHECKING:
    from somewhere import Scheduler, Sequence

Tree = Union[Tensor, List["Tree"], Dict[str, "Tree"]]
Loop = "Loop"
Chain = "Link"
Link = "list[Tensor]"


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


def keys(value: object) -> list[str]:
    """List the keys of all leaves."""
    return [key for key, _ in tensors(value)]


@payload
class Node:
    """Holds nodes of its own class in every way."""

    value: Tensor
    next: Node | None = None
    children: list[Node] | None = None
    named: dict[str, Optional[Node]] | None = None
    same: Self | None = None


@payload
class Later:
    """Names a class that is defined below it."""

    value: Tensor
    other: Dynamic[Earlier] = None


@payload
class Earlier:
    """Names the class above it."""

    value: Tensor
    other: Later | None = None


def test_self_references_are_nested_payloads() -> None:
    """A class may hold its own instances, directly and in containers."""
    node = Node(one(), Node(one()), [Node(one())], {"a": Node(one()), "b": None})
    node.same = Node(one())

    assert [
        "value",
        "next.value",
        "children[0].value",
        "named['a'].value",
        "same.value",
    ] == keys(node.to_device("meta"))


def test_mutual_references_go_through_dynamic() -> None:
    """The class that comes first cannot know the other: it says `Dynamic`."""
    both = Later(one(), Earlier(one(), Later(one())))

    assert ["value", "other.value", "other.other.value"] == keys(both)


def test_name_defined_later_is_refused() -> None:
    """A name that is not known yet might be anything."""
    with pytest.raises(LifetimeError) as caught:

        @payload
        class Batch:
            a: Tensor
            b: DefinedBelow  # noqa: F821
            c: list[DefinedBelow | None]  # noqa: F821

    assert ["b", "c"] == [refusal.field for refusal in caught.value.refusals]
    assert {"DefinedBelow"} == {r.culprit for r in caught.value.refusals}


def test_names_for_type_checkers_are_placeholders() -> None:
    """What is imported for type checkers alone is free where nothing looks at it."""

    @payload
    class Batch:
        a: Tensor
        b: HostOnly[Scheduler | None] = None
        c: Borrowed[Sequence[int]] = None
        d: Dynamic[dict[str, Sequence.Item[int]]] = None
        e: HostOnly[list[Scheduler.State]] = None

    batch = Batch(one(), b=object(), c=object(), d={"x": one()}, e=[])

    assert ["a", "d['x']"] == keys(batch)


def test_one_bad_name_does_not_hide_the_others() -> None:
    """Each field gets its own verdict, and all bad ones are listed."""
    with pytest.raises(LifetimeError) as caught:

        @payload
        class Batch:
            a: Scheduler
            b: Tensor
            c: object
            d: "list["  # noqa: F722  # as a slip of the pen
            e: int = 3

    assert ["a", "c", "d"] == [refusal.field for refusal in caught.value.refusals]


def test_names_of_the_function_are_known() -> None:
    """A local class may name local classes, aliases and its own inner types."""
    Ids = list[Tensor]  # noqa: N806

    class Pair(NamedTuple):
        left: Tensor
        right: Ids

    class Extra(TypedDict, total=False):
        pair: Pair
        ids: Ids

    @payload
    class Batch:
        class Inner(NamedTuple):
            a: Tensor

        ids: Ids
        pair: Pair
        extra: Extra
        inner: Inner
        qualified: Batch.Inner

    inner = Batch.Inner(one())
    batch = Batch([one()], Pair(one(), [one()]), {"ids": [one()]}, inner, inner)

    assert [
        "ids[0]",
        "pair.left",
        "pair.right[0]",
        "extra['ids'][0]",
        "inner.a",
        "qualified.a",
    ] == keys(batch.to_device("meta"))


def _base() -> type:
    class Local(NamedTuple):
        a: Tensor

    @payload
    class Base:
        local: Local

        @staticmethod
        def make() -> Local:
            return Local(one())

    return Base


def test_base_from_another_function_keeps_its_names() -> None:
    """A child reuses its base's plan, and does not look its names up again."""
    base: Any = _base()

    class Local:
        """Another class of the same name, where the child stands."""

    @payload
    class Child(base):
        b: Tensor

    assert ["local.a", "b"] == keys(Child(base.make(), one()).to_device("meta"))


def test_plain_base_from_another_module_keeps_its_names() -> None:
    """A local name does not hide what the base's own module means by it.

    The names of the child's function came before those of the base's module.
    """
    module = types.ModuleType("bases_of_others")
    sys.modules[module.__name__] = module
    text = (
        "from __future__ import annotations\n"
        "import dataclasses\n"
        "from torch import Tensor\n"
        "Kind = Tensor\n"
        "@dataclasses.dataclass\n"
        "class Base:\n"
        "    a: Kind\n"
    )
    exec(text, vars(module))  # noqa: S102

    class Kind:
        """Not what the base means."""

    try:

        @payload
        @dataclasses.dataclass
        class Child(module.Base):
            b: int

        assert ["a"] == keys(Child(one(), 1))
    finally:
        del sys.modules[module.__name__]


def test_functions_tensors_are_not_kept_alive() -> None:
    """A plan lives as long as its class, but not what else the function held.

    The plan kept every local variable of the function around the class.
    """

    def make() -> tuple[type, weakref.ref[Tensor]]:
        weights = torch.ones(3)

        @payload
        class Batch:
            a: Tensor

        return Batch, weakref.ref(weights)

    cls, weights = make()
    gc.collect()

    assert ("a",) == cls.payload_keys()
    assert weights() is None


def test_recursive_alias_is_walked() -> None:
    """An alias that contains itself ends in a walk by value, and reaches all."""

    @payload
    class Batch:
        tree: Tree

    batch = Batch([one(), [one(), {"a": [one(), {"b": one()}]}], {"c": one()}])

    assert [
        "tree[0]",
        "tree[1][0]",
        "tree[1][1]['a'][0]",
        "tree[1][1]['a'][1]['b']",
        "tree[2]['c']",
    ] == keys(batch.to_device("meta"))


def test_recursive_alias_raises_for_what_it_does_not_say() -> None:
    """A value that has no lifetime support raises at any depth."""

    @payload
    class Batch:
        tree: Tree

    with pytest.raises(LeafError, match=r"tree\[0\]\[0\]\['a'\]\[0\]"):
        keys(Batch([[{"a": [object()]}]]))


def test_alias_of_text_is_followed_to_its_end() -> None:
    """An alias may be the text of another; one that names itself is refused.

    It went on until Python's own limit of recursion.
    """

    @payload
    class Batch:
        a: Chain

    assert ["a[0]"] == keys(Batch([one()]))

    with pytest.raises(LifetimeError, match="refers to itself"):

        @payload
        class Endless:
            a: Loop


@pytest.mark.parametrize(
    "decorate", [payload, lambda cls: payload(dataclasses.dataclass(cls))]
)
def test_fields_called_like_types(decorate: Callable[[type], Any]) -> None:
    """A field's default or slot does not hide the type of the same name.

    Under this module's future import the class body is looked up by name, and there
    `float` was the slot of the field `float`.
    """

    @decorate
    class Batch:
        float: float
        list: list[Tensor]
        Tensor: Tensor
        ratio: float = 0.5
        int: Optional[int] = None
        others: Optional[list[Tensor]] = None
        id: int = 3
        dict: Optional[dict[str, Tensor]] = None

    batch = Batch(0.5, [one()], one(), 0.5, 3, [one()], 3, {"a": one()})

    assert ["list[0]", "Tensor", "others[0]", "dict['a']"] == keys(batch)
    assert ("list", "Tensor", "others", "dict") == Batch.payload_keys()
    assert ("float", "ratio", "int", "id") == Batch.host_keys()


def test_the_base_is_a_type_for_any_payload() -> None:
    """A field typed `Payload` takes every payload, and nothing else."""

    @payload
    class Holder:
        any: Payload

    assert ["any.value"] == keys(Holder(Node(one())))
    with pytest.raises(LeafError, match="any"):
        keys(Holder(3))


def test_class_that_only_derives_from_the_base_is_refused() -> None:
    """Deriving from `Payload` shows the methods and makes nothing."""

    class Bare(Payload):
        a: Tensor

    with pytest.raises(LifetimeError, match="Decorate `Bare` with `@payload`"):

        @payload
        class Holder:
            bare: Bare


def test_inner_type_does_not_leak_to_children() -> None:
    """The types in a class body are known to its own annotations alone."""

    @payload
    class Base:
        class Inner(NamedTuple):
            a: Tensor

        inner: Inner

    with pytest.raises(LifetimeError) as caught:

        @payload
        class Child(Base):
            other: Inner  # noqa: F821

    assert ["other"] == [refusal.field for refusal in caught.value.refusals]
