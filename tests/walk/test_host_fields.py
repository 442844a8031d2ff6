"""Host fields: the value's own class is checked, and the first item of a container."""

import collections
import enum
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from tensorpack import LeafError, payload

META = torch.device("meta")
ONE = torch.ones(1)


class Mode(enum.Enum):
    FAST = 1


class Size(int):
    pass


class Bare:
    pass


def holder(annotation: object) -> Any:
    """Make a payload with one field."""
    return payload(type("Batch", (), {"__annotations__": {"field": annotation}}))


WRONG: dict[str, tuple[object, object, str]] = {
    "tensor": (int, ONE, "field"),
    "list of tensors": (int, [ONE], "field[0]"),
    "module": (int, torch.nn.Linear(1, 1), "field"),
    "unknown object": (int, Bare(), "field"),
    "class with an adapter": (list[int], pack_sequence([ONE]), "field"),
    "first item": (list[int], [ONE, 1], "field[0]"),
    "first item of the first": (list[list[int]], [[ONE]], "field[0][0]"),
    "first key": (dict[int, str], {ONE: "x"}, "field"),
    "first value": (dict[int, str], {1: ONE}, "field[1]"),
    "item of a set": (set[int], {ONE}, "field[0]"),
    "list under a dictionary": (dict[str, list[int]], {"a": [ONE]}, "field['a'][0]"),
    "host arm of a union": (Tensor | list[int], [ONE], "field[0]"),
    "unknown object in an enum's place": (Mode, Bare(), "field"),
}
RIGHT: dict[str, tuple[object, object]] = {
    "another number": (int, 3.0),
    "number of numpy's": (int, np.int64(3)),
    "subclass": (int, Size(3)),
    "boolean": (int, True),
    "None": (int, None),
    "empty list": (list[int], []),
    "tuple for a list": (list[int], (1, 2)),
    "list for a number": (int, [1]),
    "ordered dictionary": (dict[str, int], collections.OrderedDict(a=1)),
    "array": (np.ndarray, np.ones(2)),
    "array for a list": (list[int], np.ones(2)),
    "enum": (Mode, Mode.FAST),
    "path": (str, __import__("pathlib").Path("x")),
    "host arm of a union": (Tensor | list[int], [1]),
}


@pytest.mark.parametrize(("annotation", "value", "key"), WRONG.values(), ids=WRONG)
def test_wrong_value_raises(annotation: object, value: object, key: str) -> None:
    """It would be neither moved nor recorded, so it is an error with its key."""
    batch = holder(annotation)(value)

    for use in (
        lambda: batch.to_device(META),
        lambda: batch.record_stream(
            torch.Stream(stream_id=7, device_index=0, device_type=1)
        ),
    ):
        with pytest.raises(LeafError) as caught:
            use()
        assert ("Batch", key) == (caught.value.cls, caught.value.key)


@pytest.mark.parametrize(("annotation", "value"), RIGHT.values(), ids=RIGHT)
def test_other_host_values_stay(annotation: object, value: object) -> None:
    """A host value of another class than annotated has nothing to move."""
    batch = holder(annotation)(value)

    assert value is batch.to_device(META).field


def test_only_the_first_item_is_looked_at() -> None:
    """The walk of a long list would cost more than the move of a tensor."""
    batch = holder(list[int])([1, ONE])

    assert batch.field is batch.to_device(META).field


def test_a_list_that_holds_itself_ends() -> None:
    """A host container may lead back to itself."""
    around: list[Any] = []
    around.append(around)
    batch = holder(list[list[int]])(around)

    assert around is batch.to_device(META).field
