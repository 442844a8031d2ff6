"""Why marks of axes are refused beside a type: every text, as data."""

from typing import Final

from tensorpack._rules.refusals import Reason

__all__ = [
    "DIFFERENT_AXES",
    "FIXED_PARTS",
    "LIST_DIM",
    "NOT_A_SIZE",
    "NOT_LENGTHS",
    "NO_LENGTHS",
    "NO_ORDER",
    "ONE_DIM",
    "ONE_INTEGER",
    "ONE_VALUE",
    "OWN_AXES",
    "OWN_DIMS",
    "TWO_DIMS",
    "UNKNOWN_DIMS",
]

_ON_VALUE: Final = "Put the axis on a tensor, an array or a list."
ONE_VALUE = Reason("is one value, so '{axis}' cannot run along it", (_ON_VALUE,))
ONE_INTEGER = Reason(
    "is one value, so '{axis}' cannot run along it",
    (_ON_VALUE, "Or write `Size('{axis}')` if it is the size of the axis."),
)
NOT_A_SIZE = Reason(
    "is not a host integer, so it cannot be the size of '{axis}'",
    ("Write `Annotated[int, {mark!r}]`.",),
)
NO_ORDER = Reason(
    "is a mapping, which has no order for '{axis}' to run along",
    ("Put the axis on its values: `dict[str, Annotated[Tensor, ...]]`.",),
)
FIXED_PARTS = Reason(
    "has a fixed number of parts, so '{axis}' cannot run along it",
    ("Write `list[...]` or `tuple[X, ...]`, or put the axis on its parts.",),
)
LIST_DIM = Reason(
    "is a list, which has no dim {dim}",
    ("Put the axis on what is inside: `list[Annotated[Tensor, ...]]`.",),
)
OWN_AXES = Reason(
    "is a payload, which brings axes of its own", ("Put the axis on its fields.",)
)
OWN_DIMS = Reason(
    "has dims that only its class knows",
    ("Take the mark out, and resize the value in `__payload_resized__`.",),
)
UNKNOWN_DIMS = Reason(
    "is walked at run time, so its dims are not known",
    ("Write the type of the value.",),
)
ONE_DIM = Reason(
    "has two axes on dim {dim}, '{one}' and '{two}'", ("Give each dim one axis.",)
)
TWO_DIMS = Reason(
    "has the axis '{axis}' twice, so nothing says which of them to resize",
    ("Give one of them another name.",),
)
DIFFERENT_AXES = Reason(
    "has arms of one kind with different axes",
    ("Put the axes on the whole union, or write two fields.",),
)
NO_LENGTHS = Reason(
    "has its lengths in `{lengths}`, which is not a field",
    ("Name a field of the class that holds the lengths of the runs.",),
)
NOT_LENGTHS = Reason(
    "has its lengths in `{lengths}`, which runs along no axis",
    ("Give `{lengths}` its axis: `Annotated[..., Axis('requests')]`.",),
)
