"""A plain class as attrs makes it: in place, unless slots are asked for."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tensorpack._plan.checks import has_own_init, is_class_variable
from tensorpack._plan.namespace import own_annotations

__all__ = ["make"]


def make(
    cls: type,
    options: Mapping[str, Any],
    corrections: Mapping[str, object],
    short_repr: Callable[[object], str],
) -> type:
    """Make an attrs class of a plain class.

    It is the same class, but for `slots=True`. If attrs raises, what it has added must
    be taken away again; nothing else has changed until it is done.

    Args:
        cls: the class.
        options: of `attrs.define`.
        corrections: types by the names of fields. If the class has an `__init__` of
            its own and annotates nothing, they declare its fields.
        short_repr: the `__repr__` of a class that has none of its own.
    """
    settings = {"eq": False, "order": False, "slots": False, **options}
    if _fills_itself(cls) and "these" not in options:
        return _declare(cls, settings, corrections)
    own_repr = "__repr__" in vars(cls) or "repr" in options
    if not own_repr:
        settings["repr"] = options.get("str", False)  # which attrs builds upon
    body: dict[str, Any] | None = None
    if not settings["slots"] and settings.get("these") is None:
        # attrs takes the defaults out of the body before it knows of all errors, and
        # they could not be put back where they were. Those of `these` it leaves there.
        settings["these"] = body = _fields_in(cls, settings.get("auto_attribs"))
    made: type = attrs.define(**settings)(cls)
    for name in body or ():
        if name in vars(cls):
            with contextlib.suppress(AttributeError):
                delattr(cls, name)
    if not own_repr:
        made.__repr__ = short_repr  # type: ignore[method-assign,assignment]  # ours
    return made


def _fills_itself(cls: type) -> bool:
    """Return whether a class has its own `__init__` and says nothing of its fields."""
    marked = any(type(value) is _MARKER for value in vars(cls).values())
    return (
        has_own_init(cls)
        and not marked
        and not any(
            not is_class_variable(annotation)
            for base in cls.__mro__
            for annotation in (
                own_annotations(base).values() if base is not object else ()
            )
        )
    )


def _declare(
    cls: type, settings: Mapping[str, Any], corrections: Mapping[str, object]
) -> type:
    """Declare the fields of a class that fills its instances itself.

    Its constructor, its `repr` and what it can be matched by stay its own.
    """
    types: dict[str, Any] = dict(corrections)
    own = {
        "these": {n: attrs.field(type=tp) for n, tp in types.items()},
        "init": False,
        "repr": False,
        "match_args": False,
    }
    made: type = attrs.define(**{**settings, **own})(cls)
    return made


_MARKER: type = type(attrs.field())


def _fields_in(cls: type, annotated: bool | None) -> dict[str, Any] | None:
    """Return what attrs makes of a class body, by its rule; None if it will refuse.

    Either each annotation is a field, or each `attrs.field` is. If it is not said
    which, and some `attrs.field` has no annotation, it is the latter.
    """
    marked: dict[str, Any] = {n: v for n, v in vars(cls).items() if type(v) is _MARKER}
    written = {
        name: vars(cls).get(name, attrs.NOTHING)
        for name, annotation in own_annotations(cls).items()
        if not is_class_variable(annotation)
    }
    complete = marked.keys() <= written.keys()
    if annotated and not complete:
        return None
    if annotated is False or not complete:
        return dict(sorted(marked.items(), key=lambda item: item[1].counter))
    return {
        name: value if type(value) is _MARKER else attrs.field(default=value)
        for name, value in written.items()
    }
