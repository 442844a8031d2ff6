"""The command line: `python -m tensorpack demo / show / check / bench / ...`."""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Protocol, cast

__all__ = ["main"]

_COMMANDS = {
    "demo": "serve text with a small language model whose inputs are payloads",
    "show": "print the plan and the generated source of a payload class",
    "check": "import modules and report every payload and every refusal",
    "audit": "find fields that hand-written methods forget, from source text alone",
    "bench": "measure moving and recording against hand-written loops",
    "native": "build the compiled core of transfers",
}


class Command(Protocol):
    """What the module of a sub-command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and give the exit code."""


class _Demo:
    """The demo, whose package is imported only to run it: it needs all of torch."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from tensorpack._cli.arguments import positive  # noqa: PLC0415 - the same

        parser.add_argument(
            "--device", help="where the model runs (default: the accelerator, or cpu)"
        )
        parser.add_argument(
            "--steps",
            type=positive,
            default=100,
            metavar="N",
            help="number of forward steps (default: 100)",
        )
        parser.add_argument(
            "--prompt",
            action="append",
            default=[],
            metavar="TEXT",
            help="text of a request, its last 512 bytes; may be given several times",
        )

    def run(self, args: argparse.Namespace) -> int:
        from tensorpack._cli import demo  # noqa: PLC0415 - see the class

        return demo.run(args.device, args.steps, args.prompt)


def _command(name: str) -> Command:
    if name == "demo":
        return _Demo()
    return cast("Command", importlib.import_module(f"{__name__}.{name}"))


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Build the parser; only the chosen command's module is imported."""
    parser = argparse.ArgumentParser(
        prog="python -m tensorpack",
        description="Lifetime-safe payloads between host and device.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in _COMMANDS.items():
        if importlib.util.find_spec(f"{__name__}.{name}") is None:
            continue
        own = commands.add_parser(name, help=purpose, description=f"{purpose}.")
        if name == chosen:
            _command(name).add_arguments(own)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; None takes those of the process.

    Returns:
        The exit code.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    chosen = next((arg for arg in argv if not arg.startswith("-")), None)
    args = _parser(chosen).parse_args(argv)
    return _command(args.command).run(args)
