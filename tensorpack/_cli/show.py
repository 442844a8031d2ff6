"""`python -m tensorpack show pkg.mod:Class`: the plan and the generated source."""

import argparse
import difflib
import operator
import sys

from tensorpack._cli.modules import (
    ImportFailure,
    contents,
    import_module,
    is_class,
    is_payload,
    names_of,
)
from tensorpack._cli.tables import print_table
from tensorpack._codegen.leaves import write
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.markers import PLAN
from tensorpack._walk.walk import walk
from tensorpack.errors import TensorpackError
from tensorpack.transfer.layout import layout_of, text
from tensorpack.transfer.packing import PACK_BELOW

__all__ = ["add_arguments", "print_plan", "run"]


class TargetError(Exception):
    """The target on the command line does not name a payload class."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("target", metavar="pkg.mod:Class", help="the payload class")
    parser.add_argument(
        "--layout",
        action="store_true",
        help="also print how an example instance is packed for a transfer",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan of a class, or why there is none.

    Returns:
        The exit code: 1 if the class or another of its module is refused, 2 if there
        is no such payload class or its module cannot be imported.
    """
    try:
        plan: ClassPlan = names_of(_payload_at(args.target))[PLAN]
    except TargetError as error:
        print(error, file=sys.stderr)
        return 2
    except TensorpackError as error:
        print(f"`{args.target}`: refused.\n{error}", file=sys.stderr)
        return 1
    print_plan(plan)
    for note in plan.notes:
        print(f"Note: {note}")
    print(write(plan).text)
    if args.layout:
        _print_layout(plan)
    return 0


def _print_layout(plan: ClassPlan) -> None:
    """Print the function that packs the small leaves of an example instance."""
    from tensorpack.testing import example  # noqa: PLC0415  # only for this option

    leaves = walk(example(plan.cls)).leaves
    layout = layout_of(leaves, PACK_BELOW)
    if layout.packs:
        print(f"\n# How an example of {len(leaves)} leaves is packed")
        print(text(layout))
    else:
        print(f"\n{len(leaves)} leaves of an example: nothing to pack.")


def print_plan(plan: ClassPlan) -> None:
    """Print what a payload class does with its fields and its cached properties."""
    print_table(
        f"Plan of {plan.cls.__qualname__}",
        ["field", "annotation", "role", "why"],
        [[f.name, f.annotation, f.role, f.why] for f in (*plan.fields, *plan.cached)],
    )


def _payload_at(target: str) -> type:
    """Return the payload class that `pkg.mod:Class` names."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        msg = f"`{target}`: does not name a class. Write `pkg.mod:Class`."
        raise TargetError(msg)
    try:
        module = import_module(module_name)
    except ImportFailure as failure:
        msg = f"`{module_name}`: cannot be imported: {failure}."
        raise TargetError(msg) from None
    try:
        found = operator.attrgetter(path)(module)
    except AttributeError:
        raise TargetError(_no_such_class(target, module)) from None
    if not is_class(found):
        msg = (
            f"`{target}`: is not a class but a value of type `{type(found).__name__}`. "
            "Name a class."
        )
        raise TargetError(msg)
    if not is_payload(found):
        msg = f"`{target}`: is not a payload. Decorate it with `@payload`."
        raise TargetError(msg)
    return found


def _no_such_class(target: str, module: object) -> str:
    """Return what to say of a name that the module does not have."""
    module_name, _, path = target.partition(":")
    payloads = [name for name, value in contents(module).items() if is_payload(value)]
    near = difflib.get_close_matches(path, payloads, cutoff=0.5) or payloads
    named = ", ".join(f"`{module_name}:{name}`" for name in near)
    hint = f"Its payloads: {named}." if named else "The module has no payloads."
    return f"`{target}`: there is no `{path}`. {hint}"
