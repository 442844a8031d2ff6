"""Methods that are about the whole object, by their names."""

import ast

from tensorpack._audit.functions import Function

__all__ = ["MOVERS", "VERBS", "is_stub", "verb_of"]

VERBS = {
    "move": {
        "to",
        "to_device",
        "to_cuda",
        "to_gpu",
        "to_cpu",
        "cuda",
        "cpu",
        "gpu",
        "npu",
        "musa",
        "mlu",
        "xpu",
        "hpu",
        "move_to",
        "move_to_device",
        "to_device_async",
        "copy_to_device",
        "copy_to_gpu",
        "copy_to_cpu",
    },
    "pin": {"pin_memory", "pin_memory_"},
    "record": {"record_stream", "_record_stream"},
    "clone": {"clone", "deep_clone", "deepcopy", "__deepcopy__", "deep_copy"},
    "copy_": {"copy_", "copy_from", "copy_from_"},
    "detach": {"detach", "detach_"},
    "share": {"share_memory_", "share_memory"},
    "size": {"nbytes", "memory_usage", "size_in_bytes", "num_bytes", "get_nbytes"},
}
"""What a method does to every tensor -> the names that it has in public code."""

MOVERS = {"move", "pin"}

_NAMES = {name: verb for verb, names in VERBS.items() for name in names}


def verb_of(function: Function) -> str:
    """Return what a method does to the whole object, or "" if it is another method."""
    if set(function.decorators) & {"staticmethod", "classmethod", "abstractmethod"}:
        return ""
    return _NAMES.get(function.name, "")


def is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method has no body of its own: it raises, or says `...`."""
    body = [
        each
        for each in node.body
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    return all(isinstance(each, ast.Raise | ast.Assert) for each in body) and (
        bool(body) or _has_ellipsis(node)
    )


def _has_ellipsis(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    last = node.body[-1]
    return (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Constant)
        and last.value.value is ...
    )
