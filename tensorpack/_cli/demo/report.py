"""What the user of the demo sees at the end: counts, plans and texts."""

import attrs
import torch

from tensorpack import Counters
from tensorpack._cli.demo.inputs import (
    ForwardInputs,
    SamplingInputs,
    StepOutputs,
    StoppingCriteria,
)
from tensorpack._cli.demo.sequences import Session, decode
from tensorpack._cli.show import print_plan
from tensorpack._cli.tables import print_table
from tensorpack._rules.markers import PLAN

__all__ = ["Summary", "print_summary"]

_PAYLOADS = (ForwardInputs, SamplingInputs, StoppingCriteria, StepOutputs)
_TEXTS = 2


@attrs.frozen(eq=False)
class Summary:
    """What a run of the demo did.

    Attributes:
        device: where the model ran.
        steps: forward steps that were run.
        tokens: tokens that were sampled.
        speed: tokens per second after the first step, which loads the kernels.
        counts: what travelled to the device.
        finished: number of requests that were served to their end.
        sessions: all that were served, to their end or not.
    """

    device: torch.device
    steps: int
    tokens: int
    speed: float
    counts: Counters
    finished: int
    sessions: list[Session]


def print_summary(summary: Summary) -> None:
    """Print the tables of a run to the standard output."""
    _print_counts(summary)
    for cls in _PAYLOADS:
        print_plan(vars(cls)[PLAN])
    longest = sorted(summary.sessions, key=lambda s: -len(s.generated))
    _print_texts(longest[:_TEXTS])


def _print_counts(summary: Summary) -> None:
    counts = summary.counts
    records = f"{counts.records:,}"
    if summary.device.type == "cpu":
        records += " (the host has no streams)"
    print_table(
        f"Served on {summary.device}",
        ["what", "how many"],
        [
            ["steps", f"{summary.steps:,}"],
            ["requests finished", f"{summary.finished:,}"],
            ["tokens sampled", f"{summary.tokens:,}"],
            ["tokens per second", f"{summary.speed:,.0f}"],
            ["transfers", f"{counts.payloads:,}"],
            ["leaves moved", f"{counts.leaves:,}"],
            ["bytes moved", f"{counts.bytes:,}"],
            ["copies", f"{counts.copies:,}"],
            ["blocks recorded", records],
        ],
    )


def _print_texts(texts: list[Session]) -> None:
    print_table(
        "Texts (the weights are random, so the new text is noise)",
        ["request", "prompt", "new text"],
        [[s.name, decode(s.prompt), decode(s.generated)] for s in texts],
    )
