"""Classes that cannot be payloads: named tuples, enumerations, protocols and others."""

from typing import Protocol

from mypy.errorcodes import ErrorCode
from mypy.nodes import Context, TypeInfo

from tensorpack._rules.refusals import UNFIT
from tensorpack.errors import DefinitionError
from tensorpack.mypy_plugin.classes import unfit_kind
from tensorpack.mypy_plugin.names import LIFETIME

__all__ = ["report_unfit"]


class _Reports(Protocol):
    """What reports an error: mypy's semantic analyzer or its checker."""

    def fail(
        self, msg: str, ctx: Context, /, *, code: ErrorCode | None = None
    ) -> object: ...


def report_unfit(info: TypeInfo, api: _Reports, context: Context) -> bool:
    """Report a class that cannot be a payload; return whether it is one."""
    kind = unfit_kind(info)
    if kind is None:
        return False
    problem, remedy = UNFIT[kind]
    name = info.name.partition("@")[0]
    text = str(DefinitionError(cls=name, problem=problem, remedy=remedy))
    api.fail(text, context, code=LIFETIME)
    return True
