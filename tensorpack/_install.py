"""The last step of a decoration: methods and traversals on the class, then the mark."""

import abc
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tensorpack._build import HELPERS
from tensorpack._compile import compile_functions
from tensorpack._lifetime import PLAN
from tensorpack._nodes import ClassPlan
from tensorpack._source import Source, write, write_keyed

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

    def compiled(source: Source, title: str) -> dict[str, types.FunctionType]:
        names = {**HELPERS, **source.globals}
        return compile_functions(
            source.text, names, cls.__module__, cls.__qualname__, title
        )

    def compile_now() -> None:
        made = compiled(write(plan), "generated")
        cls.__tensorpack_leaves__ = made["leaves"]
        cls.__tensorpack_rebuild__ = made["rebuild"]

    def leaves(self: object, walk: object, at: str) -> None:
        compile_now()
        cls.__tensorpack_leaves__(self, walk, at)

    def keyed(self: object, walk: object, at: str) -> None:
        cls.__tensorpack_keyed__ = compiled(write_keyed(plan), "keyed")["leaves"]
        cls.__tensorpack_keyed__(self, walk, at)

    def rebuild(self: object, build: object) -> object:
        compile_now()
        return cls.__tensorpack_rebuild__(self, build)

    cls.__tensorpack_leaves__ = leaves
    cls.__tensorpack_keyed__ = keyed
    cls.__tensorpack_rebuild__ = rebuild


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
