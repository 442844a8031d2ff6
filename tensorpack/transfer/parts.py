"""Some of the entries of a mapping, or some of the fields of a payload, that travel."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tensorpack._walk.build import prepared, rebuild
from tensorpack._walk.mappings import (
    Selection,
    check_replaceable,
    entries_of,
    merged,
)
from tensorpack._walk.values import is_payload, payload_plan
from tensorpack._walk.walk import pairs
from tensorpack.errors import its_fields

__all__ = ["parted"]


def parted(
    value: Any, keys: Iterable[str] | None, *, prepares: bool
) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return what travels, and what puts it back into the whole; None if it is all.

    Args:
        value: what the user hands over.
        keys: names of entries, or of fields: `"sampling.top_k"` is one of a payload
            inside.
        prepares: whether payloads are asked for what travels in their place.

    Raises:
        LeafError: an entry has no lifetime support.
        TypeError: a name is not a field, or the value is neither.
    """
    if keys is None:
        return value, None
    if not is_payload(value):
        check_replaceable(value)
        return entries_of(value, keys), lambda new: merged(value, new)
    if isinstance(keys, str):
        msg = f"`keys=` is one text, {keys!r}. Write `keys=({keys!r},)`."
        raise TypeError(msg)
    names = tuple(keys)
    for name in names:
        _check_field(value, name)
    whole = prepared(value)[0] if prepares else value
    leaves = pairs(whole)
    inside = tuple(f"{name}{mark}" for name in names for mark in ".[")
    part = Selection(
        {key: leaf for key, leaf in leaves if key in names or key.startswith(inside)}
    )

    def put_back(new: Mapping[str, object]) -> Any:
        return rebuild(whole, [new.get(key, leaf) for key, leaf in leaves])

    return part, put_back


def _check_field(value: Any, name: str) -> None:
    """Raise for a name that leads to no field; behind None it may be any.

    Raises:
        TypeError: there is no such field.
    """
    for part in name.split("."):
        if value is None:
            return
        if not is_payload(value):
            kind = type(value).__name__
            msg = (
                f"`keys=` names {name!r}, and a `{kind}` has no field `{part}`. Name "
                "the whole field."
            )
            raise TypeError(msg)
        plan = payload_plan(type(value))
        if part not in plan.by_name:
            msg = (
                f"`keys=` names {name!r}, and `{type(value).__qualname__}` has no "
                f"field `{part}`. {its_fields(plan.by_name)}"
            )
            raise TypeError(msg)
        value = getattr(value, part, None)
