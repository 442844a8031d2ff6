"""The libraries that take a payload: imported where they are, skipped where not."""

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def client(name: str, least: str = "0") -> Any:
    """Import a library of the extra `clients`, or skip the module that asks for it.

    What a library warns of while it is imported is its own business. It may be there
    and not load, where its kernels are built for another version of torch.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(
            name.partition(".")[0],
            minversion=None if least == "0" else least,
            exc_type=(ImportError, OSError),  # type: ignore[arg-type]  # it is caught
        )
        return importlib.import_module(name)


@contextmanager
def as_they_were(*classes: type) -> Iterator[None]:
    """Give foreign classes back as they were: a test may decorate and change them."""
    before = [(cls, dict(vars(cls))) for cls in classes]
    try:
        yield
    finally:
        for cls, names in before:
            for name in vars(cls).keys() - names.keys():
                delattr(cls, name)
            for name, value in names.items():
                if vars(cls).get(name) is not value:
                    setattr(cls, name, value)
