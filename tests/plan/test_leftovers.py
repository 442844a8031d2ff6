"""What a class and its instances hold beside the declared fields."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import DefinitionError, LifetimeError, payload, to_device

ONE = torch.ones(2)


class Filled:
    """Fills its instances by hand."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids


class Mixin:
    """Gives methods only."""

    def double(self) -> int:
        return 2


MAKERS: dict[str, Callable[[type], Any]] = {
    "alone": payload,
    "attrs": lambda cls: payload(attrs.define(cls)),
    "dataclass": lambda cls: payload(dataclasses.dataclass(cls)),
}


@pytest.mark.parametrize("bases", [(), (Filled,)])
def test_own_init_without_fields_is_refused(bases: tuple[type, ...]) -> None:
    """It is unknown what its instances hold."""
    own = {} if bases else {"__init__": Filled.__init__}
    with pytest.raises(DefinitionError, match="its own `__init__` and no field"):
        payload(attrs.define(init=False)(type("Batch", bases, own)))
    if not bases:
        with pytest.raises(DefinitionError, match="its own `__init__` and no field"):
            payload(type("Batch", (), own))


@pytest.mark.parametrize("maker", MAKERS.values(), ids=list(MAKERS))
def test_class_without_any_content_is_fine(maker: Callable[[type], Any]) -> None:
    """A marker or an abstract base has no field, and no hidden content either."""

    class Empty(Mixin):
        pass

    made = maker(Empty)

    assert 2 == to_device(made(), "meta").double()


@pytest.mark.parametrize("maker", MAKERS.values(), ids=list(MAKERS))
def test_unannotated_leaf_of_the_class_is_refused(
    maker: Callable[[type], Any],
) -> None:
    """It looks like a field with a default, and would be lost in silence."""

    class Batch:
        ids: Tensor
        mask = torch.ones(3)

    with pytest.raises(LifetimeError, match=r"Batch.mask`: `mask` is a `Tensor`"):
        maker(Batch)


@pytest.mark.parametrize("maker", MAKERS.values(), ids=list(MAKERS))
def test_annotated_leaves_of_the_class_are_its_own(
    maker: Callable[[type], Any],
) -> None:
    """A class variable says so; a field with a default is a field."""

    class Batch:
        shared: ClassVar[Tensor] = ONE
        ids: Tensor = ONE

    moved = to_device(maker(Batch)(), "meta")

    assert moved.ids.is_meta
    assert ONE is moved.shared


def test_leaf_of_a_base_is_refused_too() -> None:
    """Whoever holds it, instances show it as theirs."""

    class Base:
        mask = ONE

    class Child(Base):
        ids: Tensor

    with pytest.raises(LifetimeError, match="`mask` is a `Tensor` of the class"):
        payload(Child)
