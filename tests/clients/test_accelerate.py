"""accelerate: `send_to_device`, and `prepare` of a loader of payloads."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from clients.libraries import client
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tensorpack import Payload, payload, tensors

accelerate = client("accelerate", "1.10")

pytestmark = pytest.mark.filterwarnings("ignore")  # of what the library itself calls


@payload
class Batch(Payload):
    pixels: Tensor
    labels: Tensor
    masks: list[Tensor] | None = None
    names: tuple[str, ...] = ()


class Samples(Dataset[int]):
    """Numbers."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def collate(numbers: list[int]) -> Batch:
    """Make a payload of some numbers."""
    pixels = torch.tensor(numbers).float()[:, None].expand(-1, 2).clone()
    return Batch(pixels, pixels.sum(1), [pixels], tuple(map(str, numbers)))


def loader(workers: int = 0) -> Any:
    """Load payloads of four."""
    return DataLoader(Samples(), batch_size=4, collate_fn=collate, num_workers=workers)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def accelerator(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make an accelerator; it keeps its state in the class, which is reset."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=request.param == "cpu")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_send_to_device_moves_every_leaf(non_blocking: bool) -> None:
    """It finds `to`, also deep inside containers, and gives the same class."""
    batch = collate([1, 2])
    sent = accelerate.utils.send_to_device(
        {"in": [batch]}, torch.device("meta"), non_blocking=non_blocking
    )["in"][0]

    assert type(sent) is Batch
    assert all(leaf.is_meta for _, leaf in tensors(sent))
    assert sent.names is batch.names
    assert not batch.pixels.is_meta


def test_prepared_loader_trains_on_payloads(accelerator: Any) -> None:
    """The loader that `prepare` gives moves each payload to the model's device."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader(workers=1))
    losses = []
    for _ in range(5):
        for batch in data:
            assert type(batch) is Batch
            assert {accelerator.device.type} == {
                leaf.device.type for _, leaf in tensors(batch)
            }
            loss = (model(batch.pixels).squeeze(-1) - batch.labels).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

    assert losses[-2] < losses[0]  # of the same batch


def test_batch_size_is_not_found_in_a_payload() -> None:
    """The loaders that dispatch or gather look into lists and dictionaries only."""
    with pytest.raises(TypeError, match="batch size"):
        accelerate.utils.find_batch_size(collate([1]))

    found = dict(tensors(collate([1, 2, 3])))
    assert 3 == accelerate.utils.find_batch_size(found)
