"""The page: one file with its figures, its style and all it runs in it, so that nothing is fetched."""

import base64
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from bu_torch.report.figures import RULE_LABELS, THEMES, Figure, class_name, figures, plotly_script, shown_details
from bu_torch.report.reading import Doubt, Record
from bu_torch.report.text import duration, escaped, figure
from bu_torch.report.verdict import Verdict, headline, level

_MOST_PAIRS = 10


@dataclass(frozen=True)
class Content:
    """What a page shows of a record: all of it but what draws it.

    Attributes:
        title: Of the window, escaped.
        main: HTML.
        drawings: For the script: a list of figures.
        has_ended: Whether nothing will be added to the record.
    """

    title: str
    main: str
    drawings: list[dict[str, Any]]
    has_ended: bool

    def as_json(self) -> str:
        """All of it, as the script of the page reads it."""
        return _json({"title": self.title, "main": self.main, "drawings": self.drawings, "hasEnded": self.has_ended})


def render(record: Record, others: Sequence[Path] = ()) -> str:
    """The page of a record.

    Args:
        record: What `read_record` has read.
        others: Other records nearby, to be listed.

    Returns:
        HTML that fetches nothing.

    Raises:
        ImportError: If plotly is not installed.
        ValueError: If the record's settings are none that a rule takes.
    """
    return page(content(record, others))


def write_report(record: Record, path: str | PathLike[str], others: Sequence[Path] = ()) -> Path:
    """Write the page of a record; a file that is there is replaced as a whole or not at all.

    Args:
        record: What `read_record` has read.
        path: Where to; folders are made if need be.
        others: Other records nearby, to be listed.

    Returns:
        The path.

    Raises:
        ImportError: If plotly is not installed.
        OSError: If it cannot be written.
        ValueError: If the record's settings are none that a rule takes.
    """
    path = Path(path)
    text = render(record, others).encode("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:50]}.", delete=False) as file:
        unfinished = Path(file.name)
        try:
            file.write(text)
            file.close()
            unfinished.chmod(0o666 & ~_umask())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    return path


def content(record: Record, others: Sequence[Path] = ()) -> Content:
    """What the page of a record shows.

    Args:
        record: What `read_record` has read.
        others: Other records nearby, to be listed.

    Returns:
        Its parts.

    Raises:
        ImportError: If plotly is not installed.
        ValueError: If the record's settings are none that a rule takes.
    """
    verdict = Verdict.of(record)
    drawn = figures(record, verdict)
    said, why = headline(record, verdict)
    sections = {one.name: _figure(one) for one in drawn}
    order = (
        sections.pop("scores", ""),
        _rules(record, verdict),
        sections.pop("agreement", ""),
        sections.pop("pairs", ""),
        _worst_pairs(record, verdict),
        *(sections.pop(name, "") for name in ("near_boundary", "local_uncertainty", "log_trust")),
        _doubtful(record, verdict),
        *sections.values(),
        _settings(record),
        _sources(record, others),
    )
    main = (
        f'<header><p class="kind">Boundary uncertainty report</p><h1>{escaped(said)}</h1>'
        f"<p>{escaped(why)} {escaped(level(record, verdict))}</p></header>"
        + _missing(record)
        + _tiles(record, verdict)
        + "".join(order)
    )
    drawings = [{"name": one.name, **one.drawing} for one in drawn]
    return Content(f"{escaped(said)} – boundary uncertainty", main, drawings, record.end is not None)  # noqa: RUF001


def message(title: str, text: str) -> Content:
    """A page that says why there is nothing to show.

    Args:
        title: In a few words.
        text: All of it.

    Returns:
        Its parts.
    """
    return Content(escaped(title), _header(title, text), [], has_ended=False)


def page(shown: Content, refresh_seconds: float | None = None) -> str:
    """The whole page.

    Args:
        shown: What it shows.
        refresh_seconds: How often it asks where it came from for news; None: never.

    Returns:
        HTML. Its policy lets it run no script but the two it has, and fetch nothing, or from where it came alone.

    Raises:
        ImportError: If plotly is not installed.
    """
    scripts = plotly_script(), _resource("page.js")
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    connect = "'none'" if refresh_seconds is None else "'self'"
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:;"
        f" connect-src {connect}; base-uri 'none'; form-action 'none'",
        "title": shown.title,
        "style": _resource("page.css"),
        "refresh": "" if refresh_seconds is None else f"{refresh_seconds:g}",
        "main": shown.main,
        "themes": _json(THEMES),
        "content": _json({"drawings": shown.drawings, "hasEnded": shown.has_ended}),
        "plotly": scripts[0],
        "script": scripts[1],
    }
    # In one pass, so that nothing that is filled in is looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _resource("page.html"))


def _header(title: str, text: str) -> str:
    kind = '<p class="kind">Boundary uncertainty report</p>'
    return f"<header>{kind}<h1>{escaped(title)}</h1><p>{escaped(text)}</p></header>"


def _missing(record: Record) -> str:
    notes = list(record.missing)
    if n_bad := sum(not math.isfinite(value) for value in record.values("boundary_uncertainty")):
        notes.append(
            f"Boundary uncertainty is not finite in {n_bad} of {len(record.checks)} checks: gaps in the curve."
        )
    without = [check["epoch"] for check in record.checks if check["epoch"] not in record.details]
    if record.details and without:
        notes.append(f"Of {len(without)} of {len(record.checks)} checks no details were written.")
    return f'<ul class="notes">{"".join(f"<li>{escaped(note)}</li>" for note in notes)}</ul>' if notes else ""


def _tiles(record: Record, verdict: Verdict) -> str:
    if not record.checks:
        return ""
    check = next((check for check in record.checks if check["epoch"] == verdict.kept), None)
    last = record.checks[-1]
    tiles = [("checks", str(len(record.checks)), f"last: epoch {last['epoch']}")]
    if check is not None:
        shown = record.details.get(check["epoch"])
        ceiling = f"ceiling {figure(shown.ceiling)}" if shown and math.isfinite(shown.ceiling) else "of at most 1"
        tiles = [
            ("kept epoch" if verdict.rule else "default rule", str(check["epoch"]), f"of {last['epoch']}"),
            ("boundary uncertainty", figure(check["boundary_uncertainty"]), ceiling),
            ("trust score", figure(check["trust_score"]), "above 1: agrees with the nearest class"),
            *tiles,
        ]
    spent, total = last.get("check_seconds", math.nan), last.get("seconds", math.nan)
    if total > 0 and math.isfinite(spent):
        tiles.append(("checks took", f"{spent / total:.1%}", f"{duration(spent)} of {duration(total)}"))
    if math.isfinite(record.setup_seconds):
        tiles.append(("preparation", duration(record.setup_seconds), "once, before the first epoch"))
    cells = (
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd><dd>{escaped(note)}</dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _figure(one: Figure) -> str:
    widths = (("min-width", one.least_width), ("max-width", one.most_width))
    size = f"height:{one.height}px" + "".join(f";{name}:{width}px" for name, width in widths if width)
    return (
        f'<section><h2>{escaped(one.title)}</h2><p>{escaped(one.reading)}</p><div class="scroll">'
        f'<div class="plot" id="{one.name}" style="{size}"></div></div></section>'
    )


def _rules(record: Record, verdict: Verdict) -> str:
    if not record.checks:
        return ""
    rows = []
    for rule, label in RULE_LABELS.items():
        name = f"<strong>{escaped(label)}</strong>, this run's" if rule == verdict.rule else escaped(label)
        check = verdict.by_rule.get(rule)
        if check is None:
            why = "kept none: no finite check counted" if rule in verdict.by_rule else "not in the table"
            rows.append([name, escaped(why), "", "", ""])
            continue
        names = ("boundary_uncertainty", "trust_score", "label_agreement")
        rows.append([name, str(check["epoch"]), *(figure(check.get(column, math.nan)) for column in names)])
    note = "Each rule replayed on the checks of this run, patience aside, with its smoothing and first epoch."
    kept_by_rule = verdict.by_rule.get(verdict.rule or "")
    if record.end and kept_by_rule and kept_by_rule["epoch"] != verdict.kept:
        note += " What the run kept differs from its own rule here where it resumed from elsewhere."
    return _section(
        "What each rule would have kept",
        note,
        ("rule", "epoch", "U", "trust", "label agreement"),
        rows,
        numbers=(1, 2, 3, 4),
    )


def _worst_pairs(record: Record, verdict: Verdict) -> str:
    shown = shown_details(record, verdict)
    if shown is None or not len(shown[1].pairs):
        return ""
    found = sorted(shown[1].pairs.tolist(), key=lambda pair: -pair[2] * (1 - pair[4] if math.isfinite(pair[4]) else 0))
    rows = [
        [
            class_name(record, int(first)),
            class_name(record, int(second)),
            figure(value),
            f"{share:.2%}" if math.isfinite(share) else "",
            f"{weight:.1f}" if math.isfinite(weight) else "",
        ]
        for first, second, share, weight, value in found[:_MOST_PAIRS]
    ]
    return _section(
        "The pairs that cost most",
        "Those with the largest share of samples, times what their boundary uncertainty lacks to 1. Few samples near a"
        " boundary make its number noisy.",
        ("class", "and class", "U", "samples", "near the boundary"),
        rows,
        numbers=(2, 3, 4),
    )


def _doubtful(record: Record, verdict: Verdict) -> str:
    shown = shown_details(record, verdict)
    if shown is None or not shown[1].doubtful:
        return ""
    epoch, details = shown
    times: dict[int, int] = {}
    for one in record.details.values():
        for index in {doubt.sample for doubt in one.doubtful}:
            times[index] = times.get(index, 0) + 1
    rows = [
        [
            str(doubt.sample),
            *(class_name(record, index) for index in (doubt.label, doubt.prediction, doubt.nearest)),
            figure(doubt.trust),
            f"{times[doubt.sample]} of {len(record.details)}",
            _suspicion(doubt),
        ]
        for doubt in details.doubtful
    ]
    suspects = dict.fromkeys(str(doubt.sample) for doubt in details.doubtful if doubt.label != doubt.nearest)
    indices = f'<pre class="scroll">[{", ".join(suspects)}]</pre>'
    after = f"<p>Indices of those whose nearest class is not their label:</p>{indices}" if suspects else ""
    return _section(
        f"Samples that trust doubts most, at epoch {epoch}",
        f"{len(rows)} samples, by the trust in their label or in the prediction, whichever is lower. Where the"
        " neighbours are against the label it may be wrong: look there first, and more so where a sample is listed in"
        " many checks.",
        ("index", "label", "prediction", "nearest class", "trust", "listed in", "what speaks against what"),
        rows,
        numbers=(0, 4, 5),
        after=after,
        is_tall=True,
    )


def _suspicion(doubt: Doubt) -> str:
    is_label, is_prediction = doubt.nearest == doubt.label, doubt.nearest == doubt.prediction
    if is_label:
        return "" if is_prediction else "label and neighbours against the prediction"
    if is_prediction:
        return "prediction and neighbours against the label"
    return "neighbours against the label, which was learned" if doubt.label == doubt.prediction else "all three differ"


def _settings(record: Record) -> str:
    groups = (("Settings", record.settings), ("Data", record.data), ("Versions", record.versions))
    tables = []
    for title, group in groups:
        rows = [[escaped(name, 80), escaped(_value(value), 300)] for name, value in group.items()]
        if rows:
            tables.append(f"<div><h3>{title}</h3>{_table(('', ''), rows)}</div>")
    if not tables:
        return ""
    return f'<section><h2>Settings and versions</h2><div class="groups">{"".join(tables)}</div></section>'


def _sources(record: Record, others: Sequence[Path]) -> str:
    facts = [
        ("record", record.path),
        ("started", record.started),
        ("last written", record.last_written.strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("checkpoint", record.end.best_model_path if record.end else ""),
    ]
    rows = [[escaped(name), f"<code>{escaped(value)}</code>"] for name, value in facts if str(value)]
    listed = "".join(f"<li><code>{escaped(path)}</code></li>" for path in others[:100])
    more = f"<li>and {len(others) - 100} more</li>" if len(others) > 100 else ""
    nearby = f"<h3>Other records nearby</h3><ul>{listed}{more}</ul>" if others else ""
    return f"<section><h2>Where this comes from</h2>{_table(('', ''), rows)}{nearby}</section>"


def _section(
    title: str,
    reading: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    after: str = "",
    is_tall: bool = False,
) -> str:
    table = _table(head, rows, numbers, is_tall)
    return f"<section><h2>{escaped(title)}</h2><p>{escaped(reading)}</p>{table}{after}</section>"


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), is_tall: bool = False
) -> str:
    """A table of cells that are HTML already; `numbers` are the columns set to the right."""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = (' class="number"' if place in numbers else "" for place in range(len(cells)))
        return f"<tr>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for kind, cell in zip(kinds, cells, strict=True))}</tr>"

    top = f"<thead>{line('th', [escaped(name) for name in head])}</thead>" if any(head) else ""
    body = "".join(line("td", row) for row in rows)
    return f'<div class="scroll{" tall" if is_tall else ""}"><table>{top}<tbody>{body}</tbody></table></div>'


def _value(value: Any) -> str:
    """A setting as Python writes it, all but the quotes."""
    try:
        return value if isinstance(value, str) else repr(value)
    except RecursionError:
        return "nested too deeply to be shown"


def _json(value: Any) -> str:
    """JSON that can stand within a script element: it has no `<`, and no character beyond ASCII."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _resource(name: str) -> str:
    return resources.files("bu_torch.report").joinpath(name).read_text(encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
