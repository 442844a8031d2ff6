"""The compiled core, built once for all tests that compare it with Python."""

import pytest

from tensorpack.transfer.native import BuildError, Native, _load, build, location


@pytest.fixture(scope="session")
def native() -> Native:
    """Build the core if it is not there; skip where this machine cannot."""
    try:
        path = location() if location().exists() else build()
    except BuildError as error:
        pytest.skip(str(error))
    found = _load(path)

    assert found is not None
    return found
