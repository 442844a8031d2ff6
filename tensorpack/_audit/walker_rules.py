"""Rules about functions that move or record whatever they are given."""

import ast
from collections.abc import Iterator

from tensorpack._audit.classes import ClassDef
from tensorpack._audit.frames import World
from tensorpack._audit.functions import Function
from tensorpack._audit.reports import Report

__all__ = ["walkers"]

_BROAD = {"all", "Exception", "BaseException"}


def walkers(world: World) -> Iterator[Report]:
    """Yield reports about walkers that pass over values in silence."""
    for module in world.index.modules:
        for function in module.functions.values():
            yield from _judge(world, None, function)
        for cls in module.classes.values():
            for function in cls.methods.values():
                yield from _judge(world, cls, function)


def _judge(world: World, cls: ClassDef | None, function: Function) -> Iterator[Report]:
    names = [each.name for each in function.parameters if each.kind == "plain"]
    names = [name for name in names if name not in {"self", "cls"}]
    is_walker = "record_stream" in function.name or "apply" in function.name
    if not names or not is_walker or (cls and names[0] == "stream"):
        return
    node = world.bodies.node(function)
    if node is None:
        return
    value = names[0]
    chain = _last_chain(node, value)
    if chain is None:
        return
    acts = _acts(chain, value, names[1:])
    if not acts:
        return
    orelse = _orelse(chain)
    if "record" in function.name and _is_silent(orelse, value):
        why = (
            f"a value that passes none of the tests on `{value}` is left unrecorded in "
            "silence: raise, or say which types need nothing."
        )
        yield _report("TP113", cls, function, chain.lineno, why, "medium")
    for attempt in ast.walk(chain):
        if isinstance(attempt, ast.Try) and _swallows(attempt):
            why = (
                f"every error of the call on `{value}` is swallowed: a value that "
                "cannot be handled is left as it is, in silence."
            )
            yield _report("TP112", cls, function, attempt.lineno, why, "high")


def _report(
    rule: str,
    cls: ClassDef | None,
    function: Function,
    line: int,
    *told: str,
) -> Report:
    why, confidence = told
    name = cls.name if cls else ""
    return Report(
        rule,
        function.path,
        line,
        name,
        function.name,
        (),
        why,
        confidence,
        (),
        function.last,
    )


def _last_chain(
    node: ast.FunctionDef | ast.AsyncFunctionDef, value: str
) -> ast.If | None:
    """Return the last `if` of a body that tests the type of a value."""
    for each in reversed(node.body):
        if isinstance(each, ast.If) and _tests(each.test, value):
            return each
    return None


def _tests(test: ast.expr, value: str) -> bool:
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Name)
        and each.func.id in {"isinstance", "hasattr"}
        and bool(each.args)
        and ast.unparse(each.args[0]) == value
        for each in ast.walk(test)
    )


def _acts(chain: ast.If, value: str, others: list[str]) -> bool:
    """Return whether a chain calls a method of the value, or a function on it."""
    for each in ast.walk(chain):
        match each:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name == value:
                return True
            case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=given), *_]):
                if name in others and given == value:
                    return True
            case _:
                pass
    return False


def _orelse(chain: ast.If) -> list[ast.stmt]:
    while len(chain.orelse) == 1 and isinstance(chain.orelse[0], ast.If):
        chain = chain.orelse[0]
    return chain.orelse


def _is_silent(orelse: list[ast.stmt], value: str) -> bool:
    match orelse:
        case []:
            return True
        case [ast.Pass()]:
            return True
        case [ast.Return(value=None)]:
            return True
        case [ast.Return(value=ast.Name(id=name))]:
            return name == value
        case _:
            pass
    return False


def _swallows(node: ast.Try) -> bool:
    return any(
        (handler.type is None or ast.unparse(handler.type) in _BROAD)
        and all(
            isinstance(each, ast.Pass)
            or (isinstance(each, ast.Return) and not isinstance(each.value, ast.Call))
            for each in handler.body
        )
        for handler in node.handlers
    )
