"""Values of expressions: which fields they come from, and what was done to them."""

import ast

from tensorpack._audit.calls import of_call
from tensorpack._audit.frames import Frame
from tensorpack._audit.guards import tests_of
from tensorpack._audit.iteration import bind, items_of
from tensorpack._audit.reads import of_attribute, of_item
from tensorpack._audit.trace import (
    UNKNOWN,
    Box,
    Items,
    Key,
    Nothing,
    Pairs,
    Routine,
    Text,
    Value,
    acted,
)

__all__ = ["value_of"]

_NOTHING: Value = frozenset({Nothing()})


def value_of(node: ast.expr | None, frame: Frame) -> Value:
    """Return what an expression gives, and note what it does on the way."""
    match node:
        case None:
            return UNKNOWN
        case ast.Constant(value=str() as text):
            return frozenset({Text(text)})
        case ast.Constant():
            return _NOTHING
        case ast.Name(id=name):
            return frame.look_up(name)
        case ast.Attribute():
            return of_attribute(node, value_of(node.value, frame), frame)
        case ast.Call():
            return of_call(node, frame, value_of)
        case ast.Subscript():
            return _of_subscript(node, frame)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _of_choice(test, body, orelse, frame)
        case ast.BoolOp(values=values):
            found: Value = UNKNOWN
            for value in values:
                found |= value_of(value, frame)
            return found
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            given = value_of(value, frame)
            frame.assign(name, given)
            return given
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return _of_literal(items, frame)
        case ast.Dict():
            return _of_mapping(node, frame)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return _of_comprehension(node, frame)
        case ast.BinOp(left=left, right=right):
            parts = value_of(left, frame) | value_of(right, frame)
            subjects = frame.trace.subjects(parts)
            frame.emit("act", node, subjects, "operator")
            return acted(subjects)
        case ast.UnaryOp(operand=operand):
            subjects = frame.trace.subjects(value_of(operand, frame))
            return acted(subjects)
        case ast.Compare(left=left, comparators=others):
            for each in [left, *others]:
                value_of(each, frame)
            return _NOTHING
        case ast.Lambda():
            return frozenset({Routine(None, frame.owner, None, node)})
        case ast.Starred(value=value) | ast.Await(value=value):
            return value_of(value, frame)
        case ast.Yield(value=value):
            frame.result |= value_of(value, frame)
            return UNKNOWN
        case ast.YieldFrom(value=value):
            frame.result |= items_of(value_of(value, frame), frame)
            return UNKNOWN
        case ast.JoinedStr():
            return _NOTHING
        case _:
            pass
    return UNKNOWN


def _of_subscript(node: ast.Subscript, frame: Frame) -> Value:
    base = value_of(node.value, frame)
    key = value_of(node.slice, frame) if not isinstance(node.slice, ast.Slice) else None
    return of_item(node, base, key or UNKNOWN, frame)


def _of_choice(test: ast.expr, body: ast.expr, orelse: ast.expr, frame: Frame) -> Value:
    true, false = tests_of(test, frame)
    value_of(test, frame)
    before = len(frame.guards)
    frame.branches += 1
    frame.guards += true
    found = value_of(body, frame)
    del frame.guards[before:]
    frame.guards += false
    found |= value_of(orelse, frame)
    del frame.guards[before:]
    frame.branches -= 1
    return found


def _of_literal(items: list[ast.expr], frame: Frame) -> Value:
    if not items:
        return frozenset({*_NOTHING, frame.trace.new_box()[0]})
    box, content = frame.trace.new_box()
    for item in items:
        if isinstance(item, ast.Starred):
            content.slots.append(items_of(value_of(item.value, frame), frame))
        else:
            content.slots.append(value_of(item, frame))
    return frozenset({box})


def _of_mapping(node: ast.Dict, frame: Frame) -> Value:
    box, _ = frame.trace.new_box()
    if not node.keys:
        return frozenset({*_NOTHING, box})
    for key, value in zip(node.keys, node.values, strict=True):
        given = value_of(value, frame)
        if key is None:
            spread(given, content_number=box.number, frame=frame)
            continue
        store(box, value_of(key, frame), given, node, frame)
    return frozenset({box})


def spread(given: Value, *, content_number: int, frame: Frame) -> None:
    """Put all items of a mapping into a container."""
    content = frame.trace.boxes[content_number]
    for atom in given:
        match atom:
            case Items() | Pairs():
                content.loops.append(None)
                content.slots.append(items_of(frozenset({atom}), frame, values=True))
            case Box(number=number) if number != content_number:
                other = frame.trace.boxes[number]
                content.named.update(other.named)
                content.loops += other.loops
                content.slots += other.slots
                content.is_open = content.is_open or other.is_open
            case _:
                content.is_open = True
    if not given:
        content.is_open = True


def store(box: Box, key: Value, given: Value, node: ast.AST, frame: Frame) -> None:
    """Put a value into a dictionary that the function makes."""
    content = frame.trace.boxes[box.number]
    known = False
    for atom in key:
        if isinstance(atom, Text):
            content.named[atom.text] = content.named.get(atom.text, UNKNOWN) | given
            known = True
        elif isinstance(atom, Key):
            content.loops.append(atom.names)
            known = True
            _note_stored(given, frame)
            subjects = frame.trace.subjects(given)
            frame.emit("store", node, [s for s in subjects if not s.acted])
    content.slots.append(given)
    if not known:
        content.is_open = True


def _note_stored(given: Value, frame: Frame) -> None:
    for atom in given:
        if isinstance(atom, Box):
            frame.trace.stored.add(atom.number)


def _of_comprehension(
    node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
) -> Value:
    box, content = frame.trace.new_box()
    before = len(frame.guards)
    names = dict(frame.names)
    for part in node.generators:
        bind(part.target, items_of(value_of(part.iter, frame), frame), frame)
        for test in part.ifs:
            true, _ = tests_of(test, frame)
            value_of(test, frame)
            frame.guards += true
    if isinstance(node, ast.DictComp):
        store(box, value_of(node.key, frame), value_of(node.value, frame), node, frame)
    else:
        given = value_of(node.elt, frame)
        content.slots.append(given)
        subjects = frame.trace.subjects(given)
        frame.emit("append", node, subjects, box=box.number)
    del frame.guards[before:]
    frame.names = names
    return frozenset({box})
