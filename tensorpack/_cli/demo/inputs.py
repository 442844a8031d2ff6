"""What travels: the payloads of one step, to the device and back."""

from typing import TypedDict

from torch import Tensor

from tensorpack import HostOnly, Payload, payload
from tensorpack._cli.demo.sequences import Session

__all__ = [
    "TRAVELLING_KEYS",
    "ForwardInputs",
    "SamplingInputs",
    "StepInputs",
    "StepOutputs",
    "StoppingCriteria",
]


@payload
class SamplingInputs(Payload):
    """How the next token of each sequence is drawn.

    Attributes:
        temperature: (batch,) float32.
        top_k: (batch,) int64.
        top_p: (batch,) float32.
        random_seeds: (batch,) int64.
        random_offsets: (batch,) int64, tokens drawn so far.
        max_top_k: the largest `top_k`, so that the host can size the sort.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    random_seeds: Tensor
    random_offsets: Tensor
    max_top_k: int


@payload
class ForwardInputs(Payload):
    """One batch, its new tokens packed into one row.

    Attributes:
        input_ids: (1, tokens) int64.
        seq_length: (batch,) int64, new tokens of each sequence.
        history_lengths: (batch,) int64, tokens already in the cache.
        block_offsets: (batch, blocks) int64, cache blocks in the order of the tokens.
        sampling: how the next tokens are drawn.
        is_decoding: whether each sequence feeds a single token.
        max_q_seqlen: the largest of `seq_length`.
        max_kv_seqlen: the largest of `history_lengths + seq_length`.
        session_ctx: the host's own objects behind the rows of the batch.
    """

    input_ids: Tensor
    seq_length: Tensor
    history_lengths: Tensor
    block_offsets: Tensor
    sampling: SamplingInputs
    is_decoding: bool
    max_q_seqlen: int
    max_kv_seqlen: int
    session_ctx: HostOnly[list[Session]]


@payload
class StoppingCriteria(Payload):
    """When each sequence leaves.

    Attributes:
        num_appendable: (batch,) int64, tokens that it may still get.
        stop_words: for each sequence (words,) int64, tokens that end it.
    """

    num_appendable: Tensor
    stop_words: list[Tensor]


@payload
class StepOutputs(Payload):
    """What the scheduler needs to know of a step.

    Attributes:
        tokens: (batch,) int64, the sampled tokens.
        stopped: (batch,) bool, whether the sequence leaves.
    """

    tokens: Tensor
    stopped: Tensor


class StepInputs(TypedDict):
    """The dictionary of forward inputs that goes through the agent's queues."""

    inputs: ForwardInputs
    stopping_criteria: StoppingCriteria
    group: int


TRAVELLING_KEYS = ("inputs", "stopping_criteria")
"""Keys of `StepInputs` that travel; all other entries pass untouched."""
