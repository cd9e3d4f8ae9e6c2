"""Write one self-contained page that shows what a run measured, what was kept and why."""

import argparse
import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from bu_torch.internal.output import cleaned, say, whole_file
from bu_torch.report.record import RunRecord, find_records, read_record
from bu_torch.report.sections import content


def render(record: RunRecord) -> str:
    """Render the page of a record as HTML that runs only its own scripts."""
    shown, scripts = content(record), (resource("plotly/plotly-cartesian.min.js"), resource("page.js"))
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    # JSON in a script element must not hold `<`.
    drawings = json.dumps(shown.drawings, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    nothing = "default-src 'none'; connect-src 'none'; base-uri 'none'; form-action 'none'"
    policy = f"{nothing}; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    parts = {"policy": policy, "title": shown.title, "style": resource("page.css"), "main": shown.main}
    parts |= {"content": drawings, "plotly": scripts[0], "script": scripts[1]}
    # In one pass, so that inserted text is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], resource("page.html"))


def write_report(record: RunRecord, path: str | PathLike[str]) -> Path:
    """Write the page of a record to `path`, and return it; an older page is replaced as a whole or not at all.

    Missing folders are made. Raises OSError if the file cannot be written, or exists and is not a page of bu-torch.
    """
    text, path = render(record), Path(path)
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if b'<meta name="generator" content="bu-torch">' not in file.read(2000):
                raise FileExistsError(f"{path} exists and was not written by bu-torch: name another file (`-o`).")
    try:
        with whole_file(path) as part:
            part.write_bytes(text.encode("utf-8"))
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error}. Name another file (`-o`).") from error
    return path


@functools.cache
def resource(name: str) -> str:
    """Text of a file in this folder."""
    return resources.files("bu_torch.report").joinpath(name).read_text(encoding="utf-8")


def add_options(add: Callable[..., Any]) -> None:
    """Add what `bu-torch report` takes."""
    add("folder", metavar="RUN_DIR", type=Path, help="a record, or any folder above it")
    add("-o", "--output", metavar="FILE", type=Path, help="(default: beside the record, with its name)")


def run(options: argparse.Namespace) -> None:
    """Write the page of the newest record in a folder."""
    record = read_record(options.folder)
    path = write_report(record, options.output or record.path.with_suffix(".html"))
    say(f"Wrote {cleaned(path)}, the page of {cleaned(record.path)}.")
    if options.folder.is_dir() and (n_records := len(find_records(options.folder))) > 1:
        say(f"The newest of {n_records} records in {cleaned(options.folder)} is shown.")
