"""Tables and progress on a terminal: through `rich` where it is there, else plain."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

try:
    import rich.console
    import rich.progress
    import rich.table
    import rich.text
except ImportError:
    HAS_RICH = False
else:
    HAS_RICH = True

__all__ = ["HAS_RICH", "print_table", "progress"]

_SHORT = 26

Advance = Callable[[str], None]


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    bold: Collection[tuple[int, int]] = (),
) -> None:
    """Print a table to the standard output.

    Args:
        title: stands above it.
        columns: names of the columns.
        rows: as many texts in each as there are columns.
        bold: row and column of each cell to be marked, counted from 0.
    """
    if HAS_RICH:
        _print_rich(title, columns, rows, bold)
        return
    marked = [
        [f"*{cell}*" if (i, j) in bold else cell for j, cell in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    print("\n".join(plain_table(title, columns, marked)), end="\n\n")


def _print_rich(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    bold: Collection[tuple[int, int]],
) -> None:
    # `Text`, since `list[Tensor]` in a plain string would be read as markup.
    table = rich.table.Table(title=rich.text.Text(title), title_justify="left")
    for cells in zip(columns, *rows, strict=True):
        # Short columns stay whole, so that the long ones give way first.
        short = max(map(len, cells)) <= _SHORT
        table.add_column(cells[0], overflow="fold", no_wrap=short)
    for i, row in enumerate(rows):
        styles = ["bold" if (i, j) in bold else "" for j in range(len(row))]
        table.add_row(*map(rich.text.Text, row, styles))
    console = rich.console.Console()
    console.print(table)
    console.print()


def plain_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """Give the lines of a table without any library; long last cells are wrapped.

    >>> plain_table("Steps", ["what", "how many"], [["all", "8"]])
    ['Steps', '  what  how many', '  all   8']
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    indent = 2 + sum(widths[:-1]) + 2 * (len(widths) - 1)
    room = max(shutil.get_terminal_size().columns - indent, 20)
    lines = [title]
    for row in [columns, *rows]:
        *first, last = row
        wrapped = textwrap.wrap(last, room) or [""]
        cells = [c.ljust(w) for c, w in zip(first, widths[:-1], strict=True)]
        lines.append("  " + "  ".join([*cells, wrapped[0]]))
        lines.extend(" " * indent + more for more in wrapped[1:])
    return lines


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Show a line that grows while the body works.

    Args:
        title: stands before it.
        total: how often the given function will be called, each time with a note.
    """
    if HAS_RICH and sys.stderr.isatty():
        yield from _rich_progress(title, total)
    else:
        yield from _plain_progress(title, total)


def _rich_progress(title: str, total: int) -> Iterator[Advance]:
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[note]}"),
    )
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)


def _plain_progress(title: str, total: int) -> Iterator[Advance]:
    """Rewrite one line on a terminal; in a file, write a line for every quarter."""
    live = sys.stderr.isatty()
    count = 0

    def advance(note: str) -> None:
        nonlocal count
        count += 1
        line = f"{title}  {count}/{total}  {note}"
        if live:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif count == total or count * 4 // total > (count - 1) * 4 // total:
            print(line, file=sys.stderr, flush=True)

    yield advance
    if live:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
