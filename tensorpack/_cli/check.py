"""`python -m tensorpack check pkg.mod`: every payload and every refusal of modules."""

import argparse
from collections.abc import Iterator

import attrs

from tensorpack._cli.modules import (
    ImportFailure,
    classes_in,
    import_module,
    is_payload,
    modules_inside,
    names_of,
)
from tensorpack._install import Refused, collected
from tensorpack._plan.namespace import own_annotations
from tensorpack._rules.hints import host_hint
from tensorpack._rules.markers import BASE, PLAN, REFUSED
from tensorpack._walk.values import payload_plan
from tensorpack.errors import LifetimeError, TensorpackError, UndecoratedError

__all__ = ["add_arguments", "run"]


@attrs.define
class Findings:
    """What the imports have brought to light.

    Attributes:
        refused: the classes that `@payload` has refused so far.
        modules: names that were tried, in order.
        payloads: for each payload class, the module it is reported by.
        refusals: (module, line, text) of each refusal, once.
        stopped: modules whose import a refusal stopped.
        failures: modules that could not be imported for another reason, and why.
    """

    refused: list[Refused]
    modules: list[str] = attrs.field(factory=list)
    payloads: dict[type, str] = attrs.field(factory=dict)
    refusals: dict[tuple[str, int, str], None] = attrs.field(factory=dict)
    stopped: list[str] = attrs.field(factory=list)
    failures: dict[str, str] = attrs.field(factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "modules",
        nargs="+",
        metavar="pkg.mod",
        help="modules to import; of a package also the modules inside, and those in "
        "folders without an `__init__`",
    )


def run(args: argparse.Namespace) -> int:
    """Import modules and print every payload and every refusal.

    Returns:
        The exit code: 1 if anything is refused, else 2 if a module cannot be imported
        for another reason, else 0.
    """
    with collected() as refused:
        findings = Findings(refused)
        for name in args.modules:
            module = _visit(name, findings)
            for inside in modules_inside(module):
                if not _is_below(f"{name}.{inside}", findings):
                    _visit(f"{name}.{inside}", findings)
    for each in refused:
        _note_refused(each, findings)
    _print_findings(findings)
    if findings.refusals:
        return 1
    return 2 if findings.failures else 0


def _is_below(name: str, findings: Findings) -> bool:
    """Return whether a module is inside a package that cannot be imported."""
    failed = (*findings.failures, *findings.stopped)
    return any(name.startswith(f"{package}.") for package in failed)


def _visit(name: str, findings: Findings) -> object:
    """Import a module and note what is in it, or why it cannot be imported."""
    if name in findings.modules:
        return None
    findings.modules.append(name)
    try:
        module = import_module(name)
    except TensorpackError as error:
        findings.stopped.append(name)
        findings.refusals[name, 0, str(error)] = None
    except ImportFailure as failure:
        findings.failures[name] = str(failure)
    else:
        for cls in classes_in(name, module):
            _note_class(cls, name, findings)
        return module
    return None


def _note_class(cls: type, name: str, findings: Findings) -> None:
    """Note a payload, what an earlier check has refused, and who was forgotten."""
    names = names_of(cls)
    home = names.get("__module__")
    where = home if type(home) is str else name
    if PLAN in names:
        findings.payloads.setdefault(cls, where)
    elif isinstance(names.get(REFUSED), Refused):
        if not any(each.cls is cls for each in findings.refused):
            findings.refused.append(names[REFUSED])
    elif _is_forgotten(cls):
        try:
            payload_plan(cls)
        except UndecoratedError as error:
            findings.refusals[where, 0, str(error)] = None


def _is_forgotten(cls: type) -> bool:
    """Return whether a class looks like a payload whose decorator was left out.

    One without annotations may serve its subclasses only, if those are decorated.
    """
    above = type.__getattribute__(cls, "__mro__")[1:]
    if not any({PLAN, BASE} & names_of(base).keys() for base in above):
        return False
    if getattr(cls, "__abstractmethods__", None) or names_of(cls).get("_is_protocol"):
        return False
    return bool(own_annotations(cls)) or not any(map(is_payload, cls.__subclasses__()))


def _note_refused(refused: Refused, findings: Findings) -> None:
    """Note the refusal of a class, without what is said of its bases already."""
    error = refused.error
    text = str(error)
    if isinstance(error, LifetimeError):
        own = [r for r in error.refusals if r not in {*_inherited(refused, findings)}]
        text = str(LifetimeError(cls=error.cls, refusals=own)) if own else ""
    if text:
        findings.refusals[refused.module, refused.line, text] = None


def _inherited(refused: Refused, findings: Findings) -> Iterator[object]:
    """Yield the refusals of bases for fields that a class does not write anew."""
    mro = type.__getattribute__(refused.cls, "__mro__")
    for base in findings.refused:
        if base.cls in mro[1:] and isinstance(base.error, LifetimeError):
            between = mro[: mro.index(base.cls)]
            written = {
                *refused.corrections,
                *(n for c in between for n in own_annotations(c)),
            }
            yield from (r for r in base.error.refusals if r.field not in written)


def _print_findings(findings: Findings) -> None:
    """Print the payloads, the refusals, and what could not be imported."""
    for cls, module in findings.payloads.items():
        print(f"`{module}:{cls.__qualname__}`: {_fields(cls)}.")
    hints = [hint for cls in findings.payloads for hint in _hints(cls)]
    print(end="\n" * bool(findings.payloads))
    for hint in hints:
        print(f"note: {hint}")
    print(end="\n" * bool(hints))
    for module, _, text in findings.refusals:
        print(f"`{module}`: refused.\n{text}\n")
    for name, reason in findings.failures.items():
        print(f"`{name}`: cannot be imported: {reason}.\n")
    if findings.stopped:
        listed = ", ".join(f"`{name}`" for name in findings.stopped)
        print(f"What follows the refusal in {listed} was not checked.")
    counts = (
        _count(len(findings.modules), "module"),
        _count(len(findings.payloads), "payload"),
        _count(len(findings.refusals), "refusal"),
    )
    print(f"{', '.join(counts)}, {len(findings.failures)} not imported")


def _hints(cls: type) -> Iterator[str]:
    """Yield what is told of leaves that their names keep on the host."""
    for field in payload_plan(cls).fields:
        hint = host_hint(cls.__qualname__, field.name, field.node)
        if hint is not None:
            yield hint


def _fields(cls: type) -> str:
    """Return how many fields of a payload travel, stay and are derived."""
    plan = payload_plan(cls)
    travel, stay = len(plan.payload_keys), len(plan.host_keys)
    derived = len(plan.fields) - travel - stay
    more = f", {derived} derived" if derived else ""
    return f"{_count(travel, 'field')} travel, {stay} stay{more}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
