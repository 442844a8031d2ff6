"""The last step of a decoration: methods and traversals on the class, then the mark."""

# Note [classes that are sent by value]
# cloudpickle sends a class of `__main__`, of a notebook or of a function with all that
# is in its `__dict__`. So nothing there holds a module's globals or generated code: the
# plan reduces to what it was made from, and is made anew when it is first read; the
# traversals reduce to the functions below that compile them when they are first used.

import abc
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from torch._guards import TracingContext

from tensorpack._codegen.compile import compile_functions
from tensorpack._codegen.leaves import Source, write, write_keyed
from tensorpack._plan.makers import declared_fields
from tensorpack._plan.namespace import own_annotations
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.markers import PLAN
from tensorpack._rules.methods import COURTESIES, METHODS
from tensorpack._walk.build import HELPERS
from tensorpack.errors import DefinitionError, LifetimeError

__all__ = [
    "Refused",
    "collected",
    "collecting",
    "install",
    "methods_of",
    "restored_on_error",
]


def methods_of(
    cls: type, keep: Sequence[str], generated: Mapping[str, object]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the methods to install, and notes on what is left out.

    Args:
        cls: the class, made by attrs, `dataclasses` or msgspec.
        keep: names that stay the class's own.
        generated: the methods by their names.
    """
    methods = {name: generated[name] for name in METHODS if name not in keep}
    notes = [f"`{name}` is the class's own (`keep`)" for name in keep]
    for name in COURTESIES:
        owner = _owner_of(cls, name, generated)
        if owner is None:
            methods[name] = generated[name]
        elif name not in keep:
            uses = f"`{owner.__name__}` uses the name itself"
            notes.append(f"`{name}` is left out: {uses}")
    return methods, tuple(notes)


def _owner_of(cls: type, name: str, generated: Mapping[str, object]) -> type | None:
    """Return the class that uses a courtesy's name itself: this one or a payload base.

    Methods that other bases have written by hand are overridden, like all copies.
    """
    if any(field.name == name for field in declared_fields(cls)):
        return cls
    for base in cls.__mro__:
        own = vars(base).get(name, generated[name])
        if (base is cls or PLAN in vars(base)) and own is not generated[name]:
            return base
    return None


def install(cls: type, plan: ClassPlan, methods: Mapping[str, object]) -> None:
    """Set the methods, the traversals and, last of all, the mark."""
    traversals = {
        "__tensorpack_leaves__": _leaves,
        "__tensorpack_keyed__": _keyed,
        "__tensorpack_rebuild__": _rebuild,
    }
    for name, method in {**methods, **traversals}.items():
        setattr(cls, name, method)
    abc.update_abstractmethods(cls)
    setattr(cls, PLAN, plan)


def _leaves(self: Any, walk: object, at: str) -> None:
    """Compile the traversals of a class, and run one in its place from now on."""
    plan = type(self).__tensorpack_plan__
    _compile(plan.cls)
    plan.compiled["leaves"](self, walk, at)


def _keyed(self: Any, walk: object, at: str) -> None:
    """Compile the traversal with keys of a class, and run it."""
    plan = type(self).__tensorpack_plan__
    _compile_keyed(plan.cls)
    plan.compiled["keyed"](self, walk, at)


def _rebuild(self: Any, build: object) -> object:
    """Compile the traversals of a class, and run the other one."""
    plan = type(self).__tensorpack_plan__
    _compile(plan.cls)
    return plan.compiled["rebuild"](self, build)


_FIRST = {"leaves": _leaves, "keyed": _keyed, "rebuild": _rebuild}


class _Compiled(staticmethod):  # type: ignore[type-arg]  # of any function
    """A traversal as a class holds it: see Note [classes that are sent by value]."""

    def __init__(self, name: str, function: types.FunctionType) -> None:
        super().__init__(function)
        self.name = name

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return _FIRST.__getitem__, (self.name,)


def _compile(cls: Any) -> None:
    """Compile the two traversals of a class."""
    plan = cls.__tensorpack_plan__
    if "leaves" not in plan.compiled:
        made = _functions(cls, write(plan), "generated")
        plan.compiled.update(leaves=made["leaves"], rebuild=made["rebuild"])
    _replace(cls, "leaves", "rebuild")


def _compile_keyed(cls: Any) -> None:
    """Compile the traversal of a class that hands over each leaf with its key."""
    plan = cls.__tensorpack_plan__
    if "keyed" not in plan.compiled:
        made = _functions(cls, write_keyed(plan), "keyed")
        plan.compiled["keyed"] = made["leaves"]
    _replace(cls, "keyed")


# `torch.compile` runs these two while it traces, and does not look inside.
for _function in (_compile, _compile_keyed):
    setattr(_function, "_dynamo_marked_constant", True)  # noqa: B010  # no attribute


def _functions(cls: type, source: Source, title: str) -> dict[str, types.FunctionType]:
    """Compile the functions of a class's source."""
    names = {**HELPERS, **source.globals}
    return compile_functions(
        source.text, names, cls.__module__, cls.__qualname__, title, owner=cls
    )


def _replace(cls: Any, *names: str) -> None:
    """Put compiled traversals in place, unless `torch.compile` is tracing.

    What that has seen of the class must still hold afterwards.
    """
    if TracingContext.try_get() is None:
        for name in names:
            function = cls.__tensorpack_plan__.compiled[name]
            setattr(cls, f"__tensorpack_{name}__", _Compiled(name, function))


@contextmanager
def restored_on_error(cls: type) -> Iterator[None]:
    """Leave a class as it was if its decoration fails on the way.

    What attrs has changed in place is put back. Where it has made another class, the
    methods that both share get their own class back for `super()`.
    """
    before = dict(vars(cls))
    annotations = own_annotations(cls)
    written = dict(annotations)
    cells = [cell for cell in _cells(before.values()) if _content(cell) is cls]
    try:
        yield
    except BaseException:
        for name in vars(cls).keys() - before.keys():
            type.__delattr__(cls, name)
        for name, value in before.items():
            if vars(cls).get(name, before) is not value:
                type.__setattr__(cls, name, value)
        if annotations != written:  # attrs enters what it caches in slots
            annotations.clear()
            annotations.update(written)
        for cell in cells:
            cell.cell_contents = cls
        if "__abstractmethods__" in before:
            abc.update_abstractmethods(cls)
        raise


def _cells(values: Any) -> Iterator[types.CellType]:
    """Yield the closure cells of the functions in a class body, wrapped ones too."""
    for value in values:
        inside = [
            getattr(value, name, None)
            for name in ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
            if isinstance(
                value, (classmethod, staticmethod, property, functools.cached_property)
            )
        ]
        for function in (value, *inside):
            yield from getattr(function, "__closure__", None) or ()


def _content(cell: types.CellType) -> object:
    """Return what a cell holds; None of an empty one."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


@attrs.frozen(eq=False)
class Refused:
    """A class that was refused while refusals are collected: see `collected`.

    Attributes:
        cls: the class, as its module got it back.
        error: its refusal.
        corrections: annotations given to `payload(fields=...)`.
        module: name of the module that it is reported by.
        line: the line there, starting at 1.
    """

    cls: Any
    error: DefinitionError | LifetimeError
    corrections: Mapping[str, object]
    module: str
    line: int


_lists: list[list[Refused]] = []


@contextmanager
def collected() -> Iterator[list[Refused]]:
    """Collect the refusals of all classes that are decorated in the body.

    They are not raised: each class is given back without the methods of a payload and
    marked as refused, so that its module is imported to the end. A field that names it
    counts as a payload.
    """
    found: list[Refused] = []
    _lists.append(found)
    try:
        yield found
    finally:
        _lists[:] = [each for each in _lists if each is not found]


def collecting() -> Sequence[list[Refused]]:
    """Return the lists that refusals go into; none where they are raised, as ever."""
    return tuple(_lists)
