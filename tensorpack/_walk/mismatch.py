"""The words for a value that is not what its annotation says.

Each function returns the problem, as a clause, and the remedy; the walk knows where the
value is.
"""

from collections.abc import Sequence

from torch import Tensor

from tensorpack._leaves.host_types import is_array
from tensorpack._walk.values import a_class, is_builtin, is_payload
from tensorpack.errors import LeafError

__all__ = [
    "Said",
    "key_of_mapping",
    "no_adapter",
    "no_arm",
    "no_field",
    "no_host_struct",
    "no_leaf",
    "no_payload",
    "no_support",
    "no_tensor",
    "not_host",
    "on_device",
    "too_deep",
    "unknown_keys",
    "wrong_container",
    "wrong_length",
]

Said = tuple[str, str]
"""The problem and the remedy."""

_CORRECT = "Correct the value, or the annotation."


def no_leaf(value: object) -> Said:
    """Describe a leaf that cannot be moved and recorded."""
    remedy = _CORRECT
    if is_payload(value):
        remedy = f"Annotate the field `{type(value).__name__}`."
    elif is_array(value):
        remedy = (
            "Pass `torch.from_numpy(array)`, or annotate the field `np.ndarray` if it "
            "stays on the host."
        )
    return "was found where a tensor is annotated", remedy


def no_payload(value: object) -> Said:
    """Describe a value that is not a payload, where one is annotated."""
    remedy = _CORRECT
    if not is_builtin(value):
        remedy = (
            f"Decorate `{type(value).__name__}` with `@payload`, or correct the value "
            "or the annotation."
        )
    return "was found where a payload is annotated", remedy


def no_adapter(value: object) -> Said:
    """Describe a value whose class has no adapter, where one that has is annotated."""
    remedy = _CORRECT
    if not is_builtin(value):
        remedy = (
            f"Write a `LifetimeAdapter[{type(value).__name__}]`, or correct the value "
            "or the annotation."
        )
    return "has no adapter, but the annotated class has one", remedy


def no_tensor(adapter: object) -> Said:
    """Describe what an adapter lists as a leaf and is not a tensor."""
    return f"is not a tensor, but {adapter!r} lists it as a leaf", "List tensors only."


def no_support(value: object, around: object = None) -> Said:
    """Describe a value of unknown class, where any value is walked.

    Args:
        value: the value.
        around: what was passed, if the value is in no field of a payload.
    """
    name = type(value).__name__
    remedy = "move it to a `HostOnly` field."
    if isinstance(around, dict):
        remedy = "pass only the entries that travel (`keys=`, where the call takes it)."
    elif around is not None:
        remedy = "pass only values that have it."
    if is_builtin(value):
        return "has no lifetime support", remedy[0].upper() + remedy[1:]
    ways = f"Decorate `{name}` with `@payload`, write a `LifetimeAdapter[{name}]`, or "
    return "has no lifetime support", ways + remedy


def key_of_mapping() -> Said:
    """Describe a leaf that is the key of a mapping."""
    problem = "is the key of a mapping, and keys stay on the host"
    return problem, "Use a host value as the key."


def no_arm(value: object) -> Said:
    """Describe a value that is of no arm of a union."""
    add = "Add `Tensor` to the union, or correct the value."
    remedy = add if isinstance(value, Tensor) else _CORRECT
    return "does not match any arm of the annotated union", remedy


def no_host_struct(value: object) -> Said:
    """Describe a value that holds others than host values, in a host struct's place."""
    problem = "is not a host struct, but the field is annotated as one"
    return problem, f"Annotate the field `{type(value).__name__}`, a payload."


def not_host(value: object) -> Said:
    """Describe a leaf or a payload where a host value is annotated."""
    name = "Tensor" if isinstance(value, Tensor) else type(value).__name__
    problem = (
        "was found where a host value is annotated, so it would be neither moved nor "
        "recorded"
    )
    remedy = (
        f"Annotate the field `{name}`, or `HostOnly[{name}]` if it never leaves the "
        "host."
    )
    return problem, remedy


def on_device(value: Tensor) -> Said:
    """Describe a tensor on a device where the value must stay on the host."""
    problem = f"is in a `HostOnly` field but lives on `{value.device}`"
    remedy = (
        "Annotate the field `Tensor`, or mark it `Borrowed` if it is owned and "
        "recorded elsewhere."
    )
    return problem, remedy


def wrong_container(value: object, wanted: str) -> Said:
    """Describe a value that is not a container of the annotated class."""
    name, remedy = type(value).__name__, _CORRECT
    if isinstance(value, Tensor):
        remedy = (
            f"Wrap the tensor in a `{wanted}`, or annotate the field "
            f"`Tensor | {wanted}[...]`."
        )
    elif any(base.__name__ == wanted for base in type(value).__mro__):
        remedy = (
            f"tensorpack cannot rebuild a `{name}`: pass a plain `{wanted}`, or write "
            f"a `LifetimeAdapter[{name}]`."
        )
    return f"was found where `{wanted}` is annotated", remedy


def wrong_length(value: Sequence[object], wanted: int) -> Said:
    """Describe a tuple whose length is not the annotated one."""
    has = f"has {len(value)} item{'s' * (len(value) != 1)}"
    remedy = "For a tuple of any length write `tuple[Tensor, ...]`."
    return f"{has}, and its annotation says {wanted}", (
        remedy if wanted == 1 else _CORRECT
    )


def unknown_keys(names: Sequence[str]) -> Said:
    """Describe keys that a typed dictionary does not declare."""
    many = len(names) > 1
    has = f"has the key{'s' * many} {', '.join(map(repr, names))}"
    remedy = (
        "Declare them, or take them out." if many else "Declare it, or take it out."
    )
    return f"{has}, which its `TypedDict` does not declare", remedy


def no_field(owner: type, name: str) -> Said:
    """Describe an attribute of an instance that is not a field."""
    what = f"is an attribute of this `{owner.__qualname__}`"
    remedy = f"Declare the field in the class: `{name}: ...`."
    return f"{what} but not a field, so it would be lost", remedy


def too_deep(cls: type) -> LeafError:
    """Return the error for a chain of payloads that is longer than Python's stack."""
    return LeafError(
        found=a_class(cls),
        problem="holds payloads inside one another, more than Python's stack can walk",
        remedy="Hold them in a list, or mark the field that links them `Borrowed`.",
    )
