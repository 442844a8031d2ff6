"""The examples of the rules: the bad one is found, the good one is not."""

import pytest
from audit.texts import Audited

from tensorpack._audit.catalog import RULES, chosen
from tensorpack._audit.rule import explain

each_rule = pytest.mark.parametrize("number", RULES)


@each_rule
def test_bad_example_is_found(audited: Audited, number: str) -> None:
    """What a rule shows as bad gives a report of that rule and of no other."""
    found = audited(RULES[number].bad).reports

    assert [number] == [report.rule for report in found]


@each_rule
def test_good_example_is_not_found(audited: Audited, number: str) -> None:
    """The same code with its one part mended gives no report."""
    rule = RULES[number]

    assert rule.good != rule.bad
    assert [] == audited(rule.good).reports


@each_rule
def test_explanation_has_both_examples(number: str) -> None:
    """`--explain` shows title, reason, the bad code and the good code."""
    rule = RULES[number]

    text = explain(rule)

    assert text.startswith(f"{number}: {rule.title}\n")
    for code in (rule.bad, rule.good):
        assert all(f"    {line}" in text for line in code.strip().split("\n") if line)


def test_beginning_of_a_number_chooses_all_that_start_so() -> None:
    """`TP11` stands for TP110 to TP119; what is ignored is taken out of it."""
    assert {f"TP11{n}" for n in range(1, 10)} == chosen("tp11", "TP110")


def test_unknown_rule_is_an_error() -> None:
    """A number that no rule has is told, with the numbers that there are."""
    with pytest.raises(ValueError, match="no rule `TP9`: there are TP101 to TP121"):
        chosen("TP9", None)
