"""Looks up the names in a class's annotations; unknown ones become placeholders."""

import builtins
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

import attrs

from tensorpack._plan.spelling import WrittenOnly, spell
from tensorpack._rules.markers import Marker

__all__ = [
    "Context",
    "Namespace",
    "Placeholder",
    "Unresolved",
    "own_annotations",
    "returned_by",
]


class Placeholder(WrittenOnly):
    """Takes the place of a name that could not be resolved, inside any annotation.

    It survives what annotations do with a type: `X | None`, `list[X]`, `X.Y`, `X[int]`.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> "Placeholder":
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.text}.{name}")

    def __getitem__(self, item: object) -> "Placeholder":
        return Placeholder(f"{self.text}[{spell(item)}]")

    def __call__(self, *_: object, **__: object) -> typing.NoReturn:
        msg = f"the name `{self.text}` is not known"
        raise TypeError(msg)

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]  # noqa: UP007  # `|` is being defined here

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]  # noqa: UP007  # `|` is being defined here

    def __repr__(self) -> str:
        return self.text


@attrs.frozen
class Unresolved(WrittenOnly):
    """An annotation whose evaluation failed.

    Attributes:
        text: the annotation as written.
        error: what was raised; empty for a name that refers to itself.
    """

    text: str
    error: str = ""


class _Scope(dict[str, object]):
    """Looks names up from the inside out; an unknown one is a placeholder."""

    def __init__(self, asked: set[str], *levels: Mapping[str, object]) -> None:
        super().__init__()
        self._asked = asked
        self._levels = levels

    def __missing__(self, name: str) -> object:
        self._asked.add(name)
        for level in self._levels:
            if name in level:
                return level[name]
        return Placeholder(name)


@attrs.define(eq=False)
class Namespace:
    """Where the annotations of one class look their names up.

    A plan keeps its namespace, and may be pickled with the class. So this holds no
    module's globals: they are looked up when a name is.

    Attributes:
        owner: the class.
        enclosing: the names of the functions around the class.
        asked: the names that were looked up, here and in what was made beside it.
    """

    owner: type
    enclosing: Mapping[str, object]
    asked: set[str] = attrs.field(factory=set, repr=False)
    _scope: Mapping[str, object] | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, owner: type, enclosing: Mapping[str, object]) -> "Namespace":
        """Return the namespace of a class.

        Of the names around it only types count: a plan lives as long as its class, and
        must not keep the function's tensors alive.
        """
        return cls(owner, {n: v for n, v in enclosing.items() if _may_be_type(v)})

    def forget(self) -> None:
        """Drop what serves a quick look-up only: the names of the module."""
        self._scope = None

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """Keep the class, and of the names around it those that were asked for."""
        around = {n: v for n, v in self.enclosing.items() if n in self.asked}
        return Namespace, (self.owner, around, self.asked)

    @property
    def home(self) -> tuple[str, str]:
        """The module of the class and the functions around it."""
        return _home(self.owner)

    @property
    def scope(self) -> Mapping[str, object]:
        """Every name, from the inside out.

        Order: the types in the class body, the class's own name, the enclosing
        function's names, the module's, the builtins. Of the class body only types
        count: its other names are defaults and slot descriptors of fields, and a field
        called `float` must not hide the type.
        """
        if self._scope is None:
            owner = self.owner
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
            levels = (parameters, body, own, self.enclosing, glob, vars(builtins))
            self._scope = _Scope(self.asked, *levels)
        return self._scope

    def beside(self, other: type) -> "Namespace":
        """Return the namespace of another class that this one's annotations lead to.

        The functions around this class are those around the other only if it stands
        in them too.
        """
        module, functions = _home(other)
        inside = module == self.home[0] and self.home[1].startswith(functions)
        around = self.enclosing if inside and functions else {}
        return Namespace(other, around, self.asked)

    def evaluate(self, annotation: object) -> object:
        """Return the type that an annotation names; `Unresolved` if it names none."""
        value = annotation
        for _ in range(_LONGEST_CHAIN):
            scope = self.scope
            if isinstance(value, typing.ForwardRef):
                scope = self._scope_of(value)
                value = value.__forward_arg__
            if not isinstance(value, str):
                return value
            try:
                # An annotation is code of the class's author, as in `typing`.
                value = eval(value, {}, scope)  # noqa: S307
            except Exception as error:  # noqa: BLE001  # reported as the field's refusal
                said = f"{type(error).__name__}: {error}"
                return Unresolved(spell(annotation), said)
        return Unresolved(spell(annotation))

    def _scope_of(self, reference: typing.ForwardRef) -> Mapping[str, object]:
        """Return the names for a reference; it may name its module."""
        module: Any = reference.__forward_module__
        if isinstance(module, str):
            module = sys.modules.get(module)
        if module is None or module.__name__ == self.home[0]:
            return self.scope
        return _Scope(self.asked, vars(module), vars(builtins))


_LONGEST_CHAIN = 32


def _home(cls: type) -> tuple[str, str]:
    """Return the module of a class and the functions around it."""
    return cls.__module__, cls.__qualname__.rpartition("<locals>")[0]


@attrs.frozen
class Context:
    """What is known while one annotation is read.

    Attributes:
        namespace: looks names up.
        own: the class that is being decorated.
        bound: what type variables stand for, and the context that was written in.
        above: the aliases that are being expanded, from the outside in.
    """

    namespace: Namespace
    own: type
    bound: "Mapping[object, tuple[object, Context]]" = attrs.field(factory=dict)
    above: tuple[object, ...] = ()

    def inside(self, alias: object) -> "Context":
        """Return the context for reading what is inside an alias or a class."""
        return attrs.evolve(self, above=(*self.above, alias))

    def expands(self, alias: object) -> bool:
        """Return whether an alias is read inside itself, with no class in between.

        A class in between is met again itself.
        """
        for above in reversed(self.above):
            if isinstance(above, type):
                return False
            if above == alias:
                return True
        return False


def _is_inner_type(value: object) -> bool:
    """Return whether a name in a class body stands for a type."""
    return isinstance(value, type) or typing.get_origin(value) is not None


def _may_be_type(value: object) -> bool:
    """Return whether a function's local name may stand in an annotation."""
    return (
        isinstance(value, (type, types.ModuleType, str))
        or value is None
        or isinstance(value, Marker)
        or type(value).__module__ in _OF_TYPES
    )


_OF_TYPES = ("typing", "typing_extensions", "types")


def own_annotations(cls: type) -> dict[str, object]:
    """Return the annotations that stand in the body of `cls`, none of its bases'."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415  # only there since 3.14

        return annotationlib.get_annotations(
            cls, format=annotationlib.Format.FORWARDREF
        )
    found: Any = cls.__dict__.get("__annotations__")  # noqa: RUF063  # hot
    return found if type(found) is dict else {}  # `type` itself has a descriptor


def returned_by(function: Any) -> object:
    """Return the return annotation of a function; `Any` if it has none."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415  # only there since 3.14

        found: Any = annotationlib.get_annotations(
            function, format=annotationlib.Format.FORWARDREF
        )
    else:
        found = getattr(function, "__annotations__", None)
    return found.get("return", Any) if type(found) is dict else Any
