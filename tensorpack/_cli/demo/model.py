"""A small decoder-only transformer over bytes, its cache kept in blocks.

# Note [no host synchronization]
The host runs ahead of the device only as long as nothing asks the device for a value.
So no shape and no branch here depends on a tensor's content: sizes come from shapes
and from the host fields of the inputs (`max_q_seqlen`, `max_kv_seqlen`).
"""

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorpack._cli.demo.inputs import ForwardInputs
from tensorpack._cli.demo.sequences import VOCAB

__all__ = ["KVCache", "Layer", "ModelConfig", "Transformer"]


@attrs.frozen
class ModelConfig:
    """Sizes of the model and of its cache.

    Attributes:
        layers: number of layers.
        heads: attention heads in a layer.
        head_dim: channels in a head, an even number.
        block_size: tokens in a cache block.
        num_blocks: cache blocks in a layer.
        seed: of the random weights.
    """

    layers: int = 4
    heads: int = 4
    head_dim: int = 32
    block_size: int = 16
    num_blocks: int = 320
    seed: int = 0

    @property
    def hidden(self) -> int:
        """Channels of the residual stream."""
        return self.heads * self.head_dim

    @property
    def max_positions(self) -> int:
        """Tokens that the whole cache holds, so no sequence is longer."""
        return self.block_size * self.num_blocks


class KVCache:
    """Keys and values of every layer, in blocks: (blocks, block_size, heads, head_dim).

    Args:
        config: the sizes.
        device: where it lives.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        shape = (config.num_blocks, config.block_size, config.heads, config.head_dim)
        # Zeros, not empty: masked slots are still multiplied by 0, and 0 * nan is nan.
        self.keys = [torch.zeros(shape, device=device) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, device=device) for _ in range(config.layers)]


@attrs.frozen(eq=False)
class Layout:
    """Where each packed token stands; computed once, used by every layer.

    Attributes:
        row: (tokens,) the sequence of each token.
        column: (tokens,) its place among the new tokens of its sequence.
        position: (tokens,) its place in the whole sequence.
        block: (tokens,) the cache block that it is written to.
        slot: (tokens,) its place in that block.
        blocks: (batch, used blocks) the blocks that the batch reads.
        mask: (batch, 1, queries, keys) bool, which keys a query sees.
        last: (batch,) index of the last packed token of each sequence.
    """

    row: Tensor
    column: Tensor
    position: Tensor
    block: Tensor
    slot: Tensor
    blocks: Tensor
    mask: Tensor
    last: Tensor

    @classmethod
    def of(cls, inputs: ForwardInputs, block_size: int) -> "Layout":
        """Compute the layout on the inputs' device; see Note [no host ...]."""
        device = inputs.input_ids.device
        ends = inputs.seq_length.cumsum(0)
        token = torch.arange(inputs.input_ids.shape[1], device=device)
        row = torch.searchsorted(ends, token, right=True)
        column = token - (ends - inputs.seq_length)[row]
        position = inputs.history_lengths[row] + column
        used = -(-inputs.max_kv_seqlen // block_size)
        key = torch.arange(used * block_size, device=device)
        query = torch.arange(inputs.max_q_seqlen, device=device)
        query = inputs.history_lengths[:, None] + query
        return cls(
            row=row,
            column=column,
            position=position,
            block=inputs.block_offsets[row, position // block_size],
            slot=position % block_size,
            blocks=inputs.block_offsets[:, :used],
            mask=(key <= query[:, :, None])[:, None],
            last=ends - 1,
        )


class RMSNorm(nn.Module):
    """Scale each token to unit root mean square, then by learned weights."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (..., hidden)."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the pairs of channels of each head by the position of the token.

    Args:
        x: (tokens, ..., head_dim) float32.
        turn: (tokens, head_dim / 2) complex64 of length 1.

    Returns:
        As `x`: its rotary embedding.
    """
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    turn = turn.view(turn.shape[0], *[1] * (pairs.dim() - 2), turn.shape[1])
    return torch.view_as_real(pairs * turn).flatten(-2)


class Attention(nn.Module):
    """Attention of packed tokens over a cache in blocks."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(
        self, x: Tensor, turn: Tensor, where: Layout, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Write the new keys and values to the cache, then attend over it."""
        qkv = self.qkv(x).view(x.shape[0], 3, self.heads, -1)
        # Both at once: on a device each call costs more than its work.
        q, k = rotate(qkv[:, :2], turn).unbind(1)
        keys[where.block, where.slot] = k
        values[where.block, where.slot] = qkv[:, 2]
        batch, _, queries, _ = where.mask.shape
        padded = q.new_zeros(batch, queries, *q.shape[1:])
        padded[where.row, where.column] = q
        attended = functional.scaled_dot_product_attention(
            padded.transpose(1, 2),
            keys[where.blocks].flatten(1, 2).transpose(1, 2),
            values[where.blocks].flatten(1, 2).transpose(1, 2),
            attn_mask=where.mask,
        )
        packed = attended.transpose(1, 2)[where.row, where.column]
        mixed: Tensor = self.out(packed.flatten(1))
        return mixed


class Layer(nn.Module):
    """Attention, then a gated feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden)
        self.attention = Attention(config)
        self.gate_norm = RMSNorm(config.hidden)
        self.gate = nn.Linear(config.hidden, 4 * config.hidden, bias=False)
        self.up = nn.Linear(config.hidden, 4 * config.hidden, bias=False)
        self.down = nn.Linear(4 * config.hidden, config.hidden, bias=False)

    def forward(
        self, x: Tensor, turn: Tensor, where: Layout, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Give (tokens, hidden) after this layer."""
        x = x + self.attention(self.attention_norm(x), turn, where, keys, values)
        return x + self.feed_forward(self.gate_norm(x))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Mix the channels of each token."""
        mixed: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return mixed


class Transformer(nn.Module):
    """The whole model, with random weights that depend on the seed alone.

    Args:
        config: the sizes.
    """

    turns: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(VOCAB, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden)
        self.head = nn.Linear(config.hidden, VOCAB, bias=False)
        self.register_buffer("turns", _turns(config), persistent=False)
        self._randomize(config.seed)
        self.requires_grad_(requires_grad=False)

    def _randomize(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(
                    weight, std=weight.shape[1] ** -0.5, generator=generator
                )

    def forward(self, inputs: ForwardInputs, cache: KVCache) -> Tensor:
        """Give the logits of the next token of each sequence.

        Args:
            inputs: the batch; prefill, decode and a mix of both are the same code.
            cache: gets the keys and values of the new tokens.

        Returns:
            (batch, vocabulary) float32.

        Streams:
            All work is queued on the current stream; the host does not block.
        """
        where = Layout.of(inputs, self.config.block_size)
        turn = self.turns[where.position]
        x = self.embed(inputs.input_ids[0])
        for layer, keys, values in zip(
            self.layers, cache.keys, cache.values, strict=True
        ):
            x = layer(x, turn, where, keys, values)
        logits: Tensor = self.head(self.norm(x[where.last]))
        return logits


def _turns(config: ModelConfig) -> Tensor:
    """Give the rotations of each position: (positions, head_dim / 2) complex64."""
    half = torch.arange(0, config.head_dim, 2) / config.head_dim
    angles = torch.outer(torch.arange(config.max_positions).float(), 10_000.0**-half)
    return torch.polar(torch.ones_like(angles), angles)
