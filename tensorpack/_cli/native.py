"""`python -m tensorpack native`: build the compiled core, or say what is used."""

import argparse
import sys
import time

from tensorpack.transfer import native

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `native`."""
    parser.add_argument(
        "--status", action="store_true", help="say which core is used, and build none"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show what the compiler says"
    )


def run(args: argparse.Namespace) -> int:
    """Build the core, and print where it is."""
    if not args.status:
        start = time.perf_counter()
        try:
            path = native.build(verbose=args.verbose)
        except native.BuildError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"Built {path} in {time.perf_counter() - start:.0f} seconds.")
    print(native.status())
    return 0
