"""jaxtyping's annotations, checked by beartype when a payload is made and passed."""
# ruff: noqa: F722, F821  # the texts in jaxtyping's annotations are sizes

import dataclasses
from typing import Any

import pytest
import torch
from clients.libraries import client
from torch import Tensor

from tensorpack import Payload, evolve, payload, tensors

jaxtyping = client("jaxtyping", "0.3")
beartype = client("beartype", "0.20")
jaxtyped, beartype_this = jaxtyping.jaxtyped, beartype.beartype
Float, Int = jaxtyping.Float, jaxtyping.Int


@payload
class Plain(Payload):
    pixels: Float[Tensor, "batch width"]
    ids: Int[Tensor, "batch"] | None = None
    many: list[Float[Tensor, "..."]] | None = None


@jaxtyped(typechecker=beartype_this)
@payload
@dataclasses.dataclass(frozen=True)
class Checked(Payload):
    pixels: Float[Tensor, "batch width"]
    ids: Int[Tensor, "batch"]


@beartype_this
@payload
class CheckedAttrs(Payload):
    pixels: Float[Tensor, "batch width"]
    ids: Int[Tensor, "batch"]

    def scaled(self, by: int) -> Float[Tensor, "batch width"]:
        return self.pixels * by


def pixels() -> Tensor:
    """Make two rows."""
    return torch.ones(2, 3)


def ids(count: int = 2) -> Tensor:
    """Make an identifier for each of some rows."""
    return torch.arange(count)


def test_annotations_are_leaves() -> None:
    """A shape in an annotation says nothing of the lifetime."""
    value = Plain(pixels(), ids(), [pixels()])

    assert ("pixels", "ids", "many") == Plain.payload_keys()
    assert ["pixels", "ids", "many[0]"] == [key for key, _ in tensors(value)]
    assert all(leaf.is_meta for _, leaf in tensors(value.to_device("meta")))


def test_dataclass_is_checked_when_it_is_made() -> None:
    """Sizes that do not agree between two fields are found."""
    assert (2, 3) == Checked(pixels(), ids()).to_device("meta").pixels.shape

    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'ids'"):
        Checked(pixels(), ids(3))


def test_attrs_class_is_checked_by_beartype_alone() -> None:
    """The kind of numbers is checked; sizes across fields are not, by jaxtyping's rule.

    `jaxtyped` looks into the classes of `dataclasses` only.
    """
    assert CheckedAttrs(pixels(), ids(3)).ids.shape == (3,)

    with pytest.raises(beartype.roar.BeartypeCallHintParamViolation):
        CheckedAttrs(pixels(), pixels()[:, 0])


def test_methods_go_on_working_under_a_checker() -> None:
    """What the checker wraps still moves, records and hands on twins of the class."""
    value = CheckedAttrs(pixels(), ids())
    moved = value.to("cpu").to_device("meta", non_blocking=True)
    value.record_stream(torch.Stream(stream_id=7, device_index=0, device_type=1))

    assert type(moved) is CheckedAttrs
    assert 2.0 == float(value.scaled(2)[0, 0])

    with pytest.raises(beartype.roar.BeartypeCallHintParamViolation):
        value.scaled("twice")


def test_twins_are_not_checked_again() -> None:
    """A twin is made without `__init__`: what was right before is not asked again."""
    value: Any = evolve(Checked(pixels(), ids()), ids=ids(5))

    assert (5,) == value.to_device("meta").ids.shape


def test_functions_are_checked() -> None:
    """A payload is a type like any other, beside arrays whose sizes must agree."""

    @jaxtyped(typechecker=beartype_this)
    def scaled(
        value: Plain, by: Float[Tensor, "batch width"]
    ) -> Float[Tensor, "batch"]:
        found: Tensor = (value.pixels * by).sum(1)
        return found

    assert [3.0, 3.0] == scaled(Plain(pixels()), pixels()).tolist()

    with pytest.raises(jaxtyping.TypeCheckError):
        scaled(pixels(), pixels())
