"""What a method does to one field: acts on it, keeps it, resets it, forgets it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from tensorpack._audit.annotations import Arm, Carries
from tensorpack._audit.classes import ClassDef
from tensorpack._audit.index import Index
from tensorpack._audit.trace import Each, Event, Guard, Nothing, Part, Trace

__all__ = ["Outcome", "State", "outcome_of"]


class State(Enum):
    """What became of a field, from best to worst."""

    ACTED = "handled"
    UNKNOWN = "handed to code that is not audited"
    GIVEN = "given a new value"
    RESET = "reset"
    PARTLY = "handled for some of its types"
    MISSED = "passed over by the type test of the loop"
    KEPT = "passed on as it is"
    MENTIONED = "only read"
    ABSENT = "never mentioned"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a method does to a field.

    Attributes:
        state: in one word.
        arms: the types for which nothing is done, where the loop tests types.
        event: where it happens, if it happens.
    """

    state: State
    arms: tuple[Arm, ...] = ()
    event: Event | None = None


_LISTS = {"list", "List", "Sequence", "MutableSequence", "Iterable", "Collection"}
_TUPLES = {"tuple", "Tuple", "Sequence", "Iterable", "Collection"}
_DICTS = {
    "dict",
    "Dict",
    "Mapping",
    "MutableMapping",
    "OrderedDict",
    "defaultdict",
    "DefaultDict",
    "Iterable",
    "Collection",
}
_FAMILIES = {
    "list": _LISTS,
    "List": _LISTS,
    "Sequence": _LISTS | _TUPLES,
    "MutableSequence": _LISTS,
    "Iterable": _LISTS | _TUPLES,
    "Collection": _LISTS | _TUPLES,
    "tuple": _TUPLES,
    "Tuple": _TUPLES,
    "dict": _DICTS,
    "Dict": _DICTS,
    "Mapping": _DICTS,
    "MutableMapping": _DICTS,
    "OrderedDict": _DICTS,
    "DefaultDict": _DICTS,
    "defaultdict": _DICTS,
}

_OTHER_ACTS = {
    "record": {
        "[]",
        "[]=",
        "operator",
        "to",
        "cuda",
        "cpu",
        "clear",
        "append",
        "clone",
    },
    "move": {"[]", "[]=", "operator", "record_stream", "clear"},
    "pin": {"[]", "[]=", "operator", "record_stream", "clear"},
    "clone": {"[]=", "record_stream", "clear"},
    "detach": {"[]", "[]=", "record_stream", "clear"},
    "share": {"[]", "[]=", "record_stream", "clear"},
}
"""What happens to fields on the way, and is not what the method is for."""


def outcome_of(
    trace: Trace, name: str, arms: Iterable[Arm], verb: str, index: Index
) -> Outcome:
    """Return what a method does to a field."""
    arms = [arm for arm in arms if arm.carries]
    acts = list(_acts_on(trace, name, verb))
    if acts:
        missed = tuple(
            arm
            for arm in arms
            if not any(_admits(each.guards, name, arm, index) for each in acts)
        )
        loud = [each for each in trace.events if each.kind == "raise" and each.guards]
        missed = tuple(
            arm
            for arm in missed
            if not any(_admits(each.guards, name, arm, index) for each in loud)
        )
        if not missed:
            return Outcome(State.ACTED, event=acts[0])
        state = State.PARTLY if len(missed) < len(arms) else State.MISSED
        return Outcome(state, missed, acts[0])
    return _without_acts(trace, name)


def _acts_on(trace: Trace, name: str, verb: str) -> Iterator[Event]:
    others = _OTHER_ACTS.get(verb, set())
    kinds = {"act", "ask"} if verb == "size" else {"act"}
    for event in trace.events:
        if event.kind not in kinds or event.name in others:
            continue
        match event.subject:
            case Part(field=field) if field == name:
                yield event
            case Each(names=names) if names is None or name in names:
                yield event


def _without_acts(trace: Trace, name: str) -> Outcome:
    events = [
        event
        for event in trace.events
        if isinstance(event.subject, Part) and event.subject.field == name
    ]
    escape = next((each for each in trace.events if each.kind == "escape"), None)
    if escape is not None:
        return Outcome(State.UNKNOWN, event=escape)
    if any(made.mode == "deep" for made in trace.made):
        return Outcome(State.ACTED)
    kept = next((each for each in events if each.kind == "keep"), None)
    for made in trace.made:
        if name not in made.given:
            continue
        value = made.given[name]
        if value and all(isinstance(atom, Nothing) for atom in trace.inside(value)):
            return Outcome(State.RESET)
        if kept is None:
            return Outcome(State.GIVEN)
    if any(each.kind == "reset" for each in events):
        return Outcome(State.RESET)
    if kept is not None:
        return Outcome(State.KEPT, event=kept)
    if any(each.kind == "set" for each in events):
        return Outcome(State.GIVEN)
    carried = any(
        made.mode in {"replace", "shallow"}
        or made.is_open
        or any(names is None or name in names for names in made.loops)
        for made in trace.made
    )
    if carried:
        return Outcome(State.KEPT)
    if events:
        return Outcome(State.MENTIONED, event=events[0])
    return Outcome(State.ABSENT)


def _admits(guards: Iterable[Guard], name: str, arm: Arm, index: Index) -> bool:
    """Return whether tests let a value of a type of a field through."""
    for guard in guards:
        if guard.deep or (guard.subject and guard.subject != name):
            continue
        match guard.kind:
            case "name":
                fits = name in guard.names
            case "is":
                fits = matches(arm, guard.names, index)
            case "isnot":
                fits = arm.kind == "any" or not matches(arm, guard.names, index)
            case "has":
                fits = _has(arm, guard.names, index)
            case "hasnot":
                fits = arm.kind in {"any", "box"} or not _has(arm, guard.names, index)
            case _:
                fits = True  # `notname`: left out by name, so on purpose
        if not fits:
            return False
    return True


def matches(arm: Arm, types: frozenset[str], index: Index) -> bool:
    """Return whether a value of a type passes `isinstance` with other types."""
    if "object" in types:
        return True
    match arm.kind:
        case "tensor":
            return bool(types & {"Tensor", arm.name, "TensorBase", "_TensorBase"})
        case "box":
            family = _FAMILIES.get(arm.name, {arm.name})
            return bool(types & family)
        case "object":
            return _is_object(arm, types, index)
        case _:
            pass
    return False


def _is_object(arm: Arm, types: frozenset[str], index: Index) -> bool:
    if arm.name in types:
        return True
    if arm.cls is None:
        # What a class of another project derives from is not known.
        return bool(types - {"Tensor", "list", "tuple", "dict", "str", "int", "float"})
    names = {base.name.rpartition(".")[2] for base in index.mro(arm.cls)}
    names |= {
        base.rpartition(".")[2].partition("[")[0]
        for base in index.strange_bases(arm.cls)
    }
    if arm.cls.kind == "namedtuple":
        names |= _TUPLES
    if arm.cls.kind == "typeddict":
        names |= _DICTS
    if types & names:
        return True
    return any(_follows(arm.cls, name, index) for name in types)


def _follows(cls: ClassDef, name: str, index: Index) -> bool:
    """Return whether a class has all methods of a protocol."""
    protocol = index.protocol(name)
    return protocol is not None and all(
        index.method(cls, each) is not None
        for each in protocol.methods
        if not each.startswith("__")
    )


def _has(arm: Arm, names: frozenset[str], index: Index) -> bool:
    if arm.kind == "box":
        return bool(
            names & {"items", "keys", "values", "__iter__", "__len__", "_fields"}
        )
    if arm.kind != "object" or arm.cls is None or arm.carries is Carries.NO:
        return True
    if index.strange_bases(arm.cls) - {"ABC", "abc.ABC", "object"}:
        return True
    fields = index.fields(arm.cls)
    return (
        all(index.method(arm.cls, name) is not None or name in fields for name in names)
        or index.method(arm.cls, "__getattr__") is not None
    )
