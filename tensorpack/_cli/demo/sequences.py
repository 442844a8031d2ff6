"""Requests on the host: their tokens, their sampling, and the blocks they hold."""

import itertools
from collections.abc import Iterator, Sequence

import attrs

__all__ = [
    "BOS",
    "EOS",
    "VOCAB",
    "BlockPool",
    "SamplingParams",
    "Session",
    "decode",
    "encode",
    "sessions",
]

BOS = 256
EOS = 257
VOCAB = 258
MAX_PROMPT = 512
NEW_TOKENS = (24, 40, 32, 56)


def encode(text: str) -> list[int]:
    """Give the byte tokens of a prompt: its last `MAX_PROMPT` bytes behind a start."""
    return [BOS, *text.encode(errors="replace")[-MAX_PROMPT:]]


def decode(tokens: Sequence[int]) -> str:
    """Give the text of byte tokens, with a mark in place of what no text holds.

    >>> decode([104, 105, EOS])
    'hi'
    """
    text = bytes(t for t in tokens if t < BOS).decode(errors="replace")
    # A raw escape byte would reach the user's terminal as a command.
    return "".join(c if c.isprintable() else "·" for c in text)


@attrs.frozen
class SamplingParams:
    """How the tokens of one request are drawn.

    Attributes:
        temperature: divides the logits; 0 takes the best token.
        top_k: draw among that many of the best tokens; at least 1.
        top_p: draw among the best tokens that together have this probability.
        seed: the request's own seed, whatever batch it is served in.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    seed: int = 0


@attrs.define(eq=False)
class Session:
    """One request while it is served.

    Attributes:
        name: what the report calls it.
        prompt: tokens of the prompt.
        sampling: how its tokens are drawn.
        max_new: it leaves after that many new tokens.
        stop_words: it leaves after any of these tokens.
        generated: tokens sampled so far.
        cached: how many of its tokens have their keys and values in the cache.
        blocks: the cache blocks that it holds, in the order of its tokens.
    """

    name: str
    prompt: list[int]
    sampling: SamplingParams = attrs.field(factory=SamplingParams)
    max_new: int = 32
    stop_words: list[int] = attrs.field(factory=lambda: [EOS])
    generated: list[int] = attrs.field(factory=list)
    cached: int = 0
    blocks: list[int] = attrs.field(factory=list)

    @property
    def pending(self) -> list[int]:
        """Tokens to feed next: the whole prompt at first, then the last sampled one."""
        if self.cached < len(self.prompt):
            return self.prompt[self.cached :]
        return self.generated[self.cached - len(self.prompt) :]

    @property
    def most_tokens(self) -> int:
        """How many tokens it can ever have in the cache."""
        return len(self.prompt) + self.max_new


def sessions(prompts: Sequence[str]) -> Iterator[Session]:
    """Give requests without end, over the prompts in turn, each with its own seed."""
    for number, prompt in zip(itertools.count(1), itertools.cycle(prompts)):
        yield Session(
            name=f"request {number}",
            prompt=encode(prompt),
            sampling=SamplingParams(seed=number, top_k=20 + number % 40),
            max_new=NEW_TOKENS[number % len(NEW_TOKENS)],
            stop_words=[EOS, ord("\n")] if number % 2 else [EOS],
        )


class BlockPool:
    """The free blocks of the cache.

    Args:
        count: number of blocks.
        size: tokens in a block.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._free = list(range(count))

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Give how many blocks that many tokens fill."""
        return -(-tokens // self.size)

    def take(self, count: int) -> list[int] | None:
        """Hand out blocks, or None if there are not that many."""
        if count > len(self._free):
            return None
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free blocks; the last freed are the last to be handed out again."""
        self._free.extend(blocks)
