"""Calls: of the class's own methods, of its constructor, of helpers, of tensors."""

import ast
from collections.abc import Callable

from tensorpack._audit.builtin_calls import of_builtin
from tensorpack._audit.frames import Frame
from tensorpack._audit.iteration import items_of
from tensorpack._audit.trace import (
    UNKNOWN,
    Box,
    Each,
    Items,
    Kind,
    Made,
    Names,
    Nothing,
    Pairs,
    Part,
    Routine,
    Value,
    Whole,
    acted,
    deeper,
)
from tensorpack._audit.unknown_calls import READERS, Arguments, of_unknown

__all__ = ["enter", "of_call"]

Evaluator = Callable[[ast.expr, Frame], Value]

_ASKS = {
    "dim",
    "size",
    "numel",
    "element_size",
    "is_pinned",
    "get_device",
    "nelement",
    "is_contiguous",
    "index",
    "count",
    "startswith",
    "endswith",
    "data_ptr",
    "is_floating_point",
}
_CHANGES = {"replace", "_replace", "evolve", "model_copy", "structs.replace"}


def of_call(node: ast.Call, frame: Frame, evaluate: Evaluator) -> Value:
    """Return what a call gives, and note what it does."""
    thrown = frame.thrown is node
    frame.thrown = None
    if (method := _of_super(node, frame)) is not None:
        callee: Value = method
        base: Value = UNKNOWN
    elif isinstance(node.func, ast.Attribute):
        base = evaluate(node.func.value, frame)
        callee = _callee_of(node.func, base, frame, evaluate)
    else:
        base = UNKNOWN
        callee = evaluate(node.func, frame)
    given = _arguments(node, frame, evaluate)
    name = _name(node.func)
    found = of_builtin(
        name, node, base=base, given=given.plain, frame=frame, evaluate=evaluate
    )
    if found is not None:
        return found
    result = _of_change(name, node, base, given, frame)
    if result is not None:
        return result
    result = UNKNOWN
    followed = False
    for atom in callee:
        if isinstance(atom, Kind):
            result |= construct(atom, node, given, frame)
            followed = True
        elif isinstance(atom, Routine):
            result |= enter(atom, node, given, frame)
            followed = True
    subjects = frame.trace.subjects(base)
    if subjects:
        return _of_method(name, node, subjects, given, frame, thrown=thrown)
    if followed:
        return result
    return of_unknown(name, node, base, given, frame)


def _name(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _callee_of(
    func: ast.Attribute, base: Value, frame: Frame, evaluate: Evaluator
) -> Value:
    if any(isinstance(atom, Whole | Kind) for atom in base):
        return evaluate(func, frame)
    if base:
        return UNKNOWN
    return evaluate(func, frame)


def _of_super(node: ast.Call, frame: Frame) -> Value | None:
    """Return the method that `super().m` finds; None if it is no such call."""
    match node.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if (
            frame.trace.cls is not None
        ):
            frame.emit("super", node, name=name)
            index = frame.world.index
            method = index.method(frame.trace.cls, name, frame.owner or frame.trace.cls)
            me = Whole("self", frame.trace.cls)
            if method is not None:
                return frozenset({Routine(method.function, method.owner, me)})
            strange = index.strange_bases(frame.trace.cls)
            if strange - {"ABC", "abc.ABC", "object", "Generic", "typing.Generic"}:
                frame.emit("escape", node, name=name)
            return UNKNOWN
    return None


def _arguments(node: ast.Call, frame: Frame, evaluate: Evaluator) -> Arguments:
    given = Arguments()
    for arg in node.args:
        if isinstance(arg, ast.Starred):
            given.starred.append(evaluate(arg.value, frame))
        else:
            given.plain.append(evaluate(arg, frame))
    for keyword in node.keywords:
        value = evaluate(keyword.value, frame)
        if keyword.arg is None:
            given.spread.append((keyword.value, value))
        else:
            given.named[keyword.arg] = value
    return given


def _of_change(
    name: str, node: ast.Call, base: Value, given: Arguments, frame: Frame
) -> Value | None:
    """Return the new object of `replace(x, ...)` and its kin; None if it is none."""
    if name not in _CHANGES:
        return None
    wholes = [atom for atom in base if isinstance(atom, Whole)]
    if not wholes and given.plain:
        wholes = [atom for atom in given.plain[0] if isinstance(atom, Whole)]
    for whole in wholes:
        if whole.cls is None or frame.world.index.method(whole.cls, name):
            continue
        made = Made(whole.cls, "replace", node.lineno, frame.function.path)
        _give(made, given, frame)
        frame.trace.made.append(made)
        return frozenset({Whole("new", whole.cls)})
    return None


def construct(kind: Kind, node: ast.Call, given: Arguments, frame: Frame) -> Value:
    """Note that an object of a class is made."""
    made = Made(kind.cls, "constructor", node.lineno, frame.function.path)
    names = _order(kind, frame)
    for name, value in zip(names, given.plain, strict=False):
        made.given[name] = value
    for value in given.starred:
        items = items_of(value, frame)
        each = [atom for atom in items if isinstance(atom, Each)]
        made.loops += [atom.names for atom in each]
        made.is_open = made.is_open or not each
    _give(made, given, frame)
    frame.trace.made.append(made)
    for value in [*made.given.values(), *given.starred]:
        subjects = frame.trace.subjects(value)
        kept = [each for each in subjects if not each.acted]
        if kept and len(kept) == len(subjects):
            frame.emit("keep", node, kept)
        for atom in frame.trace.inside(value):
            if isinstance(atom, Box):
                frame.trace.stored.add(atom.number)
    root = "new" if kind.cls is frame.trace.cls or kind.is_own else "other"
    return frozenset({Whole(root, kind.cls)})


def _give(made: Made, given: Arguments, frame: Frame) -> None:
    parameters = {
        own.parameter: name
        for name, (own, _) in frame.world.index.fields(made.cls).items()
        if own.parameter
    }
    for name, value in given.named.items():
        made.given[parameters.get(name, name)] = value
    for node, value in given.spread:
        if isinstance(node, ast.Name) and node.id == frame.rest and not value:
            made.has_rest = True
            continue
        known = False
        for atom in value:
            match atom:
                case Items() | Pairs():
                    made.loops.append(None)
                    known = True
                case Box(number=number):
                    content = frame.trace.boxes[number]
                    for name, inner in content.named.items():
                        made.given[parameters.get(name, name)] = inner
                    made.loops += content.loops
                    made.is_open = made.is_open or content.is_open
                    known = True
                case Nothing():
                    known = True
                case _:
                    pass
        made.is_open = made.is_open or not known


def _order(kind: Kind, frame: Frame) -> list[str]:
    """Return the fields in the order of the positional arguments."""
    index = frame.world.index
    fields = index.fields(kind.cls)
    init = index.method(kind.cls, "__init__") or index.method(kind.cls, "__new__")
    if init is None:
        return [name for name, (own, _) in fields.items() if own.parameter]
    by_parameter = {own.parameter: name for name, (own, _) in fields.items()}
    return [
        by_parameter.get(parameter.name, f"<{parameter.name}>")
        for parameter in init.function.parameters[1:]
        if parameter.kind == "plain"
    ]


def _of_method(
    name: str,
    node: ast.Call,
    subjects: list[Part | Each],
    given: Arguments,
    frame: Frame,
    *,
    thrown: bool,
) -> Value:
    """Return what a method of a field's value gives."""
    others = frame.trace.subjects(given.all())
    if name in _ASKS:
        frame.emit("ask", node, subjects, name)
        return UNKNOWN
    if name in READERS:
        return deeper(frozenset(subjects)) | (
            given.plain[1] if len(given.plain) > 1 else UNKNOWN
        )
    frame.emit("act", node, subjects, name)
    if others:
        frame.emit("act", node, others, name)
    if thrown:
        frame.emit("thrown", node, subjects, name)
    return acted([*subjects, *others])


def enter(routine: Routine, node: ast.Call, given: Arguments, frame: Frame) -> Value:
    """Follow a function with the arguments of a call."""
    tree, function = routine.node, routine.function
    if function is not None:
        if function in frame.stack:
            return _again(function, node, given, frame)
        tree = frame.world.bodies.node(function)
    worth = routine.me is not None or any(
        isinstance(atom, Whole | Part | Each | Items | Pairs | Names | Kind)
        for atom in frame.trace.inside(given.all())
    )
    if tree is None or not worth or len(frame.stack) > frame.limit:
        return of_unknown(
            function.name if function else "", node, UNKNOWN, given, frame
        )
    inner = Frame(
        frame.world,
        frame.trace,
        function or frame.function,
        routine.owner,
        frame.world.index.home(function.path) if function else frame.module,
        frame.run,
        guards=list(frame.guards),
        swallowed=frame.swallowed,
        branches=0 if function else frame.branches,
        stack=(*frame.stack, function) if function else frame.stack,
        limit=frame.limit,
    )
    if function is None:
        inner.names = dict(frame.names)
        if tree in {each.node for each in _open_nodes(frame)}:
            return _again(frame.function, node, given, frame)
        inner.names["<open>"] = frame.names.get("<open>", UNKNOWN) | {routine}
    elif function not in [each for _, each in frame.trace.visited]:
        frame.trace.visited.append((routine.owner, function))
    args = getattr(tree, "args", None)
    if isinstance(args, ast.arguments):
        _bind_arguments(args, routine, given, inner)
    body = getattr(tree, "body", [])
    if isinstance(body, list):
        frame.run(inner, body)
    else:
        frame.run(inner, [ast.copy_location(ast.Return(body), body)])
    return inner.result


def _open_nodes(frame: Frame) -> list[Routine]:
    opened = frame.names.get("<open>", UNKNOWN)
    return [atom for atom in opened if isinstance(atom, Routine)]


def _again(function: object, node: ast.Call, given: Arguments, frame: Frame) -> Value:
    """Note what a function that calls itself does to its arguments: the same."""
    subjects = frame.trace.subjects(given.all())
    frame.emit("act", node, subjects, getattr(function, "name", ""))
    return acted(subjects)


def _bind_arguments(
    args: ast.arguments, routine: Routine, given: Arguments, inner: Frame
) -> None:
    plain = list(given.plain)
    plain += [items_of(value, inner) for value in given.starred]
    if routine.me is not None and "staticmethod" not in (
        routine.function.decorators if routine.function else ()
    ):
        is_class = routine.function and "classmethod" in routine.function.decorators
        if isinstance(routine.me, Whole):
            me = (
                Kind(routine.me.cls, is_own=True)
                if is_class and routine.me.cls
                else routine.me
            )
            plain.insert(0, frozenset({me}))
        elif is_class:
            plain.insert(0, frozenset({routine.me}))
    names = [arg.arg for arg in [*args.posonlyargs, *args.args]]
    named = dict(given.named)
    for at, name in enumerate(names):
        if at < len(plain):
            inner.names[name] = plain[at]
        elif name in named:
            inner.names[name] = named.pop(name)
        else:
            inner.names[name] = UNKNOWN
    for arg in args.kwonlyargs:
        inner.names[arg.arg] = named.pop(arg.arg, UNKNOWN)
    if args.vararg:
        box, content = inner.trace.new_box()
        content.slots += plain[len(names) :]
        inner.names[args.vararg.arg] = frozenset({box})
    if args.kwarg:
        box, content = inner.trace.new_box()
        content.named.update(named)
        content.is_open = bool(given.spread)
        inner.names[args.kwarg.arg] = frozenset({box})
