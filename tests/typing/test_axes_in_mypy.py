"""Marks of axes and hints in mypy: the words of the run time, on the field's line."""

from pathlib import Path

from mypy import api

SOURCE = """
from typing import Annotated
from torch import Tensor
from tensorpack import Axis, HostOnly, Payload, Size, payload

@payload
class Batch(Payload):
    fine: Annotated[Tensor, Axis("rows", pad=0), Axis("columns", dim=1)]
    names: Annotated[list[str], Axis("rows")]
    size: Annotated[int, Size("rows")]
    scalar: Annotated[int, Axis("rows")]
    twice: list[Annotated[Tensor, Axis("rows"), Axis("columns")]]
    runs: Annotated[Tensor, Axis("tokens", lengths="lens")]
    back: Annotated[Tensor, Axis("rows", dim=-1)]
    lens_cpu: Tensor
    kept_cpu: HostOnly[Tensor]
"""
EXPECTED = [
    (
        "11: error: `Batch.scalar`: `int` is one value, so 'rows' cannot run along it. "
        "Put the axis on a tensor, an array or a list. Or write `Size('rows')` if "
        "it is the size of the axis.  [tensorpack-lifetime]"
    ),
    (
        "12: error: `Batch.twice`: `Tensor` (in `list[Tensor]`) has two axes on dim 0, "
        "'rows' and 'columns'. Give each dim one axis.  [tensorpack-lifetime]"
    ),
    (
        "13: error: `Batch.runs`: `Tensor` has its lengths in `lens`, which is not a "
        "field. Name a field of the class that holds the lengths of the runs.  "
        "[tensorpack-lifetime]"
    ),
    (
        "14: error: `Batch.back`: `Axis('rows', dim=-1)` (in `Tensor`) the dim of "
        "'rows' is -1. Count from the front, starting at 0.  [tensorpack-lifetime]"
    ),
    (
        "15: note: `Batch.lens_cpu`: moves to the device; `HostOnly[Tensor]` keeps it "
        "on the host."
    ),
]


def test_marks_and_hints_are_told_by_mypy(tmp_path: Path) -> None:
    """What the definition refuses is an error before the program runs."""
    path, config = tmp_path / "batch.py", tmp_path / "mypy.ini"
    path.write_text(SOURCE)
    config.write_text("[mypy]\nplugins = tensorpack.mypy_plugin\n")
    text, _, _ = api.run(["--config-file", str(config), str(path)])
    told = [line.partition("batch.py:")[2] for line in text.splitlines()]

    assert EXPECTED == [line for line in told if line]
