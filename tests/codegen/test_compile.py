"""The texts of generated functions in the line cache: there while a class is."""

import gc
import linecache
from typing import Any

import torch
from torch import Tensor

from tensorpack import payload, tensors


def files() -> set[str]:
    """Return the names of generated texts in the line cache."""
    return {name for name in linecache.cache if name.startswith("<tensorpack ")}


def used(name: str, **fields: object) -> Any:
    """Make a payload class and use it, with keys and without."""
    cls: Any = payload(type(name, (), {"__annotations__": {"ids": Tensor, **fields}}))
    batch = cls(torch.ones(1), *fields)
    batch.to_device("meta")
    list(tensors(batch))
    return cls


def test_texts_go_with_their_class() -> None:
    """A process that makes ever new classes does not grow."""
    gc.collect()  # of what other tests have left
    before = files()
    for n in range(20):
        used("Passing", **{f"field_{n}": str})
    gc.collect()

    assert not files() - before


def test_texts_stay_while_a_class_with_them_lives() -> None:
    """Two classes of the same text share it, and one may go."""
    gc.collect()  # of what other tests have left
    before = files()
    one, other = used("Shared"), used("Shared")
    assert 2 == len(files() - before)
    del one
    gc.collect()

    assert 2 == len(files() - before)
    assert other.__tensorpack_leaves__.__code__.co_filename in files()
    del other
    gc.collect()

    assert not files() - before
