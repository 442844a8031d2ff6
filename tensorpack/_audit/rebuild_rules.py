"""Rules about new objects of a class that lose fields of the one they are made from."""

import ast
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


@dataclass(frozen=True, slots=True)
class _Place:
    """The function that is judged, and the class whose method it is."""

    cls: ClassDef | None
    function: Function


def rebuilds(world: World, reader: Reader) -> Iterator[Report]:
    """Yield a report for each new object that loses fields."""
    for module in world.index.modules:
        for function in module.functions.values():
            if function.rebuilds:
                trace = follow_function(world, function)
                if trace is not None:
                    place = _Place(None, function)
                    yield from _judge(world, reader, place, trace)
        for cls in module.classes.values():
            if reader.is_enum(cls):
                continue
            for function in cls.methods.values():
                if function.name == "__init__":
                    continue
                if function.rebuilds or verb_of(function) in {"move", "clone", "pin"}:
                    trace = follow_method(world, cls, Method(cls, function))
                    if trace is not None:
                        place = _Place(cls, function)
                        yield from _judge(world, reader, place, trace)


def _judge(
    world: World, reader: Reader, place: _Place, trace: Trace
) -> Iterator[Report]:
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
        yield from _judge_made(world, reader, place, trace, made)


def _judge_made(
    world: World, reader: Reader, place: _Place, trace: Trace, made: Made
) -> Iterator[Report]:
    fields = world.index.fields(made.cls)
    root, matched = _source(made, place, trace)
    taken = {name for name, (own, _) in fields.items() if own.parameter}
    if matched < _FEW or not taken:
        return
    if root == "self" and place.cls is not None:
        is_own = made.cls in world.index.mro(place.cls)
        if not is_own:
            return
    elif not _is_of_class(world, place, root, made.cls, matched):
        return
    looped = {name for names in made.loops for name in names or ()}
    missing = [
        (own, owner)
        for name, (own, owner) in fields.items()
        if name in taken
        and own.default not in {"", "unset"}
        and name not in made.given
        and name not in looped
        and not is_on_purpose(own.comment)
        and not says_why(world, trace, name)
    ]
    if not missing:
        return
    yield _report(world, reader, place, made, missing, root, matched / len(taken))


def _source(made: Made, place: _Place, trace: Trace) -> tuple[str, int]:
    """Return the object that most fields come from, and how many do."""
    counts: Counter[str] = Counter()
    for name, value in made.given.items():
        roots = {
            atom.root
            for atom in trace.inside(value)
            if isinstance(atom, Part) and atom.field == name
        }
        roots |= {
            atom.root
            for atom in trace.inside(value)
            if isinstance(atom, Each) and atom.names and name in atom.names
        }
        counts.update(roots - {"new", "other"} if place.cls is None else roots)
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
    return root in {"self", "new", "other"} and place.cls is not None


def _report(
    world: World,
    reader: Reader,
    place: _Place,
    made: Made,
    missing: list[tuple[Field, ClassDef]],
    root: str,
    share: float,
) -> Report:
    names = tuple(own.name for own, _ in missing)
    most = max((reader.carries(own, owner) for own, owner in missing), default=0)
    verb = verb_of(place.function) if place.cls else ""
    rule = "TP105" if verb == "clone" else "TP106" if place.cls else "TP107"
    confidence = "medium"
    if verb and not made.has_rest:
        confidence = "high"
    elif made.has_rest or share < 0.4:  # noqa: PLR2004 - mostly another object
        confidence = "low" if share < 0.4 else "medium"  # noqa: PLR2004
    elif most is Carries.YES:
        confidence = "high"
    defaults = ", ".join(f"`{own.name}={own.default}`" for own, _ in missing[:4])
    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""  # noqa: PLR2004
    why = (
        f"the new `{made.cls.name}` takes its fields from `{root}` but not "
        f"{defaults}{more}: the defaults come back."
    )
    return Report(
        rule,
        place.function.path,
        made.line,
        place.cls.name if place.cls else "",
        place.function.name,
        names,
        why,
        confidence,
        tuple((owner.path, own.line) for own, owner in missing),
        place.function.last,
    )


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


def _attribute(node: ast.expr) -> tuple[str, str]:
    match node:
        case ast.Attribute(value=ast.Name(id=root), attr=name):
            return root, name
        case ast.Name(id=name):
            return "", name
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
