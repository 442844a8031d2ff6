"""Tests of conditions: of what type, with which attribute, under which name."""

import ast
from collections.abc import Iterable
from dataclasses import replace

from tensorpack._audit.frames import Frame
from tensorpack._audit.trace import Atom, Each, Guard, Key, Part, Value, Whole

__all__ = ["tests_of"]

_OPPOSITE = {
    "is": "isnot",
    "isnot": "is",
    "has": "hasnot",
    "hasnot": "has",
    "name": "notname",
    "notname": "name",
}


def tests_of(node: ast.expr, frame: Frame) -> tuple[list[Guard], list[Guard]]:
    """Return what holds if a condition is true, and what holds if it is false.

    A condition that is not understood says nothing, so what is under it counts for
    every field: unsure is never an accusation.
    """
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            true, false = tests_of(operand, frame)
            return false, true
        case ast.BoolOp(op=ast.And(), values=values):
            found = [tests_of(value, frame) for value in values]
            false = found[0][1] if len(found) == 1 else _of_none(values, found)
            return [guard for true, _ in found for guard in true], false
        case ast.BoolOp(op=ast.Or(), values=values):
            found = [tests_of(value, frame) for value in values]
            return _either([true for true, _ in found]), [
                guard for _, false in found for guard in false
            ]
        case ast.Call():
            true = _of_call(node, frame)
            return true, _opposite(true)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            true = _of_comparison(left, op, right, frame)
            return true, _opposite(true)
        case ast.NamedExpr(value=value):
            return tests_of(value, frame)
        case _:
            pass
    return [], []


def _of_none(
    values: list[ast.expr], found: list[tuple[list[Guard], list[Guard]]]
) -> list[Guard]:
    """Return what holds if `a and b` is false: nothing, unless `b` only asks more.

    `isinstance(v, Tensor) and v.is_cuda` is false for host tensors too, which nothing
    has to be done for.
    """
    telling = [false for _, false in found if false]
    asks_device = any(
        isinstance(each, ast.Attribute) and each.attr in {"is_cuda", "is_cpu"}
        for each in values
    )
    return telling[0] if len(telling) == 1 and asks_device else []


def _opposite(guards: list[Guard]) -> list[Guard]:
    return [
        Guard(guard.subject, guard.deep, _OPPOSITE[guard.kind], guard.names)
        for guard in guards
    ]


def _either(branches: list[list[Guard]]) -> list[Guard]:
    """Join what holds in each branch of an `or`, where all test the same thing."""
    kinds = {
        (guard.subject, guard.deep, guard.kind) for each in branches for guard in each
    }
    if len(kinds) != 1 or any(len(each) != 1 for each in branches):
        return []
    ((subject, deep, kind),) = kinds
    if kind in {"isnot", "hasnot", "notname"}:
        return []
    names = frozenset().union(*(each[0].names for each in branches))
    return [Guard(subject, deep, kind, names)]


def _of_call(node: ast.Call, frame: Frame) -> list[Guard]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    name = node.func.id if isinstance(node.func, ast.Name) else name
    if not node.args:
        return []
    if name in {"is_tensor", "is_tensor_like"}:
        return _for(node.args[0], "is", {"Tensor"}, frame)
    if len(node.args) < 2:  # noqa: PLR2004 - the others have two
        return []
    if name in {"isinstance", "issubclass"}:
        types = set(_type_names(node.args[1], frame))
        return _for(node.args[0], "is", types, frame) if types else []
    if name in {"hasattr", "getattr"} and isinstance(node.args[1], ast.Constant):
        return _for(node.args[0], "has", {str(node.args[1].value)}, frame)
    return []


def _type_names(node: ast.expr, frame: Frame) -> Iterable[str]:
    """Yield the last names of types; nothing if any of them is not understood."""
    match node:
        case ast.Tuple(elts=items):
            for item in items:
                yield from _type_names(item, frame)
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            yield from _type_names(left, frame)
            yield from _type_names(right, frame)
        case ast.Name(id=name):
            symbol = frame.world.index.resolve(name, frame.module)
            if symbol.alias or (name.isupper() and len(name) > 1):
                yield "*"  # an alias: it may stand for any type
            else:
                yield name
        case ast.Attribute(attr=name):
            yield name
        case _:
            yield "*"


def _of_comparison(
    left: ast.expr, op: ast.cmpop, right: ast.expr, frame: Frame
) -> list[Guard]:
    names: set[str] = set()
    match right:
        case ast.Constant(value=str() as text):
            names = {text}
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            names = {
                item.value
                for item in items
                if isinstance(item, ast.Constant) and isinstance(item.value, str)
            }
        case ast.Name(id=name):
            names = set(frame.module.constants.get(name, ()))
        case ast.Attribute(attr=name) if frame.trace.cls is not None:
            found = frame.world.index.constant(frame.trace.cls, name)
            names = set(found or ())
    if isinstance(left, ast.Call) and isinstance(left.func, ast.Name):
        called = left.func.id
        if called == "type" and left.args and isinstance(op, ast.Is | ast.Eq):
            return _for(left.args[0], "is", set(_type_names(right, frame)), frame)
        if called == "getattr" and isinstance(op, ast.IsNot | ast.NotEq):
            return _of_call(left, frame)
    if not names:
        return []
    value = _peek(left, frame)
    if not any(isinstance(atom, Key) for atom in value):
        return []
    kind = "name" if isinstance(op, ast.Eq | ast.In) else "notname"
    return [Guard("", deep=False, kind=kind, names=frozenset(names))]


def _peek(node: ast.expr, frame: Frame) -> Value:
    """Return the value of a name, without following anything."""
    if isinstance(node, ast.Name):
        return frame.names.get(node.id, frozenset())
    if isinstance(node, ast.Attribute):
        inner = _peek(node.value, frame)
        if node.attr in {"name", "key"}:
            return frozenset(atom for atom in inner if isinstance(atom, Key))
        found: set[Atom] = set()
        for atom in inner:
            if isinstance(atom, Whole):
                found.add(Part(atom.root, node.attr))
            elif isinstance(atom, Part | Each):
                found.add(replace(atom, deep=True))
        return frozenset(found)
    if isinstance(node, ast.NamedExpr):
        return _peek(node.value, frame)
    return frozenset()


def _for(node: ast.expr, kind: str, names: set[str], frame: Frame) -> list[Guard]:
    """Return a guard for each subject that an expression stands for."""
    if "*" in names:
        return []
    found = []
    for atom in _peek(node, frame):
        if isinstance(atom, Part | Each):
            subject = atom.field if isinstance(atom, Part) else ""
            found.append(Guard(subject, atom.deep, kind, frozenset(names)))
    return list(dict.fromkeys(found))
