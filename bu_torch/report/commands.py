"""The commands `bu-torch report` and `bu-torch watch`."""

import contextlib
import sys
from pathlib import Path
from typing import Any

from bu_torch.report.page import write_report
from bu_torch.report.reading import find_records, read_record
from bu_torch.report.serving import watch


def add_report(commands: Any) -> None:
    """Add `bu-torch report`."""
    parser = commands.add_parser(
        "report",
        help="write a page that shows a run",
        description="Write one self-contained page that shows what a run measured, what was kept and why.",
    )
    parser.add_argument("folder", metavar="RUN_DIR", type=Path, help="any folder above a record, or a record")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help="(%(default)s)")
    parser.set_defaults(run=_report)


def _report(options: Any) -> None:
    found = find_records(options.folder) if options.folder.is_dir() else []
    record = read_record(found[0] if found else options.folder)
    others = [path for path in found if path != record.path]
    _say(f"{write_report(record, options.output, others)}: {record.path}")
    for path in others:
        _say(f"  not shown: {path}")


def add_watch(commands: Any) -> None:
    """Add `bu-torch watch`."""
    parser = commands.add_parser(
        "watch",
        help="show a run while it goes on",
        description="Serve the page of the newest record to this machine alone, and refresh it while training runs.",
    )
    parser.add_argument("folder", metavar="RUN_DIR", type=Path, help="any folder above a record")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 takes one that is free (%(default)s)")
    parser.set_defaults(run=_watch)


def _watch(options: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        watch(options.folder, port=options.port, on_start=lambda address: _say(f"{address} (Ctrl-C ends it)"))


def _say(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)  # noqa: T201
