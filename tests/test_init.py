"""The package itself: lazy names, and what type checkers are told of them."""

import ast
import importlib
from pathlib import Path

import pytest

import tensorpack

SOURCE = Path(tensorpack.__file__)


def shown_to_checkers() -> dict[str, str]:
    """Give the names under `if TYPE_CHECKING:`, each with its module."""
    return {
        alias.asname or alias.name: str(node.module)
        for block in ast.parse(SOURCE.read_text()).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_checkers_are_told_of_every_lazy_name() -> None:
    """The table of lazy names and the imports for checkers say the same."""
    assert tensorpack._HOME == shown_to_checkers()


@pytest.mark.parametrize("name", tensorpack.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each name is found, and is what its module has under it."""
    module = importlib.import_module(tensorpack._HOME[name])

    assert getattr(module, name) is getattr(tensorpack, name)
    assert name in dir(tensorpack)


def test_names_are_sorted() -> None:
    """A reader of `dir(tensorpack)` finds a name where it is expected."""
    assert sorted(tensorpack.__all__) == list(tensorpack.__all__)
