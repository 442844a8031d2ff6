"""The check of a payload class: each field without lifetime support is an error."""

from mypy.exprtotype import TypeTranslationError, expr_to_unanalyzed_type
from mypy.nodes import (
    CallExpr,
    Context,
    DictExpr,
    Expression,
    StrExpr,
    TypeAlias,
)
from mypy.types import Type

from tensorpack._rules import refusals
from tensorpack._rules.hints import host_hint
from tensorpack._rules.markers import Marker
from tensorpack._rules.refusals import RefusedError
from tensorpack.mypy_plugin.annotations import markers_of, node_of
from tensorpack.mypy_plugin.axes import check_axes
from tensorpack.mypy_plugin.checked_class import CheckedClass
from tensorpack.mypy_plugin.fields import (
    Field,
    cached_properties,
    fields_of,
    lost_fields,
)
from tensorpack.mypy_plugin.markers import may_be_marked
from tensorpack.mypy_plugin.names import LIFETIME
from tensorpack.mypy_plugin.spelling import spell
from tensorpack.mypy_plugin.type_table import Inside
from tensorpack.mypy_plugin.unresolved_names import unresolved_name

__all__ = ["check_fields"]


_IN_ALIAS = (
    "Or, if `{alias}` is marked by `Annotated`, write `HostOnly[...]` in it: mypy "
    "drops what `Annotated` adds in an alias."
)


def check_fields(checked: CheckedClass) -> None:
    """Report every field of a class that has no lifetime support, on its line."""
    corrections = _corrections(checked)
    fields = (*fields_of(checked), *cached_properties(checked))
    names = frozenset({*(field.name for field in fields), *checked.info.names})
    for field in fields:
        correction = corrections.get(field.name)
        if field.name in corrections and correction is None:
            continue
        tp = correction or field.type
        try:
            _read(field, tp, checked, is_corrected=correction is not None)
            if correction is None:
                check_axes(checked, field.name, names)
        except RefusedError as error:
            annotation = spell(tp) if tp is not None else field.name
            _report(checked, field.name, error, annotation, field.context)
    _check_lost(checked)


def _read(
    field: Field, tp: Type | None, checked: CheckedClass, *, is_corrected: bool
) -> None:
    """Read the type of a field.

    Raises:
        RefusedError: it has no lifetime support.
    """
    if tp is None:
        refusals.NO_ANNOTATION.refuse(field.name)
    if field.shared:
        refusals.SHARED_DEFAULT.refuse(
            field.name, kind=field.shared, annotation=spell(tp), factory=field.shared
        )
    aliases: list[TypeAlias] = []
    if field.written is not None and not is_corrected:
        unresolved = unresolved_name(field.written, checked, aliases)
        if unresolved is not None:
            refusals.UNKNOWN_NAME.refuse(unresolved)
    try:
        _read_type(field, tp, checked)
    except RefusedError as error:
        for alias in aliases:
            if may_be_marked(alias, checked.api.modules):
                error.remedies += (_IN_ALIAS.format(alias=alias.name),)
                break
        raise


def _read_type(field: Field, tp: Type, checked: CheckedClass) -> None:
    """Read the type of a field that has one."""
    markers, inner = markers_of(tp)
    if markers not in ([Marker.DERIVED], [Marker.RESIDENT]):
        hint = host_hint(checked.name, field.name, node_of(tp, Inside(checked)))
        if hint is not None:
            checked.api.note(hint, field.context, code=LIFETIME)
        return
    if markers == [Marker.DERIVED] and not field.has_default:
        refusals.NO_DEFAULT.refuse(spell(tp), field=field.name)
    if field.reads_self:
        refusals.COMPUTED_DEFAULT.refuse(spell(tp), field=field.name)
    node_of(inner, Inside(checked))


def _report(
    checked: CheckedClass,
    name: str,
    error: RefusedError,
    annotation: str,
    context: Context,
) -> None:
    sentence = error.at(name, annotation).sentence(checked.name)
    checked.api.fail(sentence, context, code=LIFETIME)


def _check_lost(checked: CheckedClass) -> None:
    """Report annotations that attrs or `dataclasses` has not made fields."""
    for base, name, var, context in lost_fields(checked):
        text = spell(var.type) if var.type is not None else name
        maker = "attrs" if "attrs" in base.metadata else ""
        if "dataclass" in base.metadata:
            maker = maker or "dataclasses"
        error = refusals.lost_field(
            name,
            text,
            owner=base.name,
            cls=checked.name,
            is_own=base is checked.info,
            maker=maker,
        )
        _report(checked, name, error, text, context)


def _corrections(checked: CheckedClass) -> dict[str, Type | None]:
    """Return the types of `@payload(fields={...})`; None where one cannot be read."""
    found: dict[str, Type | None] = {}
    if not isinstance(checked.reason, CallExpr):
        return found
    for name, given in zip(checked.reason.arg_names, checked.reason.args, strict=True):
        if name == "fields" and isinstance(given, DictExpr):
            for key, value in given.items:
                if isinstance(key, StrExpr):
                    found[key.value] = _as_type(value, checked)
    return found


def _as_type(expression: Expression, checked: CheckedClass) -> Type | None:
    """Read an expression as a type."""
    api = checked.api
    try:
        written = expr_to_unanalyzed_type(expression, api.options, api.is_stub_file)
    except TypeTranslationError:
        return None
    return api.anal_type(written)
