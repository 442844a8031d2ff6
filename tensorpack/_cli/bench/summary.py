"""What a person reads first: one number for each payload, state and way."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from tensorpack._cli.bench.ways import FLOOR, HAND_WRITTEN, OURS, TENSORDICT
from tensorpack._cli.tables import print_table

__all__ = ["Figures", "Growth", "Measured", "draw", "print_summary"]

Figures = Mapping[str, float]
"""The median of each way, in microseconds."""
Growth = Mapping[str, Figures]
"""The figures of each number of leaves."""

_WAYS = {"tensorpack": OURS, "tensordict": TENSORDICT, "the floor": FLOOR}
_BESIDE = {"tensorpack", "tensordict"}
"""The ways of which the best is marked; nothing real reaches the floor."""


@attrs.frozen
class Measured:
    """The figures of one payload in one state."""

    payload: str
    source: str
    mode: str
    figures: Figures

    def against_the_loop(self, way: str) -> float | None:
        """Return a way's time as a fraction of the hand-written loop's."""
        found = self.figures.get(way)
        return None if found is None else found / self.figures[HAND_WRITTEN]


def print_summary(measured: Sequence[Measured]) -> None:
    """Print a table for each kind of source; the best of each state is bold."""
    for source in dict.fromkeys(m.source for m in measured):
        part = [m for m in measured if m.source == source]
        modes = list(dict.fromkeys(m.mode for m in part))
        rows, bold = [], set()
        for name in dict.fromkeys(m.payload for m in part):
            by_mode = {m.mode: m for m in part if m.payload == name}
            for label, cells in _rows(by_mode, modes):
                rows.append([name, label, *(text for text, _ in cells)])
                bold |= {
                    (len(rows) - 1, 2 + j) for j, (_, best) in enumerate(cells) if best
                }
        title = (
            f"{source.capitalize()} sources: host time of a whole life (move, record, "
            "free) as a fraction of the hand-written loop's; the best is bold"
        )
        print_table(title, ("payload", "way", *modes), rows, bold=bold)


def _rows(
    by_mode: Mapping[str, Measured], modes: Sequence[str]
) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Iterate the rows of one payload: a label, then texts and whether each is best."""
    best = {
        mode: min((1.0, *filter(None, (m.against_the_loop(_WAYS[w]) for w in _BESIDE))))
        for mode, m in by_mode.items()
    }
    loop = [(f"{by_mode[m].figures[HAND_WRITTEN]:.0f} us", best[m] == 1) for m in modes]
    yield "the loop itself", loop
    for label, way in _WAYS.items():
        found = {mode: by_mode[mode].against_the_loop(way) for mode in modes}
        if any(ratio is None for ratio in found.values()):
            yield label, [("not installed", False)] * len(modes)
            continue
        yield (
            label,
            [
                (f"{ratio:.2f}", label in _BESIDE and ratio == best[mode])
                for mode, ratio in found.items()
            ],
        )


def draw(measured: Sequence[Measured], growth: Growth, path: Path) -> None:
    """Draw the summary and the growth into a file, where matplotlib is there."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # optional
    except ImportError:
        print("matplotlib is not installed, so nothing was drawn.")
        return
    figure = Figure(figsize=(11, 8), layout="constrained")
    above, below = figure.subplots(2, 1)
    labels = [f"{m.payload}\n{m.source}, {m.mode}" for m in measured]
    above.set_ylabel("fraction of the hand-written loop")
    for number, (label, way) in enumerate(_WAYS.items()):
        heights = [m.against_the_loop(way) or 0.0 for m in measured]
        places = [i + 0.27 * (number - 1) for i in range(len(measured))]
        above.bar(places, heights, width=0.25, label=label)
    above.axhline(1, color="black", linewidth=0.8)
    above.set_xticks(range(len(labels)), labels, rotation=90, fontsize="x-small")
    above.legend(fontsize="small")
    below.set_xlabel("leaves of 1 KB")
    below.set_ylabel("host time, us")
    for name in next(iter(growth.values()), {}):
        counts = [int(count) for count in growth]
        below.plot(counts, [growth[c][name] for c in growth], marker="o", label=name)
    below.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    print(f"The summary is drawn in {path}.")
