"""Following statements: branches, loops, assignments, returns."""

import ast

from tensorpack._audit.expressions import store, value_of
from tensorpack._audit.frames import Frame
from tensorpack._audit.guards import tests_of
from tensorpack._audit.iteration import bind, items_of
from tensorpack._audit.trace import (
    Box,
    Each,
    Guard,
    Items,
    Nothing,
    Part,
    Routine,
    Value,
    Whole,
)

__all__ = ["follow", "set_field"]


def follow(frame: Frame, body: list[ast.stmt]) -> bool:
    """Follow statements.

    Returns:
        Whether what comes after them is never reached from here.
    """
    before = len(frame.guards)
    ended = False
    for node in body:
        if _follow_one(node, frame):
            ended = True
            break
    del frame.guards[before:]
    return ended


def _follow_one(node: ast.stmt, frame: Frame) -> bool:
    match node:
        case ast.Expr(value=value):
            frame.thrown = value
            value_of(value, frame)
            frame.thrown = None
        case ast.Assign(targets=targets, value=value):
            given = value_of(value, frame)
            for target in targets:
                _assign(target, given, node, frame)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            _assign(target, value_of(value, frame), node, frame)
        case ast.AugAssign(target=target, value=value):
            _augment(target, value, node, frame)
        case ast.Return(value=value):
            frame.result |= value_of(value, frame)
            return True
        case ast.If():
            return _follow_if(node, frame)
        case ast.For() | ast.AsyncFor():
            given = items_of(value_of(node.iter, frame), frame)
            bind(node.target, given, frame)
            follow(frame, node.body)
            follow(frame, node.orelse)
        case ast.While(test=test, body=body, orelse=orelse):
            value_of(test, frame)
            follow(frame, body)
            follow(frame, orelse)
        case ast.With() | ast.AsyncWith():
            for item in node.items:
                value_of(item.context_expr, frame)
            return follow(frame, node.body)
        case ast.Try() | ast.TryStar():
            return _follow_try(node, frame)
        case ast.Match():
            return _follow_match(node, frame)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            routine = Routine(None, frame.owner, None, node)
            frame.names[name] = frozenset({routine})
        case ast.Raise():
            frame.emit("raise", node)
            return True
        case ast.Continue() | ast.Break():
            return True
        case _:
            pass
    return False


def _follow_if(node: ast.If, frame: Frame) -> bool:
    true, false = tests_of(node.test, frame)
    value_of(node.test, frame)
    before = len(frame.guards)
    frame.branches += 1
    frame.guards += true
    ended = follow(frame, node.body)
    del frame.guards[before:]
    frame.guards += false
    other = follow(frame, node.orelse) if node.orelse else False
    del frame.guards[before:]
    frame.branches -= 1
    # What comes next is reached only from the branch that does not end.
    if ended and not other:
        frame.guards += false
    elif other and not ended:
        frame.guards += true
    return ended and other


def _follow_try(node: ast.Try | ast.TryStar, frame: Frame) -> bool:
    before = frame.swallowed
    for handler in node.handlers:
        if all(
            isinstance(each, ast.Pass | ast.Continue)
            or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            for each in handler.body
        ):
            frame.swallowed = ast.unparse(handler.type) if handler.type else "all"
    ended = follow(frame, node.body)
    frame.swallowed = before
    frame.branches += 1
    for handler in node.handlers:
        follow(frame, handler.body)
    frame.branches -= 1
    follow(frame, node.orelse)
    return follow(frame, node.finalbody) or (ended and not node.handlers)


def _follow_match(node: ast.Match, frame: Frame) -> bool:
    subject = value_of(node.subject, frame)
    ended = True
    frame.branches += 1
    for case in node.cases:
        before = len(frame.guards)
        names = _classes(case.pattern)
        for atom in subject if names else ():
            if isinstance(atom, Part | Each):
                field = atom.field if isinstance(atom, Part) else ""
                frame.guards.append(Guard(field, atom.deep, "is", frozenset(names)))
        for each in ast.walk(case.pattern):
            if isinstance(each, ast.MatchAs) and each.name:
                frame.names[each.name] = subject
        ended = follow(frame, case.body) and ended
        del frame.guards[before:]
    frame.branches -= 1
    return False


def _classes(pattern: ast.pattern) -> set[str]:
    match pattern:
        case ast.MatchClass(cls=ast.Name(id=name) | ast.Attribute(attr=name)):
            return {name}
        case ast.MatchOr(patterns=patterns):
            return set().union(*map(_classes, patterns))
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return _classes(inner)
        case _:
            pass
    return set()


def _assign(target: ast.expr, given: Value, node: ast.AST, frame: Frame) -> None:
    match target:
        case ast.Attribute(value=value, attr=name):
            for atom in value_of(value, frame):
                if isinstance(atom, Whole):
                    set_field(atom, name, given, node, frame)
        case ast.Subscript(value=value, slice=key):
            _set_item(value_of(value, frame), key, given, node, frame)
        case ast.Tuple(elts=items) | ast.List(elts=items) if any(
            not isinstance(item, ast.Name) for item in items
        ):
            for item in items:
                _assign(item, items_of(given, frame), node, frame)
        case _:
            bind(target, given, frame)


def _set_item(
    base: Value, key: ast.expr, given: Value, node: ast.AST, frame: Frame
) -> None:
    named = value_of(key, frame) if not isinstance(key, ast.Slice) else frozenset()
    for atom in base:
        if isinstance(atom, Box):
            store(atom, named, given, node, frame)
        elif isinstance(atom, Items):
            kind = "live" if atom.live and atom.root == "self" else "put"
            frame.emit(kind, node, [Each(atom.root)])
        elif isinstance(atom, Part):
            frame.emit("act", node, [atom], "[]=")
        elif isinstance(atom, Whole):
            _note_boxes(given, frame)


def _note_boxes(given: Value, frame: Frame) -> None:
    for atom in frame.trace.inside(given):
        if isinstance(atom, Box):
            frame.trace.stored.add(atom.number)


def set_field(
    whole: Whole, name: str, given: Value, node: ast.AST, frame: Frame
) -> None:
    """Note that a field of an object is set."""
    _note_boxes(given, frame)
    subjects = frame.trace.subjects(given)
    own = Part(whole.root, name)
    for made in frame.trace.made if whole.root == "new" else ():
        made.given[name] = made.given.get(name, frozenset()) | given
    if subjects and not any(each.acted for each in subjects):
        frame.emit("keep", node, subjects, name)
        frame.emit("set", node, [own])
    elif given and all(isinstance(atom, Nothing | Box) for atom in given):
        if not subjects:
            frame.emit("reset", node, [own])
        else:
            frame.emit("set", node, [own])
    else:
        frame.emit("set", node, [own])


def _augment(target: ast.expr, value: ast.expr, node: ast.AST, frame: Frame) -> None:
    parts = value_of(target, frame)
    frame.emit("act", node, frame.trace.subjects(parts), "operator")
    given = value_of(value, frame)
    if isinstance(target, ast.Name):
        for atom in parts:
            if isinstance(atom, Box):
                frame.trace.boxes[atom.number].slots.append(items_of(given, frame))
