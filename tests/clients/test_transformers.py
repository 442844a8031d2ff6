"""transformers: `BatchEncoding` and `BatchFeature` in a field, by ready adapters."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from clients.libraries import client
from torch import Tensor

from tensorpack import (
    DefinitionError,
    LeafError,
    LifetimeError,
    Payload,
    clone,
    payload,
    register,
    tensors,
)
from tensorpack._leaves.adapters import _adapters
from tensorpack.testing import recorded_streams

transformers = client("transformers", "5.24")
outputs = client("transformers.modeling_outputs")
BatchEncoding, BatchFeature = transformers.BatchEncoding, transformers.BatchFeature


@payload
class Text(Payload):
    tokens: BatchEncoding
    labels: Tensor | None = None


@payload
class Picture(Payload):
    features: BatchFeature | Tensor


def encoding() -> Any:
    """Make what a tokenizer gives: tensors, and what it did not convert."""
    return BatchEncoding(
        {
            "input_ids": torch.ones(2, 3, dtype=torch.long),
            "attention_mask": torch.ones(2, 3, dtype=torch.long),
            "overflow": [torch.ones(1), torch.ones(2)],
            "special": [1, 2],
            "words": None,
        }
    )


def test_encoding_travels_whole() -> None:
    """Tensors in lists travel too, which the encoding's own `to` leaves behind."""
    text = Text(encoding(), torch.ones(2))
    moved = text.to_device("meta")
    by_itself = encoding().to("meta")

    assert [
        "tokens[0]",
        "tokens[1]",
        "tokens[2]",
        "tokens[3]",
        "labels",
    ] == [key for key, _ in tensors(text)]
    assert type(moved.tokens) is BatchEncoding
    assert all(leaf.is_meta for _, leaf in tensors(moved))
    assert moved.tokens.data["special"] is text.tokens.data["special"]
    assert not by_itself["overflow"][0].is_meta


def test_original_is_not_changed() -> None:
    """The encoding's own `to` changes it; a twin is another object."""
    text = Text(encoding())
    moved, copied = text.to_device("meta"), clone(text)

    assert not any(leaf.is_meta for _, leaf in tensors(text))
    assert moved.tokens is not text.tokens
    assert copied.tokens.input_ids is not text.tokens.input_ids
    assert torch.equal(copied.tokens.input_ids, text.tokens.input_ids)


def test_features_of_pictures_travel() -> None:
    """Lists of pictures of different sizes are what a processor gives."""
    pictures = [torch.ones(3, 4), torch.ones(3, 5)]
    features = BatchFeature(
        {"pixels": pictures, "sizes": np.ones(2), "nested": [(torch.ones(1), "x")]}
    )
    moved: Any = Picture(features).to_device("meta").features

    assert type(moved) is BatchFeature
    assert [(3, 4), (3, 5)] == [picture.shape for picture in moved["pixels"]]
    assert moved["pixels"][0].is_meta
    assert moved["nested"][0][0].is_meta
    assert "x" == moved["nested"][0][1]
    assert moved["sizes"] is features["sizes"]
    assert Picture(torch.ones(1)).to_device("meta").features.is_meta


def test_every_tensor_is_recorded() -> None:
    """The encoding has no `record_stream` of its own."""
    with recorded_streams() as log:
        leaves = [torch.ones(2, device="cuda") for _ in range(2)]
        text = Text(BatchEncoding({"input_ids": leaves[0], "more": [leaves[1]]}))
        text.record_stream(torch.Stream("cuda"))

    assert ["[0]", "[1]"] == log.recorded(leaves)


def test_object_that_nobody_knows_raises() -> None:
    """It may hold tensors that would be left behind."""
    text = Text(BatchEncoding({"input_ids": [object()]}))

    with pytest.raises(LeafError) as caught:
        text.to_device("meta")

    assert (
        "`BatchEncoding['input_ids'][0]`: the `object` has no lifetime support. Take "
        "it out, or convert it to tensors." == str(caught.value)
    )


class TestOutputs:
    """A model's output is a dictionary and a dataclass at once, and no plain one."""

    @pytest.fixture
    def output(self) -> Iterator[Any]:
        """Give a class of outputs, and take the adapter out again."""
        yield outputs.BaseModelOutput
        _adapters.pop(outputs.BaseModelOutput, None)

    def test_is_refused(self, output: Any) -> None:
        """Nobody could tell its entries from its fields, so it asks for an adapter."""

        def hold() -> type:
            class Holder:
                out: output

            return payload(Holder)

        with pytest.raises(LifetimeError, match=r"LifetimeAdapter\[BaseModelOutput\]"):
            hold()
        with pytest.raises(DefinitionError, match="whose own content is in no field"):
            payload(output)

    def test_travels_by_an_adapter(self, output: Any) -> None:
        """With one it keeps its class, its keys and its attributes."""
        register(
            output,
            leaves=lambda value: [t for t in value.values() if t is not None],
            rebuild=lambda value, leaves: output(
                **dict(zip(value, leaves, strict=True))
            ),
        )

        @payload
        class Holder:
            out: output  # type: ignore[valid-type]  # a fixture

        moved: Any = Holder(output(last_hidden_state=torch.ones(2))).to_device("meta")

        assert type(moved.out) is output
        assert moved.out["last_hidden_state"] is moved.out.last_hidden_state
        assert moved.out.last_hidden_state.is_meta
