"""`python -m tensorpack show pkg.mod:Class`: the plan and the generated source."""

import argparse
import difflib
import importlib
import operator
import sys

__all__ = ["add_arguments", "run"]

_MARK = "__tensorpack_plan__"


class TargetError(Exception):
    """The target on the command line does not name a payload class."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("target", metavar="pkg.mod:Class", help="the payload class")


def run(args: argparse.Namespace) -> int:
    """Print what tensorpack knows of a class, or why it knows nothing.

    Returns:
        The exit code: 2 if there is no such payload class.
    """
    try:
        cls = _payload_at(args.target)
    except TargetError as error:
        print(error, file=sys.stderr)
        return 2
    _print_plan(cls)
    return 0


def _payload_at(target: str) -> type:
    """Find the payload class that `pkg.mod:Class` names."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        msg = f"`{target}`: names no class. Write `pkg.mod:Class`."
        raise TargetError(msg)
    module = _import(module_name)
    try:
        found = operator.attrgetter(path)(module)
    except AttributeError:
        raise TargetError(_no_such_class(target, module)) from None
    if not isinstance(found, type) or _MARK not in vars(found):
        kind = "no class" if not isinstance(found, type) else "not a payload"
        msg = f"`{target}`: is {kind}. Decorate the class with `@payload`."
        raise TargetError(msg)
    return found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        msg = (
            f"`{name}`: there is no module `{error.name}`. Check the spelling, and run "
            "from the folder that holds it or install its package."
        )
        raise TargetError(msg) from None


def _no_such_class(target: str, module: object) -> str:
    module_name, _, path = target.partition(":")
    payloads = [name for name, value in vars(module).items() if _is_payload(value)]
    near = difflib.get_close_matches(path, payloads, cutoff=0.5) or payloads
    named = ", ".join(f"`{module_name}:{name}`" for name in near)
    hint = f"Its payloads: {named}." if named else "The module has no payloads."
    return f"`{target}`: the module has no `{path}`. {hint}"


def _is_payload(value: object) -> bool:
    return isinstance(value, type) and _MARK in vars(value)
