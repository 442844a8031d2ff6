"""How a message writes a type: as its author would have."""

from typing import NoReturn

from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    ProperType,
    TupleType,
    Type,
    TypeAliasType,
    TypedDictType,
    TypeOfAny,
    TypeType,
    TypeVarType,
    UninhabitedType,
    UnionType,
    get_proper_type,
)

from tensorpack.mypy_plugin.names import ALIASES
from tensorpack.mypy_plugin.nodes import refuse

__all__ = ["refuse_form", "refuse_open", "refuse_unknown", "spell"]


def spell(tp: Type) -> str:
    """Write a type without the modules of its names."""
    if isinstance(tp, TypeAliasType) and _is_kept(tp):
        return _generic(tp.alias.name if tp.alias else "", tp.args)
    return _spell_proper(get_proper_type(tp))


def _is_kept(tp: TypeAliasType) -> bool:
    """Tell whether an alias is written by its name: a marker, or one without end."""
    return tp.alias is not None and (tp.alias.fullname in ALIASES or tp.is_recursive)


def _spell_proper(tp: ProperType) -> str:
    match tp:
        case NoneType():
            return "None"
        case AnyType():
            return "Any"
        case UninhabitedType():
            return "Never"
        case UnionType(items=items):
            return " | ".join(map(spell, items))
        case LiteralType():
            return f"Literal[{tp.value_repr()}]"
        case TypeType(item=item):
            return f"type[{spell(item)}]"
        case TupleType(partial_fallback=fallback, items=items):
            if fallback.type.fullname != "builtins.tuple":
                return _spell_proper(fallback)
            return _generic("tuple", items) if items else "tuple[()]"
        case TypedDictType(fallback=fallback):
            return _spell_proper(fallback)
        case CallableType():
            return _spell_callable(tp)
        case Instance(type=info, args=args):
            given = () if all(map(_is_omitted, args)) else args
            if info.fullname == "builtins.tuple" and given:
                return f"tuple[{spell(given[0])}, ...]"
            return _generic(info.name, given)
        case TypeVarType(name=name):
            return name
        case _:
            return str(tp)


def _is_omitted(tp: Type) -> bool:
    """Tell whether mypy has put `Any` where nothing was written."""
    tp = get_proper_type(tp)
    return isinstance(tp, AnyType) and (
        tp.type_of_any == TypeOfAny.from_omitted_generics
    )


def _spell_callable(tp: CallableType) -> str:
    arguments = "..." if tp.is_ellipsis_args else f"[{_listed(tp.arg_types)}]"
    return f"Callable[{arguments}, {spell(tp.ret_type)}]"


def _generic(name: str, args: "list[Type] | tuple[Type, ...]") -> str:
    return f"{name}[{_listed(args)}]" if args else name


def _listed(types: "list[Type] | tuple[Type, ...]") -> str:
    return ", ".join(map(spell, types))


def refuse_open(name: str) -> NoReturn:
    """Refuse a type that says nothing of what is inside."""
    refuse(
        name,
        "says nothing of what is inside",
        "Name the types (`list[Tensor]`, `dict[str, Tensor]`).",
        f"Or write `Dynamic[{name}]` to have its values walked at run time.",
        f"Or write `HostOnly[{name}]` if it stays on the host.",
    )


def refuse_form(tp: ProperType) -> NoReturn:
    """Refuse what is no class: a function, a class object, a form of `typing`."""
    name = spell(tp)
    if isinstance(tp, CallableType):
        refuse(
            name,
            "is code, and nobody can tell what it holds on to",
            f"Write `HostOnly[{name}]` if it never holds device memory.",
        )
    if isinstance(tp, TypeType):
        refuse(
            name,
            "has no lifetime support",
            "Write a `LifetimeAdapter[type]`.",
            f"Or write `HostOnly[{name}]` if it never holds device memory.",
        )
    refuse(
        name,
        "is a form without lifetime support",
        f"Mark the field `HostOnly[{name}]` if it stays on the host.",
    )


def refuse_unknown(name: str) -> NoReturn:
    """Refuse a name that is not known when the class is made."""
    refuse(
        name,
        "is a name that cannot be resolved when the class is made",
        "Import it at run time and define it before the class.",
        f'Or write `Dynamic["{name}"]` to have its values walked at run time.',
        f'Or write `HostOnly["{name}"]` if it stays on the host.',
    )
