"""Write one self-contained page that shows what a run measured, what was kept and why."""

import argparse
import base64
import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from bu_torch._version import __version__
from bu_torch.internal.output import printable, say, whole_file
from bu_torch.report import figures
from bu_torch.report.figures import Json, Section, escaped, score_name, title_of
from bu_torch.report.record import RunRecord, find_records, read_record
from bu_torch.signals.catalogue import MOST_CLASSES, Details

_TILES = {
    "expected_accuracy": "at the perturbed samples",
    "boundary_uncertainty": "1: the labels are uncertain along the boundary",
    "trust_score": "above 1: agrees with the nearest class",
    "threshold": "predict class 1 from this probability on",
}
_PATH = re.compile(r"(?<![\w.:/\\])(?:[A-Za-z]:)?[\\/](?:[^\s\\/'\"]+[\\/])+[^\s\\/'\"]+")


def render(record: RunRecord) -> str:
    """Render the page of a record as HTML that runs only its own scripts."""
    scripts = (resource("plotly/plotly-cartesian.min.js"), resource("page.js"))
    title, main, drawings = content(record)
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    # JSON in a script element must not hold `<`.
    shown = json.dumps(drawings, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    nothing = "default-src 'none'; connect-src 'none'; base-uri 'none'; form-action 'none'"
    policy = f"{nothing}; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    parts = {"policy": policy, "title": title, "style": resource("page.css"), "main": main, "content": shown}
    return Template(resource("page.html")).substitute(parts, plotly=scripts[0], script=scripts[1])


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
    say(f"Wrote {printable(path)}, the page of {printable(record.path)}.")
    if options.folder.is_dir() and (n_records := len(find_records(options.folder))) > 1:
        say(f"The newest of {n_records} records in {printable(options.folder)} is shown.")


def content(record: RunRecord) -> tuple[str, str, list[Json]]:
    """Title and body of the page of a record in HTML, and its figures."""
    sections = [figures.curves(record)]
    place = record.kept if record.kept in record.details else max(record.details, default=None)
    if place is not None:
        details, where = record.details[place], f"Measured at {record.axis} {place}."
        sections += [figures.crossing(record, details, where), *_tables(record, details, where)]
    shown = [section for section in (*sections, _settings(record)) if section is not None]
    title, text = _headline(record)
    links = "".join(f'<a href="#section-{one.name}">{one.title}</a>' for one in shown)
    notes = "".join(f"<li>{_prose(note)}</li>" for note in record.notes)
    main = (
        f'<header><p class="kind">Boundary uncertainty report</p><h1>{escaped(title)}</h1><p>{_prose(text)}</p>'
        f'</header><nav aria-label="On this page">{links}</nav>'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + _tiles(record)
    )
    for one in shown:
        reading = f"<p>{escaped(one.reading)}</p>" if one.reading else ""
        main += f'<section id="section-{one.name}"><h2>{one.title}</h2>{reading}{one.body}</section>'
    drawings = [one.drawing for one in shown if one.drawing is not None]
    return f"{escaped(title)} – boundary uncertainty", main, drawings  # noqa: RUF001


def _headline(record: RunRecord) -> tuple[str, str]:
    """The kept check and the end of the run, in words."""
    axis, end = record.axis, record.end
    ending = "The run is still going, or it was killed." if end is None else _without_folders(end.reason)
    if not record.checks:
        return "No check", ending
    if not record.settings.get("rule"):
        return f"{len(record.checks)} checks", f"The callback only measured. {ending}"
    if record.kept is None:
        return f"No {axis} was kept", f"No finite check counted. {ending}"
    is_open = end is not None and end.stopped_epoch is None and not end.reason.startswith("Training failed")
    if is_open and record.kept == record.places[-1]:
        ending += " That was the last check: longer training may help."
    return f"{axis.capitalize()} {record.kept} {'is kept so far' if end is None else 'was kept'}", ending


def _tiles(record: RunRecord) -> str:
    """The most important numbers: name, value and note of each."""
    check, end, tiles = record.check_at(record.kept), record.end, []
    if check is not None:
        within = f", in epoch {check['epoch']}" if record.axis == "step" else ""
        among = f"of {record.places[0]} to {record.places[-1]}, in {len(record.checks)} checks{within}"
        tiles.append((f"kept {record.axis}", str(record.kept), among))
        for name, note in {score_name(record): "it decided", **_TILES}.items():
            if math.isfinite(value := check.get(name, math.nan)):
                tiles.append((title_of(name), f"{value:,.3f}", note))
    if record.checks and end is not None and end.training_seconds > 0:
        spent = record.setup_seconds + record.values("check_seconds")[-1] + end.saving_seconds
        times = f"{spent:,.1f} s on top of {end.training_seconds:,.1f} s of training"
        tiles.append(("cost in time", f"{spent / end.training_seconds:.0%}", times))
    listed = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd><dd>{escaped(note)}</dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{listed}</dl>' if listed else ""


def _tables(record: RunRecord, details: Details, where: str) -> list[Section]:
    """Recall by class, and the doubtful labels."""
    at_half = " Here class 1 is predicted from a probability of 0.5 on." if "threshold" in record.checks[-1] else ""
    reading = (
        f"{where} Recall is the share of the perturbed samples with this label that the network predicts as labelled."
        " Expected recall is the same by the labels nearby, which memorising cannot raise. The least recognised class"
        f" is first, and at most {MOST_CLASSES} are listed.{at_half}"
    )
    rows = [[record.class_name(one.label), *(f"{share:.3f}" for share in one[1:])] for one in details.recalls]
    body = _table(("class", "share", "recall", "expected recall"), rows)
    recall = Section("recall", "Recall by class", reading, body)
    rows = [
        [str(one.row), *map(record.class_name, (one.label, one.prediction, one.likeliest)), f"{one.probability:.3f}"]
        for one in details.doubtful
    ]
    head = ("index", "label", "prediction", "likeliest class", "probability of the label")
    button = '<button type="button" data-file="doubtful-samples.csv">Save as CSV</button>'
    reading = f"{where} The labels that are the least likely by all labels. Common in rare classes too.{at_half}"
    doubtful = Section("doubtful", "Doubtful labels", reading, button + _table(head, rows))
    return [recall, doubtful] if rows else [recall]


def _settings(record: RunRecord) -> Section:
    sources = {
        "record": "/".join(record.path.parts[-3:]),
        "started": record.started,
        "last written": record.last_written.strftime("%Y-%m-%d %H:%M:%S UTC"),
        "checkpoint": "/".join(Path(record.end.best_model_path).parts[-3:]) if record.end else "",
        "how to read it": f"docs/watching.md of bu-torch {__version__}",
    }
    groups = {"Settings": record.settings, "Data": record.data, "Versions": record.versions, "Sources": sources}
    tables = []
    for title, group in groups.items():
        rows = [[name, _without_folders(str(value))] for name, value in group.items() if value != ""]
        if rows:
            tables.append(f"<div><h3>{title}</h3>{_table((), rows)}</div>")
    return Section("settings", "Settings and sources", "", f'<div class="groups">{"".join(tables)}</div>')


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in HTML; if one with a head is too wide, its rows become blocks."""
    top = f"<thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>" if head else ""
    names = [f' data-name="{name}"' for name in head] or ["", ""]
    body = ""
    for row in rows:
        cells = (f"<td{name}>{escaped(cell, 300)}</td>" for name, cell in zip(names, row, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    return f'<div class="scroll{" tall" if head else ""}"><table>{top}<tbody>{body}</tbody></table></div>'


def _prose(text: str) -> str:
    """A line of the log, escaped, without its marks of code."""
    return escaped(text).replace("`", "")


def _without_folders(text: str) -> str:
    """`text` with the last three parts of each absolute path: enough to tell runs apart, without a user's folders."""
    return _PATH.sub(lambda found: "/".join(re.split(r"[\\/]", found[0].lstrip("\\/"))[-3:]), text)
