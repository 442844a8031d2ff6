"""Names across files: what a dotted name of one module means."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from tensorpack._audit.classes import ClassDef, Field
from tensorpack._audit.functions import Function
from tensorpack._audit.modules import Module

__all__ = ["Index", "Method", "Symbol"]

_DEPTH = 12
"""Re-exports that are followed: circles of imports end here."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """What a name means.

    Attributes:
        dotted: the full name: where it is defined, or what was imported.
        found: the class, function or module, or None if it is not audited.
        alias: for a name that another type is assigned to: its text.
        home: the module that defines it, None if it is not audited.
    """

    dotted: str
    found: ClassDef | Function | Module | None = None
    alias: str = ""
    home: Module | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """A method, and the class whose body has it."""

    owner: ClassDef
    function: Function


@dataclass(slots=True)
class Index:
    """All modules that are audited, and what their names mean."""

    modules: list[Module]
    _by_suffix: dict[str, list[Module]] = field(default_factory=dict)
    _mros: dict[str, list[ClassDef]] = field(default_factory=dict)
    _strange: dict[str, set[str]] = field(default_factory=dict)
    _homes: dict[str, Module] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _protocols: dict[str, ClassDef] = field(default_factory=dict)
    _nearest: dict[tuple[str, str], Module | None] = field(default_factory=dict)
    _symbols: dict[tuple[str, str], Symbol] = field(default_factory=dict)
    _fields: dict[str, dict[str, tuple[Field, ClassDef]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for module in self.modules:
            parts = module.name.split(".")
            for at in range(len(parts)):
                suffix = ".".join(parts[at:])
                self._by_suffix.setdefault(suffix, []).append(module)
            self._homes[module.path] = module
            for cls in module.classes.values():
                if any("Protocol" in base for base in cls.bases):
                    self._protocols[cls.name] = cls

    def protocol(self, name: str) -> ClassDef | None:
        """Return the protocol of a name, None if there is none."""
        return self._protocols.get(name)

    def classes(self) -> Iterator[ClassDef]:
        """Yield every class."""
        for module in self.modules:
            yield from module.classes.values()

    def home(self, path: str) -> Module:
        """Return the module of a file."""
        return self._homes[path]

    def module(self, name: str, near: Module) -> Module | None:
        """Return the module of a dotted name, the nearest of several."""
        key = (name, near.path)
        if key not in self._nearest:
            found = self._by_suffix.get(name, ())

            def closeness(module: Module) -> tuple[bool, int]:
                pairs = zip(module.path, near.path, strict=False)
                same = next((at for at, (a, b) in enumerate(pairs) if a != b), 0)
                return module.name == name, same

            self._nearest[key] = max(found, key=closeness, default=None)
        return self._nearest[key]

    def resolve(self, dotted: str, module: Module) -> Symbol:
        """Return what a dotted name means in a module."""
        key = (dotted, module.path)
        if key not in self._symbols:
            head, _, rest = dotted.partition(".")
            symbol = self._resolve_head(head, module, 0)
            while rest:
                head, _, rest = rest.partition(".")
                symbol = self._attribute(symbol, head, module, 0)
            self._symbols[key] = symbol
        return self._symbols[key]

    def _resolve_head(self, name: str, module: Module, depth: int) -> Symbol:
        if depth > _DEPTH:
            return Symbol(name)
        if found := module.classes.get(name):
            return Symbol(f"{module.name}.{name}", found, home=module)
        if function := module.functions.get(name):
            return Symbol(f"{module.name}.{name}", function, home=module)
        if name in module.imports:
            origin, inside = module.imports[name]
            target = self.module(origin, module)
            if inside is None:
                return Symbol(origin, target)
            own = self._inside(target, inside, depth) if target else None
            if own is not None:
                return own
            submodule = self.module(f"{origin}.{inside}", module)
            return Symbol(f"{origin}.{inside}", submodule)
        if name in module.aliases:
            return Symbol(name, alias=module.aliases[name], home=module)
        for origin in module.stars:
            target = self.module(origin, module)
            own = self._inside(target, name, depth) if target else None
            if own is not None:
                return own
        return Symbol(name)

    def _inside(self, target: Module, name: str, depth: int) -> Symbol | None:
        found = self._resolve_head(name, target, depth + 1)
        known = found.found is not None or found.alias or found.dotted != name
        return found if known else None

    def _attribute(self, symbol: Symbol, name: str, near: Module, depth: int) -> Symbol:
        match symbol.found:
            case Module() as module:
                found = self._resolve_head(name, module, depth + 1)
                if found.dotted != name or found.found is not None:
                    return found
                submodule = self.module(f"{module.name}.{name}", module)
                return Symbol(f"{symbol.dotted}.{name}", submodule)
            case ClassDef() as cls:
                home = self.home(cls.path)
                inner = home.classes.get(f"{cls.name}.{name}")
                return Symbol(f"{symbol.dotted}.{name}", inner, home=home)
            case None if not symbol.alias:
                # A folder without `__init__` is a package all the same.
                dotted = f"{symbol.dotted}.{name}"
                return Symbol(dotted, self.module(dotted, near))
        return Symbol(f"{symbol.dotted}.{name}")

    def bases(self, cls: ClassDef) -> tuple[list[ClassDef], set[str]]:
        """Return the audited bases of a class, and the names of the others."""
        home = self.home(cls.path)
        found: list[ClassDef] = []
        others: set[str] = set()
        for text in cls.bases:
            origin = text.partition("[")[0]
            symbol = self.resolve(origin, home)
            if symbol.alias:
                symbol = self.resolve(symbol.alias.partition("[")[0], home)
            if isinstance(symbol.found, ClassDef) and symbol.found is not cls:
                found.append(symbol.found)
            else:
                others.add(symbol.dotted)
        return found, others

    def mro(self, cls: ClassDef) -> list[ClassDef]:
        """Return a class and its audited bases in the order that Python searches them.

        Where that order cannot be made, the bases come depth first.
        """
        if cls.key in self._mros:
            return self._mros[cls.key]
        if cls.key in self._open:
            return [cls]
        self._open.add(cls.key)
        bases, others = self.bases(cls)
        lists = [list(self.mro(base)) for base in bases]
        for base in bases:
            others = others | self._strange.get(base.key, set())
        self._open.discard(cls.key)
        order = [cls, *(_merged([*lists, list(bases)]) or _flat(lists))]
        self._mros[cls.key] = order
        self._strange[cls.key] = others
        return order

    def strange_bases(self, cls: ClassDef) -> set[str]:
        """Return the dotted names of all bases that are not audited."""
        self.mro(cls)
        return self._strange.get(cls.key, set())

    def fields(self, cls: ClassDef) -> dict[str, tuple[Field, ClassDef]]:
        """Return the fields of a class in order, each with the class that declares it.

        A class with its own `__init__` whose bases' is not called has their fields all
        the same: audited code calls it in ways that text does not show.
        """
        if cls.key not in self._fields:
            self._fields[cls.key] = self._fields_of(cls)
        return self._fields[cls.key]

    def _fields_of(self, cls: ClassDef) -> dict[str, tuple[Field, ClassDef]]:
        found: dict[str, tuple[Field, ClassDef]] = {}
        for base in reversed(self.mro(cls)):
            for name, own in base.fields.items():
                if base.kind == "plain" and not base.makes_init and own.default:
                    continue  # an attribute of the class, not of its objects
                before = found.get(name)
                if before and not own.annotation and before[0].annotation:
                    continue
                found[name] = (own, base)
        return found

    def method(
        self, cls: ClassDef, name: str, after: ClassDef | None = None
    ) -> Method | None:
        """Return the method that a class uses; with `after`, what `super()` finds."""
        order = self.mro(cls)
        if after is not None:
            at = next((i for i, base in enumerate(order) if base is after), 0)
            order = order[at + 1 :]
        for base in order:
            if function := base.methods.get(name):
                return Method(base, function)
        return None

    def constant(self, cls: ClassDef, name: str) -> tuple[str, ...] | None:
        """Return a tuple of strings that a class or one of its bases has."""
        for base in self.mro(cls):
            if name in base.constants:
                return base.constants[name]
        return None


def _merged(lists: list[list[ClassDef]]) -> list[ClassDef] | None:
    """Merge orders of bases, C3; None if no order fits."""
    order: list[ClassDef] = []
    lists = [list(each) for each in lists if each]
    while lists:
        for candidates in lists:
            head = candidates[0]
            if not any(head in each[1:] for each in lists):
                break
        else:
            return None
        order.append(head)
        lists = [[each for each in own if each is not head] for own in lists]
        lists = [own for own in lists if own]
    return order


def _flat(lists: list[list[ClassDef]]) -> list[ClassDef]:
    order: list[ClassDef] = []
    for own in lists:
        order += [each for each in own if each not in order]
    return order


def parsed(text: str) -> ast.expr | None:
    """Parse an annotation; None if it is not an expression."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
