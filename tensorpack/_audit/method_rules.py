"""Rules about how a whole-object method treats the values it goes over."""

from collections.abc import Iterator

from tensorpack._audit.reports import Report
from tensorpack._audit.subjects import Followed, Subject
from tensorpack._audit.trace import Each, Event, Part, Whole

__all__ = ["treatments"]

_NEW = {
    "clone",
    "contiguous",
    "cpu",
    "cuda",
    "detach",
    "pin_memory",
    "to",
}
"""Methods of a tensor that change nothing and give a new one."""

_LIFETIME = {*_NEW, "record_stream", "to_device", "copy_"}


def treatments(subject: Subject) -> Iterator[Report]:
    """Yield reports about values that are dropped, thrown away or moved twice."""
    yield from _disagreements(subject)
    for method in subject.methods:
        if method.method.owner is not subject.cls:
            continue
        yield from _dropped_elements(subject, method)
        yield from _swallowed(subject, method)
        yield from _thrown_away(subject, method)
        yield from _live_dictionary(subject, method)


def _report(
    rule: str,
    subject: Subject,
    method: Followed,
    event: Event,
    *told: str,
) -> Report:
    """Return a report about a statement of a method, told by reason and confidence."""
    why, confidence = told
    function = method.method.function
    fields = (event.subject.field,) if isinstance(event.subject, Part) else ()
    return Report(
        rule,
        event.path,
        event.line,
        subject.cls.name,
        method.name,
        fields,
        why,
        confidence,
        (),
        function.last,
    )


def _tests(method: Followed) -> tuple[frozenset[str], frozenset[str]]:
    """Return the types and the attributes that a loop over all fields tests."""
    types: set[str] = set()
    attributes: set[str] = set()
    for event in method.trace.events:
        if event.kind != "act" or not isinstance(event.subject, Each):
            continue
        tests = [guard for guard in event.guards if guard.subject == ""]
        for guard in tests:
            if guard.kind == "is":
                types |= guard.names
            elif guard.kind == "has":
                attributes |= guard.names
    return frozenset(types), frozenset(attributes)


def _disagreements(subject: Subject) -> Iterator[Report]:
    """Yield one report if movers of a class test their values in different ways."""
    own = [
        method
        for method in subject.of_verb("move", "detach")
        if method.method.owner is subject.cls
    ]
    tests = {method.name: _tests(method) for method in own}
    by_attribute = [name for name, (types, has) in tests.items() if has and not types]
    by_type = [name for name, (types, has) in tests.items() if types and not has]
    if not by_attribute or not by_type:
        return
    first = next(method for method in own if method.name == by_type[0])
    event = next(
        each
        for each in first.trace.events
        if each.kind == "act" and isinstance(each.subject, Each)
    )
    types = " or ".join(f"`{name}`" for name in sorted(tests[by_type[0]][0]))
    attribute = min(tests[by_attribute[0]][1])
    methods = ", ".join(f"`{name}`" for name in by_type)
    why = (
        f"{methods} handle only values of {types}, `{by_attribute[0]}` all that have "
        f"`.{attribute}`: values of other classes move by one and not by the other."
    )
    yield _report("TP102", subject, first, event, why, "high")


def _dropped_elements(subject: Subject, method: Followed) -> Iterator[Report]:
    boxes: dict[int, list[Event]] = {}
    for event in method.trace.events:
        if event.kind == "append" and event.box in method.trace.stored:
            boxes.setdefault(event.box, []).append(event)
    seen = set()
    for events in boxes.values():
        tests = [
            [g for g in each.guards if g.deep and g.kind in {"is", "has"}]
            for each in events
        ]
        complete = any(
            not found or any(g.kind in {"isnot", "hasnot"} for g in each.guards)
            for found, each in zip(tests, events, strict=True)
        )
        if complete or events[0].line in seen:
            continue
        seen.add(events[0].line)
        names = sorted({name for found in tests for g in found for name in g.names})
        tested = " or ".join(f"`{name}`" for name in names)
        why = (
            f"elements that fail the test for {tested} are left out of the new list: "
            "it is shorter than the old one."
        )
        yield _report("TP111", subject, method, events[0], why, "high")


def _swallowed(subject: Subject, method: Followed) -> Iterator[Report]:
    seen = set()
    for event in method.trace.events:
        if event.kind != "act" or not event.swallowed or event.line in seen:
            continue
        known = event.name in _LIFETIME or method.verb in {"record", "move"}
        if not known or event.subject is None:
            continue
        seen.add(event.line)
        broad = event.swallowed in {"all", "Exception", "BaseException"}
        caught = "every error" if broad else f"`{event.swallowed}`"
        why = (
            f"{caught} around `{event.name}` is swallowed: what cannot be handled is "
            "left as it is, in silence."
        )
        confidence = "high" if broad else "medium"
        yield _report("TP112", subject, method, event, why, confidence)
        return


def _thrown_away(subject: Subject, method: Followed) -> Iterator[Report]:
    for event in method.trace.events:
        if event.kind == "class":
            why = (
                f"`getattr` reads the class `{subject.cls.name}`, not the object: "
                "the fields of the object are never touched."
            )
            yield _report("TP115", subject, method, event, why, "high")
            return
    for event in method.trace.events:
        if event.kind != "thrown" or event.name not in _NEW:
            continue
        tensor = False
        if isinstance(event.subject, Part):
            own = subject.fields.get(event.subject.field)
            arms = own.arms if own else ()
            tensor = bool(arms) and all(arm.kind == "tensor" for arm in arms)
            tensor = tensor and not event.subject.deep
        elif isinstance(event.subject, Each):
            tensor = any(
                guard.kind == "is" and guard.names == {"Tensor"}
                for guard in event.guards
            )
        if tensor:
            why = (
                f"the result of `{event.name}` is thrown away: it gives a new tensor "
                "and leaves the old one as it is."
            )
            yield _report("TP115", subject, method, event, why, "high")


def _live_dictionary(subject: Subject, method: Followed) -> Iterator[Report]:
    live = next((each for each in method.trace.events if each.kind == "live"), None)
    roots = {atom.root for atom in method.trace.result if isinstance(atom, Whole)}
    if live is None or "self" in roots or not (method.trace.made or "new" in roots):
        return
    why = (
        "the dictionary that is written to is the one of `self`, not a copy: the "
        "source is changed together with the new object."
    )
    yield _report("TP116", subject, method, live, why, "high")
