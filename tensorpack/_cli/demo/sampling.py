"""Drawing the next tokens, all on the device.

# Note [noise without a generator]
A generator has one state for the whole batch, so a sequence's text would depend on
its neighbours. Here the noise is a hash of (seed, tokens drawn so far, token): each
sequence draws the same text alone and in any batch, and nothing is kept on the device.
"""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tensorpack._cli.demo.inputs import SamplingInputs, StoppingCriteria

__all__ = ["gumbel", "gumbel_noise", "sample", "stopped"]

_MASK = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """Hash int64 values below 2**32 to values below 2**32."""
    # The multiplier is small, so the product stays in int64 and no overflow is met.
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x045D9F3B) & _MASK
    return x ^ (x >> 16)


def gumbel_noise(seeds: Tensor, offsets: Tensor, width: int) -> Tensor:
    """Give Gumbel noise that depends on nothing but its arguments.

    Args:
        seeds: (batch,) int64, below 2**40.
        offsets: (batch,) int64, below 2**40.
        width: how many values a sequence gets.

    Returns:
        (batch, width) float32, finite.
    """
    token = torch.arange(width, device=seeds.device)
    start = _mix((seeds * 0x3779B1 + offsets * 0x5BD1E9) & _MASK)
    return gumbel(_mix((start[:, None] + token * 0x27D4EB) & _MASK))


def gumbel(bits: Tensor) -> Tensor:
    """Give the Gumbel noise, float32 and finite, of int64 hashes below 2**32."""
    # 23 bits and a half: float32 holds these exactly, so none is rounded to 0 or 1.
    uniform = ((bits >> 9).float() + 0.5) / 2**23
    return -(-uniform.log()).log()


def sample(logits: Tensor, sampling: SamplingInputs) -> Tensor:
    """Draw one token for each sequence by its temperature, top-k and top-p.

    Args:
        logits: (batch, vocabulary) float32.
        sampling: on the same device.

    Returns:
        (batch,) int64.

    Streams:
        All work is queued on the current stream; the host does not block.
    """
    # A temperature of 0 asks for the best token: top-k of 1 gives it without dividing.
    greedy = sampling.temperature == 0
    scale = sampling.temperature.masked_fill(greedy, 1.0)
    top_k = sampling.top_k.masked_fill(greedy, 1)
    best, tokens = (logits / scale[:, None]).topk(sampling.max_top_k)
    rank = torch.arange(sampling.max_top_k, device=logits.device)
    best = best.masked_fill(rank >= top_k[:, None], -torch.inf)
    shares = best.softmax(dim=-1)
    # Compared with the sum of the better tokens, so that the best one always stays.
    best = best.masked_fill(
        shares.cumsum(-1) - shares >= sampling.top_p[:, None], -torch.inf
    )
    noise = gumbel_noise(
        sampling.random_seeds, sampling.random_offsets, logits.shape[1]
    )
    choice = (best + noise.gather(1, tokens)).argmax(-1, keepdim=True)
    return tokens.gather(1, choice)[:, 0]


def stopped(tokens: Tensor, criteria: StoppingCriteria) -> Tensor:
    """Tell which sequences leave after these tokens.

    Args:
        tokens: (batch,) int64, just sampled.
        criteria: on the same device.

    Returns:
        (batch,) bool.
    """
    words = pad_sequence(criteria.stop_words, batch_first=True, padding_value=-1)
    return (criteria.num_appendable <= 1) | (words == tokens[:, None]).any(-1)
