"""Lightning: its device transfer, and a Trainer over payloads."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from clients.libraries import client
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tensorpack import Payload, payload, tensors

lightning = client("lightning.pytorch", "2.6")
utilities = client("lightning.fabric.utilities")

pytestmark = pytest.mark.filterwarnings("ignore")  # of what the library itself calls


@payload
class Batch(Payload):
    pixels: Tensor
    labels: Tensor
    masks: list[Tensor] | None = None
    names: tuple[str, ...] = ()


@payload
@dataclasses.dataclass
class Data(Payload):
    pixels: Tensor
    labels: Tensor
    names: tuple[str, ...] = ()


def collate(numbers: list[int]) -> Batch:
    """Make a payload of some numbers."""
    pixels = torch.tensor(numbers).float()[:, None].expand(-1, 2).clone()
    return Batch(pixels, pixels.sum(1), [pixels], tuple(map(str, numbers)))


def collate_data(numbers: list[int]) -> Data:
    """Make an adopted dataclass of some numbers."""
    batch = collate(numbers)
    return Data(batch.pixels, batch.labels, batch.names)


class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]  # no stubs
    """Learns sums, and keeps what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.seen: list[Any] = []
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> Tensor:
        self.seen.append(batch)
        found: Tensor = self.layer(batch.pixels).squeeze(-1) - batch.labels
        loss = found.square().mean()
        self.log("loss", loss, batch_size=len(batch.names))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.001)


@pytest.mark.parametrize("make", [collate, collate_data])
def test_device_transfer_moves_every_leaf(make: Callable[[list[int]], Any]) -> None:
    """It finds `to` before it takes a dataclass apart, also inside containers."""
    batch = make([1, 2])
    moved = utilities.move_data_to_device({"in": (batch, 1)}, torch.device("meta"))
    new = moved["in"][0]

    assert type(new) is type(batch)
    assert all(leaf.is_meta for _, leaf in tensors(new))
    assert new.names is batch.names


@pytest.mark.parametrize("make", [collate, collate_data])
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.cuda)])
def test_trainer_trains_on_payloads(
    device: str, make: Callable[[list[int]], Any], tmp_path: Path
) -> None:
    """Each step gets the payload, with all its leaves where the model is."""
    data = DataLoader(
        range(8),  # type: ignore[arg-type]  # any sequence will do
        batch_size=4,
        collate_fn=make,
        pin_memory=device == "gpu",
    )
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator=device,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, data)

    assert 8 == len(model.seen)
    assert {type(make([0]))} == {type(batch) for batch in model.seen}
    assert {"cuda" if device == "gpu" else "cpu"} == {
        leaf.device.type for batch in model.seen for _, leaf in tensors(batch)
    }
    assert model.losses[-2] < model.losses[0]  # of the same batch


def test_batch_size_is_not_found_in_a_payload() -> None:
    """For what is logged over an epoch, say `self.log(..., batch_size=...)`.

    In a dataclass Lightning finds it.
    """
    extract = lightning.utilities.data.extract_batch_size

    with pytest.raises(
        lightning.utilities.exceptions.MisconfigurationException, match="batch_size"
    ):
        extract(collate([1, 2]))

    assert 2 == extract(collate_data([1, 2]))
