"""The examples of the rules: the bad one is found, the good one is not."""

import pytest
from audit.texts import Audited

from tensorpack._audit.catalog import RULES, chosen
from tensorpack._audit.rule import explain

WHYS = {
    "TP101": (
        "`mask`, annotated `Tensor`, is never mentioned by `record_stream`: its"
        " memory may be handed out again while the stream still reads it."
    ),
    "TP102": "`to` handles `mask`, but by `cuda` it is never mentioned.",
    "TP103": "no method moves `mask` (`Tensor`): by `to` it is never mentioned.",
    "TP104": (
        "`clone` clones `position` but hands on `velocity` itself: a write to "
        "one object shows in the other."
    ),
    "TP105": (
        "`copy_` copies `position` and not `velocity`, which keeps its old values."
    ),
    "TP106": (
        "the new `Batch` takes its fields from `self` but not `padding=0`: the "
        "defaults come back."
    ),
    "TP107": (
        "the new `Batch` takes its fields from `batch` but not `mask=None`: the"
        " defaults come back."
    ),
    "TP108": (
        "`Mask.record_stream` handles `mask`, but it is never reached: "
        "`Ids.record_stream` does not call `super()`."
    ),
    "TP109": (
        "`record_stream` of `Base` names its fields one by one and knows "
        "nothing of `mask`, which `Derived` adds."
    ),
    "TP110": (
        "the type test of `record_stream` (`Tensor`) passes over the `list` in "
        "`parts` (`list[Tensor]`)."
    ),
    "TP111": (
        "elements that fail the test for `to` are left out of the new list: it "
        "is shorter than the old one."
    ),
    "TP112": (
        "every error around `record_stream` is swallowed: what cannot be "
        "handled is left as it is, in silence."
    ),
    "TP113": (
        "a value that passes none of the tests on `value` is left unrecorded in"
        " silence: raise, or say which types need nothing."
    ),
    "TP114": (
        "the cache `cache` is passed on by `to` as it is: it still refers to "
        "the old device."
    ),
    "TP115": (
        "the result of `detach` is thrown away: it gives a new tensor and "
        "leaves the old one as it is."
    ),
    "TP116": (
        "the dictionary that is written to is the one of `self`, not a copy: "
        "the source is changed together with the new object."
    ),
    "TP117": (
        "`batch` is made on `copy_stream` and recorded on the same stream, "
        "which does nothing: record the stream that reads it."
    ),
    "TP118": (
        "the copy to the host is asynchronous and nothing in this function "
        "waits for it: whoever reads it may read what was there before."
    ),
    "TP119": (
        "`batch` is made on the side stream `side_stream` and handed out with "
        "an event, which orders the streams; nothing records it on the stream "
        "that reads it."
    ),
    "TP120": (
        "`mask` is merged only if both objects have it: the value of one side "
        "is dropped, or kept without the rows of the other, in silence."
    ),
    "TP121": "`nbytes` counts `ids` and not `mask`.",
}

each_rule = pytest.mark.parametrize("number", RULES)


@each_rule
def test_bad_example_is_found(audited: Audited, number: str) -> None:
    """What a rule shows as bad gives a report of that rule and of no other."""
    found = audited(RULES[number].bad).reports

    assert [number] == [report.rule for report in found]


@each_rule
def test_report_says_why(audited: Audited, number: str) -> None:
    """The reason of each rule names what is lost and what follows from it."""
    (report,) = audited(RULES[number].bad).reports

    assert WHYS[number] == report.why


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
