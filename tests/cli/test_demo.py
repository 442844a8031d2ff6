"""The demo: the model against an oracle without a cache, and the serving around it."""

import asyncio
import random
import warnings
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tensorpack import tensors
from tensorpack._cli import main, tables
from tensorpack._cli.demo import PROMPTS, serve
from tensorpack._cli.demo.agent import ModelAgent
from tensorpack._cli.demo.inputs import (
    TRAVELLING_KEYS,
    SamplingInputs,
    StepInputs,
    StoppingCriteria,
)
from tensorpack._cli.demo.model import KVCache, Layer, ModelConfig, Transformer
from tensorpack._cli.demo.sampling import gumbel, gumbel_noise, sample, stopped
from tensorpack._cli.demo.scheduler import Scheduler, forward_inputs
from tensorpack._cli.demo.sequences import (
    BlockPool,
    SamplingParams,
    Session,
    decode,
    encode,
    sessions,
)

CPU = torch.device("cpu")
SMALL = ModelConfig(layers=2, heads=2, head_dim=16, block_size=4, num_blocks=64)


def logits_without_cache(model: Transformer, tokens: Sequence[int]) -> Tensor:
    """Compute the next token's logits by textbook attention over the whole text."""
    config = model.config
    x = model.embed(torch.tensor(tokens))
    speed = 10_000.0 ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
    angle = torch.outer(torch.arange(len(tokens)).float(), speed)
    for layer in model.layers:
        assert isinstance(layer, Layer)
        qkv = layer.attention.qkv(layer.attention_norm(x))
        q, k, v = qkv.view(-1, 3, config.heads, config.head_dim).permute(1, 2, 0, 3)
        scores = turned(q, angle) @ turned(k, angle).mT / config.head_dim**0.5
        ahead = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v
        x = x + layer.attention.out(mixed.transpose(0, 1).flatten(1))
        x = x + layer.feed_forward(layer.gate_norm(x))
    logits: Tensor = model.head(model.norm(x[-1]))
    return logits


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate (heads, tokens, head_dim) by the textbook's sines and cosines."""
    a, b, sin, cos = x[..., 0::2], x[..., 1::2], angle.sin(), angle.cos()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


def scheduler_of(prompts: Sequence[str], **options: int) -> Scheduler:
    """Return a scheduler of one group over a shuffled pool of small blocks."""
    pool = BlockPool(SMALL.num_blocks, SMALL.block_size)
    random.Random(0).shuffle(pool._free)
    source = (Session(str(n), encode(p)) for n, p in enumerate(prompts))
    return Scheduler(source, pool, groups=1, **options)


def next_step(scheduler: Scheduler, group: int = 0) -> StepInputs:
    """Return the next step, which there must be."""
    step = scheduler.next_step(group)
    assert step is not None
    return step


def sampling_inputs(batch: int, **changes: object) -> SamplingInputs:
    """Return sampling inputs for that many sequences, each with its own seed."""
    values: dict[str, object] = {
        "temperature": torch.ones(batch),
        "top_k": torch.full((batch,), 8),
        "top_p": torch.ones(batch),
        "random_seeds": torch.arange(batch),
        "random_offsets": torch.zeros(batch, dtype=torch.int64),
        "max_top_k": 8,
    }
    return SamplingInputs(**{**values, **changes})  # type: ignore[arg-type]


def test_model_with_a_cache_equals_one_forward_without() -> None:
    """Prefill and each decode step give the logits of the whole text so far."""
    model, cache = Transformer(SMALL), KVCache(SMALL, CPU)
    scheduler = scheduler_of(["a", "four", "a longer prompt than a block"])

    for number in range(7):
        inputs = next_step(scheduler)["inputs"]
        batch = inputs.session_ctx
        expected = [logits_without_cache(model, s.prompt + s.generated) for s in batch]
        torch.testing.assert_close(torch.stack(expected), model(inputs, cache))
        assert inputs.is_decoding == (number > 0)
        scheduler.commit(batch, [number, 65, 255], [False] * 3)


def test_model_takes_prefill_and_decode_in_one_batch() -> None:
    """One old and one new sequence in a batch each get their own logits."""
    model, cache = Transformer(SMALL), KVCache(SMALL, CPU)
    scheduler = scheduler_of(["the old one", "the new one"], max_batch=1)
    first = next_step(scheduler)["inputs"]
    model(first, cache)
    scheduler.commit(first.session_ctx, [65], [False])
    scheduler.max_batch = 2
    next_step(scheduler)
    both = scheduler.live[0]
    expected = [logits_without_cache(model, s.prompt + s.generated) for s in both]

    assert [1, 12] == [len(s.pending) for s in both]
    torch.testing.assert_close(
        torch.stack(expected), model(forward_inputs(both), cache)
    )


def test_step_asks_the_device_for_no_value() -> None:
    """Forward, sampling and stopping run on meta tensors, which have no values."""
    meta = torch.device("meta")
    model, cache = Transformer(SMALL).to(meta), KVCache(SMALL, meta)
    step = next_step(scheduler_of(["some text", "more"]))

    inputs = step["inputs"].to_device(meta)
    tokens = sample(model(inputs, cache), inputs.sampling)
    stops = stopped(tokens, step["stopping_criteria"].to_device(meta))

    assert [(2,), (2,)] == [tokens.shape, stops.shape]


def test_model_weights_depend_on_the_seed_alone() -> None:
    """Two models of one seed are equal, whatever was drawn in between."""
    first = Transformer(SMALL)
    torch.rand(3)
    second = Transformer(SMALL)

    assert torch.equal(first.embed.weight, second.embed.weight)


def test_sample_draws_the_same_alone_and_in_a_batch() -> None:
    """A sequence's token does not depend on its neighbours."""
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    together = sample(logits, sampling_inputs(6)).tolist()

    alone = [
        sample(logits[i : i + 1], sampling_inputs(1, random_seeds=torch.tensor([i])))
        for i in range(6)
    ]

    assert together == torch.cat(alone).tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": torch.zeros(4)},
        {"top_k": torch.ones(4, dtype=torch.int64)},
        {"top_p": torch.full((4,), 1e-6)},
    ],
    ids=["temperature", "top_k", "top_p"],
)
def test_sample_narrowed_to_the_best_token_takes_it(changes: dict[str, Tensor]) -> None:
    """Temperature 0, top-k of 1 and a tiny top-p each leave the best token alone."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(2))

    drawn = sample(logits, sampling_inputs(4, **changes))

    assert logits.argmax(-1).tolist() == drawn.tolist()


def test_sample_follows_the_probabilities() -> None:
    """Over many offsets the tokens come as often as the softmax says."""
    logits, draws = torch.tensor([2.0, 1.0, 0.0, -1.0]), 20_000
    inputs = sampling_inputs(
        draws,
        top_k=torch.full((draws,), 4),
        random_seeds=torch.full((draws,), 7),
        random_offsets=torch.arange(draws),
        max_top_k=4,
    )

    drawn = sample(logits.expand(draws, 4), inputs).bincount(minlength=4) / draws

    torch.testing.assert_close(logits.softmax(0), drawn, atol=0.02, rtol=0)


def test_sample_draws_among_the_tokens_that_reach_top_p() -> None:
    """A token stays while the better ones together are below top-p."""
    logits, draws = torch.tensor([0.4, 0.35, 0.2, 0.05]).log(), 500
    inputs = sampling_inputs(
        draws,
        top_k=torch.full((draws,), 4),
        top_p=torch.full((draws,), 0.5),
        random_offsets=torch.arange(draws),
        max_top_k=4,
    )

    assert {0, 1} == set(sample(logits.expand(draws, 4), inputs).tolist())


def test_gumbel_is_finite_for_every_hash() -> None:
    """No hash is rounded to a uniform of 0 or 1, whose noise would be infinite."""
    ends = torch.arange(2_000)

    assert gumbel(torch.cat((ends, 2**32 - 1 - ends))).isfinite().all()


def test_gumbel_noise_differs_by_seed_offset_and_token() -> None:
    """Each of the three changes the noise, so no two draws repeat each other."""
    seeds, offsets = torch.tensor([1, 2, 1]), torch.tensor([0, 0, 1])

    noise = gumbel_noise(seeds, offsets, 100)

    assert len(set(noise.flatten().tolist())) > 295


def test_stopped_sees_stop_words_and_the_last_token() -> None:
    """A sequence leaves at one of its own stop words, or when its room is used up."""
    criteria = StoppingCriteria(
        num_appendable=torch.tensor([5, 5, 1, 5]),
        stop_words=[torch.tensor(w) for w in ([10, 257], [257], [257], [9])],
    )

    stops = stopped(torch.tensor([10, 10, 10, 257]), criteria)

    assert [True, False, True, False] == stops.tolist()


def test_scheduler_never_shares_a_block() -> None:
    """Over random steps each block is free or held by one live session, never both."""
    draw = random.Random(3)
    pool = BlockPool(40, 4)
    scheduler = Scheduler(sessions(["short", "a text of middle length"]), pool)

    for _ in range(400):
        step = scheduler.next_step(group := draw.randrange(2))
        held = [block for live in scheduler.live for s in live for block in s.blocks]
        assert sorted(held + pool._free) == list(range(40))
        if step is None:
            assert not scheduler.live[group]
            continue
        batch = step["inputs"].session_ctx
        assert all(len(s.blocks) * 4 >= s.most_tokens for s in batch)
        ends = [draw.random() < 0.1 or len(s.generated) + 1 == s.max_new for s in batch]
        scheduler.commit(batch, [65] * len(batch), ends)
    assert len(scheduler.finished) > 10


def test_scheduler_frees_the_blocks_of_all_who_leave() -> None:
    """Finished sessions hold nothing, and after `close` nobody does."""
    scheduler = scheduler_of(["one", "two", "three"])
    batch = next_step(scheduler)["inputs"].session_ctx
    scheduler.commit(batch, [65, 65, 65], [True, False, False])

    assert ["0"] == [s.name for s in scheduler.finished]
    assert [] == batch[0].blocks
    assert SMALL.num_blocks > scheduler.pool.free
    scheduler.close()
    assert SMALL.num_blocks == scheduler.pool.free


def test_scheduler_prefills_those_who_join_before_it_goes_on() -> None:
    """A session that leaves makes room; the next step is the new one's prefill."""
    scheduler = scheduler_of(["one", "two", "three"], max_batch=2)
    first = next_step(scheduler)["inputs"].session_ctx
    scheduler.commit(first, [65, 65], [True, False])
    joined = next_step(scheduler)["inputs"].session_ctx
    scheduler.commit(joined, [65], [False])

    assert ["0", "1"] == [s.name for s in first]
    assert ["2"] == [s.name for s in joined]
    assert ["1", "2"] == [s.name for s in next_step(scheduler)["inputs"].session_ctx]


def test_scheduler_tells_the_device_how_far_each_session_is() -> None:
    """The noise and the room that is left follow the tokens generated so far."""
    scheduler = scheduler_of(["one", "two"])
    for _ in range(3):
        scheduler.commit(
            next_step(scheduler)["inputs"].session_ctx, [65, 66], [False] * 2
        )
    step = next_step(scheduler)

    assert [3, 3] == step["inputs"].sampling.random_offsets.tolist()
    assert [29, 29] == step["stopping_criteria"].num_appendable.tolist()
    assert [6, 6] == step["inputs"].history_lengths.tolist()
    assert [[65, 66]] == step["inputs"].input_ids.tolist()


def served(prompts: Sequence[str], *, groups: int, max_batch: int) -> dict[str, str]:
    """Serve each prompt once on the host and return the new texts by name."""
    source = (
        Session(f"{n}", encode(p), SamplingParams(seed=n), max_new=6 + n)
        for n, p in enumerate(prompts)
    )
    pool = BlockPool(SMALL.num_blocks, SMALL.block_size)
    scheduler = Scheduler(source, pool, groups=groups, max_batch=max_batch)
    asyncio.run(ModelAgent(Transformer(SMALL), scheduler, CPU).serve(1_000))
    return {s.name: str(s.generated) for s in scheduler.finished}


def test_agent_serves_the_same_text_alone_and_in_batches() -> None:
    """Neither neighbours nor the blocks a sequence gets change what it says."""
    prompts = [p[:30] for p in PROMPTS]

    assert served(prompts, groups=1, max_batch=1) == served(
        prompts, groups=2, max_batch=2
    )


def test_agent_goes_on_where_it_stopped() -> None:
    """A second run, in another event loop, serves the sessions of the first on."""
    scheduler = scheduler_of(["one", "two"])
    agent = ModelAgent(Transformer(SMALL), scheduler, CPU)

    asyncio.run(agent.serve(3))
    asyncio.run(agent.serve(2))

    assert [5, 5] == [len(s.generated) for s in scheduler.live[0]]


def test_agent_ends_with_the_error_of_a_step() -> None:
    """An error in one of its tasks ends all three instead of leaving them to wait."""

    class Broken(Transformer):
        def forward(self, *_: object) -> Tensor:
            raise ZeroDivisionError

    scheduler = scheduler_of(["text"])

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(ModelAgent(Broken(SMALL), scheduler, CPU).serve(3))
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


def test_serve_counts_what_travelled() -> None:
    """Every leaf of every step is counted, and nothing is recorded without streams."""
    summary = serve(CPU, 8, ["some text"])

    assert 8 == summary.steps
    assert 8 == summary.counts.payloads
    assert summary.counts.leaves >= 8 * 11
    assert summary.counts.bytes > 8 * summary.counts.leaves / 2
    assert 0 == summary.counts.records


def test_travelling_keys_are_the_payloads_of_a_step() -> None:
    """The shared tuple names each entry with leaves, and no other."""
    step = next_step(scheduler_of(["text"]))

    with_leaves = [key for key, value in step.items() if not isinstance(value, int)]

    assert list(TRAVELLING_KEYS) == with_leaves
    assert all(list(tensors(step[key])) for key in with_leaves)  # type: ignore[literal-required]


def test_decode_leaves_no_command_for_the_terminal() -> None:
    """Noise may hold an escape byte, which must not be printed."""
    assert "·[2J�é" == decode([0x1B, 0x5B, 0x32, 0x4A, 0xFF, 0xC3, 0xA9, 257])


@pytest.mark.parametrize("has_rich", [True, False], ids=["rich", "plain"])
def test_demo_prints_counts_plans_and_texts(
    has_rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 0 and says what it did, with `rich` and without."""
    monkeypatch.setattr(tables, "HAS_RICH", has_rich and tables.HAS_RICH)
    monkeypatch.setenv("COLUMNS", "120")

    code = main(["demo", "--steps", "8", "--device", "cpu", "--prompt", "Real text."])

    printed = capsys.readouterr()
    assert 0 == code
    assert "8/8" in printed.err
    for text in ("tokens per second", "leaves moved", "HostOnly[list[Session]]"):
        assert text in printed.out
    assert 2 == printed.out.count("Real text.")


@pytest.mark.parametrize("device", ["nowhere", "meta"])
def test_demo_refuses_a_device_that_cannot_serve(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that is not there, or holds no values, is named in one line."""
    code = main(["demo", "--device", device])

    assert 2 == code
    assert f"--device {device}: " in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_demo_refuses_a_wrong_number_of_steps(
    steps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of steps is a whole number of at least 1."""
    with pytest.raises(SystemExit):
        main(["demo", f"--steps={steps}"])

    assert f"`{steps}` is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.cuda
def test_serve_on_an_accelerator_never_synchronizes() -> None:
    """No call of the serving loop makes the host wait, and every leaf is recorded."""
    device = torch.device("cuda")
    serve(device, 4, ["load the kernels first"])
    scheduler = Scheduler(sessions(PROMPTS), BlockPool(320, 16))
    agent = ModelAgent(Transformer(ModelConfig()), scheduler, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode says that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        asyncio.run(agent.serve(40))
    finally:
        torch.cuda.set_sync_debug_mode("default")

    counts = agent.copies.counters
    assert 40 == counts.payloads
    assert counts.copies == counts.records  # one record for each packed buffer
    assert counts.leaves > counts.copies
    assert scheduler.finished


@pytest.mark.cuda
def test_serve_on_an_accelerator_gives_the_text_of_one_stream() -> None:
    """Copy, forward and fetch streams change no token of any request."""
    device = torch.device("cuda")

    def texts(groups: int, max_batch: int) -> dict[str, list[int]]:
        source = (
            Session(f"{n}", encode(p), SamplingParams(seed=n), max_new=30)
            for n, p in enumerate(PROMPTS * 4)
        )
        scheduler = Scheduler(
            source, BlockPool(320, 16), groups=groups, max_batch=max_batch
        )
        model = Transformer(ModelConfig())
        asyncio.run(ModelAgent(model, scheduler, device).serve(2_000))
        return {s.name: s.generated for s in scheduler.finished}

    assert texts(1, 1) == texts(2, 4)
