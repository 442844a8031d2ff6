"""The plugin: which hook of mypy does what."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mypy.nodes import MypyFile, TypeInfo
from mypy.options import Options
from mypy.plugin import (
    AnalyzeTypeContext,
    ClassDefContext,
    FunctionContext,
    Plugin,
)
from mypy.types import Type

from tensorpack.mypy_plugin.calls import note_call
from tensorpack.mypy_plugin.check import check_fields
from tensorpack.mypy_plugin.checked_class import CheckedClass, imported_names
from tensorpack.mypy_plugin.config import read_config
from tensorpack.mypy_plugin.making import decorates, make, tag
from tensorpack.mypy_plugin.markers import read_annotated
from tensorpack.mypy_plugin.methods import add_methods
from tensorpack.mypy_plugin.names import BASE, PAYLOAD, REGISTER, TAG
from tensorpack.mypy_plugin.undecorated import check_undecorated
from tensorpack.mypy_plugin.unfit import report_unfit

__all__ = ["TensorpackPlugin"]

_ANNOTATED = ("typing.Annotated", "typing_extensions.Annotated")


class TensorpackPlugin(Plugin):
    """Reads payload classes as the run time does."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._config = read_config(options)
        self._version = _digest()

    def report_config_data(self, ctx: object) -> Any:  # noqa: ARG002  # it is mypy's
        """Name what a cached result depends on: the settings and the plugin's text."""
        config = self._config
        return [self._version, list(config.adapters), list(config.decorators)]

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        """Have mypy read the settings' adapters before a module with payloads."""
        wrappers = [name.rpartition(".")[0] for name in self._config.decorators]
        roots = ("tensorpack", *wrappers)
        names = [n for s in file.imports for n in imported_names(s, file)]
        if any(f"{name}.".startswith(f"{root}.") for name in names for root in roots):
            return [(_PRIORITY, name, -1) for name in self._config.adapters]
        return []

    def get_class_decorator_hook(
        self, fullname: str
    ) -> Callable[[ClassDefContext], None] | None:
        """Mark payloads in mypy's main pass."""
        if decorates(fullname, self._config):
            return lambda ctx: tag(ctx, self._config)
        return None

    def get_class_decorator_hook_2(
        self, fullname: str
    ) -> Callable[[ClassDefContext], bool] | None:
        """Make and check payloads, once every type is complete."""
        return self._make if decorates(fullname, self._config) else None

    def _make(self, ctx: ClassDefContext) -> bool:
        """Make a payload class; ask for another pass if a base is not ready."""
        if report_unfit(ctx.cls.info, ctx.api, ctx.cls):
            return True
        if not make(ctx, self._config):
            return False
        checked = CheckedClass(ctx, self._config)
        add_methods(checked)
        if not ctx.api.is_stub_file:  # the class was judged where it was made
            check_fields(checked)
        return True

    def get_base_class_hook(
        self, fullname: str
    ) -> Callable[[ClassDefContext], None] | None:
        """Look at the subclasses of payloads."""
        symbol = self.lookup_fully_qualified(fullname)
        if symbol is None:  # a class that is local to a function: its subclass knows
            return check_undecorated
        if isinstance(symbol.node, TypeInfo) and any(
            base.fullname == BASE or TAG in base.metadata for base in symbol.node.mro
        ):
            return check_undecorated
        return None

    def get_function_hook(
        self, fullname: str
    ) -> Callable[[FunctionContext], Type] | None:
        """Note the calls `register(T, ...)` and `payload(T)`."""
        return note_call(fullname) if fullname in (PAYLOAD, REGISTER) else None

    def get_type_analyze_hook(
        self, fullname: str
    ) -> Callable[[AnalyzeTypeContext], Type] | None:
        """Keep the markers in `Annotated[...]`, which mypy would forget."""
        return read_annotated if fullname in _ANNOTATED else None


_PRIORITY = 10
"""That of an import at the top of a module, as in `mypy.build`."""


def _digest() -> str:
    """Digest the plugin's text: a cached result of another version does not count."""
    here = Path(__file__).parent
    paths = [*here.glob("*.py"), *(here.parent / "_rules").glob("*.py")]
    texts = [path.read_bytes() for path in sorted(paths)]
    return hashlib.sha256(b"".join(texts)).hexdigest()
