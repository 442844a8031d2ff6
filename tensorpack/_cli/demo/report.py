"""What the user of the demo sees at the end: counts, plans and texts."""

import attrs
import torch

from tensorpack._cli.demo.inputs import (
    ForwardInputs,
    SamplingInputs,
    StepOutputs,
    StoppingCriteria,
)
from tensorpack._cli.demo.sequences import Session, decode
from tensorpack._cli.demo.transport import Counts, has_streams
from tensorpack._cli.tables import print_table
from tensorpack._nodes import ClassPlan

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
        seconds: from the first step to the last token.
        counts: what travelled to the device.
        finished: number of requests that were served to their end.
        texts: sessions whose text is worth showing.
    """

    device: torch.device
    steps: int
    tokens: int
    seconds: float
    counts: Counts
    finished: int
    texts: list[Session]


def print_summary(summary: Summary) -> None:
    """Print the tables of a run to the standard output."""
    _print_counts(summary)
    for cls in _PAYLOADS:
        print_plan(vars(cls)["__tensorpack_plan__"])
    _print_texts(summary.texts[:_TEXTS])


def _print_counts(summary: Summary) -> None:
    counts = summary.counts
    records = f"{counts.records:,}"
    if not has_streams(summary.device):
        records += f" ({summary.device.type} has no streams)"
    print_table(
        f"Served on {summary.device}",
        ["what", "how many"],
        [
            ["steps", f"{summary.steps:,}"],
            ["requests finished", f"{summary.finished:,}"],
            ["tokens sampled", f"{summary.tokens:,}"],
            ["tokens per second", f"{summary.tokens / summary.seconds:,.0f}"],
            ["payloads moved", f"{counts.payloads:,}"],
            ["leaves moved", f"{counts.leaves:,}"],
            ["bytes moved", f"{counts.nbytes:,}"],
            ["leaves recorded", records],
        ],
    )


def print_plan(plan: ClassPlan) -> None:
    """Print what a payload class does with each of its fields."""
    print_table(
        f"Plan of {plan.cls.__qualname__}",
        ["field", "annotation", "role", "why"],
        [[f.name, f.annotation, f.role, f.why] for f in plan.fields],
    )


def _print_texts(texts: list[Session]) -> None:
    print_table(
        "Texts (the weights are random, so the new text is noise)",
        ["request", "prompt", "new text"],
        [[s.name, decode(s.prompt), decode(s.generated)] for s in texts],
    )
