"""Following one method or function from its start."""

import ast

from tensorpack._audit.classes import ClassDef
from tensorpack._audit.frames import Frame, World
from tensorpack._audit.functions import Function
from tensorpack._audit.index import Method
from tensorpack._audit.statements import follow
from tensorpack._audit.trace import UNKNOWN, Kind, Trace, Whole

__all__ = ["follow_function", "follow_method"]


def follow_method(
    world: World, cls: ClassDef, method: Method, limit: int = 7
) -> Trace | None:
    """Follow a method of a class; None if its text cannot be had.

    Args:
        world: names and bodies.
        cls: the class of the object, which may be derived from the method's.
        method: the method.
        limit: how many calls inside of calls are followed.
    """
    return _follow(world, cls, method.owner, method.function, limit)


def follow_function(world: World, function: Function, limit: int = 7) -> Trace | None:
    """Follow a function of a module; None if its text cannot be had."""
    return _follow(world, None, None, function, limit)


def _follow(
    world: World,
    cls: ClassDef | None,
    owner: ClassDef | None,
    function: Function,
    limit: int,
) -> Trace | None:
    node = world.bodies.node(function)
    if node is None:
        return None
    trace = Trace(cls)
    home = world.index.home(function.path)
    frame = Frame(world, trace, function, owner, home, follow, stack=(function,))
    frame.limit = limit
    trace.visited.append((owner, function))
    parameters = list(function.parameters)
    decorators = set(function.decorators)
    if cls is not None and parameters and "staticmethod" not in decorators:
        me = parameters.pop(0)
        atom = (
            Kind(cls, is_own=True)
            if "classmethod" in decorators
            else Whole("self", cls)
        )
        frame.names[me.name] = frozenset({atom})
    for parameter in parameters:
        if parameter.kind == "kwargs":
            frame.rest = parameter.name
            frame.names[parameter.name] = UNKNOWN
            continue
        known = _class_named(world, parameter.annotation, function)
        frame.names[parameter.name] = (
            frozenset({Whole(parameter.name, known)}) if known else UNKNOWN
        )
        if known is None and not parameter.annotation and parameter.kind == "plain":
            other = cls if parameter.name == "other" else None
            frame.names[parameter.name] = frozenset({Whole(parameter.name, other)})
    follow(frame, node.body)
    trace.result = frame.result
    return trace


def _class_named(world: World, annotation: str, function: Function) -> ClassDef | None:
    """Return the audited class that an annotation names, None beside it aside."""
    if not annotation:
        return None
    home = world.index.home(function.path)
    text = annotation.strip("'\"")
    names = [part.strip() for part in text.split("|")]
    if text.startswith("Optional["):
        names = [text[len("Optional[") : -1].strip("'\" ")]
    names = [name for name in names if name != "None"]
    if len(names) != 1 or not names[0].replace(".", "").isidentifier():
        return None
    symbol = world.index.resolve(names[0], home)
    return symbol.found if isinstance(symbol.found, ClassDef) else None


def body_of(node: ast.AST) -> list[ast.stmt]:
    """Return the statements of a tree."""
    return getattr(node, "body", [])
