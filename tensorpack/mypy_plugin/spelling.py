"""How a message writes a type: as its author would have."""

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

__all__ = ["is_omitted", "spell"]


def spell(tp: Type) -> str:
    """Write a type without the modules of its names."""
    if isinstance(tp, TypeAliasType) and _is_kept(tp):
        return _generic(tp.alias.name if tp.alias else "", tp.args)
    return _spell_proper(get_proper_type(tp))


def _is_kept(tp: TypeAliasType) -> bool:
    """Return whether an alias is written by its name: a marker, or one without end."""
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
            given = () if all(is_omitted(arg, tp) for arg in args) else args
            if info.fullname == "builtins.tuple" and given:
                return f"tuple[{spell(given[0])}, ...]"
            return _generic(info.name, given)
        case TypeVarType(name=name):
            return name
        case _:
            return str(tp)


def is_omitted(argument: Type, tp: Instance) -> bool:
    """Return whether mypy itself has put in a parameter of a type."""
    argument = get_proper_type(argument)
    if not isinstance(argument, AnyType):
        return False
    if argument.type_of_any == TypeOfAny.from_error:
        # So it is under `disallow_any_generics`. Another error has its own place.
        return (argument.line, argument.column) == (tp.line, tp.column)
    return argument.type_of_any == TypeOfAny.from_omitted_generics


def _spell_callable(tp: CallableType) -> str:
    arguments = "..." if tp.is_ellipsis_args else f"[{_listed(tp.arg_types)}]"
    return f"Callable[{arguments}, {spell(tp.ret_type)}]"


def _generic(name: str, args: "list[Type] | tuple[Type, ...]") -> str:
    return f"{name}[{_listed(args)}]" if args else name


def _listed(types: "list[Type] | tuple[Type, ...]") -> str:
    return ", ".join(map(spell, types))
