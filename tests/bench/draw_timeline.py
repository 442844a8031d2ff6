"""Draw what the device did, from the trace that `bench_overlap.py --trace` wrote.

python tests/bench/draw_timeline.py TRACE PNG     (needs matplotlib)
"""

import json
import sys
from pathlib import Path
from typing import Any

STEPS_SHOWN = 4


def main(trace: str, picture: str) -> None:
    """Draw one row for each stream: copies on the one, the forward on the other."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # optional

    rows: list[dict[str, Any]] = json.loads(Path(trace).read_text())
    copies = sorted(r["start"] for r in rows if r["kind"] == "gpu_memcpy")
    begin, end = copies[-STEPS_SHOWN - 2], copies[-2]
    streams = sorted({r["stream"] for r in rows}, key=lambda s: s not in copy_of(rows))
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axes = figure.add_subplot(xlabel="microseconds")
    for row in rows:
        if not begin - 100 <= row["start"] <= end + 1000:
            continue
        is_copy = row["kind"] == "gpu_memcpy"
        # A copy of some microseconds would not be seen at this scale.
        width = max(row["duration"], 12.0)
        axes.barh(
            streams.index(row["stream"]),
            width,
            left=row["start"] - begin,
            height=0.6,
            color="#c44e52" if is_copy else "#4c72b0",
            edgecolor="white",
            linewidth=0.3,
        )
    names = ["copy stream" if s in copy_of(rows) else "forward stream" for s in streams]
    axes.set_yticks(range(len(streams)), names)
    axes.invert_yaxis()
    figure.savefig(picture, dpi=150)


def copy_of(rows: list[dict[str, Any]]) -> set[int]:
    """Tell on which streams there are copies."""
    return {row["stream"] for row in rows if row["kind"] == "gpu_memcpy"}


if __name__ == "__main__":
    main(*sys.argv[1:3])
