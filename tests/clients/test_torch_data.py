"""`torch.utils.data.DataLoader`: workers, collation, and the thread that pins."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

from tensorpack import Dynamic, LeafError, Payload, payload, tensors

pytestmark = pytest.mark.filterwarnings("ignore:.*lead to memory leak:UserWarning")


@payload
class Image(Payload):
    pixels: Tensor
    masks: list[Tensor] | None = None
    name: str = ""


@payload
class Batch(Payload):
    images: list[Image]
    ids: Tensor
    sizes: dict[str, Tensor]
    names: tuple[str, ...] = ()


class Images(Dataset[Image]):
    """Makes payloads; a name of its own may be wrong."""

    def __init__(self, lies: object = None) -> None:
        self.lies = lies

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Image:
        pixels: Any = torch.full((2, 2), float(index))
        image = Image(pixels, [pixels[0]], f"image {index}")
        if self.lies is not None:
            image.masks = self.lies  # type: ignore[assignment]  # on purpose
            image.to_device("meta")
        return image


def collate(images: list[Image]) -> Batch:
    """Put payloads into one."""
    ids = torch.tensor([int(image.pixels[0, 0]) for image in images])
    names = tuple(image.name for image in images)
    return Batch(images, ids, {"rows": torch.ones(len(images))}, names)


def loader(data: Dataset[Image], **options: Any) -> Any:
    """Load batches of two in one worker."""
    settings = {"batch_size": 2, "num_workers": 1, "collate_fn": collate, **options}
    return DataLoader(data, **settings)


def first(data: Any) -> Any:
    """Give the first batch, and end what makes the others at once."""
    iterator = iter(data)
    try:
        return next(iterator)
    finally:
        iterator._shutdown_workers()


def test_payloads_come_whole_out_of_workers() -> None:
    """Two workers make them, collate them and send them through shared memory."""
    batches = list(loader(Images(), num_workers=2))

    assert [Batch, Batch] == [type(batch) for batch in batches]
    assert [[0, 1], [2, 3]] == [batch.ids.tolist() for batch in batches]
    assert ("image 2", "image 3") == batches[1].names
    assert [
        "images[0].pixels",
        "images[0].masks[0]",
        "images[1].pixels",
        "images[1].masks[0]",
        "ids",
        "sizes['rows']",
    ] == [key for key, _ in tensors(batches[0])]
    assert all(leaf.is_meta for _, leaf in tensors(batches[0].to_device("meta")))


def test_payloads_pass_where_nothing_is_collated() -> None:
    """Without automatic batches the loader hands on what the data set gives."""
    images = list(DataLoader(Images(), batch_size=None))

    assert [Image] * 4 == [type(image) for image in images]


def test_default_collation_knows_no_payload() -> None:
    """It names the class, and takes a function for it where torch keeps such."""
    data = DataLoader(Images(), batch_size=2)

    with pytest.raises(TypeError, match=r"found <class '.*Image'>"):
        next(iter(data))

    default_collate_fn_map[Image] = lambda images, **_: collate(images)
    try:
        batch = next(iter(data))
    finally:
        del default_collate_fn_map[Image]

    assert isinstance(batch, Batch)


def test_error_in_a_worker_arrives_whole() -> None:
    """Its class, its text and where it was raised cross to the loader."""
    data = loader(Images(torch.ones(2)))

    with pytest.raises(LeafError) as caught:
        first(data)

    text = str(caught.value)
    assert text.startswith("Caught LeafError in DataLoader worker process 0.")
    assert "`Image.masks`: a `Tensor` was found where `list` is annotated." in text
    assert "image.to_device" in text


class Stubborn:
    """Moves and records itself, but cannot be pinned."""

    device = torch.device("cpu")

    def to_device(self, device: Any, non_blocking: bool = False) -> "Stubborn":
        return self

    def record_stream(self, stream: object) -> None: ...


@payload
class Odd(Payload):
    ids: Tensor
    open: Dynamic[Any] = None


def odd(images: list[Image]) -> Odd:
    """Put something that cannot be pinned into a payload."""
    return Odd(images[0].pixels, {"odd": Stubborn()})


class Pinned(Tensor):
    """Stands for a tensor in pinned memory, where there is none."""


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the loader believe in an accelerator, so that it starts its pin thread."""
    said: dict[str, Any] = {
        "is_available": lambda: True,
        "current_accelerator": lambda: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "set_device_index": lambda _: None,
    }
    for name, answer in said.items():
        monkeypatch.setattr(torch.accelerator, name, answer)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("accelerator")
class TestPinThread:
    """The thread that pins is the loader's own; what it is told of pinning is not."""

    def test_pins_every_leaf_of_the_same_class(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What comes out is the payload, all of whose leaves are pinned."""
        monkeypatch.setattr(
            Tensor, "pin_memory", lambda leaf: leaf.clone().as_subclass(Pinned)
        )
        batches = list(loader(Images(), pin_memory=True))

        assert [Batch, Batch] == [type(batch) for batch in batches]
        assert [("image 0", "image 1"), ("image 2", "image 3")] == [
            batch.names for batch in batches
        ]
        assert all(type(t) is Pinned for batch in batches for _, t in tensors(batch))

    def test_error_of_ours_arrives_whole(self) -> None:
        """A leaf that cannot be pinned is named, with the way out."""
        with pytest.raises(LeafError) as caught:
            first(loader(Images(), pin_memory=True, collate_fn=odd))

        text = str(caught.value)
        assert text.startswith("Caught LeafError in pin memory thread for device 0.")
        assert "`Odd.open['odd']`: the `Stubborn` has no method `pin_memory`." in text
        assert "Give `Stubborn` a `pin_memory`" in text

    @pytest.mark.skipif(torch.cuda.is_available(), reason="pinning works there")
    def test_error_of_torch_arrives_whole(self) -> None:
        """Where nothing can be pinned, torch's own error arrives."""
        with pytest.raises(RuntimeError, match="in pin memory thread for device 0"):
            first(loader(Images(), pin_memory=True))


@pytest.mark.cuda
@pytest.mark.parametrize("workers", [0, 2])
def test_leaves_are_pinned(workers: int) -> None:
    """The payload comes back with each leaf in pinned memory, nested ones too."""
    batches = list(loader(Images(), num_workers=workers, pin_memory=True))

    assert [Batch, Batch] == [type(batch) for batch in batches]
    assert all(leaf.is_pinned() for batch in batches for _, leaf in tensors(batch))
    assert [0, 1, 2, 3] == [n for batch in batches for n in batch.ids.tolist()]


@pytest.mark.cuda
def test_error_in_the_real_pin_thread_arrives_whole() -> None:
    """It is the same where the thread pins for a device."""
    with pytest.raises(LeafError, match=r"Odd.open\['odd'\]"):
        first(loader(Images(), pin_memory=True, collate_fn=odd))
