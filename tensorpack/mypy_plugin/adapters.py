"""Which types have an adapter, and which classes are payloads, as far as it is known.

The rule is that of the run time, made static: an adapter counts where its module has
certainly run before the class is made. That is: above the class in its own module, in
a module that this one imports, in the type's own module, in one that the settings name.
"""

from collections.abc import Callable, Iterator

from mypy.nodes import MypyFile, TypeInfo
from mypy.types import Instance, TupleType, get_proper_type

from tensorpack.mypy_plugin.calls import named_in_calls
from tensorpack.mypy_plugin.checked_class import CheckedClass
from tensorpack.mypy_plugin.names import (
    ADAPTER,
    BASE,
    PAYLOAD,
    READY_ADAPTERS,
    REGISTER,
    TAG,
)

__all__ = ["derives_from_payload", "has_adapter", "is_payload"]


def is_payload(info: TypeInfo, checked: CheckedClass) -> bool:
    """Tell whether a class is a payload itself."""
    if info is checked.info or TAG in info.metadata or info.fullname == BASE:
        return True
    return _names(info.fullname, info, checked, _adopted)


def derives_from_payload(info: TypeInfo) -> bool:
    """Tell whether a class has a payload among its bases."""
    return any(TAG in b.metadata or b.fullname == BASE for b in info.mro[1:])


def has_adapter(info: TypeInfo, checked: CheckedClass) -> bool:
    """Tell whether a class has an adapter, its own or a base's."""
    for base in info.mro[:-1]:
        if base.fullname in READY_ADAPTERS:
            return True
        if _names(base.fullname, base, checked, _adapted):
            return True
    return False


_Named = Callable[[MypyFile, int | None], Iterator[str]]


def _names(fullname: str, info: TypeInfo, checked: CheckedClass, named: _Named) -> bool:
    """Tell whether a module that counts names a class."""
    if fullname in named(checked.module, checked.cls.line):
        return True
    return any(fullname in named(module, None) for module in checked.searched(info))


def _adopted(module: MypyFile, before: int | None) -> Iterator[str]:
    yield from named_in_calls(module, PAYLOAD, before)


def _adapted(module: MypyFile, before: int | None) -> Iterator[str]:
    yield from named_in_calls(module, REGISTER, before)
    for name, symbol in list(module.names.items()):
        node = symbol.node
        if not isinstance(node, TypeInfo) or node.module_name != module.fullname:
            continue
        if "@" in name and before is None:  # stands in a function of another module
            continue
        if before is None or node.line < before:
            yield from _adapted_by(node)


def _adapted_by(info: TypeInfo) -> Iterator[str]:
    """Give the class that an adapter class names in its base, if it is one."""
    for base in info.bases:
        if base.args and any(b.fullname == ADAPTER for b in base.type.mro):
            named = get_proper_type(base.args[0])
            if isinstance(named, TupleType):
                named = named.partial_fallback
            if isinstance(named, Instance):
                yield named.type.fullname
