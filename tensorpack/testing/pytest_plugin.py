"""The pytest plugin: the fixture `recorded_streams`, which imports torch when used."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tensorpack.testing import Log


@pytest.fixture
def recorded_streams() -> Iterator["Log"]:
    """Record what happens to device memory in the test, and return the log."""
    from tensorpack.testing import (  # noqa: PLC0415  # torch, only when it is used
        recorded_streams as recorded,
    )

    with recorded() as log:
        yield log
