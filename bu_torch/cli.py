"""Compare ways to stop a training, choose among checkpoints, and show a run."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from bu_torch._version import __version__
from bu_torch.internal.output import printable, say

# Each has a module with functions `add_options` and `run`, whose docstring `--help` shows.
_COMMANDS = {
    "compare": ("compare ways to stop a training, on tables of your own", "bu_torch.comparison.tables"),
    "rank": ("rank checkpoints without validation data", "bu_torch.ranking.command"),
    "report": ("write a page that shows a run", "bu_torch.report.page"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `bu-torch COMMAND ...`; give 0, or 1 if something cannot be done, which a line on stderr says."""
    try:
        try:
            _run(sys.argv[1:] if arguments is None else list(arguments))
        finally:
            sys.stdout.flush()  # Python's own flush, when it exits, would show an error of the pipe
    except BrokenPipeError:  # what reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
        _say_problem(error)
        return 1
    return 0


def _run(given: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bu-torch", description=__doc__)
    parser.add_argument("--version", action="version", version=f"bu-torch {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (summary, place) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if given[:1] == [name]:  # the others' modules are not loaded: torch alone takes seconds
            module = import_module(place)
            command.description = module.__doc__
            module.add_options(command.add_argument)
            command.set_defaults(run=module.run)
    options = parser.parse_args(given)
    with warnings.catch_warnings():
        warnings.showwarning = _say_problem
        if not sys.warnoptions:
            warnings.simplefilter("default", UserWarning)
        options.run(options)


def _say_problem(message: Exception | str, *_: Any, **__: Any) -> None:
    say(f"bu-torch: {printable(message)}", sys.stderr)
