"""The errors: they survive pickling, and a rebuild from their text alone."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import tensorpack
from tensorpack import (
    AxisError,
    CaptureError,
    CycleError,
    DefinitionError,
    GuardError,
    HandoffError,
    HazardError,
    LeafCountError,
    LeafError,
    LifetimeError,
    Payload,
    RankError,
    StreamError,
    TensorpackError,
    UndecoratedError,
    errors,
    payload,
)
from tensorpack.errors import Refusal

ERRORS = (
    TensorpackError("text"),
    LifetimeError(
        cls="Batch",
        refusals=[
            Refusal(
                "meta",
                "dict[str, Any]",
                "Any",
                "does not say what it contains",
                ("Write `X`.",),
            ),
            Refusal(
                "x",
                "Any",
                "Any",
                "does not say what it contains",
                ("Write `X`.", "Or `Y`."),
            ),
        ],
    ),
    DefinitionError(cls="Batch", problem="it is bad", remedy="Mend it."),
    UndecoratedError(cls="Child", base="Base", lost=["a", "b"], key="Batch.x"),
    UndecoratedError(cls="Child"),
    UndecoratedError(cls="Child", base="Child", remade=True),
    LeafError(cls="Batch", key="x", found="an `int`", problem="is bad", remedy="No."),
    CycleError(cls="Node", key="Node.next"),
    LeafCountError(cls="Batch", given=3, more=True),
    LeafCountError(cls="Batch", given=3),
    StreamError(problem="the stream is bad", remedy="Pass another."),
    CaptureError(call="start", stream="copy"),
    HandoffError(call="wait", problem="it was taken", remedy="Wait once."),
    GuardError(problem="it cannot watch", remedy="Watch another."),
    HazardError(hazards=["one: freed.", "two: read."]),
    AxisError(cls="Batch", key="x", problem="is bad", remedy="Mend it."),
    RankError(call="recv", rank=1, problem="it is bad", remedy="Mend it."),
    RankError(problem="it is bad", remedy="Mend it."),
)
each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)


def test_every_error_of_the_package_is_tested() -> None:
    """No error class is left out here."""
    classes = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }

    assert classes == {type(error) for error in ERRORS}


@each_error
def test_survives_pickling(error: TensorpackError) -> None:
    """Text and fields are whole in another process."""
    error.add_note("a note")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert type(error) is type(copied)
        assert str(error) == str(copied)
        assert vars(error) == vars(copied)
    del error.__notes__


@each_error
def test_survives_a_rebuild_from_its_text(error: TensorpackError) -> None:
    """`DataLoader` rebuilds the error of a worker as `type(error)(text)`."""
    rebuilt = type(error)(str(error))

    assert str(error) == str(rebuilt)
    assert (str(error),) == rebuilt.args


@each_error
def test_has_the_nearest_builtin_as_base(error: TensorpackError) -> None:
    """Each can be caught as what it is, without knowing this package."""
    assert isinstance(error, TensorpackError)
    if type(error) is not TensorpackError:
        assert isinstance(error, (TypeError, ValueError, RuntimeError))


@each_error
def test_without_fields_is_still_an_error(error: TensorpackError) -> None:
    """An error that is made of nothing does not raise another."""
    assert isinstance(str(type(error)()), str)


@payload
class Batch(Payload):
    ids: Tensor


class _Broken(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> object:
        return Batch(3).to_device("meta")  # type: ignore[arg-type]


def test_arrives_from_a_worker_of_a_data_loader() -> None:
    """The error of a worker process has its class and its text in the main process."""
    loader = torch.utils.data.DataLoader(
        _Broken(), num_workers=1, multiprocessing_context="fork"
    )

    with pytest.raises(LeafError, match=r"`Batch\.ids`: an `int` was found where"):
        next(iter(loader))


def test_refusals_of_a_local_class_cross_processes() -> None:
    """The fields of an error are text: a local class could not be pickled."""

    class Local:
        field: Any

    with pytest.raises(LifetimeError) as caught:
        tensorpack.payload(Local)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301

    assert caught.value.refusals == copied.refusals
