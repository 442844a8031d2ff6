"""Skip or guard tests of accelerators, and build what several folders compare."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from tensorpack.guard import lifetime_guard

if TYPE_CHECKING:
    from tensorpack.transfer.native import Native


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs each test marked `cuda` under the guard."""
    parser.addoption(
        "--lifetime-guard",
        action="store_true",
        help="fail each test marked `cuda` whose device memory is in danger",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip each test marked `cuda` on a machine without a CUDA device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a test under the guard, unless it plants a bug or guards itself."""
    wanted = item.config.getoption("--lifetime-guard")
    if not wanted or not item.get_closest_marker("cuda"):
        return (yield)
    if item.get_closest_marker("unguarded"):
        return (yield)
    with lifetime_guard(mode="collect") as report:
        value = yield
    if len(report):
        pytest.fail(f"The guard has found:\n{report}", pytrace=False)
    return value


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
