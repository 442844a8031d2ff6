"""The classes to judge: each with its whole-object methods, followed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tensorpack._audit.annotations import Arm, Carries, Reader
from tensorpack._audit.classes import ClassDef, Field
from tensorpack._audit.comments import is_on_purpose
from tensorpack._audit.coverage import Outcome, outcome_of
from tensorpack._audit.follow import follow_method
from tensorpack._audit.frames import World
from tensorpack._audit.index import Method
from tensorpack._audit.methods import VERBS, is_stub, verb_of
from tensorpack._audit.trace import Part, Trace

__all__ = ["FieldOf", "Followed", "Subject", "subjects"]

_HOST_NAMES = re.compile(
    r"(^|_)(cpu|host|np|numpy|pinned|meta_only)(_|$)", re.IGNORECASE
)
_ALIASES = re.compile(r"releas|alias|borrow|shared|_ref(s|erence)?$", re.IGNORECASE)
_CACHES = re.compile(r"cache|memo|lazy", re.IGNORECASE)
_SHOWS_TENSOR = {"to", "cuda", "record_stream", "pin_memory", "detach", "cpu", "clone"}


@dataclass(frozen=True, slots=True)
class FieldOf:
    """A field of a class.

    Attributes:
        own: its declaration.
        owner: the class that declares it.
        arms: what its annotation says.
        carries: whether it holds tensors, by its annotation and by its use.
        is_host: whether its name or a comment says that it stays where it is.
        is_cache: whether its name, or a method that resets it, says so.
        is_alias: whether its name says that others own what it holds.
    """

    own: Field
    owner: ClassDef
    arms: tuple[Arm, ...]
    carries: Carries
    is_host: bool
    is_cache: bool
    is_alias: bool

    @property
    def name(self) -> str:
        """Its name."""
        return self.own.name


@dataclass(frozen=True, slots=True)
class Followed:
    """A whole-object method of a class, followed.

    Attributes:
        verb: what it does: "move", "record", ...
        method: with the class whose body has it.
        trace: what it does to the fields.
    """

    verb: str
    method: Method
    trace: Trace

    @property
    def name(self) -> str:
        """Its name."""
        return self.method.function.name


@dataclass(slots=True)
class Subject:
    """A class that has whole-object methods.

    Attributes:
        world: names and bodies.
        cls: the class.
        fields: all of them, by name.
        methods: whole-object methods, its own and inherited ones.
        outcomes: (method, field) -> what becomes of it.
    """

    world: World
    cls: ClassDef
    fields: dict[str, FieldOf]
    methods: list[Followed]
    _outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    def outcome(self, method: Followed, own: FieldOf) -> Outcome:
        """Return what a method does to a field."""
        key = (method.name, own.name)
        if key not in self._outcomes:
            arms = own.arms or (Arm("any", Carries.MAY, "Any"),)
            self._outcomes[key] = outcome_of(
                method.trace, own.name, arms, method.verb, self.world.index
            )
        return self._outcomes[key]

    def of_verb(self, *verbs: str) -> list[Followed]:
        """Return the methods that do one of these things."""
        return [method for method in self.methods if method.verb in verbs]

    def is_known_to(self, own: FieldOf, method: Followed) -> bool:
        """Return whether the class of a method has a field itself."""
        return own.owner in self.world.index.mro(method.method.owner)

    def says_why(self, own: FieldOf, method: Followed) -> bool:
        """Return whether a comment in a method says that a field is left alone."""
        return says_why(self.world, method.trace, own.name)


def says_why(world: World, trace: Trace, name: str) -> bool:
    """Return whether a comment of a followed function names a field and says why."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    for _, function in trace.visited:
        lines = world.bodies.lines(function.path)[function.first - 1 : function.last]
        for at, line in enumerate(lines):
            code, mark, comment = line.partition("#")
            if mark and re.match(rf"\s*{re.escape(name)}\s*=", comment):
                return True  # left out by hand, for all to see
            if not mark or not is_on_purpose(comment):
                continue
            below = lines[at + 1] if not code.strip() and at + 1 < len(lines) else ""
            if word.search(line) or word.search(below):
                return True
    return False


def subjects(world: World, reader: Reader) -> Iterator[Subject]:
    """Yield the classes that have whole-object methods, bases before subclasses."""
    index = world.index
    names = sorted({name for names in VERBS.values() for name in names})
    for cls in sorted(index.classes(), key=lambda each: len(index.mro(each))):
        if not any(
            base.methods.keys() & set(names) for base in index.mro(cls)
        ) or _is_none(cls, world, reader):
            continue
        followed = []
        for name in names:
            method = index.method(cls, name)
            if method is None or not verb_of(method.function):
                continue
            node = world.bodies.node(method.function)
            if node is None or is_stub(node):
                continue
            trace = follow_method(world, cls, method)
            if trace is not None:
                followed.append(Followed(verb_of(method.function), method, trace))
        if followed:
            fields = _fields(world, reader, cls, followed)
            yield Subject(world, cls, fields, followed)


def _is_none(cls: ClassDef, world: World, reader: Reader) -> bool:
    """Return whether a class moves by other means, or is only a description."""
    strange = {name.rpartition(".")[2] for name in world.index.strange_bases(cls)}
    return (
        reader.is_module(cls)
        or reader.is_enum(cls)
        or bool(strange & {"Protocol", "TypedDict", "Tensor", "Optimizer", "Function"})
    )


def _fields(
    world: World, reader: Reader, cls: ClassDef, methods: list[Followed]
) -> dict[str, FieldOf]:
    shown, reset = _evidence(methods)
    found = {}
    for name, (own, owner) in world.index.fields(cls).items():
        arms = reader.arms(own, owner)
        carries = max((arm.carries for arm in arms), default=Carries.NO)
        if name in shown and carries is Carries.MAY:
            carries = Carries.YES
        is_host = is_on_purpose(own.comment) or bool(_HOST_NAMES.search(name))
        is_cache = name in reset or bool(_CACHES.search(name))
        is_alias = bool(_ALIASES.search(name))
        found[name] = FieldOf(own, owner, arms, carries, is_host, is_cache, is_alias)
    return found


def _evidence(methods: list[Followed]) -> tuple[set[str], set[str]]:
    """Return the fields that methods show to be tensors, and those that they reset."""
    shown, reset = set(), set()
    for method in methods:
        for event in method.trace.events:
            if isinstance(event.subject, Part):
                if event.kind == "act" and event.name in _SHOWS_TENSOR:
                    shown.add(event.subject.field)
                if event.kind == "reset" and method.verb in {"move", "pin"}:
                    reset.add(event.subject.field)
        if method.verb in {"move", "pin"}:
            for made in method.trace.made:
                for name, value in made.given.items():
                    if value and {type(atom).__name__ for atom in value} == {"Nothing"}:
                        reset.add(name)
    return shown, reset
