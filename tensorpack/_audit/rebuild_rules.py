"""Rules about new objects of a class that lose fields of the one they are made from."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tensorpack._audit.annotations import Carries, Reader
from tensorpack._audit.classes import ClassDef, Field
from tensorpack._audit.comments import is_on_purpose
from tensorpack._audit.follow import follow_function, follow_method
from tensorpack._audit.frames import World
from tensorpack._audit.functions import Function
from tensorpack._audit.index import Method
from tensorpack._audit.methods import verb_of
from tensorpack._audit.reports import Report
from tensorpack._audit.subjects import says_why
from tensorpack._audit.trace import Each, Made, Part, Trace

__all__ = ["rebuilds"]

_FEW = 2
"""Fields that must come from one object for a new one to be a rebuild of it."""


_CALLED = re.compile(r"(\w+|\))\(")

_DEPTH = 1
"""Calls inside of calls that are followed: rebuilds are written out in one place."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The function that is judged, and the class whose method it is."""

    cls: ClassDef | None
    function: Function


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """A new object whose fields come from another of its class.

    Attributes:
        place: the function that makes it.
        made: what it is given.
        root: the name of the other object.
        share: how many of the fields come from it, from 0 to 1.
        matched: the same as a count.
        missing: the fields that it is not given, each with the class that declares it.
        given: names of those that it is given.
    """

    place: _Place
    made: Made
    root: str
    share: float
    matched: int
    missing: list[tuple[Field, ClassDef]]
    given: frozenset[str]


def rebuilds(world: World, reader: Reader) -> Iterator[Report]:
    """Yield a report for each new object that loses fields."""
    by_class: dict[str, list[_Rebuild]] = {}
    for place, trace in _traces(world, reader):
        for found in _rebuilds_in(world, reader, place, trace):
            by_class.setdefault(found.made.cls.key, []).append(found)
    for group in by_class.values():
        for found in group:
            if found.missing:
                others = [each for each in group if each is not found]
                yield _report(reader, found, others)


def _traces(world: World, reader: Reader) -> Iterator[tuple[_Place, Trace]]:
    makers = _makers(world, reader)
    for place in _places(world, reader):
        if not makers & set(_CALLED.findall(world.bodies.text(place.function))):
            continue
        if place.cls is None:
            trace = follow_function(world, place.function, _DEPTH)
        else:
            method = Method(place.cls, place.function)
            trace = follow_method(world, place.cls, method, _DEPTH)
        if trace is not None:
            yield place, trace


def _makers(world: World, reader: Reader) -> set[str]:
    """Return the names that make an object of an audited class with some fields."""
    found = {"cls", "__class__", ")"}  # the last is of `type(self)(...)`
    for cls in world.index.classes():
        if len(world.index.fields(cls)) >= _FEW and not reader.is_module(cls):
            found.add(cls.name.rpartition(".")[2])
    for module in world.index.modules:
        found |= {
            own for own, (_, name) in module.imports.items() if name and name in found
        }
    return found


def _places(world: World, reader: Reader) -> Iterator[_Place]:
    for module in world.index.modules:
        for function in module.functions.values():
            if function.rebuilds:
                yield _Place(None, function)
        for cls in module.classes.values():
            if reader.is_enum(cls):
                continue
            for function in cls.methods.values():
                asked = verb_of(function) in {"move", "clone", "pin"}
                if function.name != "__init__" and (function.rebuilds or asked):
                    yield _Place(cls, function)


def _rebuilds_in(
    world: World, reader: Reader, place: _Place, trace: Trace
) -> Iterator[_Rebuild]:
    seen = set()
    for made in trace.made:
        here = (
            made.path == place.function.path
            and place.function.line <= made.line <= place.function.last
        )
        if made.mode != "constructor" or not here or made.line in seen:
            continue
        seen.add(made.line)
        if made.is_open or None in made.loops or made.cls.kind == "typeddict":
            continue
        if reader.is_module(made.cls):
            continue
        found = _rebuild(world, place, trace, made)
        if found is not None:
            yield found


def _rebuild(world: World, place: _Place, trace: Trace, made: Made) -> _Rebuild | None:
    fields = world.index.fields(made.cls)
    root, matched = _source(made, trace)
    taken = {name for name, (own, _) in fields.items() if own.parameter}
    if matched < _FEW or not taken:
        return None
    if root == "self" and place.cls is not None:
        if made.cls not in world.index.mro(place.cls):
            return None
    elif not _is_of_class(world, place, root, made.cls, matched):
        return None
    looped = {name for names in made.loops for name in names or ()}
    filled = {name for base in world.index.mro(made.cls) for name in base.filled}
    missing = [
        (own, owner)
        for name, (own, owner) in fields.items()
        if name in taken
        and own.default not in {"", "unset"}
        and name not in made.given
        and name not in looped
        and not (name in filled and own.default == "None")
        and not is_on_purpose(own.comment)
        and not says_why(world, trace, name)
    ]
    given = frozenset(made.given) | looped
    share = matched / len(taken)
    return _Rebuild(place, made, root, share, matched, missing, given)


def _source(made: Made, trace: Trace) -> tuple[str, int]:
    """Return the object that most fields come from, and how many do."""
    counts: Counter[str] = Counter()
    for name, value in made.given.items():
        roots = {
            atom.root
            for atom in trace.inside(value)
            if (isinstance(atom, Part) and atom.field == name)
            or (isinstance(atom, Each) and name in (atom.names or ()))
        }
        counts.update(roots - {"new", "other"})
    if not counts:
        return "", 0
    ((root, count),) = counts.most_common(1)
    return root, count


def _is_of_class(
    world: World, place: _Place, root: str, cls: ClassDef, matched: int
) -> bool:
    """Return whether a parameter holds an object of a class."""
    for parameter in place.function.parameters:
        if parameter.name != root:
            continue
        if not parameter.annotation:
            return matched > _FEW
        text = parameter.annotation.strip("'\"").replace("Optional[", "").rstrip("]")
        names = [part.strip().strip("'\"") for part in text.split("|")]
        home = world.index.home(place.function.path)
        for name in names:
            if not name.replace(".", "").isidentifier():
                continue
            found = world.index.resolve(name, home).found
            if isinstance(found, ClassDef) and cls in world.index.mro(found):
                return True
        return False
    return False


def _report(reader: Reader, found: _Rebuild, others: list[_Rebuild]) -> Report:
    place, made, missing = found.place, found.made, found.missing
    known = [
        (own, owner)
        for own, owner in missing
        if len(others) > 1
        and 2 * sum(own.name in each.given for each in others) >= len(others)
    ]
    verb = verb_of(place.function) if place.cls else ""
    rule = "TP105" if verb == "clone" else "TP106" if place.cls else "TP107"
    confidence = _confidence(reader, found, known, others, verb)
    told = missing if verb else known or missing
    defaults = ", ".join(f"`{own.name}={own.default}`" for own, _ in told[:_SHOWN])
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    why = (
        f"the new `{made.cls.name}` takes its fields from `{found.root}` but not "
        f"{defaults}{more}: the defaults come back."
    )
    if known and not verb:
        why += " Most other functions that rebuild this class hand them on."
    return Report(
        rule,
        place.function.path,
        made.line,
        place.cls.name if place.cls else "",
        place.function.name,
        tuple(own.name for own, _ in told),
        why,
        confidence,
        tuple((owner.path, own.line) for own, owner in told),
        place.function.last,
    )


_SHOWN = 4
"""Defaults that a report spells out."""

_NEARLY = 0.75
"""Share of what is given that comes from the one other object, in a plain rebuild."""

_MOSTLY = 0.6
"""Share of the fields from which on a new object is meant to be a whole copy."""


def _confidence(
    reader: Reader,
    found: _Rebuild,
    known: list[tuple[Field, ClassDef]],
    others: list[_Rebuild],
    verb: str,
) -> str:
    """Return how sure it is that fields are lost by mistake.

    What most other rebuilds of the class hand on is lost by mistake; what none of
    several hands on is left out on purpose.
    """
    if reader.of_class(found.made.cls) is not Carries.YES:
        return "low"
    if verb:
        return "medium" if found.made.has_rest else "high"
    sure = _sure(reader, found, known, others)
    return "medium" if sure == "high" and not _is_typed(found) else sure


def _is_typed(found: _Rebuild) -> bool:
    """Return whether the other object is `self`, or annotated."""
    return found.root == "self" or any(
        each.name == found.root and each.annotation
        for each in found.place.function.parameters
    )


def _sure(
    reader: Reader,
    found: _Rebuild,
    known: list[tuple[Field, ClassDef]],
    others: list[_Rebuild],
) -> str:
    told = known or found.missing
    most = max((reader.carries(own, owner) for own, owner in told), default=0)
    if known:
        sure = most is Carries.YES and not found.made.has_rest
        sure = sure and found.matched >= _NEARLY * len(found.given)
        return "high" if sure else "medium"
    if len(others) > 1 or found.made.has_rest:
        return "low"
    if found.share < _MOSTLY:
        return "medium" if most is Carries.YES else "low"
    return "high" if most is Carries.YES else "medium"


def one_sided(world: World) -> Iterator[Report]:
    """Yield merges that keep a field only if both objects have it."""
    for module in world.index.modules:
        places = [_Place(None, each) for each in module.functions.values()]
        places += [
            _Place(cls, each)
            for cls in module.classes.values()
            for each in cls.methods.values()
        ]
        for place in places:
            if "merge" in place.function.name or "concat" in place.function.name:
                yield from _one_sided(world, place)


def _one_sided(world: World, place: _Place) -> Iterator[Report]:
    node = world.bodies.node(place.function)
    for each in ast.walk(node) if node is not None else ():
        if not isinstance(each, ast.If) or each.orelse:
            continue
        match each.test:
            case ast.BoolOp(
                op=ast.And(),
                values=[
                    ast.Compare(left=one, ops=[ast.IsNot()]),
                    ast.Compare(left=two, ops=[ast.IsNot()]),
                ],
            ):
                yield from _sides(place, each, _attribute(one), _attribute(two))
            case _:
                pass


def _attribute(node: ast.expr) -> tuple[str, str]:
    match node:
        case ast.Attribute(value=ast.Name(id=root), attr=name):
            return root, name
        case ast.Name(id=name):
            return "", name
        case _:
            pass
    return "", ""


def _sides(
    place: _Place, node: ast.If, one: tuple[str, str], two: tuple[str, str]
) -> Iterator[Report]:
    if not one[1] or one[1] != two[1] or one[0] == two[0]:
        return
    why = (
        f"`{one[1]}` is merged only if both objects have it: the value of one side is "
        "dropped, or kept without the rows of the other, in silence."
    )
    name = place.cls.name if place.cls else ""
    yield Report(
        "TP120",
        place.function.path,
        node.lineno,
        name,
        place.function.name,
        (one[1],),
        why,
        "medium",
        (),
        place.function.last,
    )
