"""What is said of a value that is not what its annotation says.

Each function gives the problem, as a clause, and the remedy; where the value stands is
the walk's to say.
"""

from collections.abc import Sequence

from torch import Tensor

from tensorpack._leaves.host_types import is_array
from tensorpack._rules import refusals
from tensorpack._walk.hidden import FAR
from tensorpack._walk.values import a_class, is_builtin, is_payload

__all__ = [
    "hidden",
    "host_only",
    "key_of_mapping",
    "length",
    "no_adapter",
    "no_arm",
    "no_field",
    "no_host_struct",
    "no_leaf",
    "no_payload",
    "no_support",
    "no_tensor",
    "stray",
    "unknown_keys",
    "wrong",
]

Said = tuple[str, str]

_CORRECT = "Correct the value, or the annotation."


def no_leaf(value: object) -> Said:
    """Speak of a leaf that nobody could move and record."""
    remedy = _CORRECT
    if is_payload(value):
        remedy = f"Annotate the field `{type(value).__name__}`."
    elif is_array(value):
        remedy = (
            "Pass `torch.from_numpy(array)`, or annotate the field `np.ndarray` if it "
            "stays on the host."
        )
    return "stands where a tensor is annotated", remedy


def no_payload(value: object) -> Said:
    """Speak of a value that is no payload, where one is declared."""
    remedy = _CORRECT
    if not is_builtin(value):
        remedy = (
            f"Decorate `{type(value).__name__}` with `@payload`, or correct the value "
            "or the annotation."
        )
    return "stands where a payload is annotated", remedy


def no_adapter(value: object) -> Said:
    """Speak of a value whose class no adapter knows, where one is declared."""
    remedy = _CORRECT
    if not is_builtin(value):
        remedy = (
            f"Write a `LifetimeAdapter[{type(value).__name__}]`, or correct the value "
            "or the annotation."
        )
    return "has no adapter, but its annotation has one", remedy


def no_tensor(adapter: object) -> Said:
    """Speak of what an adapter takes for a leaf."""
    return f"is no tensor, but {adapter!r} lists it as a leaf", "List tensors only."


def no_support(value: object, around: object = None) -> Said:
    """Speak of a value of unknown class, where any value is walked.

    Args:
        value: the value.
        around: the container that was passed, if the value stands in no field.
    """
    name = type(value).__name__
    remedy = "move it to a `HostOnly` field."
    if isinstance(around, dict):
        remedy = "pass only the entries that travel (`keys=`, where the call takes it)."
    elif around is not None:
        remedy = "leave it out."
    if is_builtin(value):
        return "has no lifetime support", remedy[0].upper() + remedy[1:]
    ways = f"Decorate `{name}` with `@payload`, write a `LifetimeAdapter[{name}]`, or "
    return "has no lifetime support", ways + remedy


def hidden(value: object, culprit: object) -> Said:
    """Speak of a value in a cached property that has or may have a tensor inside.

    Args:
        value: the value, of unknown class.
        culprit: what makes it so: a tensor, or an object that cannot be searched.
    """
    name, inner = type(value).__name__, a_class(type(culprit))
    holds = f"holds {inner}"
    if culprit is FAR:
        holds = "leads to too many objects to search them for tensors at each use"
    elif not isinstance(culprit, Tensor):
        it = "it" if culprit is value else f"{inner} in it"
        holds = f"nobody can see whether {it} holds a tensor"
    remedy = (
        "annotate the property `-> HostOnly[...]` if it never holds device memory, or "
        "`-> Borrowed[...]` if that is owned and recorded elsewhere."
    )
    if is_builtin(value):
        remedy = f"A{remedy[1:]}"
    else:
        ours = f"Decorate `{name}` with `@payload`, write a `LifetimeAdapter[{name}]`"
        remedy = f"{ours}, or {remedy}"
    return f"has no lifetime support, and {holds}", remedy


def key_of_mapping() -> Said:
    """Speak of a leaf that is the key of a mapping."""
    return refusals.KEY.clause, "Use a host value as the key."


def no_arm(value: object) -> Said:
    """Speak of a value that no arm of a union has claimed."""
    add = "Add `Tensor` to the union, or correct the value."
    remedy = add if isinstance(value, Tensor) else _CORRECT
    return "belongs to no arm of the annotated union", remedy


def no_host_struct(value: object) -> Said:
    """Speak of a value of another class than the host struct that is annotated."""
    problem = "stands where a struct of host values is annotated, and has others"
    return problem, f"Annotate the field `{type(value).__name__}`, a payload."


def stray(value: object) -> Said:
    """Speak of a leaf or a payload where a host value is declared."""
    name = "Tensor" if isinstance(value, Tensor) else type(value).__name__
    problem = (
        "stands where a host value is annotated, so it would be neither moved nor "
        "recorded"
    )
    remedy = (
        f"Annotate the field `{name}`, or `HostOnly[{name}]` if it never leaves the "
        "host."
    )
    return problem, remedy


def host_only(value: Tensor) -> Said:
    """Speak of a tensor on a device where the value must stay on the host."""
    problem = f"stands in a `HostOnly` field but lives on `{value.device}`"
    remedy = (
        "Annotate the field `Tensor`, or mark it `Borrowed` if it is owned and "
        "recorded elsewhere."
    )
    return problem, remedy


def wrong(value: object, wanted: str) -> Said:
    """Speak of a value that is no container of the annotated class."""
    name, remedy = type(value).__name__, _CORRECT
    if isinstance(value, Tensor):
        remedy = (
            f"Wrap the tensor in a `{wanted}`, or annotate the field "
            f"`Tensor | {wanted}[...]`."
        )
    elif any(base.__name__ == wanted for base in type(value).__mro__):
        remedy = (
            f"Nobody can tell how to make another `{name}`: pass a plain `{wanted}`, "
            f"or write a `LifetimeAdapter[{name}]`."
        )
    return f"stands where `{wanted}` is annotated", remedy


def length(value: Sequence[object], wanted: int) -> Said:
    """Speak of a tuple of another length than annotated."""
    has = f"has {len(value)} item{'s' * (len(value) != 1)}"
    remedy = "For a tuple of any length write `tuple[Tensor, ...]`."
    return f"{has}, and its annotation says {wanted}", (
        remedy if wanted == 1 else _CORRECT
    )


def unknown_keys(names: Sequence[str]) -> Said:
    """Speak of keys that a typed dictionary does not declare."""
    many = len(names) > 1
    has = f"has the key{'s' * many} {', '.join(map(repr, names))}"
    remedy = (
        "Declare them, or take them out." if many else "Declare it, or take it out."
    )
    return f"{has}, which its `TypedDict` does not declare", remedy


def no_field(owner: type, name: str) -> Said:
    """Speak of an attribute of an instance that is no field."""
    what = f"is an attribute of this `{owner.__qualname__}`"
    remedy = f"Declare the field in the class: `{name}: ...`."
    return f"{what} but no field, so it would be lost", remedy
