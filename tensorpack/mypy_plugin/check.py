"""The check of a payload class: each field without lifetime support is an error."""

from mypy.exprtotype import TypeTranslationError, expr_to_unanalyzed_type
from mypy.nodes import (
    CallExpr,
    Context,
    DictExpr,
    Expression,
    StrExpr,
    TypeAlias,
    TypeInfo,
)
from mypy.tvar_scope import TypeVarLikeScope
from mypy.types import Type, TypeAliasType

from tensorpack.mypy_plugin.fields import Field, fields_of, lost_fields
from tensorpack.mypy_plugin.late import late_name
from tensorpack.mypy_plugin.markers import marker_of
from tensorpack.mypy_plugin.names import ALIASES, LIFETIME, Marker
from tensorpack.mypy_plugin.nodes import Refusal, RefusedError, refuse
from tensorpack.mypy_plugin.reading import Inside, node_of
from tensorpack.mypy_plugin.remedies import refuse_unknown
from tensorpack.mypy_plugin.scene import Scene
from tensorpack.mypy_plugin.spelling import spell

__all__ = ["check_fields"]


def check_fields(scene: Scene) -> None:
    """Report every field of a class that has no lifetime support, on its line."""
    corrections = _corrections(scene)
    for field in fields_of(scene):
        correction = corrections.get(field.name)
        if field.name in corrections and correction is None:
            continue
        tp = correction or field.type
        try:
            _read(field, tp, scene, is_corrected=correction is not None)
        except RefusedError as error:
            annotation = spell(tp) if tp is not None else field.name
            _report(scene, field.name, error.refusal, annotation, field.context)
    _check_lost(scene)
    scene.leave()


def _read(field: Field, tp: Type | None, scene: Scene, *, is_corrected: bool) -> None:
    """Read the type of a field.

    Raises:
        RefusedError: it has no lifetime support.
    """
    if not field.is_kept:
        refuse(
            f"InitVar[{spell(tp)}]" if tp else field.name,
            "is given to `__init__` alone and kept nowhere, so it cannot travel",
            "Make it a field, or compute from it before the class is made.",
        )
    if tp is None:
        way = f"Write `{field.name}: Tensor`, say."
        refuse(field.name, "has no annotation", way)
    if field.written is not None and not is_corrected:
        aliases: list[TypeAlias] = []
        late = late_name(field.written, scene, aliases)
        if late is not None:
            refuse_unknown(late)
        if aliases:
            tp = _marked_again(field.written, aliases, scene) or tp
    inner = _derived_from(tp)
    if inner is None:
        node_of(tp, Inside(scene))
        return
    if not field.has_default:
        refuse(
            spell(tp),
            "needs a default, which a moved copy gets in its place",
            f"Write `{field.name}: {spell(tp)} = None`.",
        )
    node_of(inner, Inside(scene))


def _marked_again(written: Type, aliases: list[TypeAlias], scene: Scene) -> Type | None:
    """Analyze an annotation again if it names an alias that lost its marker."""
    markers = {a.fullname: marker_of(a, scene.api.modules) for a in aliases}
    found = {name: marker for name, marker in markers.items() if marker is not None}
    if not found:
        return None
    scene.marked.update(found)
    variables = TypeVarLikeScope()
    for variable in scene.cls.type_vars:
        variables.bind_existing(variable)
    return scene.api.anal_type(written, tvar_scope=variables)


def _derived_from(tp: Type) -> Type | None:
    """Give `T` of `Derived[T]`, else None."""
    while isinstance(tp, TypeAliasType) and tp.alias is not None:
        if ALIASES.get(tp.alias.fullname) is Marker.DERIVED:
            return tp._expand_once()
        tp = tp._expand_once()
    return None


def _report(
    scene: Scene, name: str, refusal: Refusal, annotation: str, context: Context
) -> None:
    where = f"{scene.info.name.partition('@')[0]}.{name}"
    scene.api.fail(refusal.sentence(where, annotation), context, code=LIFETIME)


def _check_lost(scene: Scene) -> None:
    """Report annotations that attrs or `dataclasses` has not made fields."""
    own = scene.info.name.partition("@")[0]
    for base, name, var, context in lost_fields(scene):
        text = spell(var.type) if var.type is not None else name
        way = _how_to_be_field(scene.info, base, name, text)
        reason = (
            f"is annotated in `{base.name}` but is no field of `{own}`, so its value "
            "would be lost"
        )
        host = f"Or write `ClassVar[{text}]` if it belongs to the class."
        _report(scene, name, Refusal(text, reason, (way, host)), text, context)


def _how_to_be_field(info: TypeInfo, base: TypeInfo, name: str, text: str) -> str:
    """Say what makes a field of an annotation, by what made the classes."""
    own = info.name.partition("@")[0]
    if base is info:
        return f"Write `{name}: {text} = attrs.field(...)`, as for the other fields."
    if "attrs" in base.metadata:
        return f"Decorate `{own}` with `@attrs.define` under `@payload`."
    if "dataclass" in base.metadata:
        return f"Decorate `{own}` with `@dataclasses.dataclass` under `@payload`."
    return f"Decorate `{base.name}` with `@attrs.define` or `@payload`."


def _corrections(scene: Scene) -> dict[str, Type | None]:
    """Give the types of `@payload(fields={...})`; None where one cannot be read."""
    found: dict[str, Type | None] = {}
    if not isinstance(scene.reason, CallExpr):
        return found
    for name, given in zip(scene.reason.arg_names, scene.reason.args, strict=True):
        if name == "fields" and isinstance(given, DictExpr):
            for key, value in given.items:
                if isinstance(key, StrExpr):
                    found[key.value] = _as_type(value, scene)
    return found


def _as_type(expression: Expression, scene: Scene) -> Type | None:
    """Read an expression as a type."""
    api = scene.api
    try:
        written = expr_to_unanalyzed_type(expression, api.options, api.is_stub_file)
    except TypeTranslationError:
        return None
    return api.anal_type(written)
