"""Types and objects inside one another: how deep is too deep, and what is said then."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorpack import LeafError, LifetimeError, payload

ONE = torch.ones(1)


def nested(depth: int) -> tuple[Any, Any]:
    """Make a type of lists inside one another, and a value of it."""
    annotation: Any = Tensor
    value: Any = ONE
    for _ in range(depth):
        annotation, value = list[annotation], [value]
    return annotation, value


def holder(annotation: object) -> Any:
    """Make a payload with one field."""
    return payload(type("Batch", (), {"__annotations__": {"field": annotation}}))


@pytest.mark.parametrize("depth", [1, 15, 16])
def test_as_deep_as_is_allowed(depth: int) -> None:
    """The text of the traversals compiles, and the same shape comes back."""
    annotation, value = nested(depth)
    found = holder(annotation)(value).to_device("meta").field
    for _ in range(depth):
        (found,) = found

    assert found.is_meta


@pytest.mark.parametrize("depth", [17, 21, 100])
def test_deeper_is_refused(depth: int) -> None:
    """Python cannot compile as many loops; that came out at the first use."""
    with pytest.raises(LifetimeError, match="are the most"):
        holder(nested(depth)[0])


@payload
class Link:
    ids: Tensor
    next: "Link | None" = None


def chain(length: int) -> Link:
    """Make payloads that hold one another."""
    link = Link(ONE)
    for _ in range(length - 1):
        link = Link(ONE, link)
    return link


@pytest.fixture
def thousand_frames() -> Iterator[None]:
    """Python's own limit: libraries that were imported before may have raised it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("thousand_frames")
def test_chain_of_payloads() -> None:
    """A short chain is walked; one that passes the end of the stack says so."""
    chain(50).to_device("meta")  # type: ignore[attr-defined]

    with pytest.raises(LeafError, match="more than Python's stack can walk"):
        chain(5000).to_device("meta")  # type: ignore[attr-defined]
