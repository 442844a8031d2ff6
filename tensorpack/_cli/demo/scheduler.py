"""Continuous batching: who is served in the next step, and with which inputs."""

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tensorpack._cli.demo.inputs import (
    ForwardInputs,
    SamplingInputs,
    StepInputs,
    StoppingCriteria,
)
from tensorpack._cli.demo.sequences import BlockPool, Session

__all__ = ["Scheduler", "forward_inputs"]


class Scheduler:
    """Keeps groups of sessions, each with at most one step on its way.

    A decode step feeds the token that the step before has sampled, so a group cannot be
    ahead of its own tokens. Two groups can: while one is on the device, the other's
    inputs are built and copied. That is the plainest way to keep the device busy.

    Args:
        source: gives the requests.
        pool: the blocks of the cache.
        groups: number of groups.
        max_batch: most sessions in a group.
    """

    def __init__(
        self,
        source: Iterator[Session],
        pool: BlockPool,
        *,
        groups: int = 2,
        max_batch: int = 4,
    ) -> None:
        self.pool = pool
        self.max_batch = max_batch
        self.live: list[list[Session]] = [[] for _ in range(groups)]
        self.finished: list[Session] = []
        self._source = source
        self._waiting: deque[Session] = deque()

    def next_step(self, group: int) -> StepInputs | None:
        """Build the next step of a group: its new sessions' prefill, else a decode.

        Args:
            group: index of the group; it has no step on its way.

        Returns:
            The inputs on the host, or None if the group has no session to serve.
        """
        self._admit(self.live[group])
        new = [s for s in self.live[group] if not s.cached]
        batch = new or list(self.live[group])
        if not batch:
            return None
        return {
            "inputs": forward_inputs(batch),
            "stopping_criteria": _stopping_criteria(batch),
            "group": group,
        }

    def commit(
        self, batch: Sequence[Session], tokens: Sequence[int], stopped: Sequence[bool]
    ) -> None:
        """Take in a step's outcome: each session gets its token or leaves with it."""
        for session, token, stop in zip(batch, tokens, stopped, strict=True):
            session.cached += len(session.pending)
            session.generated.append(token)
            if stop:
                self._retire(session)
                self.finished.append(session)

    def close(self) -> None:
        """Let all sessions leave, unfinished; none has a step on its way."""
        for session in [s for group in self.live for s in group]:
            self._retire(session)

    def _admit(self, group: list[Session]) -> None:
        while len(group) < self.max_batch and (session := self._next_waiting()):
            # All blocks that it can ever need, so a decode never runs out of them.
            blocks = self.pool.take(self.pool.blocks_for(session.most_tokens))
            if blocks is None:
                return
            session.blocks = blocks
            group.append(self._waiting.popleft())

    def _next_waiting(self) -> Session | None:
        if not self._waiting and (session := next(self._source, None)):
            self._waiting.append(session)
        return self._waiting[0] if self._waiting else None

    def _retire(self, session: Session) -> None:
        # The blocks may go to another session at once: the tokens of the last step that
        # reads them have arrived, so that step is over.
        self.pool.give_back(session.blocks)
        session.blocks = []
        next(group for group in self.live if session in group).remove(session)


def _longs(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _floats(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def forward_inputs(batch: list[Session]) -> ForwardInputs:
    """Build the inputs that feed the pending tokens of sessions, on the host."""
    pending = [s.pending for s in batch]
    lengths = [len(p) for p in pending]
    return ForwardInputs(
        input_ids=_longs([token for p in pending for token in p])[None],
        seq_length=_longs(lengths),
        history_lengths=_longs([s.cached for s in batch]),
        block_offsets=_block_offsets(batch),
        sampling=_sampling_inputs(batch),
        is_decoding=max(lengths) == 1,
        max_q_seqlen=max(lengths),
        max_kv_seqlen=max(s.cached + n for s, n in zip(batch, lengths, strict=True)),
        session_ctx=batch,
    )


def _block_offsets(batch: list[Session]) -> Tensor:
    width = max(len(s.blocks) for s in batch)
    # Short rows end in block 0; the mask hides what is read there.
    return torch.tensor([s.blocks + [0] * (width - len(s.blocks)) for s in batch])


def _sampling_inputs(batch: list[Session]) -> SamplingInputs:
    params = [s.sampling for s in batch]
    return SamplingInputs(
        temperature=_floats([p.temperature for p in params]),
        top_k=_longs([p.top_k for p in params]),
        top_p=_floats([p.top_p for p in params]),
        random_seeds=_longs([p.seed for p in params]),
        random_offsets=_longs([len(s.generated) for s in batch]),
        max_top_k=max(p.top_k for p in params),
    )


def _stopping_criteria(batch: list[Session]) -> StoppingCriteria:
    return StoppingCriteria(
        num_appendable=_longs([s.max_new - len(s.generated) for s in batch]),
        stop_words=[_longs(s.stop_words) for s in batch],
    )
