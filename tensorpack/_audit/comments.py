"""Comments that say why a field is left alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Silence", "comment_of", "is_on_purpose", "silences_of"]

_KEEP = re.compile(r"#\s*tensorpack:\s*keep\[([^\]]*)\]\s*(.*)")

_STAYS = re.compile(
    r"\b(stays?|kept|keep|remains?|lives?|always|only|used)\b[^.;]*"
    r"\b(cpu|host|device|pinned|gpu)\b"
    r"|\b(cpu|host)[- ](only|side|copy|tensor|list|scalar|resident)\b"
    r"|\b(not|never|no need to|n't|don't|without)\b[^.;]*"
    r"\b(mov(e|ed|ing)|copied|record(ed|ing)?|transfer(red)?|clon(e|ed|ing))\b"
    r"|\brecorded (by|in|with|through|elsewhere)\b"
    r"|\b(alias|aliases|aliased|borrowed|owned by|owner|shared with|reference to)\b"
    r"|\bon (the )?(cpu|host)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Silence:
    """A comment `# tensorpack: keep[field, other] reason`.

    Attributes:
        line: where it is, from one.
        fields: the fields that it names; `*` is all.
        reason: what its author says.
    """

    line: int
    fields: tuple[str, ...]
    reason: str


def silences_of(lines: Sequence[str]) -> list[Silence]:
    """List the comments that silence reports."""
    found = []
    for number, line in enumerate(lines, 1):
        if match := _KEEP.search(line):
            names = tuple(name.strip() for name in match[1].split(",") if name.strip())
            found.append(Silence(number, names, match[2].strip()))
    return found


def comment_of(lines: Sequence[str], first: int, last: int) -> str:
    """Return the comments of the lines of a field and of those right above it."""
    texts: list[str] = []
    above = first - 2
    while above >= 0 and lines[above].lstrip().startswith("#"):
        texts.insert(0, lines[above].partition("#")[2].strip(" #:"))
        above -= 1
    for line in lines[first - 1 : last]:
        _, mark, text = line.partition("#")
        if mark:
            texts.append(text.strip(" #:"))
    return " ".join(texts)


def is_on_purpose(comment: str) -> bool:
    """Return whether a comment says that a field is left alone on purpose."""
    return _STAYS.search(comment) is not None
