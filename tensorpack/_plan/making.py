"""A plain class as attrs makes it: in place, unless slots are asked for."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tensorpack._plan.checks import has_own_init, is_class_variable
from tensorpack._plan.namespace import own_annotations

__all__ = ["make", "tidy"]


def make(
    cls: type,
    options: Mapping[str, Any],
    corrections: Mapping[str, object],
    short_repr: Callable[[object], str],
) -> type:
    """Make an attrs class of a plain class.

    It is the same class, but for `slots=True`. attrs has only added to it, so that can
    be taken away again, and defaults of fields are still in its body: see `tidy`.

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
    if not settings["slots"] and settings.get("these") is None:
        # attrs would take the defaults out of the body before it is known whether the
        # class is refused, and they could not be put back where they were. Those of
        # `these` it leaves there.
        settings["these"] = _fields_in(cls, settings.get("auto_attribs"))
    made: type = attrs.define(**settings)(cls)
    if not own_repr:
        made.__repr__ = short_repr  # type: ignore[method-assign,assignment]  # ours
    return made


def tidy(cls: type, options: Mapping[str, Any]) -> None:
    """Take the defaults of fields out of the body of a made class, as attrs does."""
    if options.get("these") is None and not _fills_itself(cls):
        for name in _fields_in(cls, options.get("auto_attribs")) or ():
            if name in vars(cls):
                with contextlib.suppress(AttributeError):  # a metaclass forbids it
                    delattr(cls, name)


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
