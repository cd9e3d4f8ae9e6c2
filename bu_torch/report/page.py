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
from typing import Any, NamedTuple

from bu_torch._version import __version__
from bu_torch.internal.output import printable, say, whole_file
from bu_torch.report import figures
from bu_torch.report.figures import Json, Section, score_name, scores_that_count, title_of
from bu_torch.report.record import RunRecord, find_records, read_record
from bu_torch.report.text import duration, escaped, last_parts, shown_number, without_folders
from bu_torch.signals.catalogue import MOST_CLASSES, SIGNALS, Details

_TILES = {
    "expected_accuracy": "at the perturbed samples",
    "boundary_uncertainty": "1: the labels are uncertain along the boundary",
    "trust_score": "above 1: agrees with the nearest class",
    "threshold": "predict class 1 from this probability on",
}
_AT_HALF = " Here class 1 is predicted from a probability of 0.5 on."


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
    say(f"Wrote {printable(path)}, the page of {printable(record.path)}.")
    if options.folder.is_dir() and (n_records := len(find_records(options.folder))) > 1:
        say(f"The newest of {n_records} records in {printable(options.folder)} is shown.")


class Content(NamedTuple):
    """Content of a page, without the scripts that draw it."""

    title: str  # escaped title of the window
    main: str  # HTML
    drawings: list[Json]  # figures, for the script


def content(record: RunRecord) -> Content:
    """Content of the page of a record, from its headline to its sources."""
    parts = {"Curves": figures.curves(record)}  # in the order of the page, by their names in the table of contents
    if record.shown_details is not None:
        place, details = record.shown_details
        where = f"at {record.axis} {place}"
        parts["Near the boundary"] = figures.crossing(record, details, where)
        parts["Recall"] = _recalls(record, details, where)
        parts["Doubtful samples"] = _doubtful(record, details, where)
    parts["Settings"] = _settings(record)
    title, text = _headline(record)
    shown = {link: part for link, part in parts.items() if part is not None}
    links = "".join(f'<a href="#section-{part.name}">{link}</a>' for link, part in shown.items())
    main = (
        f'<header><p class="kind">Boundary uncertainty report</p><h1>{escaped(title)}</h1><p>{_prose(text)}</p>'
        f'</header><nav aria-label="On this page">{links}</nav>{_above(record)}'
    )
    for part in shown.values():
        reading = f"<p>{escaped(part.reading)}</p>" if part.reading else ""
        main += f'<section id="section-{part.name}"><h2>{escaped(part.title)}</h2>{reading}{part.body}</section>'
    drawings = [part.drawing for part in shown.values() if part.drawing is not None]
    return Content(f"{escaped(title)} – boundary uncertainty", main, drawings)  # noqa: RUF001


def _headline(record: RunRecord) -> tuple[str, str]:
    """The kept check and the end of the run, in words."""
    ending, axis = _ending(record), record.axis
    if not record.checks:
        return f"No check {'yet' if record.end is None else 'was made'}", ending
    if not record.settings.get("rule"):
        return f"{len(record.checks)} checks", f"The callback only measured. {ending}"
    if record.kept is None:
        return f"No {axis} was kept", f"No finite check counted. {ending}"
    scores, end, more = scores_that_count(record), record.end, ""
    if scores.get(record.kept, math.inf) < max(scores.values(), default=-math.inf):
        more = f" It is below the highest score, in {axis} {max(scores, key=scores.__getitem__)}."
    elif end and end.stopped_epoch is None and record.kept == record.places[-1]:
        more = "" if end.reason.startswith("Training failed") else " That was the last check: longer training may help."
    is_kept = "was kept" if end else "is kept so far"
    return f"{axis.capitalize()} {record.kept} {is_kept}", f"{ending}{more}"


def _ending(record: RunRecord) -> str:
    """The end of the run in words, with titles of signals instead of their names."""
    last = f" The last check is of {record.axis} {record.places[-1]}." if record.checks else ""
    if record.end is None:
        return f"The run is still going, or it was killed.{last}"
    reason = re.sub(r"\w+", lambda found: title_of(found[0]) if found[0] in SIGNALS else found[0], record.end.reason)
    return without_folders(reason) or f"The run has ended.{last}"


def _above(record: RunRecord) -> str:
    """Notes on missing content, and tiles with the most important numbers."""
    notes, n_checks = [*record.notes], len(record.checks)
    if n_bad := sum(not math.isfinite(value) for value in record.values("boundary_uncertainty")):
        notes.append(f"Boundary uncertainty is not finite in {n_bad} of {n_checks} checks: gaps in the curve.")
    listed = "".join(f"<li>{_prose(note)}</li>" for note in notes)
    tiles = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd><dd>{escaped(note)}</dd></div>"
        for name, value, note in (_tiles(record) if record.checks else ())
    )
    return (f'<ul class="notes">{listed}</ul>' if notes else "") + (f'<dl class="tiles">{tiles}</dl>' if tiles else "")


def _tiles(record: RunRecord) -> list[tuple[str, str, str]]:
    """Name, value and note of each tile."""
    check, last, axis = record.check_at(record.kept), record.checks[-1], record.axis
    tiles = []
    if check is not None:
        within = f" (epoch {check['epoch']})" if axis == "step" else ""
        tiles.append((f"kept {axis}", str(check[axis]), f"of {record.places[0]} to {last[axis]}{within}"))
        decided = f"it decided{f', {record.weighting}' if record.weighting else ''}"
        for name, note in {score_name(record): decided, **_TILES}.items():
            if math.isfinite(value := check.get(name, math.nan)):
                tiles.append((title_of(name), shown_number(value), note))
    tiles.append(("checks", str(len(record.checks)), f"last: {axis} {last[axis]}"))
    spent, training = record.costs
    if training > 0 and math.isfinite(spent):
        since = ", since the run resumed" if record.is_resumed else ""
        times = f"{duration(spent)} on top of {duration(training)} of training{since}"
        tiles.append(("cost in time", f"{spent / training:.0%}", times))
    if math.isfinite(record.setup_seconds):
        tiles.append(("preparation", duration(record.setup_seconds), "once, before the first epoch"))
    return tiles


def _recalls(record: RunRecord, details: Details, where: str) -> Section | None:
    if not (recalls := details.recalls):
        return None
    rows = [[escaped(record.class_name(one.label), 60), *map(shown_number, one[1:])] for one in recalls]
    reading = (
        "Recall is the share of the perturbed samples with this label that the network predicts as labelled. Expected"
        " recall is the same by the labels nearby, which memorising cannot raise. The least recognised class is first."
    )
    reading += f" At most {MOST_CLASSES} classes are listed." if len(recalls) == MOST_CLASSES else ""
    reading += _AT_HALF if "threshold" in record.checks[-1] else ""
    body = _table(("class", "share", "recall", "expected recall"), rows, numbers=(1, 2, 3), is_tall=True)
    return Section("recall", f"Recall by class, {where}", reading, body)


def _doubtful(record: RunRecord, details: Details, where: str) -> Section | None:
    if not (doubtful := details.doubtful[:100]):
        return None
    rows = [
        [str(row), *(escaped(record.class_name(index), 60) for index in classes), shown_number(probability)]
        for row, *classes, probability in doubtful
    ]
    suspects = ", ".join(str(doubt.row) for doubt in doubtful if doubt.label != doubt.likeliest)
    indices = f"<p>Indices of samples of which another class is likelier than their label:</p><pre>[{suspects}]</pre>"
    head = ("index", "label", "prediction", "likeliest class", "probability of the label")
    button = '<button type="button" data-file="doubtful-samples.csv">Save as CSV</button>'
    reading = f"The {len(rows)} samples whose labels are the least likely by all labels. Common in rare classes too."
    reading += _AT_HALF if "threshold" in record.checks[-1] else ""
    body = f"{button}{_table(head, rows, numbers=(0, 4), is_tall=True)}{indices if suspects else ''}"
    return Section("doubtful", f"Doubtful labels, {where}", reading, body)


def _settings(record: RunRecord) -> Section:
    sources = {
        "record": last_parts(record.path),
        "started": record.started,
        "last written": record.last_written.strftime("%Y-%m-%d %H:%M:%S UTC"),
        "checkpoint": last_parts(record.end.best_model_path) if record.end else "",
        "how to read it": f"docs/watching.md of bu-torch {__version__}",
    }
    groups = {"Settings": record.settings, "Data": record.data, "Versions": record.versions, "Sources": sources}
    tables = []
    for title, group in groups.items():
        values = {name: without_folders(str(value)) for name, value in group.items() if value != ""}
        rows = [[escaped(name, 80), escaped(value, 300)] for name, value in values.items()]
        if rows:
            tables.append(f"<div><h3>{title}</h3>{_table((), rows)}</div>")
    return Section("settings", "Settings and sources", "", f'<div class="groups">{"".join(tables)}</div>')


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), is_tall: bool = False
) -> str:
    """A table of cells in HTML; if it is too wide, its rows become blocks. `numbers` are right-aligned columns."""
    kinds = [' class="number"' if place in numbers else "" for place in range(len(head) or 2)]
    named = [f'{kind} data-name="{name}"' for kind, name in zip(kinds, head, strict=False)] or kinds

    def line(tag: str, attributes: Sequence[str], cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}{a}>{cell}</{tag}>' for a, cell in zip(attributes, cells, strict=True))}</tr>"

    top = f"<thead>{line('th', kinds, head)}</thead>" if head else ""
    body = "".join(line("td", named, row) for row in rows)
    return f'<div class="scroll{" tall" if is_tall else ""}"><table>{top}<tbody>{body}</tbody></table></div>'


def _prose(text: str) -> str:
    """A line of the log, escaped, without its marks of code."""
    return escaped(text).replace("`", "")
