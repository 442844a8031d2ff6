"""The last step of a decoration: methods and traversals on the class, then the mark."""

import abc
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch._guards import TracingContext

from tensorpack._codegen.compile import compile_functions
from tensorpack._codegen.leaves import Source, write, write_keyed
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.markers import PLAN
from tensorpack._walk.build import HELPERS

__all__ = ["install", "restored_on_error"]


def install(cls: type, plan: ClassPlan, methods: Mapping[str, object]) -> None:
    """Set the methods, the traversals and, last of all, the mark."""
    for name, method in methods.items():
        setattr(cls, name, method)
    _defer(cls, plan)
    abc.update_abstractmethods(cls)
    setattr(cls, PLAN, plan)


def _defer(cls: Any, plan: ClassPlan) -> None:
    """Install traversals that compile the real ones when they are first used."""
    made: dict[str, types.FunctionType] = {}
    made_keyed: dict[str, types.FunctionType] = {}

    def make() -> None:
        made.update(_compiled(cls, write(plan), "generated"))
        _replace(cls, leaves=made["leaves"], rebuild=made["rebuild"])

    def make_keyed() -> None:
        made_keyed.update(_compiled(cls, write_keyed(plan), "keyed"))
        _replace(cls, keyed=made_keyed["leaves"])

    # `torch.compile` runs these two while it traces, and does not look inside.
    for function in (make, make_keyed):
        setattr(function, "_dynamo_marked_constant", True)  # noqa: B010  # no attribute

    def leaves(self: object, walk: object, at: str) -> None:
        make()
        made["leaves"](self, walk, at)

    def keyed(self: object, walk: object, at: str) -> None:
        make_keyed()
        made_keyed["leaves"](self, walk, at)

    def rebuild(self: object, build: object) -> object:
        make()
        return made["rebuild"](self, build)

    cls.__tensorpack_leaves__ = leaves
    cls.__tensorpack_keyed__ = keyed
    cls.__tensorpack_rebuild__ = rebuild


def _compiled(cls: type, source: Source, title: str) -> dict[str, types.FunctionType]:
    """Compile the functions of a class's source."""
    names = {**HELPERS, **source.globals}
    return compile_functions(
        source.text, names, cls.__module__, cls.__qualname__, title, owner=cls
    )


def _replace(cls: type, **traversals: types.FunctionType) -> None:
    """Put the real traversals in place, unless somebody relies on what is there.

    `torch.compile` does while it traces: what it has seen must still hold afterwards.
    """
    if TracingContext.try_get() is None:
        for name, function in traversals.items():
            setattr(cls, f"__tensorpack_{name}__", function)


@contextmanager
def restored_on_error(cls: type) -> Iterator[None]:
    """Give a class back as it was if its decoration fails on the way.

    `attrs.define(slots=False)` changes the class itself: half-made it would pass for
    an attrs class the next time.
    """
    before = dict(vars(cls))
    try:
        yield
    except BaseException:
        for name in vars(cls).keys() - before.keys():
            type.__delattr__(cls, name)
        for name, value in before.items():
            if vars(cls).get(name, before) is not value:
                type.__setattr__(cls, name, value)
        abc.update_abstractmethods(cls)
        raise
