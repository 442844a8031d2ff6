"""`python -m tensorpack check pkg.mod`: every payload and every refusal of modules."""

import argparse
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from types import ModuleType

import attrs

from tensorpack._lifetime import PLAN
from tensorpack._nodes import ClassPlan
from tensorpack._refusals import Refused, collected
from tensorpack.errors import LifetimeError, Refusal, TensorpackError

__all__ = ["add_arguments", "run"]


@attrs.define
class Findings:
    """What the imports have brought to light.

    Attributes:
        modules: names that were tried, in that order.
        payloads: the payload classes, each once.
        refused: the classes that are refused.
        refusals: text of each refusal, after it the module where it stands, and those
            whose import it stopped.
        stopped: modules whose import a refusal stopped, and its text.
        failures: modules that could not be imported for another reason, and why.
    """

    modules: list[str] = attrs.field(factory=list)
    payloads: dict[type, ClassPlan] = attrs.field(factory=dict)
    refused: list[Refused] = attrs.field(factory=list)
    refusals: dict[str, list[str]] = attrs.field(factory=dict)
    stopped: dict[str, str] = attrs.field(factory=dict)
    failures: dict[str, str] = attrs.field(factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "modules",
        nargs="+",
        metavar="pkg.mod",
        help="modules to import; of a package also the modules inside",
    )


def run(args: argparse.Namespace) -> int:
    """Import modules and print every payload and every refusal.

    Returns:
        The exit code: 1 if anything is refused, else 2 if a module cannot be imported
        for another reason, else 0.
    """
    findings = Findings()
    for name in args.modules:
        _visit(name, findings)
    _print_payloads(findings)
    _print_problems(findings)
    print(_counts(findings))
    if findings.refusals:
        return 1
    return 2 if findings.failures else 0


def _visit(name: str, findings: Findings) -> None:
    """Import a module and, if it is a package, all modules inside."""
    if name in findings.modules:
        return
    findings.modules.append(name)
    with collected() as refused:
        module = _import(name, findings)
    _note(refused, name, findings)
    if module is None:
        return
    stand_ins = {id(each.cls) for each in findings.refused}
    found = _payloads(module)
    findings.payloads.update((c, p) for c, p in found if id(c) not in stand_ins)
    for inside in pkgutil.iter_modules(getattr(module, "__path__", ())):
        # Importing a `__main__` would run the program.
        if inside.name != "__main__":
            _visit(f"{name}.{inside.name}", findings)


def _import(name: str, findings: Findings) -> ModuleType | None:
    """Import a module, or note why that cannot be."""
    try:
        return importlib.import_module(name)
    except TensorpackError as error:
        # Not of a class, which is collected: of an adapter, or of the use of a payload.
        findings.stopped[name] = str(error)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            findings.failures[name] = f"there is no module `{error.name}`"
        else:
            findings.failures[name] = f"it needs `{error.name}`, which is not there"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is reported, in full
        findings.failures[name] = f"{type(error).__name__}: {error}"
    return None


def _note(refused: Sequence[Refused], name: str, findings: Findings) -> None:
    """Note the refusals that an import has met, each where its class is defined."""
    for each in refused:
        text = _own_text(each, findings.refused)
        findings.refused.append(each)
        if text:
            # A class of another project is refused where it is adopted.
            module = str(getattr(each.cls, "__module__", name))
            where = module if _root(module) == _root(name) else name
            findings.refusals.setdefault(text, []).append(where)
    if name in findings.stopped:
        findings.refusals.setdefault(findings.stopped[name], []).append(name)


def _own_text(refused: Refused, before: Sequence[Refused]) -> str:
    """Give the text of a refusal, without what is said of the class's bases."""
    error, cls = refused.error, refused.cls
    if not isinstance(error, LifetimeError) or not isinstance(cls, type):
        return str(error)
    said: set[Refusal] = set()
    for each in before:
        if isinstance(each.cls, type) and issubclass(cls, each.cls):
            said.update(getattr(each.error, "refusals", ()))
    own = [refusal for refusal in error.refusals if refusal not in said]
    return str(LifetimeError(cls=error.cls, refusals=own)) if own else ""


def _payloads(module: ModuleType) -> Iterator[tuple[type, ClassPlan]]:
    """Iterate the payloads that a module defines, and those of others it adopts."""
    for value in vars(module).values():
        if not isinstance(value, type):
            continue
        if value.__module__ == module.__name__:
            yield from _payloads_inside(value)
        elif _root(value.__module__) != _root(module.__name__) and PLAN in vars(value):
            yield value, vars(value)[PLAN]


def _payloads_inside(cls: type) -> Iterator[tuple[type, ClassPlan]]:
    """Iterate a class, if it is a payload, and the payloads defined in its body."""
    if PLAN in vars(cls):
        yield cls, vars(cls)[PLAN]
    for name, value in vars(cls).items():
        if (
            isinstance(value, type)
            and value.__qualname__ == f"{cls.__qualname__}.{name}"
        ):
            yield from _payloads_inside(value)


def _root(module_name: str) -> str:
    return module_name.partition(".")[0]


def _print_payloads(findings: Findings) -> None:
    for cls, plan in findings.payloads.items():
        travel, stay = len(plan.payload_keys), len(plan.host_keys)
        derived = len(plan.fields) - travel - stay
        fields = f"{travel} field{'' if travel == 1 else 's'} travel, {stay} stay"
        more = f", {derived} derived" if derived else ""
        print(f"`{cls.__module__}:{cls.__qualname__}`: {fields}{more}.")
    if findings.payloads:
        print()


def _print_problems(findings: Findings) -> None:
    for text, modules in findings.refusals.items():
        first, *others = [f"`{name}`" for name in modules]
        print(f"{first}: refused.\n{text}")
        if others:
            print(f"The same stops the import of {', '.join(others)}.")
        print()
    for name, reason in findings.failures.items():
        print(f"`{name}`: cannot be imported: {reason}.\n")
    if findings.stopped:
        stopped = ", ".join(f"`{name}`" for name in findings.stopped)
        print(f"What follows the refusal in {stopped} is not checked yet.")


def _counts(findings: Findings) -> str:
    counts = {
        "module": len(findings.modules),
        "payload": len(findings.payloads),
        "refusal": len(findings.refusals),
    }
    parts = [f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items()]
    return ", ".join([*parts, f"{len(findings.failures)} not imported"])
