"""Skip what a machine cannot run, and build what several folders compare."""

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tensorpack.transfer.native import Native


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip each test marked `cuda` on a machine without a CUDA device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def native() -> "Native":
    """Build the compiled core if it is not there; skip where this machine cannot."""
    from tensorpack.transfer import native as room  # noqa: PLC0415  # for few tests

    try:
        path = room.location() if room.location().exists() else room.build()
    except room.BuildError as error:
        pytest.skip(str(error))
    found = room._load(path)

    assert found is not None
    return found
