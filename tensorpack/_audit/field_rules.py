"""Rules about the fields that a whole-object method leaves out."""

from collections.abc import Iterator

from tensorpack._audit.annotations import Arm, Carries
from tensorpack._audit.classes import ClassDef
from tensorpack._audit.coverage import Outcome, State
from tensorpack._audit.reports import Report
from tensorpack._audit.subjects import FieldOf, Followed, Subject

__all__ = ["forgotten_fields"]

_FINE = {State.ACTED, State.UNKNOWN, State.GIVEN, State.RESET}
_MOVED = {State.ACTED, State.UNKNOWN}
_MOVES = {"move", "pin"}
_DOES = {
    "move": "moves",
    "pin": "pins",
    "record": "records",
    "clone": "clones",
    "copy_": "copies",
    "detach": "detaches",
    "share": "shares",
    "size": "counts",
}


def forgotten_fields(subject: Subject) -> Iterator[Report]:
    """Yield a report for each field that a whole-object method leaves out."""
    for method in subject.methods:
        if any(event.kind == "class" for event in method.trace.events):
            continue  # it reads the class: TP115 says so of all fields at once
        for own in subject.fields.values():
            if own.carries is Carries.NO or own.is_host:
                continue
            outcome = subject.outcome(method, own)
            if outcome.state in _FINE or subject.says_why(own, method):
                continue
            if _is_told_elsewhere(subject, method, own, outcome):
                continue
            yield from _judge(subject, method, own, outcome)


def _is_told_elsewhere(
    subject: Subject, method: Followed, own: FieldOf, outcome: Outcome
) -> bool:
    """Return whether another report, or another rule, is about the same thing."""
    made = [
        each
        for each in method.trace.made
        if each.mode == "constructor" and each.cls is subject.cls
    ]
    if (
        outcome.state in {State.ABSENT, State.MENTIONED}
        and made
        and (method.verb not in {"record", "size", "copy_"})
    ):
        return True  # a new object without the field: `rebuild_rules` says so
    followed = [function for _, function in method.trace.visited[1:]]
    return any(
        other.method.function in followed
        and subject.outcome(other, own).state not in _FINE
        for other in subject.methods
    )


def _judge(
    subject: Subject, method: Followed, own: FieldOf, outcome: Outcome
) -> Iterator[Report]:
    verb = method.verb
    acted = [
        each
        for each in subject.fields.values()
        if subject.outcome(method, each).state is State.ACTED and each.carries
    ]
    sure = _sure(own, outcome, acted, subject)
    if outcome.state in {State.PARTLY, State.MISSED}:
        yield from _type_test(subject, method, own, outcome)
        return
    if own.owner is not subject.cls:
        reached = [
            owner for owner, each in method.trace.visited if each.name == method.name
        ]
        skipped = _skipped(subject, method, own)
        if skipped is not None:
            if not _is_older(subject, own, reached):
                yield _unreached(subject, method, own, skipped, sure)
            return
        bases = [owner for owner in reached if owner and owner is not subject.cls]
        if any(own.owner in subject.world.index.mro(owner) for owner in bases):
            return  # said of the base
    if not subject.is_known_to(own, method):
        if subject.cls.kind == "plain":
            # What a plain class adds is often no part of what its base moves.
            is_sure = sure == "high" and own.own.annotation and method.verb == "record"
            sure = "medium" if is_sure else "low"
        yield _unknown(subject, method, own, sure)
        return
    if own.is_cache and verb == "record":
        return
    match verb:
        case "record":
            yield from _not_recorded(subject, method, own, outcome, sure)
        case "clone":
            if outcome.state is State.KEPT:
                yield _shared(subject, method, own, acted, sure)
        case "copy_":
            if outcome.state is not State.KEPT and acted:
                why = (
                    f"`{method.name}` copies {_names(acted)} and not `{own.name}`, "
                    "which keeps its old values."
                )
                yield _report("TP105", subject, method, own, why, sure)
        case "size":
            if acted and not own.is_cache:
                why = f"`{method.name}` counts {_names(acted)} and not `{own.name}`."
                yield _report("TP121", subject, method, own, why, _lower(sure))
        case _:
            yield from _not_moved(subject, method, own, outcome, sure)


def _sure(
    own: FieldOf, outcome: Outcome, acted: list[FieldOf], subject: Subject
) -> str:
    """Return how sure it is that a field is forgotten."""
    if own.carries is not Carries.YES:
        return "low"
    if outcome.state is State.MENTIONED or not acted or own.is_alias:
        return "medium"
    if subject.cls.kind == "plain" and not own.own.annotation and not own.own.hint:
        return "medium"
    return "high"


def _lower(confidence: str) -> str:
    return "medium" if confidence == "high" else "low"


def _names(fields: list[FieldOf]) -> str:
    shown = ", ".join(f"`{each.name}`" for each in fields[:3])
    more = len(fields) - 3
    return f"{shown} and {more} more" if more > 0 else shown


def _report(
    rule: str,
    subject: Subject,
    method: Followed,
    own: FieldOf,
    *told: str,
) -> Report:
    why, confidence = told
    function = method.method.function
    return Report(
        rule,
        function.path,
        function.line,
        subject.cls.name,
        method.name,
        (own.name,),
        why,
        confidence,
        ((own.owner.path, own.own.line),),
        function.last,
    )


def _not_recorded(
    subject: Subject, method: Followed, own: FieldOf, outcome: Outcome, sure: str
) -> Iterator[Report]:
    movers = subject.of_verb("move", "pin")
    moved = [each.name for each in movers if subject.outcome(each, own).state in _MOVED]
    if movers and not moved:
        return  # what nothing moves needs no record here: TP103 says so
    spelled = own.own.annotation or "unannotated"
    after = f"which `{moved[0]}` moves" if moved else f"annotated `{spelled}`"
    why = (
        f"`{own.name}`, {after}, is {outcome.state.value} by `{method.name}`: its "
        "memory may be handed out again while the stream still reads it."
    )
    yield _report("TP101", subject, method, own, why, sure)


def _not_moved(
    subject: Subject, method: Followed, own: FieldOf, outcome: Outcome, sure: str
) -> Iterator[Report]:
    does = _DOES[method.verb]
    others = [
        each.name
        for each in subject.methods
        if each is not method
        and each.verb in {*_MOVES, "record", "detach", "share"}
        and subject.outcome(each, own).state is State.ACTED
    ]
    resets = [
        each.name
        for each in subject.of_verb(*_MOVES)
        if each is not method and subject.outcome(each, own).state is State.RESET
    ]
    if own.is_cache and outcome.state is State.KEPT:
        also = f", which `{resets[0]}` resets," if resets else ""
        why = (
            f"the cache `{own.name}`{also} is passed on by `{method.name}` as it is: "
            "it still refers to the old device."
        )
        level = sure if resets else _lower(sure)
        yield _report("TP114", subject, method, own, why, level)
        return
    if own.is_cache:
        return
    if others:
        why = (
            f"`{others[0]}` handles `{own.name}`, but by `{method.name}` it is "
            f"{outcome.state.value}."
        )
        yield _report("TP102", subject, method, own, why, sure)
        return
    if method.verb == "move":
        spelled = own.own.annotation or "unannotated"
        why = (
            f"no method {does} `{own.name}` (`{spelled}`): by `{method.name}` it is "
            f"{outcome.state.value}."
        )
        named = outcome.state is State.KEPT and outcome.event is not None
        level = _lower(sure) if named or subject.cls.kind == "plain" else sure
        yield _report("TP103", subject, method, own, why, level)


def _shared(
    subject: Subject, method: Followed, own: FieldOf, acted: list[FieldOf], sure: str
) -> Report:
    if acted:
        why = (
            f"`{method.name}` clones {_names(acted)} but hands on `{own.name}` itself: "
            "a write to one object shows in the other."
        )
    else:
        why = f"`{method.name}` hands on `{own.name}` itself and clones nothing."
    return _report("TP104", subject, method, own, why, sure)


def _skipped(subject: Subject, method: Followed, own: FieldOf) -> ClassDef | None:
    """Return a base whose method knows a field and is never reached."""
    index = subject.world.index
    followed = [function for _, function in method.trace.visited]
    for base in index.mro(subject.cls):
        mine = base.methods.get(method.name)
        if mine is None or mine in followed or own.owner not in index.mro(base):
            continue
        return base
    return None


def _is_older(subject: Subject, own: FieldOf, reached: list[ClassDef | None]) -> bool:
    """Return whether a base of the class already joins the same two classes."""
    index = subject.world.index
    stop = reached[-1] if reached else None
    return any(
        own.owner in index.mro(base) and stop in index.mro(base)
        for base in index.mro(subject.cls)[1:]
    )


def _unreached(
    subject: Subject, method: Followed, own: FieldOf, base: ClassDef, sure: str
) -> Report:
    reached = [
        owner for owner, each in method.trace.visited if each.name == method.name
    ]
    last = reached[-1].name if reached and reached[-1] else method.method.owner.name
    why = (
        f"`{base.name}.{method.name}` handles `{own.name}`, but it is never reached: "
        f"`{last}.{method.name}` does not call `super()`."
    )
    return _report("TP108", subject, method, own, why, sure)


def _unknown(subject: Subject, method: Followed, own: FieldOf, sure: str) -> Report:
    """Return the report of a field that the class of the method knows nothing of."""
    owner = method.method.owner.name
    why = (
        f"`{method.name}` of `{owner}` names its fields one by one and knows nothing "
        f"of `{own.name}`, which `{own.owner.name}` adds."
    )
    return _report("TP109", subject, method, own, why, sure)


def _type_test(
    subject: Subject, method: Followed, own: FieldOf, outcome: Outcome
) -> Iterator[Report]:
    most = max((arm.carries for arm in outcome.arms), default=Carries.MAY)
    if own.is_cache and method.verb == "record":
        return
    spelled = own.own.annotation or "unannotated"
    tests = sorted(
        {
            name
            for guard in (outcome.event.guards if outcome.event else ())
            if guard.kind in {"is", "has"}
            for name in guard.names
        }
    )
    tested = " and ".join(f"`{name}`" for name in tests) or "other types"
    why = (
        f"the type test of `{method.name}` ({tested}) passes over "
        f"{_kinds(outcome.arms)} in `{own.name}` (`{spelled}`)."
    )
    confidence = "low"
    if most is Carries.YES:
        partly = outcome.state is State.PARTLY
        confidence = "medium" if partly or not _moves_itself(outcome.arms) else "high"
    yield _report("TP110", subject, method, own, why, confidence)


def _moves_itself(arms: tuple[Arm, ...]) -> bool:
    """Return whether a class that is passed over is one that is meant to move."""
    return any(
        arm.kind in {"box", "tensor"}
        or arm.cls is None
        or bool(
            arm.cls.methods.keys()
            & {"to", "to_device", "cuda", "record_stream", "pin_memory", "clone"}
        )
        for arm in arms
        if arm.carries is Carries.YES
    )


def _kinds(arms: tuple[Arm, ...]) -> str:
    words = {
        "box": "the `{}`",
        "object": "the object of class `{}`",
        "tensor": "the `{}`",
        "any": "what may be inside of `{}`",
    }
    return " and ".join(words[arm.kind].format(arm.name) for arm in arms)
