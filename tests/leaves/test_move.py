"""What is done to leaves: moved, recorded, pinned; each object once."""

import gc
import unittest.mock
import weakref
from typing import Any

import pytest
import torch
from subjects import Opaque
from torch import Tensor

import tensorpack
from tensorpack import (
    Borrowed,
    Derived,
    HostOnly,
    LeafError,
    Payload,
    clone,
    payload,
    record_stream,
    tensors,
    to_device,
)
from tensorpack.testing import recorded_streams

META = torch.device("meta")


@payload
class Batch(Payload):
    ids: Tensor
    other: Tensor | None = None
    many: list[Tensor] | None = None
    size: int = 1
    flag: bool = True
    owner: HostOnly[object] = None


class TestDevices:
    """How the target is written."""

    @pytest.mark.parametrize("device", ["meta", META, "meta:0", torch.device("meta:0")])
    def test_every_spelling_is_accepted(self, device: Any) -> None:
        """A name and a device mean the same, and host fields stay what they were."""
        owner = object()
        batch = Batch(torch.ones(2), owner=owner, size=7)
        twin = batch.to_device(device)

        assert "meta" == twin.ids.device.type
        assert (7, True) == (twin.size, twin.flag)
        assert owner is twin.owner

    @pytest.mark.cuda
    @pytest.mark.parametrize("device", [0, "cuda", "cuda:0", torch.device("cuda:0")])
    def test_every_spelling_of_an_accelerator_is_accepted(self, device: Any) -> None:
        """An index names an accelerator, as everywhere in torch."""
        twin = Batch(torch.ones(2)).to_device(device)

        assert torch.device("cuda:0") == twin.ids.device

    def test_index_means_an_accelerator(self) -> None:
        """Without an accelerator an index is torch's own error, not another device."""
        if torch.accelerator.is_available():
            pytest.skip("there is an accelerator")
        with pytest.raises(RuntimeError, match=r"accelerator|NVIDIA driver"):
            Batch(torch.ones(2)).to_device(0)

    def test_unknown_device_raises_before_anything_moves(self) -> None:
        """A misspelt device is torch's own error."""
        with pytest.raises(RuntimeError, match="cudo"):
            Batch(torch.ones(2)).to_device("cudo")

    def test_non_blocking_is_the_second_argument(self) -> None:
        """Hand-written twins are called with it by position and by name."""
        batch = Batch(torch.ones(2))

        assert META == batch.to_device(META, True).ids.device  # noqa: FBT003
        assert META == batch.to_device(META, non_blocking=True).ids.device
        assert META == batch.to(META, non_blocking=True).ids.device
        assert META == batch.to(device=META).ids.device

    def test_leaf_already_there_stays_the_same_object(self) -> None:
        """A leaf on the target is neither copied nor viewed."""
        batch = Batch(torch.ones(2), torch.ones(1, device=META))
        twin = batch.to_device(META)

        assert batch.other is twin.other
        assert batch.ids is Batch(batch.ids).to_device("cpu").ids

    def test_move_to_the_host_is_a_blocking_one(self) -> None:
        """`non_blocking` is dropped on the way to the host: it could be read early."""
        asked = []

        class Watched(Tensor):
            def to(self, *args: Any, **kwargs: Any) -> Tensor:
                asked.append(kwargs.get("non_blocking"))
                return self

        batch = Batch(torch.ones(2).as_subclass(Watched))
        batch.to_device("cpu", non_blocking=True)
        batch.to_device(META, non_blocking=True)

        assert [False, True] == asked


class TestLeaves:
    """Kinds of leaves."""

    def test_parameter_moves(self) -> None:
        """An `nn.Parameter` travels as a leaf; elsewhere it is a tensor."""
        weight = torch.nn.Parameter(torch.ones(2))
        batch = Batch(weight)

        assert META == batch.to_device(META).ids.device
        assert weight is batch.to_device("cpu").ids

    def test_subclass_keeps_its_class(self) -> None:
        """A subclass of `Tensor` decides itself what a move gives."""

        class Marked(Tensor):
            pass

        twin = Batch(torch.ones(2).as_subclass(Marked)).to_device(META)

        assert Marked is type(twin.ids)

    def test_meta_leaves_are_not_recorded(self) -> None:
        """A meta tensor owns no memory."""
        with recorded_streams() as log:
            leaf = torch.ones(2, device=META)
            Batch(leaf).record_stream(torch.Stream("cuda"))

        assert [] == log.recorded(leaf)

    def test_opaque_leaf_moves_and_records_itself(self) -> None:
        """A type with the methods is asked, once, and only if it is on a device."""

        @payload
        class Holder(Payload):
            one: Opaque
            two: Opaque
            host: Opaque

        one = Opaque("cuda:0")
        holder = Holder(one, one, Opaque("cpu"))
        stream = object()
        record_stream(holder, stream)  # type: ignore[arg-type]
        twin = holder.to_device("meta")

        assert ([stream], []) == (one.records, holder.host.records)
        assert META == twin.one.device
        assert twin.one is twin.two

    def test_opaque_leaf_may_not_know_non_blocking(self) -> None:
        """A type whose `to` takes the device alone is called with it alone."""

        class Plain:
            device = torch.device("cpu")

            def to(self, device: object) -> "Plain":
                twin = Plain()
                twin.device = device  # type: ignore[assignment]
                return twin

            def record_stream(self, stream: object) -> None: ...

        @payload
        class Holder(Payload):
            plain: Plain

        assert META == Holder(Plain()).to_device(META, non_blocking=True).plain.device

    @pytest.mark.filterwarnings("ignore:.*(beta|prototype):UserWarning")
    @pytest.mark.parametrize(
        "make",
        [
            lambda x: x.to_sparse(),
            lambda x: x.to_sparse_csr(),
            lambda x: torch.nested.nested_tensor([x, x]),
        ],
        ids=["coo", "csr", "nested"],
    )
    def test_odd_layouts_on_the_host_are_passed_over(self, make: Any) -> None:
        """Recording never fails for what is on the host, whatever its layout."""
        leaf = make(torch.ones(2, 2))
        with recorded_streams() as log:
            record_stream(leaf, torch.Stream("cuda"))

        assert [] == log.recorded(leaf)


class TestIdentity:
    """One object stays one object."""

    def test_one_tensor_in_two_fields_stays_one(self) -> None:
        """An object in several places is moved once."""
        one = torch.ones(2)
        twin = Batch(one, one, [one, torch.ones(1)]).to_device(META)

        assert twin.ids is twin.other
        assert twin.many is not None
        assert twin.ids is twin.many[0]

    def test_one_container_in_two_fields_gives_the_same_leaves(self) -> None:
        """A leaf that is reached on two ways is moved once; what holds it is split."""

        @payload
        class Pair(Payload):
            left: list[Tensor]
            right: list[Tensor]
            one: Batch
            two: Batch

        many, batch = [torch.ones(1)], Batch(torch.ones(2))
        pair = Pair(many, many, batch, batch)
        for twin in (pair.to_device(META), clone(pair)):
            assert twin.left is not twin.right
            assert twin.left[0] is twin.right[0]
            assert twin.one is not twin.two
            assert twin.one.ids is twin.two.ids

    def test_each_object_is_recorded_once(self) -> None:
        """However often it stands there."""
        with recorded_streams() as log:
            stream = torch.Stream("cuda")
            one, two = (torch.ones(n, device="cuda") for n in (1, 2))
            batch = Batch(one, one, [two, one, two])
            batch.record_stream(stream)

        assert ["ids", "many[0]"] == log.recorded(batch, stream) == log.recorded(batch)

    def test_views_of_one_storage_are_copied_by_value(self) -> None:
        """Two views come back as two tensors of their own size, without their base."""
        base = torch.arange(1000.0)
        twin = tensorpack.clone(Batch(base[:2], base[1:3]))
        assert twin.other is not None

        assert [[0.0, 1.0], [1.0, 2.0]] == [twin.ids.tolist(), twin.other.tolist()]
        assert 8 == twin.ids.untyped_storage().nbytes()
        assert twin.ids.data_ptr() + 4 != twin.other.data_ptr()

    def test_row_of_a_large_base_travels_alone(self) -> None:
        """A row of a large tensor does not drag its base along."""
        base = torch.empty(1 << 28, device=META)  # a gigabyte, if it were real
        row = torch.zeros(4, 8)[1]
        batch = Batch(row, base[:2])
        twin = batch.to_device(META)

        assert 32 == twin.ids.untyped_storage().nbytes()

    def test_nothing_is_remembered_after_the_call(self) -> None:
        """No map of objects outlives the call: leaves die with their owner."""
        batch = Batch(torch.ones(2), torch.ones(3))
        twin = batch.to_device(META)
        refs = [weakref.ref(leaf) for x in (batch, twin) for _, leaf in tensors(x)]
        del batch, twin
        gc.collect()

        assert [None] * 4 == [ref() for ref in refs]


class TestMixed:
    """A payload whose values live in several places."""

    def test_each_value_is_treated_by_where_it_lives(self) -> None:
        """Host-only values stay, host and meta leaves are not recorded, others are."""

        @payload
        class Mixed(Payload):
            ids: Tensor
            host: HostOnly[Tensor]
            meta: Tensor
            there: Tensor
            cache: Borrowed[Tensor]
            derived: Derived[Tensor | None] = None

        host = torch.ones(1)
        with recorded_streams() as log:
            mixed = Mixed(
                torch.ones(1),
                host,
                torch.ones(2, device=META),
                torch.ones(3, device="cuda"),
                torch.ones(4, device="cuda"),
                torch.ones(5, device="cuda"),
            )
            mixed.record_stream(torch.Stream("cuda"))

        assert ["there", "derived"] == log.recorded(mixed)
        assert host is mixed.host

    def test_target_on_the_host_needs_no_stream(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Moving makes no stream and no event, and asks for none."""
        for name in ("Stream", "Event"):
            monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("made"))
        monkeypatch.setattr(
            torch.accelerator, "current_stream", lambda *_: pytest.fail("asked")
        )
        batch = Batch(torch.ones(2), torch.ones(1))

        assert batch.ids is batch.to_device("cpu").ids
        assert META == batch.to_device(META).ids.device


class TestRecording:
    """Which leaves a stream is recorded on."""

    def test_host_payload_is_a_no_op(self) -> None:
        """A payload on the host has nothing to record, whatever the stream is."""
        Batch(torch.ones(2), many=[torch.ones(1)]).record_stream(object())  # type: ignore[arg-type]

    def test_leaf_whose_own_method_raises_on_the_host_is_not_asked(self) -> None:
        """Types that raise for host values are asked only on a device."""

        class Grumpy:
            device = torch.device("cpu")

            def to(self, device: object) -> "Grumpy":
                return self

            def record_stream(self, stream: object) -> None:
                raise RuntimeError

        @payload
        class Holder(Payload):
            grumpy: Grumpy

        Holder(Grumpy()).record_stream(object())  # type: ignore[arg-type]

    def test_class_of_the_stream_is_never_looked_at(self) -> None:
        """The leaf decides what it takes as a stream."""
        seen = []

        class Device(Tensor):
            is_cuda = True  # type: ignore[assignment]

            def record_stream(self, stream: object) -> None:  # type: ignore[override]
                seen.append(stream)

        stream = object()
        Batch(torch.ones(2).as_subclass(Device)).record_stream(stream)  # type: ignore[arg-type]

        assert [stream] == seen

    def test_device_is_asked_by_is_cuda_first(self) -> None:
        """A stand-in that only says `is_cuda` counts as being on a device."""
        asked = []

        class Device(Tensor):
            @property
            def is_cuda(self) -> bool:  # type: ignore[override]
                asked.append("is_cuda")
                return True

            @property
            def device(self) -> torch.device:  # type: ignore[override]
                asked.append("device")
                return torch.device("cpu")

            def record_stream(self, stream: object) -> None: ...

        Batch(torch.ones(2).as_subclass(Device)).record_stream(object())  # type: ignore[arg-type]

        assert "is_cuda" == asked[0]

    def test_stand_in_of_a_mocking_library_is_a_leaf(self) -> None:
        """A mock that says it is a tensor is moved and recorded like one."""
        mock = unittest.mock.Mock(spec=Tensor)
        batch = Batch(mock)
        stream = object()
        batch.record_stream(stream)  # type: ignore[arg-type]
        twin = batch.to_device(META)

        mock.record_stream.assert_called_once_with(stream)
        assert twin.ids is mock.to.return_value

    def test_cache_of_a_leaf_is_not_recorded_again(self) -> None:
        """An object that is a leaf and a derived value is recorded once."""

        @payload
        class Cached(Payload):
            ids: Tensor
            cache: Derived[Tensor | None] = None

        with recorded_streams() as log:
            leaf = torch.ones(1, device="cuda")
            Cached(leaf, leaf).record_stream(torch.Stream("cuda"))

        assert [""] == log.recorded(leaf)

    def test_positional_only(self) -> None:
        """The stream has no name, as in torch."""
        with pytest.raises(TypeError):
            Batch(torch.ones(1)).record_stream(stream=object())  # type: ignore[call-arg]


class TestPinning:
    """`pin_memory`: every host leaf in pinned memory."""

    def test_pins_every_host_leaf_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Host leaves are pinned, one object once; meta leaves stay."""
        pinned = []

        def pin(leaf: Tensor) -> Tensor:
            pinned.append(leaf)
            return leaf.clone()

        monkeypatch.setattr(Tensor, "pin_memory", pin)
        one, meta = torch.ones(1), torch.ones(2, device=META)
        batch = Batch(one, meta, [one])
        twin = batch.pin_memory()

        assert [one] == pinned
        assert meta is twin.other
        assert twin.many is not None
        assert twin.ids is twin.many[0]
        assert one is not twin.ids

    def test_names_a_leaf_that_cannot(self) -> None:
        """A leaf without `pin_memory` is named by its key."""

        @payload
        class Holder(Payload):
            handle: Opaque

        with pytest.raises(LeafError, match=r"Holder\.handle`: the `Opaque` has no"):
            Holder(Opaque()).pin_memory()

    @pytest.mark.cuda
    def test_pinned_leaves_are_pinned(self) -> None:
        """Each leaf says that it is pinned."""
        twin = Batch(torch.ones(1), many=[torch.ones(2)]).pin_memory()

        assert [True, True] == [leaf.is_pinned() for _, leaf in tensors(twin)]


def test_free_functions_do_the_same_for_a_payload() -> None:
    """`to_device(x, device)` is `x.to_device(device)`."""
    batch = Batch(torch.ones(2))

    assert META == to_device(batch, META).ids.device
