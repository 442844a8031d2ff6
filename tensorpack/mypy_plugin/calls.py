"""Calls that give a class lifetime support: `register(T, ...)` and `payload(T)`.

# Note [how a call is found]

A call is no definition, so mypy keeps nothing of it. In the class's own module, and in
modules of one import cycle, the call is found in the syntax tree. Of other modules mypy
may have nothing but the symbol table from its cache: so when it checks such a call, the
plugin leaves a symbol behind whose type is the class. The cache and the daemon carry it
like any other.
"""

from collections.abc import Callable, Iterator

from mypy.checker import TypeChecker
from mypy.nodes import (
    GDEF,
    AssignmentStmt,
    CallExpr,
    ExpressionStmt,
    FuncItem,
    MypyFile,
    RefExpr,
    SymbolTableNode,
    TypeInfo,
    Var,
)
from mypy.plugin import FunctionContext
from mypy.types import CallableType, Instance, Type, TypedDictType, get_proper_type
from mypy.typevars import fill_typevars_with_any

from tensorpack.mypy_plugin.names import PAYLOAD, REGISTER
from tensorpack.mypy_plugin.unfit import report_unfit

__all__ = ["named_in_calls", "note_call"]

_PREFIX = {
    REGISTER: "__tensorpack_registered__",
    PAYLOAD: "__tensorpack_adopted__",
}


def note_call(function: str) -> Callable[[FunctionContext], Type]:
    """Make the hook that leaves a symbol for each call of a function."""

    def hook(ctx: FunctionContext) -> Type:
        named = ctx.args[0][0] if ctx.args and ctx.args[0] else None
        checker = ctx.api
        if function == PAYLOAD and isinstance(checker, TypeChecker):
            _check_decorated(ctx, checker)
        if (
            isinstance(checker, TypeChecker)
            and not any(isinstance(part, FuncItem) for part in checker.scope.stack)
            and isinstance(named, RefExpr)
            and isinstance(named.node, TypeInfo)
        ):
            _leave(checker.tree, function, named.node, ctx.context.line)
        return ctx.default_return_type

    return hook


def _check_decorated(ctx: FunctionContext, checker: TypeChecker) -> None:
    """Report a typed dictionary under `@payload`: no other hook is asked for one."""
    types = ctx.arg_types[0] if ctx.arg_types else []
    made = get_proper_type(types[0]) if types else None
    result = get_proper_type(made.ret_type) if isinstance(made, CallableType) else None
    if isinstance(result, TypedDictType):
        report_unfit(result.fallback.type, checker, ctx.context)


def _leave(module: MypyFile, function: str, info: TypeInfo, line: int) -> None:
    """Put the symbol into a module."""
    name = f"{_PREFIX[function]}{info.name}"
    var = Var(name, fill_typevars_with_any(info))
    var.line = line
    var._fullname = f"{module.fullname}.{name}"
    var.is_ready = True
    module.names[name] = SymbolTableNode(GDEF, var, module_public=False)


def named_in_calls(
    module: MypyFile, function: str, before: int | None = None
) -> Iterator[str]:
    """Iterate the full names of the classes that a module calls a function with.

    Args:
        module: the module.
        function: the function's full name.
        before: the line above which a call must stand, if it matters.
    """
    for name, symbol in list(module.names.items()):
        node = symbol.node
        if name.startswith(_PREFIX[function]) and isinstance(node, Var):
            kept = get_proper_type(node.type)
            if isinstance(kept, Instance) and (before is None or node.line < before):
                yield kept.type.fullname
    for statement in module.defs:
        call: object = None
        if isinstance(statement, ExpressionStmt):
            call = statement.expr
        elif isinstance(statement, AssignmentStmt):
            call = statement.rvalue
        if isinstance(call, CallExpr) and (before is None or call.line < before):
            yield from _named_in(call, function)


def _named_in(call: CallExpr, function: str) -> Iterator[str]:
    """Give the class that a call names first, if the call is of the function."""
    callee, arguments = call.callee, call.args
    if not isinstance(callee, RefExpr) or callee.fullname != function:
        return
    if arguments and isinstance(arguments[0], RefExpr):
        node = arguments[0].node
        if isinstance(node, TypeInfo):
            yield node.fullname
