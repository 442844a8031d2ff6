"""Subclasses of payloads that forgot the decorator: their fields would be lost."""

from collections.abc import Iterator

from mypy.nodes import AssignmentStmt, ClassDef, NameExpr, Var
from mypy.plugin import ClassDefContext
from mypy.types import UnboundType

from tensorpack.errors import UndecoratedError
from tensorpack.mypy_plugin.names import BASE, TAG, UNDECORATED

__all__ = ["check_undecorated"]

_CLASS_VARIABLE = "ClassVar"


def check_undecorated(ctx: ClassDefContext) -> None:
    """Report a class with fields of its own that derives from a payload, bare."""
    info = ctx.cls.info
    if TAG in info.metadata:
        return
    payloads = [base for base in info.mro[1:] if TAG in base.metadata]
    is_family = bool(payloads) or any(base.fullname == BASE for base in info.mro[1:])
    lost = list(_own_fields(ctx.cls))
    if not is_family or not lost:
        return
    base = payloads[0].name if payloads else ""
    text = str(UndecoratedError(cls=info.name, base=base, lost=lost))
    ctx.api.fail(text, ctx.cls, code=UNDECORATED)


def _own_fields(cls: ClassDef) -> Iterator[str]:
    """Iterate the names that a class body annotates, class variables left out."""
    for statement in cls.defs.body:
        if not isinstance(statement, AssignmentStmt) or not statement.unanalyzed_type:
            continue
        target = statement.lvalues[0]
        if not isinstance(target, NameExpr) or _is_class_variable(statement, target):
            continue
        if not (target.name[:2] == target.name[-2:] == "__"):
            yield target.name


def _is_class_variable(statement: AssignmentStmt, target: NameExpr) -> bool:
    """Tell whether an annotation is `ClassVar[...]`, analyzed or not."""
    if isinstance(target.node, Var) and target.node.is_classvar:
        return True
    written = statement.unanalyzed_type
    name = written.name if isinstance(written, UnboundType) else ""
    return name.rpartition(".")[2] == _CLASS_VARIABLE
