"""Reading attributes and items of values."""

import ast
from dataclasses import replace

from tensorpack._audit.frames import Frame
from tensorpack._audit.functions import Function
from tensorpack._audit.modules import Module
from tensorpack._audit.trace import (
    UNKNOWN,
    Box,
    Each,
    Items,
    Key,
    Kind,
    Names,
    Pairs,
    Part,
    Routine,
    Text,
    Value,
    Whole,
    acted,
)

__all__ = ["of_attribute", "of_item", "part_of"]

_NAMES = {
    "__annotations__",
    "__attrs_attrs__",
    "__dataclass_fields__",
    "__match_args__",
    "__pydantic_fields__",
    "__struct_fields__",
    "_fields",
    "model_fields",
    "__slots__",
}
_LABELS = {"name", "key"}
_ASKED = {
    "shape",
    "device",
    "dtype",
    "is_cuda",
    "is_cpu",
    "ndim",
    "requires_grad",
    "layout",
    "itemsize",
}


def of_attribute(node: ast.Attribute, base: Value, frame: Frame) -> Value:
    """Return what an attribute of a value gives."""
    found: Value = UNKNOWN
    for atom in base:
        match atom:
            case Whole():
                found |= part_of(atom, node.attr, node, frame)
            case Part() | Each():
                if node.attr not in _ASKED:
                    found |= frozenset({replace(atom, deep=True)})
            case Key():
                if node.attr in _LABELS:
                    found |= frozenset({atom})
            case Kind():
                found |= _of_class(node.attr, frame, atom)
            case Items(root=root, acted=done):
                # The methods of a dictionary are told by `of_call`.
                if node.attr == "__dict__":
                    found |= frozenset({Items(root, live=True, acted=done)})
            case _:
                pass
    if not base:
        found = _of_path(node, frame)
    return found


def _of_path(node: ast.Attribute, frame: Frame) -> Value:
    """Return what a dotted name of a module means."""
    try:
        dotted = ast.unparse(node)
    except RecursionError:
        return UNKNOWN
    head = dotted.partition(".")[0]
    if head in frame.names or not dotted.replace(".", "").isidentifier():
        return UNKNOWN
    symbol = frame.world.index.resolve(dotted, frame.module)
    match symbol.found:
        case None | Module():
            return UNKNOWN
        case Function() as function:
            return frozenset({Routine(function)})
        case cls:
            return frozenset({Kind(cls)})


def _of_class(name: str, frame: Frame, kind: Kind) -> Value:
    index = frame.world.index
    if name in _NAMES:
        return frozenset({Names("self")})
    texts = index.constant(kind.cls, name)
    if texts is not None:
        return _texts(texts, frame)
    method = index.method(kind.cls, name)
    if method is not None:
        return frozenset({Routine(method.function, method.owner, kind)})
    return UNKNOWN


def _texts(texts: tuple[str, ...], frame: Frame) -> Value:
    box, content = frame.trace.new_box()
    content.slots += [frozenset({Text(text)}) for text in texts]
    return frozenset({box})


def part_of(whole: Whole, name: str, node: ast.AST, frame: Frame) -> Value:
    """Return what an attribute of an object gives."""
    index = frame.world.index
    if name == "__dict__":
        return frozenset({Items(whole.root, live=True)})
    if name == "__slots__" and whole.cls is not None:
        slots = {slot for base in index.mro(whole.cls)[:1] for slot in base.slots or ()}
        names = frozenset(slots) if slots else None
        return frozenset({Names(whole.root, names)})
    if name in _NAMES:
        return frozenset({Names(whole.root)})
    if whole.cls is None:
        return _noted(Part(whole.root, name), node, frame)
    if name == "__class__":
        return frozenset({Kind(whole.cls, is_own=True)})
    if name in index.fields(whole.cls):
        return _noted(Part(whole.root, name), node, frame)
    method = index.method(whole.cls, name)
    if method is not None:
        routine = Routine(method.function, method.owner, whole)
        decorators = set(method.function.decorators)
        if decorators & {"property", "cached_property"}:
            return frozenset({routine, Text("__property__")})
        return frozenset({routine})
    texts = index.constant(whole.cls, name)
    if texts is not None:
        return _texts(texts, frame)
    return _noted(Part(whole.root, name), node, frame)


def _noted(part: Part, node: ast.AST, frame: Frame) -> Value:
    frame.emit("mention", node, [part])
    return frozenset({part})


def of_item(node: ast.AST, base: Value, key: Value, frame: Frame) -> Value:
    """Return what an item of a value gives."""
    found: Value = UNKNOWN
    for atom in base:
        match atom:
            case Part() | Each():
                frame.emit("act", node, [atom], "[]")
                found |= acted([replace(atom, deep=True)])
            case Items(root=root, acted=done):
                for each in key:
                    if isinstance(each, Text):
                        found |= frozenset({Part(root, each.text, done)})
                    else:
                        names = each.names if isinstance(each, Key) else None
                        found |= frozenset({Each(root, names, done)})
            case Whole(root=root):
                for each in key:
                    if isinstance(each, Text):
                        found |= _noted(Part(root, each.text), node, frame)
                    elif isinstance(each, Key):
                        found |= frozenset({Each(root, each.names)})
            case Box(number=number):
                content = frame.trace.boxes[number]
                texts = {each.text for each in key if isinstance(each, Text)}
                named = [content.named[text] for text in texts if text in content.named]
                for slot in named or content.slots:
                    found |= slot
            case Pairs(root=root, acted=done):
                found |= frozenset({Each(root, None, done)})
            case Names() | Key():
                found |= frozenset({Key(atom.root, atom.names)})
            case _:
                pass
    return found
