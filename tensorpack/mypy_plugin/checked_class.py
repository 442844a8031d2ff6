"""A class under check, its module, and the modules that it can see.

# Note [what the verdict depends on]

A verdict depends on modules that mypy would not think of: that of an adapter, those of
the fields of a host struct. Each is named to mypy twice: as an indirect dependency for
the cache, and as a trigger for the daemon.
"""

import functools
from collections.abc import Iterator, Mapping

from mypy.nodes import (
    ClassDef,
    Expression,
    Import,
    ImportAll,
    ImportBase,
    ImportFrom,
    MypyFile,
    TypeInfo,
)
from mypy.plugin import ClassDefContext
from mypy.semanal import SemanticAnalyzer
from mypy.server.trigger import make_wildcard_trigger
from mypy.util import correct_relative_import

from tensorpack.mypy_plugin.config import Config

__all__ = ["CheckedClass", "imported_names"]


class CheckedClass:
    """A class under check and what it can see.

    Attributes:
        api: mypy's semantic analyzer.
        cls: the statement that defines the class.
        info: the class.
        reason: the decorator that made it a payload.
        module: the module that defines it.
        config: the project's settings.
        known: names, as written, of classes that exist when this one is made.
    """

    def __init__(self, ctx: ClassDefContext, config: Config) -> None:
        if not isinstance(ctx.api, SemanticAnalyzer):
            raise TypeError(type(ctx.api))
        self.api: SemanticAnalyzer = ctx.api
        self.cls: ClassDef = ctx.cls
        self.info: TypeInfo = ctx.cls.info
        self.reason: Expression = ctx.reason
        self.module: MypyFile = ctx.api.cur_mod_node
        self.config = config
        self.known: set[str] = set()
        self._met: set[str] = set()
        self._imported: list[MypyFile] | None = None

    @property
    def name(self) -> str:
        """The name of the class, without the line that mypy adds to a local one."""
        return self.info.name.partition("@")[0]

    @property
    def is_local(self) -> bool:
        """Whether the class is defined in a function."""
        return "@" in self.info.fullname

    @functools.cached_property
    def imported_names(self) -> Mapping[str, bool]:
        """The names that the module imports, and whether that happens at run time.

        An import under `TYPE_CHECKING` does not; an `else` branch is unreachable for
        mypy, but an import in it happens.
        """
        found: dict[str, bool] = {}
        for statement in self.module.imports:
            happens = not statement.is_mypy_only or statement.is_unreachable
            for name in _bound_names(statement):
                found[name] = found.get(name, False) or happens
        return found

    def meet(self, info: TypeInfo) -> None:
        """Note that the verdict depends on a class, see the note above."""
        if info.fullname in self._met:
            return
        self._met.add(info.fullname)
        for base in info.mro[:-1]:
            self.api.add_plugin_dependency(make_wildcard_trigger(base.fullname))
            self.module.module_refs.add(base.module_name)

    def searched(self, info: TypeInfo) -> Iterator[MypyFile]:
        """Iterate the modules, besides the class's own, whose adapters count.

        They are those that it imports, that of the type `info`, and those of the
        settings: whatever has certainly run before the class is made.
        """
        if self._imported is None:
            self._imported = list(self._modules(self._imports()))
        yield from self._imported
        others = {info.module_name, *self.config.adapters} - {self.module.fullname}
        yield from self._modules(sorted(others))

    def _modules(self, names: Iterator[str] | list[str]) -> Iterator[MypyFile]:
        """Iterate the modules of some names, as far as mypy knows them."""
        for name in dict.fromkeys(names):
            module = self.api.modules.get(name)
            if module is not None and module is not self.module:
                self.api.add_plugin_dependency(make_wildcard_trigger(name))
                yield module

    def _imports(self) -> Iterator[str]:
        """Iterate the names of the modules that importing this one runs."""
        for statement in self.module.imports:
            if statement.is_mypy_only or not statement.is_top_level:
                continue
            for name in imported_names(statement, self.module):
                parts = name.split(".")
                yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _bound_names(statement: ImportBase) -> Iterator[str]:
    """Iterate the names that an import statement binds."""
    if isinstance(statement, Import):
        yield from (alias or name.partition(".")[0] for name, alias in statement.ids)
    elif isinstance(statement, ImportFrom):
        yield from (alias or name for name, alias in statement.names)


def imported_names(statement: ImportBase, module: MypyFile) -> Iterator[str]:
    """Iterate the full names that an import statement speaks of."""
    if isinstance(statement, Import):
        yield from (name for name, _ in statement.ids)
    if not isinstance(statement, (ImportFrom, ImportAll)):
        return
    origin, _ = correct_relative_import(
        module.fullname,
        statement.relative,
        statement.id,
        module.is_package_init_file(),
    )
    yield origin
    if isinstance(statement, ImportFrom):
        yield from (f"{origin}.{name}" for name, _ in statement.names)
