"""Generic classes: what a type variable is bound to, and where nothing binds it."""

import dataclasses
import sys
from typing import (
    Any,
    Dict,
    Generic,
    List,
    NamedTuple,
    NewType,
    TypedDict,
    TypeVar,
    Union,
)

import attrs
import pytest
import torch
from torch import Tensor
from typing_extensions import ReadOnly, TypeAliasType, TypedDict as ExtendedTypedDict

from tensorpack import HostOnly, LifetimeError, payload, tensors

T = TypeVar("T")
U = TypeVar("U")
BoundT = TypeVar("BoundT", bound=Tensor)
HostOrLeaf = TypeVar("HostOrLeaf", int, Tensor)

Names = NewType("Names", list[str])
Ids = NewType("Ids", Tensor)
Forest = NewType("Forest", "list[Ids]")

Listed = TypeAliasType("Listed", list[T], type_params=(T,))
Tree = TypeAliasType("Tree", "Union[Tensor, List[Tree], Dict[str, Tree]]")


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


def keys(value: Any) -> list[str]:
    """List the keys of all leaves, after a move."""
    return [key for key, _ in tensors(value.to_device("meta"))]


def refused(cls: type, **fields: object) -> tuple[str, str]:
    """Give the culprit and the first remedy of a class with one bad field."""
    with pytest.raises(LifetimeError) as caught:
        payload(cls, fields=fields)
    (refusal,) = caught.value.refusals
    return refusal.culprit, refusal.remedies[0]


class TestClasses:
    """A class binds the variables of its bases."""

    def test_unbound_is_refused(self) -> None:
        """Nobody knows what a variable stands for until a subclass binds it."""

        @attrs.define
        class Box(Generic[T]):
            item: list[T]

        assert (
            "T",
            "Bind it in a subclass (`class Child(Base[Tensor])`) and decorate that.",
        ) == refused(Box)

    def test_plain_base_is_bound_by_its_child(self) -> None:
        """The variables of an undecorated base are read with the child's types."""

        @attrs.define
        class Box(Generic[T]):
            item: T
            more: dict[str, list[T]]

        @payload
        class Tensors(Box[Tensor]):
            n: int

        @payload
        class Numbers(Box[int]):
            a: Tensor

        assert ["item", "more['a'][0]"] == keys(Tensors(one(), {"a": [one()]}, 3))
        assert (("a",), ("item", "more")) == (
            Numbers.payload_keys(),
            Numbers.host_keys(),
        )

    def test_bindings_go_up_a_chain(self) -> None:
        """A variable may be bound to another, and that by a later class."""

        @dataclasses.dataclass
        class Both(Generic[T, U]):
            left: T
            right: U

        @dataclasses.dataclass
        class Half(Both[U, int], Generic[U]):
            own: U

        @payload
        @dataclasses.dataclass
        class Whole(Half[Tensor]):
            pass

        assert (("left", "own"), ("right",)) == (
            Whole.payload_keys(),
            Whole.host_keys(),
        )

    def test_bound_variable_of_a_payload(self) -> None:
        """A variable with a bound stands for it; a child may say more."""

        @payload
        class Box(Generic[BoundT]):
            item: BoundT
            items: list[BoundT]

        @payload
        class Parameters(Box[torch.nn.Parameter]):
            pass

        assert ["item", "items[0]"] == keys(Box[Tensor](one(), [one()]))
        assert ["item", "items[0]"] == keys(
            Parameters(torch.nn.Parameter(one()), [torch.nn.Parameter(one())])
        )

    def test_constrained_variable_is_a_union(self) -> None:
        """A variable that stands for one of some types is read by value."""

        @payload
        class Box(Generic[HostOrLeaf]):
            item: HostOrLeaf

        assert ["item"] == keys(Box(one()))
        assert [] == keys(Box(3))

    def test_binding_to_what_has_no_support_is_refused(self) -> None:
        """The child is refused for what it binds."""

        @attrs.define
        class Box(Generic[T]):
            item: list[T]

        with pytest.raises(LifetimeError) as caught:

            @payload
            class Objects(Box[object]):
                pass

        assert "object" == caught.value.refusals[0].culprit

    def test_reference_in_a_base_is_read_where_it_stands(self) -> None:
        """`Base["Local"]` names a class of the child's function."""

        @attrs.define
        class Box(Generic[T]):
            item: T

        class Local(NamedTuple):
            a: Tensor

        @payload
        class Child(Box["Local"]):
            pass

        assert ["item.a"] == keys(Child(Local(one())))

    def test_corrections_are_bound_too(self) -> None:
        """A correction of a generic base may speak of its variables."""

        @attrs.define
        class Box(Generic[T]):
            item: object

        @payload
        class Open(Box[Tensor]):
            item: HostOnly[object]

        payload(Box, fields={"item": HostOnly[T]})

        @payload
        class Child(Box[int]):
            a: Tensor

        assert ((), ("item",)) == (Open.payload_keys(), Open.host_keys())
        assert (("a",), ("item",)) == (Child.payload_keys(), Child.host_keys())


class TestFields:
    """A field's own parameters bind the variables of its class."""

    def test_payload_is_dispatched_by_value(self) -> None:
        """The parameters of a payload say nothing that its plan does not know."""

        @payload
        class Box(Generic[BoundT]):
            item: BoundT

        @payload
        class Holder:
            one: Box[Tensor]
            many: list[Box[Tensor]]

        assert ["one.item", "many[0].item"] == keys(Holder(Box(one()), [Box(one())]))

    def test_named_tuple(self) -> None:
        """A generic named tuple is a container of what it is given.

        It was taken for a class derived from `tuple`, and refused.
        """

        class Pair(NamedTuple, Generic[T]):
            left: T
            right: "list[T]"

        @payload
        class Holder:
            pair: Pair[Tensor]
            host: Pair[int]

        holder = Holder(Pair(one(), [one()]), Pair(1, [2]))

        assert ["pair.left", "pair.right[0]"] == keys(holder)
        assert type(holder.pair) is type(holder.to_device("meta").pair)
        assert (
            "T"
            == refused(attrs.make_class("Open", {"pair": attrs.field(type=Pair)}))[0]
        )

    def test_typed_dict(self) -> None:
        """So is a generic typed dictionary, its bases' keys included."""

        class Base(TypedDict, Generic[T]):
            a: T

        class Child(Base[Tensor]):
            b: int

        @payload
        class Holder:
            base: Base[Tensor]
            child: Child

        assert ["base['a']", "child['a']"] == keys(
            Holder({"a": one()}, {"a": one(), "b": 1})
        )

    @pytest.mark.parametrize("make", [attrs.define, dataclasses.dataclass])
    def test_host_struct(self, make: Any) -> None:
        """A struct is a host type if it is one with the types it is given."""

        @make
        class Base(Generic[T]):
            item: T

        @make
        class Pair(Base[T], Generic[T, U]):
            other: "U"

        @payload
        class Holder:
            pair: Pair[int, str]

        assert ("pair",) == Holder.host_keys()
        bad = attrs.make_class("Bad", {"pair": attrs.field(type=Pair[Tensor, str])})
        assert "Pair[Tensor, str]" == refused(bad)[0]

    def test_variables_inside_variables(self) -> None:
        """A parameter that speaks of an outer variable means the outer one."""

        class Pair(NamedTuple, Generic[T]):
            item: T

        @attrs.define
        class Box(Generic[T]):
            pair: Pair[list[T]]

        @payload
        class Tensors(Box[Tensor]):
            pass

        assert ["pair.item[0]"] == keys(Tensors(Pair([one()])))


class TestAliases:
    """New types and type aliases stand for what they name."""

    def test_new_types(self) -> None:
        """A new type is its old one, written as text or not."""

        @payload
        class Batch:
            names: Names
            ids: Ids
            forest: Forest

        assert ["ids", "forest[0]"] == keys(Batch(Names(["a"]), Ids(one()), [one()]))

    def test_generic_alias(self) -> None:
        """An alias may have parameters."""

        @payload
        class Batch:
            leaves: Listed[Tensor]
            numbers: Listed[int]

        assert ["leaves[0]"] == keys(Batch([one()], [1]))
        assert (
            "T" == refused(attrs.make_class("Open", {"x": attrs.field(type=Listed)}))[0]
        )

    def test_recursive_alias(self) -> None:
        """An alias that contains itself ends in a walk by value."""

        @payload
        class Batch:
            tree: Tree

        assert ["tree[0]", "tree[1]['a'][0]"] == keys(Batch([one(), {"a": [one()]}]))

    def test_typed_dict_of_typing_extensions(self) -> None:
        """A typed dictionary of `typing_extensions` is one, with its own forms.

        It was taken for a class derived from `dict`, and refused.
        """

        class Extra(ExtendedTypedDict, total=False):
            a: ReadOnly[Tensor]
            b: int

        @payload
        class Batch:
            extra: Extra

        assert ["extra['a']"] == keys(Batch({"a": one(), "b": 1}))


SYNTAX = """
from typing import NamedTuple, TypedDict
import attrs
import torch
from torch import Tensor
from tensorpack import payload, tensors

type Leaves = list[Tensor]
type Listed[T] = list[T]
type Tree = Tensor | list[Tree] | dict[str, Tree]

class Pair[T](NamedTuple):
    left: T

class Extra[T](TypedDict):
    right: T

@attrs.define
class Box[T]:
    item: T
    items: "list[T]"

@payload
class Bound[L: Tensor]:
    item: L
    items: "list[L]"

@payload
class Batch(Box[Tensor]):
    leaves: Leaves
    listed: Listed[Tensor]
    tree: Tree
    pair: Pair[Tensor]
    extra: Extra[Tensor]
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the syntax of 3.12")
def test_syntax_for_type_parameters() -> None:
    """Classes and aliases with the new syntax are read as the old ones are."""
    scope: dict[str, Any] = {"__name__": __name__}
    exec(SYNTAX, scope)  # noqa: S102  # older Pythons cannot read it in a module

    x = one()
    batch = scope["Batch"](
        x, [x], [x], [x], [x, {"a": x}], scope["Pair"](x), {"right": x}
    )

    assert [
        "item",
        "items[0]",
        "leaves[0]",
        "listed[0]",
        "tree[0]",
        "tree[1]['a']",
        "pair.left",
        "extra['right']",
    ] == [key for key, _ in tensors(batch)]
    assert ["item", "items[0]"] == [key for key, _ in tensors(scope["Bound"](x, [x]))]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the syntax of 3.12")
def test_alias_of_an_unknown_name_is_refused() -> None:
    """An alias is read when a class needs it; a name in it must be known then."""
    text = "type Open = list[Unknown]\nclass Batch:\n    a: Open\n"
    scope: dict[str, Any] = {"__name__": __name__}
    exec(text, scope)  # noqa: S102  # older Pythons cannot read this module with it

    with pytest.raises(LifetimeError, match="cannot be read"):
        payload(scope["Batch"])
