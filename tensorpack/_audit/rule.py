"""A rule: what it finds, and an example of each side."""

from dataclasses import dataclass

__all__ = ["Rule", "explain"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the audit.

    Attributes:
        number: `TP101`.
        title: what it finds, in a few words.
        text: why it matters and what to do.
        bad: code that it finds.
        old: the part of it that is wrong.
        new: what to write instead.
    """

    number: str
    title: str
    text: str
    bad: str
    old: str
    new: str

    @property
    def good(self) -> str:
        """The code with the wrong part mended."""
        return self.bad.replace(self.old, self.new)


def explain(rule: Rule) -> str:
    """Return all that a rule says of itself."""

    def indented(code: str) -> str:
        lines = code.strip("\n").split("\n")
        return "\n".join(f"    {line}" if line else "" for line in lines)

    return (
        f"{rule.number}: {rule.title}\n\n{rule.text.strip()}\n\n"
        f"Found:\n\n{indented(rule.bad)}\n\nNot found:\n\n{indented(rule.good)}\n"
    )
