"""What an annotation may carry, from its text: tensors, perhaps some, or none."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from tensorpack._audit.classes import ClassDef, Field
from tensorpack._audit.index import Index, Symbol, parsed
from tensorpack._audit.modules import Module

__all__ = ["Arm", "Carries", "Reader"]


class Carries(IntEnum):
    """Whether values may hold tensors."""

    NO = 0
    MAY = 1
    YES = 2


@dataclass(frozen=True, slots=True)
class Arm:
    """One alternative of an annotation.

    Attributes:
        kind: "tensor", "box" (a container), "object" (of a class) or "any".
        carries: whether its values hold tensors.
        name: last name of the type.
        cls: the audited class.
    """

    kind: str
    carries: Carries
    name: str
    cls: ClassDef | None = field(default=None, compare=False)


_TENSORS = {
    "Tensor",
    "Parameter",
    "Buffer",
    "LongTensor",
    "IntTensor",
    "FloatTensor",
    "BoolTensor",
    "HalfTensor",
    "ByteTensor",
    "CharTensor",
    "ShortTensor",
    "DoubleTensor",
    "BFloat16Tensor",
    "DTensor",
    "ShardedTensor",
    "NestedTensor",
}
_OBJECTS = {
    "KeyedJaggedTensor",
    "JaggedTensor",
    "KeyedTensor",
    "PackedSequence",
    "TensorDict",
    "TensorDictBase",
    "SparseTensor",
    "BatchEncoding",
    "BatchFeature",
    "TensorFrame",
}
_SHOW_TENSORS = {"to", "to_device", "cuda", "record_stream", "pin_memory", "clone"}
"""Methods by which a plain class shows that it is about its tensors."""

_JAXTYPING = {
    "Float",
    "Int",
    "Bool",
    "Shaped",
    "Num",
    "Integer",
    "UInt",
    "Inexact",
    "Complex",
    "Float32",
    "Float16",
    "BFloat16",
    "Int32",
    "Int64",
    "UInt8",
    "Real",
    "Key",
}
_BOXES = {
    "list",
    "tuple",
    "dict",
    "set",
    "frozenset",
    "deque",
    "List",
    "Tuple",
    "Dict",
    "Set",
    "FrozenSet",
    "Deque",
    "Sequence",
    "MutableSequence",
    "Mapping",
    "MutableMapping",
    "Iterable",
    "Collection",
    "OrderedDict",
    "DefaultDict",
    "defaultdict",
}
_THROUGH = {
    "Optional",
    "Union",
    "Annotated",
    "Final",
    "Required",
    "NotRequired",
    "Dynamic",
    "Derived",
    "ReadOnly",
}
_ANY = {"Any", "object", "TypeVar", "Self", "T", "Generic", "Protocol", "TensorLike"}
_HOST = {
    "int",
    "float",
    "str",
    "bool",
    "bytes",
    "complex",
    "None",
    "NoneType",
    "Callable",
    "Type",
    "type",
    "Literal",
    "LiteralString",
    "dtype",
    "device",
    "Size",
    "Generator",
    "Stream",
    "Event",
    "ndarray",
    "NDArray",
    "ArrayLike",
    "Path",
    "UUID",
    "datetime",
    "timedelta",
    "Enum",
    "IntEnum",
    "Module",
    "ModuleList",
    "ModuleDict",
    "ProcessGroup",
    "DeviceMesh",
    "Logger",
    "Lock",
    "RLock",
    "Thread",
    "Future",
    "HostOnly",
    "Borrowed",
    "InitVar",
    "ClassVar",
    "range",
    "slice",
    "Number",
    "Pattern",
    "CUDAGraph",
    "Decimal",
    "memoryview",
    "bytearray",
    "SimpleNamespace",
    "Namespace",
    "DataFrame",
    "Optimizer",
    "PathLike",
    "Counter",
}
_HOST_MODULES = ("numpy", "np", "pathlib", "logging", "threading", "datetime", "enum")
_MODULES = {"Module", "ModuleList", "ModuleDict", "LightningModule", "Sequential"}


@dataclass(slots=True)
class Reader:
    """Reads annotations of the classes of an index."""

    index: Index
    _known: dict[str, Carries] = field(default_factory=dict)
    _arms: dict[tuple[str, str], tuple[Arm, ...]] = field(default_factory=dict)

    def arms(self, own: Field, cls: ClassDef) -> tuple[Arm, ...]:
        """Return the alternatives of a field that are not plain host values."""
        if not own.annotation:
            if own.hint == "tensor":
                return (Arm("tensor", Carries.YES, "Tensor"),)
            return () if own.hint == "host" else (Arm("any", Carries.MAY, "Any"),)
        return self.of_text(own.annotation, self.index.home(cls.path))

    def of_text(self, text: str, home: Module) -> tuple[Arm, ...]:
        """Return the alternatives of an annotation of a module."""
        key = (home.path, text)
        if key not in self._arms:
            self._arms[key] = ()
            node = parsed(text)
            found = self._of(node, home, 0) if node is not None else []
            self._arms[key] = tuple(dict.fromkeys(found))
        return self._arms[key]

    def carries(self, own: Field, cls: ClassDef) -> Carries:
        """Return whether a field may hold tensors."""
        arms = self.arms(own, cls)
        return max((arm.carries for arm in arms), default=Carries.NO)

    def of_class(self, cls: ClassDef) -> Carries:
        """Return whether objects of a class hold tensors."""
        if cls.key not in self._known:
            self._known[cls.key] = Carries.NO  # for classes that name each other
            if self.is_module(cls) or self.is_enum(cls):
                return Carries.NO
            found = [
                self.carries(own, owner)
                for own, owner in self.index.fields(cls).values()
            ]
            most = max(found, default=Carries.MAY)
            if most is Carries.MAY and cls.name in _OBJECTS | _TENSORS:
                most = Carries.YES
            moves = bool(cls.methods.keys() & _SHOW_TENSORS)
            if cls.kind == "plain" and most is Carries.YES and not moves:
                most = Carries.MAY
            self._known[cls.key] = most
        return self._known[cls.key]

    def is_module(self, cls: ClassDef) -> bool:
        """Return whether a class is a `torch.nn.Module`, which moves itself."""
        names = {name.rpartition(".")[2] for name in self.index.strange_bases(cls)}
        return bool(names & _MODULES) or any(
            base.name in _MODULES for base in self.index.mro(cls)
        )

    def is_enum(self, cls: ClassDef) -> bool:
        """Return whether a class is an enumeration."""
        names = {name.rpartition(".")[2] for name in self.index.strange_bases(cls)}
        return bool(names & {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})

    def _of(self, node: ast.expr, home: Module, depth: int) -> list[Arm]:
        if depth > 8:  # noqa: PLR2004 - deeper than anything written by hand
            return [Arm("any", Carries.MAY, "Any")]
        match node:
            case ast.Constant(value=str() as text):
                inner = parsed(text)
                return self._of(inner, home, depth + 1) if inner else []
            case ast.Constant():
                return []
            case ast.BinOp(left=left, right=right, op=ast.BitOr()):
                return self._of(left, home, depth) + self._of(right, home, depth)
            case ast.Subscript(value=value, slice=inside):
                return self._of_generic(value, inside, home, depth)
            case ast.Name() | ast.Attribute():
                return self._of_name(ast.unparse(node), home, depth)
            case _:
                pass
        return [Arm("any", Carries.MAY, ast.unparse(node))]

    def _of_generic(
        self, value: ast.expr, inside: ast.expr, home: Module, depth: int
    ) -> list[Arm]:
        items = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        name = ast.unparse(value).rpartition(".")[2]
        if name in _JAXTYPING:
            return self._of(items[0], home, depth + 1)
        if name in _THROUGH:
            chosen = items[:1] if name == "Annotated" else items
            return [arm for item in chosen for arm in self._of(item, home, depth + 1)]
        if name in _BOXES:
            if name in {"dict", "Dict", "Mapping", "MutableMapping", "OrderedDict"}:
                items = items[1:]
            most = self._most(items, home, depth)
            return [Arm("box", most, name)] if most else []
        if name in _HOST:
            return []
        return self._of(value, home, depth + 1)

    def _most(self, items: Iterable[ast.expr], home: Module, depth: int) -> Carries:
        found = [
            arm.carries for item in items for arm in self._of(item, home, depth + 1)
        ]
        return max(found, default=Carries.NO)

    def _of_name(self, dotted: str, home: Module, depth: int) -> list[Arm]:
        name = dotted.rpartition(".")[2]
        symbol = self.index.resolve(dotted, home)
        if isinstance(symbol.found, ClassDef):
            return self._of_class(symbol.found)
        if symbol.alias and symbol.home is not None:
            if symbol.alias == dotted:
                return [Arm("any", Carries.MAY, name)]
            inner = parsed(symbol.alias)
            return self._of(inner, symbol.home, depth + 1) if inner else []
        return _of_foreign(name, symbol)

    def _of_class(self, cls: ClassDef) -> list[Arm]:
        name = cls.name.rpartition(".")[2]
        if name in _TENSORS:
            return [Arm("tensor", Carries.YES, name, cls)]
        most = self.of_class(cls)
        if name in _OBJECTS:
            most = Carries.YES
        return [Arm("object", most, name, cls)] if most else []


def _of_foreign(name: str, symbol: Symbol) -> list[Arm]:
    """Return what a type that is not audited carries."""
    if symbol.dotted.split(".")[0] in _HOST_MODULES or name in _HOST:
        return []
    if name in _TENSORS:
        return [Arm("tensor", Carries.YES, name)]
    if name in _OBJECTS:
        return [Arm("object", Carries.YES, name)]
    if name in _BOXES:
        return [Arm("box", Carries.MAY, name)]
    if name in _ANY:
        return [Arm("any", Carries.MAY, name)]
    # Configurations and tokenizers are the most frequent classes of other projects.
    if name.endswith(("Config", "Tokenizer", "Args", "Type", "Mode", "Options")):
        return []
    return [Arm("object", Carries.MAY, name)]
