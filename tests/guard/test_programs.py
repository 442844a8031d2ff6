"""The programs on recorded streams: each bug is found, no right one is accused."""

import pytest
from guard.programs import RIGHT, WRONG, line_in_danger

from tensorpack.testing import Log


@pytest.mark.parametrize("name", WRONG)
def test_kit_finds_the_planted_bug(name: str, recorded_streams: Log) -> None:
    """The one report names the line whose use is in danger."""
    wrong = WRONG[name]
    wrong.run()
    line = f"programs.py:{line_in_danger(wrong.run)}"
    found = recorded_streams.hazards()

    assert 1 == len(found)
    assert any(line in text and wrong.operation in text for text in found)


@pytest.mark.parametrize("name", RIGHT)
def test_kit_accuses_no_right_program(name: str, recorded_streams: Log) -> None:
    """A right program has no hazard."""
    RIGHT[name]()

    assert [] == recorded_streams.hazards()
