"""Classes of engines with their hand-written methods, and the same as payloads.

Each pair gives equal results. The names are made up, the forms are those of attention
metadata, sampling batches, graph buffers, decode inputs, and ragged tokens.
"""

import dataclasses
from typing import Annotated, Any

import torch
from torch import Tensor

from tensorpack import (
    Axis,
    CopyStream,
    HostOnly,
    Index,
    Offsets,
    Payload,
    Size,
    payload,
)
from tensorpack.axes import cat, copy_, empty_like, pad, select, split

# Attention metadata: 26 fields, five of them copies on the host, and a slice.

PER_REQUEST = (
    "seq_lens",
    "seq_lens_cpu",
    "query_lens",
    "query_lens_cpu",
    "computed",
    "computed_cpu",
    "slots_used",
    "slots_used_cpu",
    "positions",
    "positions_cpu",
    "block_table",
    "encoder_lens",
    "is_prefill",
    "adapter",
    "priority",
)


@dataclasses.dataclass
class HandAttention:
    """The fields, and a slice that names each of them."""

    seq_lens: Tensor
    seq_lens_cpu: Tensor
    query_lens: Tensor
    query_lens_cpu: Tensor
    computed: Tensor
    computed_cpu: Tensor
    slots_used: Tensor
    slots_used_cpu: Tensor
    positions: Tensor
    positions_cpu: Tensor
    block_table: Tensor
    encoder_lens: Tensor | None
    is_prefill: Tensor
    adapter: Tensor | None
    priority: Tensor
    query_start: Tensor
    slot_mapping: Tensor
    token_ids: Tensor
    rope: Tensor
    scale: Tensor
    num_reqs: int
    max_query_len: int
    max_seq_len: int
    causal: bool
    backend: str
    window: int | None

    def slice_requests(self, first: int, last: int) -> "HandAttention":
        """Take some of the requests, field by field."""
        begin, end = int(self.query_start[first]), int(self.query_start[last])
        encoder, adapter = self.encoder_lens, self.adapter
        return HandAttention(
            seq_lens=self.seq_lens[first:last],
            seq_lens_cpu=self.seq_lens_cpu[first:last],
            query_lens=self.query_lens[first:last],
            query_lens_cpu=self.query_lens_cpu[first:last],
            computed=self.computed[first:last],
            computed_cpu=self.computed_cpu[first:last],
            slots_used=self.slots_used[first:last],
            slots_used_cpu=self.slots_used_cpu[first:last],
            positions=self.positions[first:last],
            positions_cpu=self.positions_cpu[first:last],
            block_table=self.block_table[first:last],
            encoder_lens=encoder[first:last] if encoder is not None else None,
            is_prefill=self.is_prefill[first:last],
            adapter=adapter[first:last] if adapter is not None else None,
            priority=self.priority[first:last],
            query_start=self.query_start[first : last + 1] - self.query_start[first],
            slot_mapping=self.slot_mapping[begin:end],
            token_ids=self.token_ids[begin:end],
            rope=self.rope,
            scale=self.scale,
            num_reqs=last - first,
            max_query_len=int(self.query_lens_cpu[first:last].max()),
            max_seq_len=int(self.seq_lens_cpu[first:last].max()),
            causal=self.causal,
            backend=self.backend,
            window=self.window,
        )


PerRequest = Annotated[Tensor, Axis("requests", pad=0)]
OnHost = Annotated[HostOnly[Tensor], Axis("requests", pad=0)]
PerToken = Annotated[Tensor, Axis("tokens", pad=0, lengths="query_lens_cpu")]


@payload
class Attention(Payload):
    """The fields with their axes; there is no slice to keep in step with them."""

    seq_lens: PerRequest
    seq_lens_cpu: OnHost
    query_lens: PerRequest
    query_lens_cpu: OnHost
    computed: PerRequest
    computed_cpu: OnHost
    slots_used: PerRequest
    slots_used_cpu: OnHost
    positions: PerRequest
    positions_cpu: OnHost
    block_table: PerRequest
    encoder_lens: PerRequest | None
    is_prefill: PerRequest
    adapter: PerRequest | None
    priority: PerRequest
    query_start: Annotated[Tensor, Offsets("requests")]
    slot_mapping: PerToken
    token_ids: PerToken
    rope: Tensor
    scale: Tensor
    num_reqs: Annotated[int, Size("requests")]
    max_query_len: int
    max_seq_len: int
    causal: bool
    backend: str
    window: int | None

    def __payload_resized__(self) -> "Attention":
        """Compute what depends on the lengths."""
        self.max_query_len = int(self.query_lens_cpu.max())
        self.max_seq_len = int(self.seq_lens_cpu.max())
        return self


def attention_fields(count: int = 5) -> dict[str, Any]:
    """Make the fields of some requests."""
    lens = torch.arange(1, count + 1)
    fields: dict[str, Any] = {
        name: torch.arange(count) + 10 * i for i, name in enumerate(PER_REQUEST)
    }
    for name in ("seq_lens", "query_lens"):
        fields[name] = fields[f"{name}_cpu"] = lens
    tokens = int(lens.sum())
    return fields | {
        "block_table": torch.arange(count * 3).view(count, 3),
        "encoder_lens": None,
        "query_start": torch.cat((torch.zeros(1, dtype=torch.int64), lens.cumsum(0))),
        "slot_mapping": torch.arange(tokens) + 7,
        "token_ids": torch.arange(tokens) + 100,
        "rope": torch.ones(4),
        "scale": torch.ones(()),
        "num_reqs": count,
        "max_query_len": count,
        "max_seq_len": count,
        "causal": True,
        "backend": "paged",
        "window": None,
    }


def assert_equal_fields(expected: Any, actual: Any) -> None:
    """Hold each field of a hand-written object against that of a payload."""
    for field in dataclasses.fields(expected):
        one, two = getattr(expected, field.name), getattr(actual, field.name)
        if isinstance(one, Tensor):
            assert torch.equal(one, two), field.name
        else:
            assert one == two, field.name


def test_attention_metadata_is_sliced() -> None:
    """Twenty-six fields, five copies on the host: one call."""
    fields = attention_fields()
    expected = HandAttention(**fields).slice_requests(1, 4)

    assert 26 == len(dataclasses.fields(HandAttention))
    assert_equal_fields(expected, select(Attention(**fields), requests=slice(1, 4)))


# A sampling batch, filtered and merged at each step.


@dataclasses.dataclass
class HandSampling:
    """A filter and a merge that name each field."""

    temperatures: Tensor
    top_ps: Tensor
    top_ks: Tensor
    penalties: Tensor | None
    bias: Tensor | None
    request_ids: list[str]
    seeds: list[int | None]
    vocab: int
    greedy: bool

    def filter_batch(self, keep: list[int]) -> "HandSampling":
        """Keep some of the requests."""
        index = torch.tensor(keep)
        return HandSampling(
            self.temperatures[index],
            self.top_ps[index],
            self.top_ks[index],
            None if self.penalties is None else self.penalties[index],
            None if self.bias is None else self.bias[index],
            [self.request_ids[i] for i in keep],
            [self.seeds[i] for i in keep],
            self.vocab,
            self.greedy,
        )

    def merge_batch(self, other: "HandSampling") -> "HandSampling":
        """Put the requests of another batch behind these."""

        def both(one: Tensor | None, two: Tensor | None, fill: float) -> Tensor | None:
            if one is None and two is None:
                return None
            rows = [(one, self), (two, other)]
            some = one if one is not None else two
            assert some is not None
            return torch.cat(
                [
                    x
                    if x is not None
                    else some.new_full((len(b.request_ids), *some.shape[1:]), fill)
                    for x, b in rows
                ]
            )

        return HandSampling(
            torch.cat((self.temperatures, other.temperatures)),
            torch.cat((self.top_ps, other.top_ps)),
            torch.cat((self.top_ks, other.top_ks)),
            both(self.penalties, other.penalties, 1.0),
            both(self.bias, other.bias, 0.0),
            self.request_ids + other.request_ids,
            self.seeds + other.seeds,
            self.vocab,
            self.greedy and other.greedy,
        )


@payload
class SamplingBatch(Payload):
    """The same, declared."""

    temperatures: Annotated[Tensor, Axis("requests")]
    top_ps: Annotated[Tensor, Axis("requests")]
    top_ks: Annotated[Tensor, Axis("requests")]
    penalties: Annotated[Tensor | None, Axis("requests", pad=1.0)]
    bias: Annotated[Tensor | None, Axis("requests", pad=0.0)]
    request_ids: Annotated[list[str], Axis("requests")]
    seeds: Annotated[list[int | None], Axis("requests")]
    vocab: int
    greedy: bool


def sampling_fields(count: int, *, biased: bool, greedy: bool) -> dict[str, Any]:
    """Make the fields of some requests."""
    return {
        "temperatures": torch.rand(count),
        "top_ps": torch.rand(count),
        "top_ks": torch.arange(count),
        "penalties": None,
        "bias": torch.rand(count, 8) if biased else None,
        "request_ids": [f"r{i}" for i in range(count)],
        "seeds": [None, *range(count - 1)],
        "vocab": 8,
        "greedy": greedy,
    }


def test_sampling_batch_is_filtered_and_merged() -> None:
    """A field that one batch lacks is filled with its pad."""
    one = sampling_fields(3, biased=True, greedy=True)
    two = sampling_fields(2, biased=False, greedy=False)
    expected = HandSampling(**one).filter_batch([2, 0]).merge_batch(HandSampling(**two))

    kept = select(SamplingBatch(**one), requests=[2, 0])
    merged = cat([kept, SamplingBatch(**two)], "requests", combine={"greedy": all})
    assert_equal_fields(expected, merged)


# A registry of graph buffers, with buckets.


class HandGraphBuffers:
    """Buffers for the largest batch; a bucket is filled field by field."""

    buckets = (1, 2, 4, 8)

    def __init__(self) -> None:
        self.input_ids = torch.zeros(8, dtype=torch.int64)
        self.seq_lens = torch.ones(8, dtype=torch.int64)
        self.table = torch.zeros(8, 3, dtype=torch.int64)
        self.mask = torch.zeros(8, dtype=torch.bool)

    def fill_from(
        self, ids: Tensor, lens: Tensor, table: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Copy a batch into the smallest bucket, and pad it."""
        count = len(ids)
        bucket = next(b for b in self.buckets if b >= count)
        self.input_ids[:count].copy_(ids)
        self.input_ids[count:bucket].fill_(0)
        self.seq_lens[:count].copy_(lens)
        self.seq_lens[count:bucket].fill_(1)
        self.table[:count].copy_(table)
        self.table[count:bucket].fill_(0)
        self.mask[:count].copy_(mask)
        self.mask[count:bucket] = False
        return {
            "input_ids": self.input_ids[:bucket],
            "seq_lens": self.seq_lens[:bucket],
            "table": self.table[:bucket],
            "mask": self.mask[:bucket],
        }


@payload
class GraphInputs(Payload):
    """What the graph reads."""

    input_ids: Annotated[Tensor, Axis("requests", pad=0)]
    seq_lens: Annotated[Tensor, Axis("requests", pad=1)]
    table: Annotated[Tensor, Axis("requests", pad=0)]
    mask: Annotated[Tensor, Axis("requests", pad=False)]


def graph_inputs(count: int) -> GraphInputs:
    """Make a batch of some requests."""
    ids = torch.arange(count) + 5
    return GraphInputs(ids, ids * 2, ids.view(-1, 1).expand(-1, 3), ids % 2 == 0)


def test_graph_buffers_are_filled_by_bucket() -> None:
    """One call pads and copies; what is handed out are views of the buffers."""
    by_hand = HandGraphBuffers()
    static = empty_like(graph_inputs(1), requests=8)
    copies = CopyStream("cpu")

    for count in (3, 8, 1, 2, 5):
        batch = graph_inputs(count)
        expected = by_hand.fill_from(
            batch.input_ids, batch.seq_lens, batch.table, batch.mask
        )
        bucket = next(b for b in by_hand.buckets if b >= count)
        views = copies.start(batch, into=static, sizes={"requests": bucket}).wait()

        for name, value in expected.items():
            assert torch.equal(value, getattr(views, name))
            assert getattr(static, name).data_ptr() == getattr(views, name).data_ptr()


# A decode input that is padded for a kernel.


def pad_by_hand(ids: Tensor, lens: Tensor, table: Tensor, to: int) -> list[Tensor]:
    """Pad three leaves to one size."""
    missing = to - len(ids)
    return [
        torch.nn.functional.pad(ids, (0, missing), value=0),
        torch.nn.functional.pad(lens, (0, missing), value=1),
        torch.nn.functional.pad(table, (0, 0, 0, missing), value=0),
    ]


def test_decode_input_is_padded_and_unpadded() -> None:
    """Padding and its undoing name no field."""
    batch = graph_inputs(3)
    expected = pad_by_hand(batch.input_ids, batch.seq_lens, batch.table, 8)
    wide = pad(batch, requests=8)

    for one, two in zip(
        expected, (wide.input_ids, wide.seq_lens, wide.table), strict=True
    ):
        assert torch.equal(one, two)
    assert torch.equal(batch.table, select(wide, requests=slice(0, 3)).table)


# Ragged tokens by request, and positions into the tokens.


@payload
class Ragged(Payload):
    """Tokens of requests, their cumulative offsets, and the last token of each."""

    tokens: Annotated[Tensor, Axis("tokens", lengths="starts")]
    starts: Annotated[Tensor, Offsets("requests")]
    last: Annotated[Tensor, Axis("requests"), Index("tokens")]


def ragged(*lengths: int) -> Ragged:
    """Make tokens of some requests."""
    ends = torch.tensor(lengths).cumsum(0)
    zero = torch.zeros(1, dtype=torch.int64)
    return Ragged(torch.rand(int(ends[-1])), torch.cat((zero, ends)), ends - 1)


def select_by_hand(x: Ragged, keep: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Take the tokens of some requests."""
    parts = [x.tokens[x.starts[i] : x.starts[i + 1]] for i in keep]
    lens = torch.tensor([len(part) for part in parts])
    ends = lens.cumsum(0)
    return torch.cat(parts), torch.nn.functional.pad(ends, (1, 0)), ends - 1


def test_ragged_tokens_follow_their_requests() -> None:
    """Offsets and positions are those that a hand-written selection computes."""
    whole = ragged(2, 1, 4, 3)
    tokens, starts, last = select_by_hand(whole, [3, 1, 2])
    value = select(whole, requests=[3, 1, 2])

    assert torch.equal(tokens, value.tokens)
    assert torch.equal(starts, value.starts)
    assert torch.equal(last, value.last)


def test_ragged_batches_are_put_together() -> None:
    """Offsets continue, positions are shifted."""
    whole = ragged(2, 1, 4, 3)
    again = cat(split(whole, "requests", [2, 0, 2]), "requests")

    assert torch.equal(whole.tokens, again.tokens)
    assert torch.equal(whole.starts, again.starts)
    assert torch.equal(whole.last, again.last)


def test_static_memory_is_filled_on_one_device() -> None:
    """A batch that is on the device is copied by plain torch, as inside a graph."""
    static = empty_like(graph_inputs(1), requests=8)
    views = copy_(static, graph_inputs(3))

    assert torch.equal(graph_inputs(3).table, views.table)
    assert torch.equal(graph_inputs(3).table, static.table[:3])
