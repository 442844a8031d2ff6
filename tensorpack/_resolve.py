"""A class's own annotations, with placeholders for names that nobody knows (yet)."""

import builtins
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Namespace", "Placeholder", "Unresolved", "own_annotations", "spell"]


class Placeholder:
    """Stands for a name that could not be resolved, inside any annotation.

    It survives what annotations do with a type: `X | None`, `list[X]`, `X.Y`, `X[int]`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> "Placeholder":
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.name}.{name}")

    def __getitem__(self, item: object) -> "Placeholder":
        return Placeholder(f"{self.name}[{spell(item)}]")

    def __call__(self, *_: object, **__: object) -> typing.NoReturn:
        msg = f"the name `{self.name}` is not known"
        raise TypeError(msg)

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]  # noqa: UP007  # `|` is being defined here

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]  # noqa: UP007  # `|` is being defined here

    def __repr__(self) -> str:
        return self.name


@attrs.frozen
class Unresolved:
    """An annotation whose evaluation failed, with the reason."""

    text: str
    reason: str


class _Scope(dict[str, object]):
    """Looks names up from the inside out; an unknown one is a placeholder."""

    def __init__(self, *levels: Mapping[str, object]) -> None:
        super().__init__()
        self._levels = levels

    def __missing__(self, name: str) -> object:
        for level in self._levels:
            if name in level:
                return level[name]
        return Placeholder(name)


@attrs.frozen
class Namespace:
    """Where the annotations of one class look their names up."""

    scope: Mapping[str, object]
    enclosing: Mapping[str, object]

    @classmethod
    def of(cls, owner: type, enclosing: Mapping[str, object]) -> "Namespace":
        """Make the namespace of a class.

        Order: the types that stand in the class body, the class's own name, the
        enclosing function's names, the module's, the builtins. Of the class body only
        types count: its other names are defaults and slot descriptors of fields, and
        a field called `float` must not hide the type.
        """
        module = sys.modules.get(owner.__module__)
        fields = own_annotations(owner)
        body = {
            name: value
            for name, value in vars(owner).items()
            if name not in fields and _is_inner_type(value)
        }
        parameters = {p.__name__: p for p in getattr(owner, "__type_params__", ())}
        own = {owner.__name__: owner}
        glob = vars(module) if module is not None else {}
        scope = _Scope(parameters, body, own, enclosing, glob, vars(builtins))
        return cls(scope, enclosing)

    def evaluate(self, annotation: object) -> object:
        """Give the type that an annotation names; `Unresolved` if it names none."""
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            return annotation
        try:
            # An annotation is code of the class's author, as in `typing`.
            value: object = eval(annotation, {}, self.scope)  # noqa: S307
        except Exception as error:  # noqa: BLE001  # reported as the field's refusal
            reason = f"cannot be read: {type(error).__name__}: {error}"
            return Unresolved(annotation, reason)
        return self.evaluate(value) if isinstance(value, str) else value


def _is_inner_type(value: object) -> bool:
    """Tell whether a name in a class body stands for a type."""
    return isinstance(value, type) or typing.get_origin(value) is not None


def own_annotations(cls: type) -> dict[str, object]:
    """Give the annotations that stand in the body of `cls`, none of its bases'."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415  # only there since 3.14

        return annotationlib.get_annotations(
            cls, format=annotationlib.Format.FORWARDREF
        )
    found: dict[str, object] = cls.__dict__.get("__annotations__", {})  # noqa: RUF063  # hot
    return found


_PREFIXES = re.compile(r"\b(?:[A-Za-z_][\w]*\.|<locals>\.)+(?=[A-Za-z_])")


def spell(annotation: object) -> str:
    """Write an annotation as its author would have."""
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    if isinstance(annotation, (Placeholder, Unresolved)):
        return (
            annotation.name if isinstance(annotation, Placeholder) else annotation.text
        )
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    return _spell_generic(annotation)


def _spell_generic(annotation: object) -> str:
    """Write a type, a union or a parametrized type."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _spell_annotated(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(spell(a) for a in args)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if isinstance(annotation, list):
        return f"[{', '.join(map(spell, annotation))}]"
    if origin is not None and args:
        name = getattr(annotation, "__name__", None) or spell(origin)
        name = origin.__name__ if isinstance(origin, type) else name
        return f"{name}[{', '.join(map(spell, args))}]"
    if isinstance(annotation, type):
        return annotation.__name__
    return _PREFIXES.sub("", repr(annotation))


def _spell_annotated(annotation: Any) -> str:
    """Write `Annotated[T, marker]` as the alias that stands for it."""
    inner, *metadata = typing.get_args(annotation)
    for note in metadata:
        if type(note).__name__ == "Marker":
            return f"{note!r}[{spell(inner)}]"
    return spell(inner)
