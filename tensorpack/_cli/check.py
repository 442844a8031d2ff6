"""`python -m tensorpack check pkg.mod`: every payload and every refusal of modules."""

import argparse
import importlib
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs

from tensorpack._cli.modules import (
    contents,
    is_class,
    is_payload,
    module_of,
    modules_inside,
    mro_of,
    payloads_inside,
    plan_of,
    qualname_of,
    root,
)
from tensorpack._plan.namespace import own_annotations
from tensorpack._plan.plan import ClassPlan
from tensorpack._refusals import Refused, RefusedPlan, collected
from tensorpack._rules.hints import host_hint
from tensorpack.errors import LifetimeError, Refusal, TensorpackError

__all__ = ["add_arguments", "run"]


@attrs.define
class Problem:
    """A refusal, as it is told.

    Attributes:
        module: name of the module where it stands.
        text: what is refused, and why.
        stops: names of the modules whose import it stopped.
    """

    module: str
    text: str
    stops: list[str] = attrs.field(factory=list)


@attrs.define
class Findings:
    """What the imports have brought to light.

    Attributes:
        collected: the classes that are refused, as they come, on whatever thread.
        modules: names that were tried, in that order.
        payloads: the payload classes by identity, each with the module it is told by.
        refused: the refused classes that have been looked at.
        raised: refusals that came through: of adapters, or of the use of a payload.
        problems: each refusal once, by where it stands and what it says. A class that
            a function makes twice has one, and so has a module that is run twice.
        by_error: the same by the identity of their errors.
        stopped: modules whose import a refusal stopped.
        failures: modules that could not be imported for another reason, and why.
    """

    collected: list[Refused]
    modules: list[str] = attrs.field(factory=list)
    payloads: dict[int, tuple[str, ClassPlan]] = attrs.field(factory=dict)
    refused: list[Refused] = attrs.field(factory=list)
    raised: list[TensorpackError] = attrs.field(factory=list)
    problems: dict[tuple[str, int, str], Problem] = attrs.field(factory=dict)
    by_error: dict[int, Problem] = attrs.field(factory=dict)
    stopped: list[str] = attrs.field(factory=list)
    failures: dict[str, str] = attrs.field(factory=dict)

    def tell(self, error: TensorpackError, module: str, line: int, text: str) -> None:
        """Note what an error says, and where it stands."""
        problem = self.problems.setdefault((module, line, text), Problem(module, text))
        self.by_error[id(error)] = problem

    def is_visited(self, module: str) -> bool:
        """Tell whether a module is of a project that is being checked."""
        return root(module) in map(root, self.modules)


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

    Nobody waits for threads that the modules have started and that go on.

    Returns:
        The exit code: 1 if anything is refused, else 2 if a module cannot be imported
        for another reason, else 0.
    """
    with collected() as refused, _ends_of_threads() as errors:
        findings = Findings(refused)
        for name in args.modules:
            _visit(name, findings)
    _note_collected(findings)
    for error in errors:
        _problem_of(error, findings)
    _print_payloads(findings)
    _print_hints(findings)
    _print_problems(findings)
    print(_counts(findings))
    if findings.problems:
        return 1
    return 2 if findings.failures else 0


@contextmanager
def _ends_of_threads() -> Iterator[list[TensorpackError]]:
    """List the refusals that end threads in the body, instead of printing them."""
    errors: list[TensorpackError] = []
    before = threading.excepthook

    def hear(end: threading.ExceptHookArgs) -> None:
        if isinstance(end.exc_value, TensorpackError):
            errors.append(end.exc_value)
        else:
            before(end)

    threading.excepthook = hear
    try:
        yield errors
    finally:
        threading.excepthook = before


def _visit(name: str, findings: Findings) -> None:
    """Import a module and, if it is a package, all modules inside."""
    if name in findings.modules:
        return
    findings.modules.append(name)
    module = _import(name, findings)
    if module is None:
        return
    _note_payloads(name, module, findings)
    for inside in modules_inside(module):
        _visit(f"{name}.{inside}", findings)


def _import(name: str, findings: Findings) -> object:
    """Import a module, or note why that cannot be."""
    try:
        module = importlib.import_module(name)
        # One that is lazy runs now.
        getattr(module, "__dict__", None)
    except TensorpackError as error:
        _note_collected(findings)
        _problem_of(error, findings).stops.append(name)
        findings.stopped.append(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - it is reported, in full
        _note_collected(findings)
        findings.failures[name] = _why_not(name, error)
    else:
        _note_collected(findings)
        return module
    return None


def _why_not(name: str, error: BaseException) -> str:
    """Say why a module cannot be imported."""
    text = _text(error)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or not text.startswith(f"No module named {missing!r}"):
        kind = type(error).__name__
        return f"{kind}: {text}" if text else kind
    if f"{name}.".startswith(f"{missing}."):
        return f"there is no module `{missing}`"
    return f"it needs `{missing}`, which is not there"


def _text(error: BaseException) -> str:
    """Give the text of any error: some cannot say it."""
    try:
        return str(error)
    except Exception as cause:  # noqa: BLE001 - the text of an error is user code
        return f"its text cannot be made ({type(cause).__name__})"


def _problem_of(error: TensorpackError, findings: Findings) -> Problem:
    """Give the problem of an error that came through; a class's is known already."""
    if id(error) not in findings.by_error:
        findings.raised.append(error)
        findings.tell(error, *_raised_at(error, findings), str(error))
    return findings.by_error[id(error)]


def _raised_at(error: TensorpackError, findings: Findings) -> tuple[str, int]:
    """Give the last module being checked, and the line, that an error went through."""
    found = findings.modules[-1], 0
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__"))
        if findings.is_visited(name):
            found = name, line
    return found


def _note_collected(findings: Findings) -> None:
    """Look at the classes that have been refused since the last time."""
    while findings.collected:
        refused = findings.collected.pop(0)
        inherited = {
            refusal: base.error
            for base in findings.refused
            for refusal in _inherited(refused, base)
        }
        _tell(refused, inherited, findings)
        findings.refused.append(refused)


def _inherited(refused: Refused, base: Refused) -> Iterator[Refusal]:
    """Iterate the refusals of a base that a class has only because it derives."""
    mro = mro_of(refused.cls) if is_class(refused.cls) else ()
    at = next((i for i, above in enumerate(mro) if above is base.cls), None)
    if at is not None and isinstance(base.error, LifetimeError):
        for refusal in base.error.refusals:
            if not any(_writes(above, refusal.field) for above in mro[:at]):
                yield refusal


def _writes(cls: type, field: str) -> bool:
    """Tell whether a class itself says what a field holds."""
    corrections = plan_of(cls).corrections if is_payload(cls) else ()
    return field in own_annotations(cls) or field in corrections


def _tell(
    refused: Refused, inherited: Mapping[Refusal, TensorpackError], findings: Findings
) -> None:
    """Note the refusal of a class, without what is said of its bases."""
    error = refused.error
    if not isinstance(error, LifetimeError) or not inherited:
        findings.tell(error, _where(refused, findings), refused.line, str(error))
        return
    own = [refusal for refusal in error.refusals if refusal not in inherited]
    if own:
        text = str(LifetimeError(cls=error.cls, refusals=own))
        findings.tell(error, _where(refused, findings), refused.line, text)
    else:
        said = inherited[error.refusals[0]]
        findings.by_error[id(error)] = findings.by_error[id(said)]


def _where(refused: Refused, findings: Findings) -> str:
    """Name the module where a refusal stands.

    A class of another project is refused where it is adopted.
    """
    module = module_of(refused.cls) if is_class(refused.cls) else ""
    known = findings.is_visited(module) or root(module) == root(refused.module)
    return module if module and known else refused.module


def _note_payloads(name: str, module: object, findings: Findings) -> None:
    """Note the payloads of a module, and what an earlier check has refused in it."""
    stand_ins = {id(each.cls) for each in findings.refused}
    for cls in _payloads(name, module):
        where, plan = module_of(cls) or name, plan_of(cls)
        if id(cls) in stand_ins:
            continue
        if isinstance(plan, RefusedPlan):
            findings.collected.append(Refused(cls, plan.error, where, 0))
        else:
            findings.payloads.setdefault(id(cls), (where, plan))
    _note_collected(findings)


def _payloads(name: str, module: object) -> Iterator[type]:
    """Iterate the payloads that a module defines, and those of others it adopts."""
    values = contents(module)
    called = values.get("__name__")
    own = {"", name, called if type(called) is str else name}
    for value in values.values():
        if not is_class(value):
            continue
        if module_of(value) in own:
            yield from payloads_inside(value)
        elif root(module_of(value)) != root(name) and is_payload(value):
            yield value


def _print_payloads(findings: Findings) -> None:
    for module, plan in findings.payloads.values():
        travel, stay = len(plan.payload_keys), len(plan.host_keys)
        derived = len(plan.fields) - travel - stay
        fields = f"{travel} field{'' if travel == 1 else 's'} travel, {stay} stay"
        more = f", {derived} derived" if derived else ""
        print(f"`{module}:{qualname_of(plan.cls)}`: {fields}{more}.")
    if findings.payloads:
        print()


def _print_hints(findings: Findings) -> None:
    """Print what may be meant otherwise; it is no refusal."""
    hints = [
        hint
        for _, plan in findings.payloads.values()
        for field in plan.fields
        if (hint := host_hint(qualname_of(plan.cls), field.name, field.node))
    ]
    for hint in hints:
        print(f"note: {hint}")
    if hints:
        print()


def _print_problems(findings: Findings) -> None:
    for problem in findings.problems.values():
        print(f"`{problem.module}`: refused.\n{problem.text}")
        if problem.stops:
            print(f"The same stops the import of {_listed(problem.stops)}.")
        print()
    for name, reason in findings.failures.items():
        print(f"`{name}`: cannot be imported: {reason}.\n")
    if findings.stopped:
        stopped = _listed(findings.stopped)
        print(f"What follows the refusal in {stopped} is not checked yet.")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _counts(findings: Findings) -> str:
    counts = {
        "module": len(findings.modules),
        "payload": len(findings.payloads),
        "refusal": len(findings.problems),
    }
    parts = [f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items()]
    return ", ".join([*parts, f"{len(findings.failures)} not imported"])
