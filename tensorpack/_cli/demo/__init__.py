"""`python -m tensorpack demo`: a small language model serves text, step by step.

The scheduler builds the inputs of each step on the host, they travel to the device as
payloads, and the sampled tokens come back. It is the job that tensorpack is for, at a
size that a laptop runs in seconds.
"""

import asyncio
import sys
import time

import torch

from tensorpack._cli.arguments import open_device
from tensorpack._cli.demo.agent import ModelAgent
from tensorpack._cli.demo.model import ModelConfig, Transformer
from tensorpack._cli.demo.report import Summary, print_summary
from tensorpack._cli.demo.scheduler import Scheduler
from tensorpack._cli.demo.sequences import BlockPool, sessions
from tensorpack._cli.tables import progress

__all__ = ["PROMPTS", "run", "serve"]

PROMPTS = (
    "Alice was beginning to get very tired of sitting by her sister on the bank,",
    "Call me Ishmael. Some years ago, never mind how long precisely,",
    "It is a truth universally acknowledged, that a single man in possession of",
    "The Time Traveller, for so it will be convenient to speak of him,",
    "No one would have believed in the last years of the nineteenth century",
)


def run(device: str | None, steps: int, prompts: list[str]) -> int:
    """Run the demo and print what it did.

    Args:
        device: where the model runs; None takes the accelerator if there is one.
        steps: number of forward steps.
        prompts: texts of the requests; none takes some that are well known.

    Returns:
        The exit code.
    """
    try:
        target = _accelerator() if device is None else open_device(device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print_summary(serve(target, steps, prompts or list(PROMPTS)))
    return 0


def _accelerator() -> torch.device:
    """Give the accelerator, or else the host."""
    found = torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if found else None
    return device or torch.device("cpu")


class _Clock:
    """Counts steps and tokens, and the speed from the end of the first step on."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self._first = 0
        self._begin = 0.0

    def step(self, tokens: int) -> None:
        """Count the tokens of a step that has ended now."""
        self.steps += 1
        self.tokens += tokens
        if not self._begin:
            self._first = tokens
            self._begin = time.perf_counter()

    @property
    def speed(self) -> float:
        """Tokens per second, or 0 as long as there is nothing to measure."""
        later = self.tokens - self._first
        return later / (time.perf_counter() - self._begin) if later else 0.0


def serve(device: torch.device, steps: int, prompts: list[str]) -> Summary:
    """Serve the prompts in turn, again and again, for a number of forward steps."""
    config = ModelConfig()
    pool = BlockPool(config.num_blocks, config.block_size)
    scheduler = Scheduler(sessions(prompts), pool)
    clock = _Clock()
    with progress("serving", steps) as advance:

        def on_step(tokens: int) -> None:
            clock.step(tokens)
            advance(f"{clock.speed:,.0f} tokens/s")

        agent = ModelAgent(Transformer(config), scheduler, device, on_step=on_step)
        asyncio.run(agent.serve(steps))
        speed = clock.speed
    live = [session for group in scheduler.live for session in group]
    return Summary(
        device=device,
        steps=clock.steps,
        tokens=clock.tokens,
        speed=speed,
        counts=agent.copies.counters,
        finished=len(scheduler.finished),
        sessions=[*scheduler.finished, *live],
    )
