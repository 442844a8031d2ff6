"""The engine's own select, merge and graph fill, expressed by declared axes."""

from typing import Any

import numpy as np
import torch
from integration.engine_inputs import ModelInputs, ModelInputsDelta, SamplingInputs

from tensorpack import CopyStream, evolve
from tensorpack.axes import cat, empty_like, pad, select, split


def model_inputs(*lengths: int, blocks: int = 2, **rest: Any) -> ModelInputs:
    """Make the inputs of sequences of some lengths."""
    lens = torch.tensor(lengths)
    count, tokens = len(lengths), int(lens.sum())
    return ModelInputs(
        input_ids=torch.arange(tokens).view(1, tokens),
        seq_length=lens,
        history_lengths=lens * 10,
        block_offsets=torch.arange(count * blocks).view(count, blocks),
        is_decoding=max(lengths) == 1,
        num_ignored_history=torch.zeros(count, dtype=torch.int64),
        max_q_seqlen=max(lengths),
        max_kv_seqlen=max(lengths) * 11,
        sum_kv_seqlen=tokens * 11,
        model_metas=[{"sequence": i} for i in range(count)],
        mrope_pos_ids=torch.arange(3 * tokens).view(3, tokens),
        **rest,
    )


MERGED = {
    "max_q_seqlen": max,
    "max_kv_seqlen": max,
    "sum_kv_seqlen": sum,
    "is_decoding": all,
}


def test_sequences_are_selected() -> None:
    """Tokens of the batch, positions of each token, and metas follow."""
    whole = model_inputs(2, 1, 3)
    value = select(whole, sequences=[2, 0])

    assert [[3, 4, 5, 0, 1]] == value.input_ids.tolist()
    assert [[3, 4, 5, 0, 1], [9, 10, 11, 6, 7]] == value.mrope_pos_ids[:2].tolist()
    assert [[4, 5], [0, 1]] == value.block_offsets.tolist()
    assert [{"sequence": 2}, {"sequence": 0}] == value.model_metas
    assert whole.model_metas is not None
    assert whole.model_metas[2] is value.model_metas[0]


def test_batches_are_merged() -> None:
    """Tables of blocks are padded to one width first; the error says so."""
    one, two = model_inputs(1, 1, blocks=2), model_inputs(1, blocks=4)
    merged = cat([pad(one, blocks=4), two], "sequences", combine=MERGED)

    assert [[0, 1, 0, 0], [2, 3, 0, 0], [0, 1, 2, 3]] == merged.block_offsets.tolist()
    assert [[0, 1, 0]] == merged.input_ids.tolist()
    assert ((1, 33, True), 3) == (
        (merged.max_q_seqlen, merged.sum_kv_seqlen, merged.is_decoding),
        len(merged.model_metas or ()),
    )


def test_micro_batches_are_the_whole() -> None:
    """Split for two micro-batches and put together again."""
    whole = model_inputs(2, 1, 3, 1)
    again = cat(split(whole, "sequences", 2), "sequences", combine=MERGED)

    assert torch.equal(whole.input_ids, again.input_ids)
    assert torch.equal(whole.block_offsets, again.block_offsets)


def test_delta_follows_its_host_indices() -> None:
    """The array on the host is cut with the table; indices are prepared later."""
    delta = ModelInputsDelta(None, torch.arange(6).view(3, 2), np.arange(3), 1, 11, 33)
    moved = select(delta, sequences=[2, 1]).to_device("meta")

    assert ([2, 1], (2,)) == (moved.indice_cpu.tolist(), tuple(moved.indices.shape))


def test_sampling_inputs_are_merged() -> None:
    """What one batch lacks is filled with what means nothing."""
    one = SamplingInputs(
        temperature=torch.ones(2), top_k=torch.tensor([5, 6]), batch_size=2
    )
    two = SamplingInputs(
        temperature=torch.zeros(1), top_p=torch.tensor([0.5]), batch_size=1
    )
    merged = cat([one, two], "sequences")

    assert [5, 6, 1] == merged.top_k.tolist()
    assert [1.0, 1.0, 0.5] == merged.top_p.tolist()
    assert 3 == merged.batch_size


def test_decode_graph_is_filled() -> None:
    """Sizes of the bucket, views of the static memory, host fields of the step."""
    example = evolve(model_inputs(1), model_metas=None)
    static = empty_like(example, sequences=8, tokens=8, blocks=4)
    step = evolve(model_inputs(1, 1, 1), model_metas=None)
    sizes = {"sequences": 4, "tokens": 4, "blocks": 4}
    views = CopyStream("cpu").start(step, into=static, sizes=sizes).wait()

    assert (1, 4) == views.input_ids.shape
    assert [1, 1, 1, 0] == views.seq_length.tolist()
    assert [[4, 5, 0, 0], [0, 0, 0, 0]] == views.block_offsets[2:].tolist()
    assert step.max_kv_seqlen == views.max_kv_seqlen
