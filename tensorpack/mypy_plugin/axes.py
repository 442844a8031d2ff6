"""Marks of axes in annotations: judged by the rules that the run time asks.

# Note [where mypy forgets a call]
Of `Annotated[Tensor, Axis("requests")]` mypy keeps `Tensor` alone, and of the call not
even the text. So the field's annotation is read once more from the source file, and
each type beside a mark is analyzed by itself. A mark in an alias is not seen.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mypy.fastparse import parse_type_string

from tensorpack._rules import axes, axis_refusals
from tensorpack._rules.axes import Axis, AxisMark
from tensorpack._rules.marks import attached
from tensorpack._rules.refusals import RefusedError
from tensorpack.errors import DefinitionError
from tensorpack.mypy_plugin.annotations import node_of
from tensorpack.mypy_plugin.checked_class import CheckedClass
from tensorpack.mypy_plugin.spelling import spell
from tensorpack.mypy_plugin.type_table import Inside

__all__ = ["check_axes"]

_NAMES = ("Axis", "Index", "Offsets", "Size")
_MARKS = {f"{axes.__name__}.{name}": name for name in _NAMES}


def check_axes(checked: CheckedClass, field: str, names: frozenset[str]) -> None:
    """Refuse marks of a field that cannot be.

    Args:
        checked: the class.
        field: the field.
        names: its fields.

    Raises:
        RefusedError: a mark does not fit its type, or contradicts another.
    """
    for annotated in _annotated(checked, field):
        inner, *notes = annotated.slice.elts  # type: ignore[attr-defined]  # seen there
        marks = tuple(mark for note in notes for mark in _mark_of(note, checked))
        if not marks:
            continue
        written = parse_type_string(ast.unparse(inner), "builtins.str", -1, -1)
        tp = checked.api.anal_type(written)
        if tp is None:
            continue
        attached(node_of(tp, Inside(checked)), marks, spell(tp))
        for mark in marks:
            lengths = mark.lengths if isinstance(mark, Axis) else None
            if lengths is not None and lengths not in names:
                axis_refusals.NO_LENGTHS.refuse(spell(tp), lengths=lengths)


def _annotated(checked: CheckedClass, field: str) -> Iterator[ast.Subscript]:
    """Yield each `Annotated[...]` in the annotation of a field that has marks."""
    for cls in _classes(checked.module.path).get(checked.cls.line, ()):
        for statement in cls.body:
            target = getattr(statement, "target", None)
            if not isinstance(statement, ast.AnnAssign) or not (
                isinstance(target, ast.Name) and target.id == field
            ):
                continue
            for part in ast.walk(statement.annotation):
                if (
                    isinstance(part, ast.Subscript)
                    and isinstance(part.slice, ast.Tuple)
                    and ast.unparse(part.value).endswith("Annotated")
                ):
                    yield part


@functools.lru_cache(maxsize=8)
def _classes(path: str) -> dict[int, list[ast.ClassDef]]:
    """Return the classes of a source file that has marks, by their lines."""
    found: dict[int, list[ast.ClassDef]] = {}
    try:
        text = Path(path).read_text("utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in {node.lineno, *(d.lineno for d in node.decorator_list)}:
                found.setdefault(line, []).append(node)
    return found


def _mark_of(note: ast.expr, checked: CheckedClass) -> Iterator[AxisMark]:
    """Yield the mark that a call makes, where its arguments are constants."""
    if not isinstance(note, ast.Call):
        return
    name = ast.unparse(note.func)
    symbol = checked.api.lookup_qualified(name, checked.cls, suppress_errors=True)
    fullname = symbol.node.fullname if symbol is not None and symbol.node else ""
    if fullname not in _MARKS:
        return
    try:
        given = [ast.literal_eval(argument) for argument in note.args]
        named = {k.arg or "": ast.literal_eval(k.value) for k in note.keywords}
        kind: Any = getattr(axes, _MARKS[fullname])
        yield kind(*given, **named)
    except DefinitionError as error:
        raise RefusedError(ast.unparse(note), error.problem, (error.remedy,)) from None
    except (TypeError, ValueError):
        return  # no constants, or a call that mypy itself reports
