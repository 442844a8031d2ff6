"""The pytest plugin: two fixtures, which import torch when they are used."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tensorpack.guard import Report
    from tensorpack.testing import Log


@pytest.fixture
def recorded_streams() -> Iterator["Log"]:
    """Record what happens to device memory in the test, and return the log."""
    from tensorpack.testing import (  # noqa: PLC0415  # torch, only when it is used
        recorded_streams as recorded,
    )

    with recorded() as log:
        yield log


@pytest.fixture
def lifetime_guard() -> Iterator["Report"]:
    """Watch the test's device memory; it fails at the first hazard."""
    from tensorpack.guard import (  # noqa: PLC0415  # torch, only when it is used
        lifetime_guard as guarding,
    )

    with guarding(mode="raise") as report:
        yield report
