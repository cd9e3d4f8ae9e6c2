"""The command `bu-torch report`."""

import argparse
from pathlib import Path

from bu_torch.internal.printing import cleaned, say
from bu_torch.report.comparing import write_comparison
from bu_torch.report.page import write_report
from bu_torch.report.reading import find_records, read_record

_MOST_OTHERS = 20  # records that are named


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bu-torch report`."""
    parser.description = (
        "Write one self-contained page that shows what a run measured, what was kept and why. Several runs are shown"
        " side by side."
    )
    parser.add_argument(
        "folders", metavar="RUN_DIR", type=Path, nargs="+", help="any folder above a record, or a record"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help="(%(default)s)")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    if len(options.folders) > 1:
        records = [read_record(folder) for folder in options.folders]
        say(f"{cleaned(write_comparison(records, options.output))}: {', '.join(cleaned(one.path) for one in records)}")
        return
    folder = options.folders[0]
    path, *others = (find_records(folder) if folder.is_dir() else []) or [folder]
    record = read_record(path)
    say(f"{cleaned(write_report(record, options.output, others))}: {cleaned(record.path)}")
    for other in others[:_MOST_OTHERS]:
        say(f"  not shown: {cleaned(other)}")
    if len(others) > _MOST_OTHERS:
        say(f"  not shown: {len(others) - _MOST_OTHERS} more")
