"""A class, summarized: what makes its fields, the fields, the methods."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tensorpack._audit.comments import comment_of
from tensorpack._audit.functions import (
    Function,
    Parameter,
    function_of,
    last_name,
)

__all__ = ["ClassDef", "Field", "class_of"]

_FILLS = re.compile(r"^\s*self\.(\w+)\s*(?::[^=]+)?=(?!=)")

_MAKERS = {
    "dataclass": "dataclass",
    "define": "attrs",
    "frozen": "attrs",
    "mutable": "attrs",
    "attrs": "attrs",
    "s": "attrs",
    "attrib": "attrs",
    "dataclasses": "attrs",
    "tensorclass": "dataclass",
    "payload": "attrs",
    "struct": "dataclass",
}
_BASES = {
    "NamedTuple": "namedtuple",
    "TypedDict": "typeddict",
    "BaseModel": "pydantic",
    "Struct": "msgspec",
    "TensorClass": "dataclass",
}
_FACTORIES = {
    "arange",
    "as_tensor",
    "cat",
    "empty",
    "empty_like",
    "eye",
    "from_numpy",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "randint",
    "randn",
    "stack",
    "tensor",
    "zeros",
    "zeros_like",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field.

    Attributes:
        name: its name.
        annotation: as text, or "".
        default: "" if it must be given, else the default as text.
        parameter: the parameter of the constructor that gives it, or "".
        line: where it is declared.
        comment: what is written next to it.
        hint: "tensor" if its first value is a new tensor, "host" if it is a constant.
    """

    name: str
    annotation: str
    default: str
    parameter: str
    line: int
    comment: str = ""
    hint: str = ""


@dataclass(slots=True, eq=False)
class ClassDef:
    """A class, as its own body declares it.

    Attributes:
        name: qualified name.
        module: dotted name of its module.
        path: file.
        line: of its `class`.
        last: its last line.
        kind: what makes its fields: "dataclass", "attrs", "msgspec", "pydantic",
            "namedtuple", "typeddict", or "plain" for `self.x = ...` in `__init__`.
        bases: as text.
        fields: its own, in order.
        methods: its own, by name.
        constants: names of tuples, lists and sets of strings, and these.
        makes_init: whether its `__init__` is its own.
        slots: names in `__slots__`, or None.
        filled: attributes that it computes itself: what `__post_init__` sets, and
            private ones that a method sets.
    """

    name: str
    module: str
    path: str
    line: int
    last: int
    kind: str
    bases: tuple[str, ...]
    fields: dict[str, Field] = field(default_factory=dict)
    methods: dict[str, Function] = field(default_factory=dict)
    constants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    makes_init: bool = False
    slots: tuple[str, ...] | None = None
    filled: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The name that tells it from all others."""
        return f"{self.path}:{self.name}"


def class_of(
    node: ast.ClassDef, name: str, module: str, path: str, lines: Sequence[str]
) -> ClassDef:
    """Summarize a class."""
    bases = tuple(ast.unparse(base) for base in node.bases)
    cls = ClassDef(
        name, module, path, node.lineno, node.end_lineno or node.lineno, "", bases
    )
    cls.kind = _kind(node)
    init = None
    for item in _body(node.body):
        match item:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if "overload" in map(last_name, item.decorator_list):
                    continue
                cls.methods[item.name] = function_of(item, lines, path)
                if item.name == "__init__":
                    init = item
            case ast.AnnAssign(target=ast.Name()):
                _add_annotated(cls, item, lines)
            case ast.Assign(targets=[ast.Name(id=own)], value=value):
                _add_assigned(cls, own, value, item, lines)
            case _:
                pass
    cls.filled = frozenset(
        name
        for own in cls.methods.values()
        if own.name != "__init__"
        for line in lines[own.line - 1 : own.last]
        for name in _FILLS.findall(line)
        if name.startswith("_") or own.name == "__post_init__"
    )
    if init is not None:
        cls.makes_init = True
        _add_attributes(cls, init, lines)
    return cls


def _body(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for item in body:
        if isinstance(item, ast.If):
            yield from _body(item.body)
            yield from _body(item.orelse)
        else:
            yield item


def _kind(node: ast.ClassDef) -> str:
    for decorator in node.decorator_list:
        if kind := _MAKERS.get(last_name(decorator)):
            return kind
    for base in node.bases:
        origin = base.value if isinstance(base, ast.Subscript) else base
        if kind := _BASES.get(last_name(origin)):
            return kind
    return "plain"


def _add_annotated(cls: ClassDef, item: ast.AnnAssign, lines: Sequence[str]) -> None:
    if not isinstance(item.target, ast.Name):
        return
    own, annotation = item.target.id, ast.unparse(item.annotation)
    if "ClassVar" in annotation or own.startswith("__"):
        if item.value is not None:
            _note_constant(cls, own, item.value)
        return
    default, is_init = _default(item.value)
    last = item.end_lineno or item.lineno
    cls.fields[own] = Field(
        own,
        annotation,
        default,
        own.lstrip("_") if is_init and cls.kind == "attrs" else own if is_init else "",
        item.lineno,
        comment_of(lines, item.lineno, last),
    )
    if item.value is not None:
        _note_constant(cls, own, item.value)


def _default(value: ast.expr | None) -> tuple[str, bool]:
    """Return the default as text, and whether the constructor takes the field."""
    if value is None:
        return "", True
    if isinstance(value, ast.Call) and last_name(value) in {
        "field",
        "ib",
        "attrib",
        "Field",
        "Factory",
    }:
        named = {each.arg: each.value for each in value.keywords}
        init = named.get("init")
        is_init = not (isinstance(init, ast.Constant) and init.value is False)
        for key in ("default", "default_factory", "factory"):
            if key in named:
                return ast.unparse(named[key]), is_init
        if value.args and last_name(value) in {"Field", "ib", "Factory"}:
            text = ast.unparse(value.args[0])
            return ("" if text == "..." else text), is_init
        return ("" if is_init else "unset"), is_init
    return ast.unparse(value), True


def _note_constant(cls: ClassDef, own: str, value: ast.expr) -> None:
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        texts = tuple(
            item.value
            for item in value.elts
            if isinstance(item, ast.Constant) and isinstance(item.value, str)
        )
        if len(texts) == len(value.elts):
            cls.constants[own] = texts
            if own == "__slots__":
                cls.slots = texts
    elif own == "__slots__" and isinstance(value, ast.Constant):
        cls.slots = (str(value.value),)


def _add_assigned(
    cls: ClassDef, own: str, value: ast.expr, item: ast.stmt, lines: Sequence[str]
) -> None:
    _note_constant(cls, own, value)
    if isinstance(value, ast.Call) and last_name(value) in {"ib", "attrib"}:
        named = {each.arg: each.value for each in value.keywords}
        annotation = ast.unparse(named["type"]) if "type" in named else ""
        default, is_init = _default(value)
        last = item.end_lineno or item.lineno
        comment = comment_of(lines, item.lineno, last)
        parameter = own.lstrip("_") if is_init else ""
        cls.fields[own] = Field(
            own, annotation, default, parameter, item.lineno, comment
        )


def _add_attributes(
    cls: ClassDef, init: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str]
) -> None:
    """Add the fields that `self.x = ...` in `__init__` makes."""
    own = cls.methods["__init__"]
    given = {parameter.name: parameter for parameter in own.parameters[1:]}
    me = own.parameters[0].name if own.parameters else "self"
    for node in ast.walk(init):
        pairs: list[tuple[ast.expr, ast.expr | None, str]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += [
                        (one, two, "")
                        for one, two in zip(target.elts, node.value.elts, strict=False)
                    ]
                else:
                    pairs.append((target, node.value, ""))
        elif isinstance(node, ast.AnnAssign):
            pairs.append((node.target, node.value, ast.unparse(node.annotation)))
        for target, value, annotation in pairs:
            match target:
                case ast.Attribute(value=ast.Name(id=name), attr=attr) if name == me:
                    _add_attribute(
                        cls,
                        attr,
                        value,
                        annotation=annotation,
                        node=node,
                        given=given,
                        lines=lines,
                    )


def _add_attribute(
    cls: ClassDef,
    attr: str,
    value: ast.expr | None,
    *,
    annotation: str,
    node: ast.AST,
    given: dict[str, Parameter],
    lines: Sequence[str],
) -> None:
    before = cls.fields.get(attr)
    parameter, hint, default = "", "", "unset"
    names = (
        [each.id for each in ast.walk(value) if isinstance(each, ast.Name)]
        if value is not None
        else []
    )
    direct = next((name for name in names if name in given), "")
    if direct:
        source = given[direct]
        parameter = direct
        default = source.default
        is_same = isinstance(value, ast.Name) or direct.strip("_") == attr.strip("_")
        if not annotation and is_same:
            annotation = source.annotation
        if not is_same:
            parameter = ""
            default = "unset"
    if isinstance(value, ast.Constant):
        hint = "host" if value.value is not None else ""
    elif isinstance(value, ast.Call) and last_name(value) in _FACTORIES:
        func = value.func
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
            hint = "tensor" if func.value.id == "torch" else ""
    if before is not None and (before.annotation or before.parameter):
        if before.annotation and not before.parameter and parameter:
            cls.fields[attr] = Field(
                attr, before.annotation, default, parameter, before.line, before.comment
            )
        elif before.annotation and not parameter and cls.kind == "plain":
            cls.fields[attr] = Field(
                attr, before.annotation, "unset", "", before.line, before.comment
            )
        return
    if before is not None and before.hint == "tensor":
        return
    line = getattr(node, "lineno", cls.line)
    last = getattr(node, "end_lineno", line) or line
    comment = comment_of(lines, line, last)
    cls.fields[attr] = Field(attr, annotation, default, parameter, line, comment, hint)
