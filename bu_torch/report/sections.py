"""Sections of a page in HTML: words, tables, and room for the figures."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bu_torch._version import __version__
from bu_torch.report import figures
from bu_torch.report.figures import Json, Section
from bu_torch.report.record import RunRecord
from bu_torch.report.text import duration, escaped, last_parts, shortened, shown_number, without_folders
from bu_torch.report.verdict import RunVerdict, rule_title
from bu_torch.signals.details import MOST_CLASSES, Doubtful

SHOWN = ("expected_accuracy", "boundary_uncertainty", "trust_score", "label_agreement")
_AT_HALF = " Here class 1 is predicted from a probability of 0.5 on."


class Content(NamedTuple):
    """Content of a page, without the scripts that draw it."""

    title: str  # escaped title of the window
    main: str  # HTML
    drawings: list[Json]  # figures, for the script


def content(record: RunRecord) -> Content:
    """Content of the page of a record, from its headline to its sources."""
    verdict = RunVerdict.of(record)
    parts = {  # in the order of the page, by their names in the table of contents
        "What decided": figures.deciding(verdict),
        "Uncertainty and trust": figures.signals(verdict, "scores"),
        "Rules": _rules(verdict),
        "Agreement": figures.signals(verdict, "agreement"),
        "Changes": figures.signals(verdict, "changes"),
        "Training loss": figures.training_loss(verdict),
        "Near the boundary": figures.crossing(verdict),
        "Class pairs": figures.pair_map(verdict),
        "Longest boundaries": _longest_pairs(verdict),
        "Recall": _recalls(verdict),
        "Trust": figures.trust(verdict),
        "Doubtful samples": _doubtful(verdict),
        "Time": figures.cost(verdict),
        "Settings": _settings(record),
    }
    title, why = verdict.headline
    return assembled(title, title, why, parts, _above(verdict))


def assembled(window: str, title: str, text: str, parts: Mapping[str, Section | None], above: str = "") -> Content:
    """Content of a page with these parts, by their names in the table of contents; `above` is HTML before them."""
    shown = {link: part for link, part in parts.items() if part is not None}
    links = "".join(f'<a href="#section-{part.name}">{escaped(link)}</a>' for link, part in shown.items())
    main = (
        f'<header><p class="kind">Boundary uncertainty report</p><h1>{escaped(title)}</h1><p>{_prose(text)}</p>'
        f'</header><nav aria-label="On this page">{links}</nav>{above}'
    )
    for part in shown.values():
        reading = f"<p>{escaped(part.reading)}</p>" if part.reading else ""
        main += f'<section id="section-{part.name}"><h2>{escaped(part.title)}</h2>{reading}{part.body}</section>'
    drawings = [part.drawing for part in shown.values() if part.drawing is not None]
    return Content(f"{escaped(window)} – boundary uncertainty", main, drawings)  # noqa: RUF001


def _above(verdict: RunVerdict) -> str:
    """Notes on missing content, and tiles with the most important numbers."""
    record = verdict.record
    notes, n_checks = [*record.notes], len(record.checks)
    if n_bad := sum(not math.isfinite(value) for value in record.values("boundary_uncertainty")):
        notes.append(f"Boundary uncertainty is not finite in {n_bad} of {n_checks} checks: gaps in the curve.")
    if record.details and (without := sum(place not in record.details for place in record.places)):
        notes.append(f"{without} of {n_checks} checks have no details here.")
    listed = "".join(f"<li>{_prose(note)}</li>" for note in notes)
    tiles = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd><dd>{escaped(note)}</dd></div>"
        for name, value, note in (_tiles(verdict) if record.checks else ())
    )
    return (f'<ul class="notes">{listed}</ul>' if notes else "") + (f'<dl class="tiles">{tiles}</dl>' if tiles else "")


def _tiles(verdict: RunVerdict) -> list[tuple[str, str, str]]:
    """Name, value and note of each tile."""
    record = verdict.record
    check, last, axis = record.check_at(verdict.kept), record.checks[-1], record.axis
    tiles = []
    if check is not None:
        within = f" (epoch {check['epoch']})" if axis == "step" else ""
        kept = f"kept {axis}" if verdict.rule else "would be kept"
        tiles.append((kept, str(check[axis]), f"of {record.places[0]} to {last[axis]}{within}"))
        if verdict.metric is not None:
            tiles.append((verdict.metric.replace("_", " "), shown_number(check[verdict.metric]), "it decided"))
        if math.isfinite(threshold := check.get("threshold", math.nan)):
            tiles.append(("threshold", shown_number(threshold), "predict class 1 from this probability on"))
        if "expected_accuracy" in check:
            note = "at the perturbed samples" + (f", {record.weighting}" if record.weighting else "")
            tiles.append(("expected accuracy", shown_number(check["expected_accuracy"]), note))
        if check[axis] in verdict.scores and verdict.rule not in SHOWN and verdict.metric is None:
            tiles.append(("score", shown_number(verdict.scores[check[axis]]), verdict.title))
        mixed = "1: the labels are uncertain along the boundary"
        tiles.append(("boundary uncertainty", shown_number(check["boundary_uncertainty"]), mixed))
        tiles.append(("trust score", shown_number(check["trust_score"]), "above 1: agrees with the nearest class"))
    tiles.append(("checks", str(len(record.checks)), f"last: {axis} {last[axis]}"))
    spent, training = record.costs
    if training > 0 and math.isfinite(spent):
        since = ", since the run resumed" if math.isnan(record.values("seconds")[0]) else ""
        times = f"{duration(spent)} on top of {duration(training)} of training{since}"
        tiles.append(("time of the checks", f"{spent / training:.0%}", times))
    if math.isfinite(record.setup_seconds):
        tiles.append(("preparation", duration(record.setup_seconds), "once, before the first epoch"))
    return tiles


def _rules(verdict: RunVerdict) -> Section | None:
    record = verdict.record
    if not record.checks:
        return None
    rows, shown = [], (*SHOWN, verdict.metric) if verdict.metric and verdict.metric not in SHOWN else SHOWN
    for rule in verdict.by_rule:
        label = escaped(rule_title(rule))
        name = f"<strong>{label}</strong>, this run's" if rule == verdict.rule else label
        check, why = verdict.by_rule[rule], "kept none: no finite check counted"
        cells = [why, *[""] * len(shown)] if check is None else [str(check[record.axis]), *signal_cells(check, shown)]
        rows.append([name, *cells])
    note = (
        "Each rule is replayed on the checks of this run that count, without patience. The run itself may have kept"
        " another epoch if it resumed from another run."
    )
    short = {"boundary_uncertainty": "U", "trust_score": "trust"}
    head = ("rule", record.axis, *(short.get(name, name.replace("_", " ")) for name in shown))
    body = table(head, rows, numbers=range(1, len(head)))
    return Section("rules", "What each rule would have kept", note, body)


def _longest_pairs(verdict: RunVerdict) -> Section | None:
    record, shown = verdict.record, verdict.details
    if shown is None or len(shown[1].pairs) < 2:
        return None
    rows = []
    for pair in shown[1].pairs[:10]:
        classes = (escaped(record.class_name(index), 60) for index in pair[:2])
        rows.append([*classes, shown_number(pair.share), shown_number(pair.uncertainty)])
    reading = "Share of the boundary between two classes, and the mean uncertainty of the labels there."
    body = table(("class", "and class", "share", "uncertainty"), rows, numbers=(2, 3))
    return Section("longest-pairs", "Classes with the longest boundaries", reading, body)


def _recalls(verdict: RunVerdict) -> Section | None:
    record, shown = verdict.record, verdict.details
    if shown is None or not shown[1].recalls:
        return None
    place, recalls = shown[0], shown[1].recalls
    rows = [[escaped(record.class_name(one.label), 60), *map(shown_number, one[1:])] for one in recalls]
    reading = (
        "Recall is the share of the perturbed samples with this label that the network predicts as labelled. Expected"
        " recall is the same by the labels nearby, which memorising cannot raise. The least recognised class is first."
    )
    reading += f" At most {MOST_CLASSES} classes are listed." if len(recalls) == MOST_CLASSES else ""
    reading += _AT_HALF if record.has("threshold") else ""
    body = table(("class", "share", "recall", "expected recall"), rows, numbers=(1, 2, 3), is_tall=True)
    return Section("recall", f"Recall by class, at {record.axis} {place}", reading, body)


def _doubtful(verdict: RunVerdict) -> Section | None:
    record, shown = verdict.record, verdict.details
    if shown is None or not shown[1].doubtful:
        return None
    place, doubtful = shown[0], shown[1].doubtful[:100]
    times = Counter(row for one in record.details.values() for row in {doubt.row for doubt in one.doubtful})
    rows = []
    for doubt in doubtful:
        classes = (escaped(record.class_name(index), 60) for index in doubt[1:4])
        values = shown_number(doubt.trust), f"{times[doubt.row]} of {len(record.details)}", _disagreeing(doubt)
        rows.append([str(doubt.row), *classes, *values])
    suspects = ", ".join(dict.fromkeys(str(doubt.row) for doubt in doubtful if doubt.label != doubt.nearest_class))
    indices = f"<p>Indices of samples whose nearest class is not their label:</p><pre>[{suspects}]</pre>"
    head = ("index", "label", "prediction", "nearest class", "trust", "listed in", "disagreement")
    button = '<button type="button" data-file="doubtful-samples.csv">Save as CSV</button>'
    ((label, n_most),) = Counter(doubt.label for doubt in doubtful).most_common(1)
    most = f": {n_most} have the label {shortened(record.class_name(label), 60)}" if n_most > len(rows) / 2 else ""
    reading = (
        f"{len(rows)} samples, by the trust in their label or in the prediction, whichever is lower{most}. The nearest"
        " samples contradict one of the two. This is common in rare classes, so a listed label need not be wrong."
    )
    reading += _AT_HALF if record.has("threshold") else ""
    body = f"{button}{table(head, rows, numbers=(0, 4, 5), is_tall=True)}{indices if suspects else ''}"
    return Section("doubtful", f"Samples unlike those nearby, at {record.axis} {place}", reading, body)


def _disagreeing(doubt: Doubtful) -> str:
    if doubt.nearest_class == doubt.label:
        return "" if doubt.prediction == doubt.label else "label and neighbours against the prediction"
    if doubt.nearest_class == doubt.prediction:
        return "prediction and neighbours against the label"
    return "neighbours against the label, which was learned" if doubt.label == doubt.prediction else "all three differ"


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
            tables.append(f"<div><h3>{title}</h3>{table((), rows)}</div>")
    return Section("settings", "Settings and sources", "", f'<div class="groups">{"".join(tables)}</div>')


def table(
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


def signal_cells(check: Mapping[str, Any], names: Sequence[str] = SHOWN) -> list[str]:
    """Signals of a check as cells of a table."""
    return [shown_number(check.get(name, math.nan)) for name in names]
