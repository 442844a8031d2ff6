"""What a class and its instances hold beside the fields that are declared."""

import types
from collections.abc import Iterator, Mapping

from torch import Tensor

from tensorpack._plan.classes import is_attrs_method
from tensorpack._plan.namespace import own_annotations
from tensorpack._rules.markers import PLAN
from tensorpack.errors import DefinitionError, Refusal

__all__ = ["check_content", "shared_leaves"]


def check_content(cls: type, declared: Mapping[str, object]) -> None:
    """Refuse a class that fills its instances by hand, and declares nothing of them.

    Raises:
        DefinitionError: it has an `__init__` of its own and no field.
    """
    init = next(
        (vars(c)["__init__"] for c in cls.__mro__ if "__init__" in vars(c)), None
    )
    if declared or not isinstance(init, types.FunctionType) or _is_generated(init):
        return
    raise DefinitionError(
        cls=cls.__qualname__,
        problem="it has an `__init__` of its own and no field, so nobody knows what "
        "its instances hold",
        remedy="Annotate its attributes in the class: `ids: Tensor`.",
    )


def _is_generated(method: types.FunctionType) -> bool:
    """Tell whether attrs or `dataclasses` has written a method."""
    return is_attrs_method(method) or method.__code__.co_filename == "<string>"


def shared_leaves(cls: type, declared: Mapping[str, object]) -> Iterator[Refusal]:
    """Refuse tensors and payloads that the class itself holds, unannotated."""
    for base in cls.__mro__:
        annotated = own_annotations(base) if base is not object else {}
        for name, value in vars(base).items():
            kind = type(value)
            leaf = issubclass(kind, Tensor) or PLAN in vars(kind)
            if leaf and name not in declared and name not in annotated:
                cls_name = kind.__name__
                yield Refusal(
                    name,
                    name,
                    name,
                    f"is a `{cls_name}` of the class and no field, so it would be "
                    "neither moved nor recorded",
                    (
                        f"Write `{name}: {cls_name} = ...` for a field.",
                        f"Or write `ClassVar[{cls_name}]` if it belongs to the class.",
                    ),
                )
