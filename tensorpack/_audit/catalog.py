"""All rules, by number."""

from tensorpack._audit import rules_of_fields, rules_of_values
from tensorpack._audit.rule import Rule

__all__ = ["RULES", "chosen"]

RULES: dict[str, Rule] = {
    rule.number: rule for rule in (*rules_of_fields.RULES, *rules_of_values.RULES)
}


def chosen(select: str | None, ignore: str | None) -> set[str]:
    """Return the rules that are asked for.

    Args:
        select: numbers or beginnings of numbers, with commas; None selects all.
        ignore: those to leave out of them.

    Raises:
        ValueError: no rule has such a number.
    """
    numbers = _named(select) if select is not None else set(RULES)
    return numbers - (_named(ignore) if ignore is not None else set())


def _named(text: str) -> set[str]:
    found: set[str] = set()
    for start in filter(None, (part.strip().upper() for part in text.split(","))):
        numbers = {number for number in RULES if number.startswith(start)}
        if not numbers:
            msg = f"no rule `{start}`: there are {min(RULES)} to {max(RULES)}"
            raise ValueError(msg)
        found |= numbers
    return found
