"""The ready adapters, and what registering one of one's own does."""

import importlib.util
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from tensorpack import (
    DefinitionError,
    Dynamic,
    LeafError,
    LifetimeAdapter,
    LifetimeError,
    clone,
    payload,
    register,
    tensors,
)
from tensorpack._leaves.adapters import adapter_of
from tensorpack.testing import recorded_streams


def one() -> Tensor:
    """Make a small leaf."""
    return torch.ones(2)


def holder(annotation: Any) -> Any:
    """Make a payload whose one field `x` has an annotation."""
    return payload(attrs.make_class("Holder", {"x": attrs.field(type=annotation)}))


def moved(annotation: Any, value: Any) -> Any:
    """Move a value in a field; see that all leaves are moved, and the type kept."""
    before = holder(annotation)(value)
    after = before.to_device("meta")
    assert type(after.x) is type(value)
    assert [key for key, _ in tensors(before)] == [key for key, _ in tensors(after)]
    assert all(leaf.is_meta for _, leaf in tensors(after))
    assert not any(leaf.is_meta for _, leaf in tensors(before))
    return after.x


class TestPackedSequence:
    """`PackedSequence` keeps its batch sizes on the host, as it demands."""

    @pytest.mark.parametrize("sort", [False, True])
    def test_moves(self, sort: bool) -> None:
        """The data and the two orders travel; the batch sizes are the same object."""
        sequence = pack_sequence(
            [torch.ones(3), torch.ones(2)], enforce_sorted=not sort
        )
        new = moved(PackedSequence, sequence)

        assert new.batch_sizes is sequence.batch_sizes
        assert (1 + 2 * sort) == len(list(tensors(holder(PackedSequence)(sequence))))
        assert (sequence.sorted_indices is None) == (new.sorted_indices is None)

    def test_stands_in_unions_and_containers(self) -> None:
        """It is told from other tuples, also where nothing is annotated."""
        sequence = pack_sequence([torch.ones(2)])

        assert 1 == len(
            list(tensors(holder(PackedSequence | tuple[Tensor, ...])(sequence)))
        )
        assert moved(dict[str, PackedSequence] | Tensor, {"a": sequence})
        assert moved(Dynamic[Any], [sequence])

    def test_clone_has_its_own_memory(self) -> None:
        """A clone shares no leaf with the original."""
        sequence = pack_sequence([torch.ones(2)])
        twin = clone(holder(PackedSequence)(sequence)).x

        assert twin.data.data_ptr() != sequence.data.data_ptr()


needs_tensordict = pytest.mark.skipif(
    importlib.util.find_spec("tensordict") is None, reason="tensordict is not installed"
)


@needs_tensordict
@pytest.mark.filterwarnings("ignore")
class TestTensorDict:
    """Tensordicts and tensorclasses travel by their tensors, whatever is inside."""

    def test_is_not_imported_by_us(self) -> None:
        """A program that does not use it does not pay for it."""
        text = (
            "import sys, tensorpack\n"
            "tensorpack.payload\n"
            "print('tensordict' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", text], check=True, capture_output=True, text=True
        )

        assert "False" == done.stdout.strip()

    def test_tensordict(self) -> None:
        """Nested tensors travel; names, sizes and other values stay as they are."""
        from tensordict import NonTensorData, TensorDict  # noqa: PLC0415

        value = TensorDict(
            {"a": torch.ones(2, 3), "in": {"b": torch.ones(2), "s": "text", "e": {}}},
            batch_size=[2],
            names=["batch"],
        )
        value["other"] = NonTensorData([1, 2])
        new = moved(TensorDict, value)

        assert value.batch_size == new.batch_size
        assert ["batch"] == new.names
        assert ("text", [1, 2]) == (new["in", "s"], new["other"])
        assert ["b", "s", "e"] == list(new["in"].keys())
        assert new.device is None

    def test_device_and_lock_follow(self) -> None:
        """A tensordict that knows its device knows the new one; a lock stays."""
        from tensordict import TensorDict  # noqa: PLC0415

        value = TensorDict({"a": one()}, device="cpu").lock_()
        new = moved(TensorDict, value)

        assert "meta" == new.device.type
        assert new.is_locked
        assert value.is_locked

    def test_lazy_stack(self) -> None:
        """A lazy stack stays one, with entries of different shapes."""
        from tensordict import LazyStackedTensorDict, TensorDict  # noqa: PLC0415

        parts = [TensorDict({"a": torch.ones(2)}), TensorDict({"a": torch.ones(3)})]
        value = LazyStackedTensorDict(*parts, stack_dim=0)
        new = moved(LazyStackedTensorDict, value)

        assert [(2,), (3,)] == [part["a"].shape for part in new.tensordicts]

    def test_tensorclasses(self) -> None:
        """Both ways to make a tensorclass are known, as a type and as a value."""
        from tensordict import TensorClass, tensorclass  # noqa: PLC0415

        @tensorclass
        class Decorated:
            a: Tensor
            name: str

        class Derived(TensorClass):
            a: Tensor
            inner: Decorated

        inner = Decorated(torch.ones(2), "text", batch_size=[2])
        value = Derived(torch.ones(2), inner, batch_size=[2])
        new = moved(Derived, value)

        assert "text" == new.inner.name
        assert value.batch_size == new.batch_size
        assert moved(dict[str, Decorated | Tensor], {"a": inner})
        assert moved(Dynamic[Any], {"a": [inner, value]})

    def test_class_that_does_not_come_back_raises(self) -> None:
        """A view into a tensordict would come back as another class."""
        from tensordict import TensorDict, TensorDictBase  # noqa: PLC0415

        view = TensorDict({"a": torch.ones(2, 3)}, batch_size=[2])
        view = view._get_sub_tensordict(0)

        with pytest.raises(LeafError, match="made a `TensorDict`"):
            holder(TensorDictBase)(view).to_device("meta")


class _Jagged:
    """What torchrec's jagged tensor keeps, under the same names."""

    def __init__(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        if lengths is None and offsets is None:
            raise ValueError
        self._values = values
        self._weights = weights
        self._lengths = lengths
        self._offsets = offsets

    def to(self, device: object, non_blocking: bool = False) -> object:
        raise NotImplementedError

    def record_stream(self, stream: object) -> None:
        self._values.record_stream(stream)

    def device(self) -> torch.device:
        return self._values.device


class _KeyedJagged(_Jagged):
    """What torchrec's keyed jagged tensor keeps."""

    def __init__(self, keys: list[str], values: Tensor, **rest: Any) -> None:
        self._inverse_indices = rest.pop("inverse_indices", None)
        self._stride_per_key_per_rank = rest.pop("stride_per_key_per_rank", None)
        self._jt_dict = rest.pop("jt_dict", None)
        self._length_per_key = rest.pop("length_per_key", None)
        self._keys = keys
        super().__init__(values, **rest)


class _Keyed:
    """What torchrec's keyed tensor keeps."""

    def __init__(self, keys: list[str], values: Tensor) -> None:
        self._keys, self._values = keys, values
        self._key_dim = 1

    def record_stream(self, stream: object) -> None:
        self._values.record_stream(stream)


@pytest.fixture
def torchrec() -> types.SimpleNamespace:
    """Give torchrec's classes: by their names and by what they keep.

    The library itself needs kernels that are built for one version of torch.
    """
    made = {}
    for name, model in [
        ("JaggedTensor", _Jagged),
        ("KeyedJaggedTensor", _KeyedJagged),
        ("KeyedTensor", _Keyed),
    ]:
        made[name] = type(
            name, (model,), {"__module__": "torchrec.sparse.jagged_tensor"}
        )
    return types.SimpleNamespace(**made)


class TestTorchrec:
    """torchrec's jagged tensors travel whole, also where their own methods forget."""

    def test_jagged_tensor(self, torchrec: Any) -> None:
        """Every tensor that there is travels, and no constructor runs again."""
        value = torchrec.JaggedTensor(one(), offsets=torch.tensor([0, 2]))
        new = moved(torchrec.JaggedTensor, value)

        assert new._weights is None
        assert new._lengths is None
        assert new._offsets.is_meta

    def test_keyed_jagged_tensor(self, torchrec: Any) -> None:
        """The inverse indices travel, and the cache by key does not go stale."""
        cache = {"a": torchrec.JaggedTensor(one(), lengths=torch.tensor([2]))}
        value = torchrec.KeyedJaggedTensor(
            ["a", "b"],
            torch.arange(4.0),
            weights=torch.ones(4),
            lengths=torch.tensor([1, 2, 1, 0]),
            offsets=torch.tensor([0, 1, 3, 4, 4]),
            inverse_indices=(["a"], torch.tensor([[0]])),
            stride_per_key_per_rank=torch.tensor([[1]]),
            jt_dict=cache,
            length_per_key=[3, 1],
        )
        new = moved(torchrec.KeyedJaggedTensor, value)

        assert 5 == len(list(tensors(holder(torchrec.KeyedJaggedTensor)(value))))
        assert ["a"] == new._inverse_indices[0]
        assert new._inverse_indices[1].is_meta
        assert new._stride_per_key_per_rank is value._stride_per_key_per_rank
        assert (["a", "b"], [3, 1]) == (new._keys, new._length_per_key)
        assert new._jt_dict is None
        assert value._jt_dict is cache

    def test_cache_on_the_device_is_recorded(self, torchrec: Any) -> None:
        """Offsets that were computed for the cache are blocks of their own."""
        with recorded_streams() as log:
            leaves = [torch.ones(2, device="cuda") for _ in range(4)]
            cache = {"a": torchrec.JaggedTensor(leaves[2], offsets=leaves[3])}
            value = torchrec.KeyedJaggedTensor(
                ["a"], leaves[0], lengths=leaves[1], jt_dict=cache
            )
            batch = holder(torchrec.KeyedJaggedTensor)(value)
            batch.record_stream(torch.Stream("cuda"))

        assert ["[0]", "[1]", "[2]", "[3]"] == log.recorded(leaves)

    def test_keyed_tensor(self, torchrec: Any) -> None:
        """Its one tensor travels."""
        new = moved(
            dict[str, torchrec.KeyedTensor], {"a": torchrec.KeyedTensor(["k"], one())}
        )

        assert (["k"], 1) == (new["a"]._keys, new["a"]._key_dim)

    def test_its_subclasses_keep_their_class(self, torchrec: Any) -> None:
        """A class derived from one comes back as itself."""

        class Own(torchrec.JaggedTensor):
            pass

        assert Own is type(moved(Own, Own(one(), lengths=torch.tensor([2]))))


class Handle:
    def __init__(self, keys: Tensor, name: str = "") -> None:
        self.keys = keys
        self.name = name


class TestOwnAdapters:
    """An adapter is registered once, and counts for the type and its subclasses."""

    def test_defining_one_is_enough(self) -> None:
        """The subclass of `LifetimeAdapter` names the type in its base."""

        class Local(Handle):
            pass

        class Sub(Local):
            pass

        class LocalAdapter(LifetimeAdapter[Local]):
            def leaves(self, value: Local) -> Sequence[Tensor]:
                return [value.keys]

            def rebuild(self, value: Local, leaves: Sequence[Tensor]) -> Local:
                return type(value)(leaves[0], value.name)

        assert "name" == moved(Local, Local(one(), "name")).name
        assert Sub is type(moved(list[Local], [Sub(one())])[0])

    def test_registering_two_functions_is_enough(self) -> None:
        """`register` does the same without a class."""

        class Local(Handle):
            pass

        register(
            Local,
            leaves=lambda value: [value.keys],
            rebuild=lambda value, leaves: Local(leaves[0], value.name),
        )

        assert "name" == moved(Local, Local(one(), "name")).name
        with pytest.raises(DefinitionError, match="already has the adapter"):
            register(Local, leaves=lambda _: [], rebuild=lambda value, _: value)

    def test_the_users_adapter_comes_before_ours(self, torchrec: Any) -> None:
        """A ready adapter may be replaced, also after it was used."""
        cls = torchrec.KeyedTensor
        assert moved(cls, cls(["k"], one()))

        register(
            cls,
            leaves=lambda value: [value._values],
            rebuild=lambda value, leaves: cls([*value._keys, "new"], leaves[0]),
        )

        assert ["k", "new"] == moved(cls, cls(["k"], one()))._keys

    def test_without_one_the_type_is_refused(self) -> None:
        """The refusal names the adapter that is missing."""

        class Local(Handle):
            pass

        assert adapter_of(Local) is None
        with pytest.raises(LifetimeError, match=r"Write a `LifetimeAdapter\[Local\]`"):
            holder(Local)

    @pytest.mark.parametrize(
        ("leaves", "rebuild", "problem"),
        [
            (lambda v: [v.name], lambda v, _: v, "is not a tensor"),
            (lambda v: [v.keys], lambda _, __: object(), "made an `object`"),
        ],
    )
    def test_wrong_adapter_raises(
        self,
        leaves: Callable[[Any], Any],
        rebuild: Callable[[Any, Any], Any],
        problem: str,
    ) -> None:
        """An adapter that lists or makes something else is found at first use."""

        class Local(Handle):
            pass

        register(Local, leaves=leaves, rebuild=rebuild)

        with pytest.raises(LeafError, match=problem):
            holder(Local)(Local(one())).to_device("meta")

    @pytest.mark.parametrize("adapted", [Tensor, object])
    def test_too_wide_a_type_is_refused(self, adapted: type) -> None:
        """An adapter for everything would hide every forgotten field."""
        with pytest.raises(DefinitionError, match="the place of all others"):
            register(adapted, leaves=lambda _: [], rebuild=lambda value, _: value)

    def test_half_an_adapter_is_refused(self) -> None:
        """Both methods are needed."""
        with pytest.raises(DefinitionError, match="`rebuild`"):

            class HandleAdapter(LifetimeAdapter[Handle]):
                def leaves(self, value: Handle) -> Sequence[Tensor]:
                    return [value.keys]
