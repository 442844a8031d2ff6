"""Calls of what Python, dataclasses and attrs give for walking fields."""

import ast
from collections.abc import Callable

from tensorpack._audit.frames import Frame
from tensorpack._audit.iteration import items_of
from tensorpack._audit.trace import (
    UNKNOWN,
    Box,
    Each,
    Items,
    Key,
    Kind,
    Made,
    Names,
    Nothing,
    Pairs,
    Part,
    Text,
    Value,
    Whole,
    acted,
    deeper,
)

__all__ = ["of_builtin"]

Evaluator = Callable[[ast.expr, Frame], Value]

_NOTHING: Value = frozenset({Nothing()})
_INERT = {
    "isinstance",
    "issubclass",
    "hasattr",
    "len",
    "id",
    "print",
    "repr",
    "str",
    "bool",
    "int",
    "float",
    "any",
    "all",
    "callable",
    "hash",
    "range",
    "is_tensor",
    "min",
    "max",
    "sum",
    "debug",
    "info",
    "warning",
    "warn",
    "error",
}
_THROUGH = {"list", "tuple", "set", "sorted", "reversed", "iter", "next", "cast"}
_MAPPINGS = {"vars", "asdict", "to_dict", "_asdict", "model_dump", "__getstate__"}
_FIELDS = {"fields", "fields_dict", "payload_keys", "get_type_hints", "dir"}


def of_builtin(
    name: str,
    node: ast.Call,
    *,
    base: Value,
    given: list[Value],
    frame: Frame,
    evaluate: Evaluator,
) -> Value | None:
    """Return what a call gives; None if it is none of those known here."""
    first = given[0] if given else UNKNOWN
    on_nothing = not base
    if name in _INERT and on_nothing:
        frame.emit("ask", node, frame.trace.subjects(first), name)
        return _NOTHING
    if name in _THROUGH and on_nothing:
        value = given[-1] if name == "cast" else first
        return _through(name, value, frame)
    if name == "type" and on_nothing and len(given) == 1:
        return _class_of(first) or _NOTHING
    if name in _FIELDS:
        return _fields(first if on_nothing else base)
    if name in _MAPPINGS:
        return _mapping(name, first if on_nothing else base, frame)
    if name in {"getattr", "setattr", "__setattr__", "object_setattr"}:
        if name == "getattr":
            return _read(node, given, frame)
        return _write(node, base, given, frame)
    if name in {"items", "values", "keys"} or (name == "all_items" and base):
        return _of_mapping(name, base, frame)
    if name in {"zip", "enumerate"} and on_nothing:
        return _together(name, given, frame)
    if name in {"copy", "deepcopy"}:
        return _copied(name, node, base, given, frame)
    if name == "dict" and on_nothing:
        return _dict(node, given, frame, evaluate)
    if name == "map" and on_nothing and len(given) > 1:
        return _mapped(node, given, frame)
    if name == "__new__":
        kinds = [atom for value in [base, *given] for atom in value]
        for atom in kinds:
            if isinstance(atom, Kind):
                return frozenset({Whole("new", atom.cls)})
    if name == "update":
        return _update(node, base, frame)
    return None


def _through(name: str, value: Value, frame: Frame) -> Value:
    if name in {"iter", "next"}:
        return items_of(value, frame) if name == "next" else value
    box, content = frame.trace.new_box()
    boxes = [atom for atom in value if isinstance(atom, Box)]
    if boxes:
        return value
    inner = items_of(value, frame)
    parts = frozenset(atom for atom in value if isinstance(atom, Part | Each))
    if parts:
        return deeper(parts)
    if not value:
        return UNKNOWN
    content.slots.append(inner)
    return frozenset({box})


def _class_of(value: Value) -> Value:
    return frozenset(
        Kind(atom.cls, is_own=True)
        for atom in value
        if isinstance(atom, Whole) and atom.cls is not None
    )


def _fields(value: Value) -> Value | None:
    for atom in value:
        if isinstance(atom, Whole):
            return frozenset({Names(atom.root)})
        if isinstance(atom, Kind):
            return frozenset({Names("self")})
    return None


def _mapping(name: str, value: Value, frame: Frame) -> Value | None:
    for atom in value:
        if isinstance(atom, Whole):
            own = atom.cls and frame.world.index.method(atom.cls, name)
            if own:
                return None
            return frozenset({Items(atom.root, live=name == "vars")})
    return None


def _read(node: ast.Call, given: list[Value], frame: Frame) -> Value | None:
    """Return what `getattr(x, name)` gives."""
    if len(given) < 2:  # noqa: PLR2004 - object and name
        return None
    found: Value = UNKNOWN
    for atom in given[0]:
        match atom:
            case Whole(root=root):
                found |= _by_names(node, root, given[1], frame)
            case Kind(is_own=False) if any(isinstance(each, Key) for each in given[1]):
                if len(frame.stack) == 1:
                    frame.emit("class", node)
                found |= _NOTHING
            case Part() | Each():
                found |= deeper(frozenset({atom}))
            case _:
                pass
    return found


def _by_names(node: ast.Call, root: str, names: Value, frame: Frame) -> Value:
    found: Value = UNKNOWN
    for atom in names:
        if isinstance(atom, Text):
            part = Part(root, atom.text)
            frame.emit("mention", node, [part])
            found |= frozenset({part})
        elif isinstance(atom, Key):
            found |= frozenset({Each(root, atom.names)})
    return found or frozenset({Each(root)})


def _write(node: ast.Call, base: Value, given: list[Value], frame: Frame) -> Value:
    """Note what `setattr(x, name, value)` sets."""
    if len(given) == 2:  # noqa: PLR2004 - `self.__setattr__(name, value)`
        given = [base, *given]
    if len(given) < 3:  # noqa: PLR2004 - object, name, value
        return _NOTHING
    target, names, value = given[:3]
    subjects = frame.trace.subjects(value)
    for atom in frame.trace.inside(value):
        if isinstance(atom, Box):
            frame.trace.stored.add(atom.number)
    for atom in target:
        if not isinstance(atom, Whole):
            continue
        for each in names:
            if isinstance(each, Text):
                kept = subjects and not any(one.acted for one in subjects)
                if kept:
                    frame.emit("keep", node, subjects, each.text)
                frame.emit("set", node, [Part(atom.root, each.text)])
                for made in frame.trace.made if atom.root == "new" else ():
                    made.given[each.text] = value
            elif isinstance(each, Key):
                frame.emit("store", node, [s for s in subjects if not s.acted])
                for made in frame.trace.made if atom.root == "new" else ():
                    made.loops.append(each.names)
    return _NOTHING


def _of_mapping(name: str, base: Value, frame: Frame) -> Value | None:
    """Return what `items()`, `values()` or `keys()` of all fields gives."""
    found: Value = UNKNOWN
    for atom in base:
        match atom:
            case Items(root=root, acted=done):
                found |= _view(name, root, done=done, frame=frame)
            case Names(root=root, names=names):
                found |= frozenset({Names(root, names)})
            case Whole(root=root, cls=cls) if root != "new":
                own = frame.world.index.method(cls, name) if cls else None
                if cls is None or (own and not frame.world.index.fields(cls)):
                    found |= _view(name, root, done=False, frame=frame)
                elif own or name == "all_items":
                    return None
                else:
                    found |= _view(name, root, done=False, frame=frame)
    return found or None


def _view(name: str, root: str, *, done: bool, frame: Frame) -> Value:
    if name in {"items", "all_items"}:
        return frozenset({Pairs(root, done)})
    if name == "keys":
        return frozenset({Names(root)})
    box, content = frame.trace.new_box()
    content.slots.append(frozenset({Each(root, None, done)}))
    return frozenset({box})


def _together(name: str, given: list[Value], frame: Frame) -> Value:
    """Return pairs of what several values give, as `zip` and `enumerate` make them."""
    outer, pairs = frame.trace.new_box()
    inner, content = frame.trace.new_box()
    if name == "enumerate":
        content.slots.append(_NOTHING)
    content.slots += [
        items_of(value, frame) for value in given[: 1 if name == "enumerate" else None]
    ]
    pairs.slots.append(frozenset({inner}))
    return frozenset({outer})


def _copied(
    name: str, node: ast.Call, base: Value, given: list[Value], frame: Frame
) -> Value | None:
    value = given[0] if given else base
    for atom in value:
        if isinstance(atom, Whole) and atom.cls is not None:
            if not given and frame.world.index.method(atom.cls, name):
                return None
            mode = "deep" if name == "deepcopy" else "shallow"
            made = Made(atom.cls, mode, node.lineno, frame.function.path)
            frame.trace.made.append(made)
            return frozenset({Whole("new", atom.cls)})
        if isinstance(atom, Items):
            return frozenset({Items(atom.root, acted=name == "deepcopy")})
    subjects = frame.trace.subjects(value)
    if not subjects:
        return None
    if name == "deepcopy":
        frame.emit("act", node, subjects, name)
        return acted(subjects)
    return frozenset(subjects)


def _dict(
    node: ast.Call, given: list[Value], frame: Frame, evaluate: Evaluator
) -> Value:
    box, content = frame.trace.new_box()
    for keyword in node.keywords:
        if keyword.arg is not None:
            content.named[keyword.arg] = evaluate(keyword.value, frame)
    for value in given:
        for atom in value:
            if isinstance(atom, Items | Pairs):
                return frozenset({Items(atom.root, acted=atom.acted)})
            if isinstance(atom, Box):
                return value
            if isinstance(atom, Part | Each):
                return deeper(value)
    empty = not node.keywords and not node.args
    return frozenset({box, *_NOTHING}) if empty else frozenset({box})


def _mapped(node: ast.Call, given: list[Value], frame: Frame) -> Value:
    box, content = frame.trace.new_box()
    items: Value = UNKNOWN
    for value in given[1:]:
        items |= items_of(value, frame)
    subjects = frame.trace.subjects(items)
    frame.emit("act", node, subjects, "map")
    content.slots.append(acted(subjects))
    return frozenset({box})


def _update(node: ast.Call, base: Value, frame: Frame) -> Value | None:
    """Note that `new.__dict__.update(...)` sets fields."""
    targets = [atom for atom in base if isinstance(atom, Items)]
    if not targets:
        return None
    for made in frame.trace.made:
        made.is_open = True
    kind = "live" if targets[0].live and targets[0].root == "self" else "put"
    frame.emit(kind, node, [Each(targets[0].root)])
    return _NOTHING
