"""The methods of payloads that leave the base out, read from `Payload` itself."""

from mypy.expandtype import expand_type
from mypy.nodes import (
    ARG_POS,
    Argument,
    Decorator,
    FuncDef,
    TypeInfo,
    Var,
)
from mypy.plugins.common import add_method_to_class
from mypy.types import (
    AnyType,
    CallableType,
    Type,
    TypeOfAny,
    TypeVarId,
    TypeVarType,
    get_proper_type,
)
from mypy.typevars import fill_typevars

from tensorpack._rules.methods import COURTESIES, METHODS
from tensorpack.mypy_plugin.checked_class import CheckedClass
from tensorpack.mypy_plugin.names import BASE

__all__ = ["add_methods"]


def add_methods(checked: CheckedClass) -> None:
    """Add the methods that `@payload` installs, unless the base shows them."""
    if checked.info.has_base(BASE):
        return
    symbol = checked.api.lookup_fully_qualified_or_none(BASE)
    if symbol is None or not isinstance(symbol.node, TypeInfo):
        return
    for name in METHODS:
        if not _writes(checked.info, name):
            _add(checked, symbol.node, name)
    for name in COURTESIES:
        if not _writes(checked.info, name) and not _has_field(checked.info, name):
            _add(checked, symbol.node, name)


def _writes(info: TypeInfo, name: str) -> bool:
    """Tell whether the class body has a name of its own."""
    symbol = info.names.get(name)
    return symbol is not None and not symbol.plugin_generated


def _has_field(info: TypeInfo, name: str) -> bool:
    """Tell whether a field, an inherited one included, has a name."""
    symbol = info.get(name)
    return symbol is not None and isinstance(symbol.node, Var)


def _add(checked: CheckedClass, base: TypeInfo, name: str) -> None:
    """Copy one method of the base into the class, with `Self` for the class."""
    node = base.names[name].node
    func = node.func if isinstance(node, Decorator) else node
    if not isinstance(func, FuncDef):
        return
    signature = get_proper_type(func.type)
    if not isinstance(signature, CallableType):
        return
    own = TypeVarType(
        "Self",
        f"{checked.info.fullname}.{name}.Self",
        TypeVarId(-1, namespace=f"{checked.info.fullname}.{name}"),
        [],
        fill_typevars(checked.info),
        AnyType(TypeOfAny.from_omitted_generics),
    )
    is_class = func.is_class
    added = add_method_to_class(
        checked.api,
        checked.cls,
        name,
        _arguments(signature, base, own),
        _as_own(signature.ret_type, base, own),
        self_type=None if is_class else own,
        tvar_def=None if is_class else own,
        is_classmethod=is_class,
    )
    made = added.func if isinstance(added, Decorator) else added
    if isinstance(made.type, CallableType):  # mypy's helper names what has no name
        made.type = made.type.copy_modified(arg_names=signature.arg_names)


def _arguments(
    signature: CallableType, base: TypeInfo, own: TypeVarType
) -> list[Argument]:
    """Copy the arguments after the first."""
    found = []
    for tp, kind, name in zip(
        signature.arg_types[1:],
        signature.arg_kinds[1:],
        signature.arg_names[1:],
        strict=True,
    ):
        tp = _as_own(tp, base, own)  # noqa: PLW2901  # the same, seen from the class
        only_position = name is None and kind is ARG_POS
        var = Var(name or "stream", tp)
        found.append(Argument(var, tp, None, kind, pos_only=only_position))
    return found


def _as_own(tp: Type, base: TypeInfo, own: TypeVarType) -> Type:
    """Replace the base's `Self` by the class's."""
    if base.self_type is None:
        return tp
    return expand_type(tp, {base.self_type.id: own})
