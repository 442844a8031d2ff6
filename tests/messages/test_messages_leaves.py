"""What is said of leaves that do not do what is asked, and of what is too deep."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorpack import (
    Dynamic,
    LeafError,
    LifetimeError,
    payload,
    record_stream,
    to_device,
)

ONE = torch.ones(1)
STREAM = torch.Stream(stream_id=7, device_index=0, device_type=1)  # need not exist


class Rows:
    """Moves itself in place, and says where it is by a method."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.is_cuda = False

    def device(self) -> torch.device:
        return self.rows.device

    def to(self, device: Any) -> Any:
        self.is_cuda = True
        return self

    def record_stream(self, stream: object) -> None: ...


class CudaMethod(Rows):
    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def is_cuda(self) -> bool:  # type: ignore[override]
        return False


@payload
class Batch:
    field: Dynamic[Any]


@payload
class Link:
    next: "Link | None" = None
    ids: Tensor | None = None


def chain() -> Link:
    link = Link()
    for _ in range(5000):
        link = Link(link)
    return link


def deep() -> Any:
    annotation: Any = Tensor
    for _ in range(17):
        annotation = tuple[annotation, ...]
    return payload(type("Batch", (), {"__annotations__": {"field": annotation}}))


SAID: dict[str, tuple[Callable[[], Any], str]] = {
    "device": (
        lambda: record_stream(Batch([Rows(ONE)]), STREAM),
        (
            "`Batch.field[0]`: the `Rows` cannot tell where it is: its `device` is a "
            "`method`. Make `is_cuda` a property that returns a bool, or `device` one "
            "that returns a `torch.device`."
        ),
    ),
    "is_cuda": (
        lambda: record_stream(Batch(CudaMethod(ONE)), STREAM),
        (
            "`Batch.field`: the `CudaMethod` cannot tell where it is: its `is_cuda` is "
            "a `method`. Make `is_cuda` a property that returns a bool, or `device` "
            "one that returns a `torch.device`."
        ),
    ),
    "in place": (
        lambda: to_device(Batch(Rows(ONE)), "meta"),
        (
            "the `Rows` was moved in place, so the original is changed too. Return a "
            "new `Rows` from its `to`."
        ),
    ),
    "chain": (
        lambda: to_device(chain(), "meta"),
        (
            "a `Link` holds payloads inside one another, more than Python's stack can "
            "walk. Hold them in a list, or mark the field that links them `Borrowed`."
        ),
    ),
}


@pytest.mark.parametrize(("act", "text"), SAID.values(), ids=SAID)
def test_leaf(act: Callable[[], Any], text: str) -> None:
    """The class, the key where it is known, and what to change."""
    with pytest.raises(LeafError) as caught:
        act()

    assert text == str(caught.value)


def test_type_that_is_too_deep() -> None:
    """The refusal says the limit and two ways out."""
    with pytest.raises(LifetimeError) as caught:
        deep()

    assert str(caught.value).endswith(
        "` has 17 types inside one another, and 16 are the most. Give the inner ones a "
        "class of their own, decorated with `@payload`. Or write `Dynamic[...]` around "
        "the inner ones."
    )
