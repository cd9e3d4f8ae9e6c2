"""The command `bu-torch`: what is done with a run from outside of it."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bu_torch._rank_command import add_rank
from bu_torch._version import __version__
from bu_torch.report.commands import add_report, add_watch

# Each adds one command, whose `run` is given the options.
_COMMANDS: tuple[Callable[[Any], None], ...] = (add_rank, add_report, add_watch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `bu-torch COMMAND ...`.

    Args:
        arguments: What comes after `bu-torch`; None takes the process's own.

    Returns:
        Exit status: 0, or 1 where what was asked for cannot be done, which is said in a line on stderr.
    """
    parser = argparse.ArgumentParser(prog="bu-torch", description=__doc__)
    parser.add_argument("--version", action="version", version=f"bu-torch {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for register in _COMMANDS:
        register(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
        print(f"bu-torch: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
