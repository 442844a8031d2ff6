"""What stands around a class that is checked: its module and those it can see.

# Note [what the verdict depends on]

A verdict depends on modules that mypy would not think of: that of an adapter, those of
the fields of a host struct. Each is named to mypy twice: as an indirect dependency for
the cache, and as a trigger for the daemon. Releases before 1.19 have no `module_refs`;
they take the indirect dependencies from the types of a class's symbols, so there the
classes that were met are kept as the type of a symbol that nobody sees.
"""

import functools
from collections.abc import Iterator, Mapping

from mypy.nodes import (
    MDEF,
    ClassDef,
    Expression,
    Import,
    ImportAll,
    ImportBase,
    ImportFrom,
    MypyFile,
    SymbolTableNode,
    TypeInfo,
    Var,
)
from mypy.plugin import ClassDefContext
from mypy.semanal import SemanticAnalyzer
from mypy.server.trigger import make_wildcard_trigger
from mypy.types import TupleType, Type
from mypy.typevars import fill_typevars_with_any
from mypy.util import correct_relative_import

from tensorpack.mypy_plugin.config import Config
from tensorpack.mypy_plugin.names import Marker

__all__ = ["Scene", "imported_names"]

_MET = "__tensorpack_met__"


class Scene:
    """A class under check and what it can see.

    Attributes:
        api: mypy's semantic analyzer.
        cls: the statement that defines the class.
        info: the class.
        reason: the decorator that made it a payload.
        module: the module that it stands in.
        config: the project's settings.
        plain: names, as written, of classes that are there when this one is made.
        marked: the aliases that lost their marker, and the marker, for mypy to see.
    """

    def __init__(
        self, ctx: ClassDefContext, config: Config, marked: dict[str, Marker]
    ) -> None:
        if not isinstance(ctx.api, SemanticAnalyzer):
            raise TypeError(type(ctx.api))
        self.api: SemanticAnalyzer = ctx.api
        self.cls: ClassDef = ctx.cls
        self.info: TypeInfo = ctx.cls.info
        self.reason: Expression = ctx.reason
        self.module: MypyFile = ctx.api.cur_mod_node
        self.config = config
        self.marked = marked
        self.plain: set[str] = set()
        self._met: dict[str, TypeInfo] = {}
        self._imported: list[MypyFile] | None = None

    @property
    def is_local(self) -> bool:
        """Whether the class stands in a function."""
        return "@" in self.info.fullname

    @functools.cached_property
    def imported_names(self) -> Mapping[str, bool]:
        """The names that the module imports, and whether that happens at run time.

        What stands under `TYPE_CHECKING` does not; an `else` branch is unreachable for
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
        self._met[info.fullname] = info
        for base in info.mro[:-1]:
            self.api.add_plugin_dependency(make_wildcard_trigger(base.fullname))
            if hasattr(self.module, "module_refs"):
                self.module.module_refs.add(base.module_name)

    def leave(self) -> None:
        """Keep the classes that were met where older releases of mypy find them."""
        if hasattr(self.module, "module_refs") or not self._met:
            return
        types: list[Type] = [
            fill_typevars_with_any(info) for info in self._met.values()
        ]
        var = Var(_MET, TupleType(types, self.api.named_type("builtins.tuple")))
        var.info = self.info
        var._fullname = f"{self.info.fullname}.{_MET}"
        node = SymbolTableNode(MDEF, var, no_serialize=True, plugin_generated=True)
        self.info.names[_MET] = node

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
