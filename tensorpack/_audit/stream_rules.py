"""Rules about streams, events and asynchronous copies in one function."""

import ast
import re
from collections.abc import Iterator

from tensorpack._audit.classes import ClassDef
from tensorpack._audit.frames import World
from tensorpack._audit.functions import Function
from tensorpack._audit.reports import Report

__all__ = ["streams"]

_WAITS = re.compile(
    r"synchronize\(|\.wait\(|wait_stream\(|wait_event\(|Event\(|\.query\("
)
_READS = re.compile(r"\.(item|tolist|numpy)\(")
_COPIES = {"to", "cuda", "to_device"}


def streams(world: World) -> Iterator[Report]:
    """Yield reports about streams."""
    for module in world.index.modules:
        for function in module.functions.values():
            if function.streams:
                yield from _judge(world, None, function)
        for cls in module.classes.values():
            for function in cls.methods.values():
                if function.streams:
                    yield from _judge(world, cls, function)


def _judge(world: World, cls: ClassDef | None, function: Function) -> Iterator[Report]:
    node = world.bodies.node(function)
    if node is None:
        return
    text = world.bodies.text(function)
    lines = world.bodies.lines(function.path)
    around = "\n".join(lines[cls.line - 1 : cls.last]) if cls else "\n".join(lines)
    yield from _on_copy_stream(node, cls, function)
    yield from _to_host(node, text, cls, function)
    yield from _handed_out(node, text, around, cls, function)


def _report(
    rule: str,
    cls: ClassDef | None,
    function: Function,
    line: int,
    *told: str,
) -> Report:
    why, confidence = told
    return Report(
        rule,
        function.path,
        line,
        cls.name if cls else "",
        function.name,
        (),
        why,
        confidence,
        (),
        function.last,
    )


def _blocks(node: ast.AST) -> Iterator[tuple[ast.With, str]]:
    """Yield each `with torch.cuda.stream(s):`, and the text of `s`."""
    for each in ast.walk(node):
        if not isinstance(each, ast.With):
            continue
        for item in each.items:
            match item.context_expr:
                case ast.Call(func=ast.Attribute(attr="stream"), args=[stream]):
                    yield each, ast.unparse(stream)
                case ast.Call(func=ast.Name(id="stream"), args=[stream]):
                    yield each, ast.unparse(stream)
                case _:
                    pass


def _copied(block: ast.With) -> dict[str, int]:
    """Return the names that a block gives new tensors to, and where."""
    found = {}
    for each in ast.walk(block):
        match each:
            case ast.Assign(
                targets=[ast.Name() | ast.Attribute() as target],
                value=ast.Call(func=ast.Attribute(attr=name)),
            ) if name in _COPIES or name in {"empty", "zeros", "empty_like"}:
                found[ast.unparse(target)] = each.lineno
    return found


def _on_copy_stream(
    node: ast.AST, cls: ClassDef | None, function: Function
) -> Iterator[Report]:
    for block, stream in _blocks(node):
        copied = _copied(block)
        for each in ast.walk(block):
            match each:
                case ast.Call(
                    func=ast.Attribute(value=target, attr="record_stream"),
                    args=[recorded],
                ) if ast.unparse(recorded) == stream:
                    name = ast.unparse(target)
                    if name not in copied:
                        continue
                    why = (
                        f"`{name}` is made on `{stream}` and recorded on the same "
                        "stream, which does nothing: record the stream that reads it."
                    )
                    yield _report("TP117", cls, function, each.lineno, why, "high")


def _is_host(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str() as text):
            return text.startswith("cpu")
        case ast.Call(
            func=ast.Attribute(attr="device"), args=[ast.Constant(value="cpu")]
        ):
            return True
        case _:
            pass
    return False


def _to_host(
    node: ast.AST, text: str, cls: ClassDef | None, function: Function
) -> Iterator[Report]:
    if _WAITS.search(text):
        return
    for each in ast.walk(node):
        match each:
            case ast.Call(func=ast.Attribute(attr="to"), args=args, keywords=keywords):
                named = {one.arg: one.value for one in keywords}
            case _:
                continue
        flag = named.get("non_blocking")
        device = named.get("device", args[0] if args else None)
        is_async = isinstance(flag, ast.Constant) and flag.value is True
        if not is_async or device is None or not _is_host(device):
            continue
        reads = _READS.search(text.partition("non_blocking")[2])
        why = (
            "the copy to the host is asynchronous and nothing in this function waits "
            "for it: whoever reads it may read what was there before."
        )
        confidence = "high" if reads else "medium"
        yield _report("TP118", cls, function, each.lineno, why, confidence)
        return


def _handed_out(
    node: ast.AST, text: str, around: str, cls: ClassDef | None, function: Function
) -> Iterator[Report]:
    if "record_stream" in around or not re.search(r"\brecord(_event)?\(", text):
        return
    for block, stream in _blocks(node):
        copied = _copied(block)
        if not copied or "non_blocking" not in ast.unparse(block):
            continue
        name, line = next(iter(copied.items()))
        why = (
            f"`{name}` is made on the side stream `{stream}` and handed out with an "
            "event, which orders the streams; nothing records it on the stream that "
            "reads it."
        )
        yield _report("TP119", cls, function, line, why, "medium")
        return
