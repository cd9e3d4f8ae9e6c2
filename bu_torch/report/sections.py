"""Sections of a page in HTML: words, tables, and room for the figures."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bu_torch._version import __version__
from bu_torch.report import figures
from bu_torch.report.drawing import Figure, Json, Section
from bu_torch.report.maps import class_name, pair_map, spread
from bu_torch.report.record import RunRecord
from bu_torch.report.text import duration, escaped, last_parts, shortened, shown_number, without_folders
from bu_torch.report.verdict import RunVerdict, headline, level, rule_label, scores, shown_details
from bu_torch.rule.rules import RULE_NAMES
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.details import Doubtful

_MOST = 100  # samples, or records nearby, that are listed


class Content(NamedTuple):
    """Content of a page: all of it but the scripts that draw it."""

    title: str  # of the window, escaped
    main: str  # HTML
    drawings: list[Json]  # figures, for the script


def content(record: RunRecord, others: Sequence[Path] = ()) -> Content:
    """Content of the page of a record, from its headline to where it comes from."""
    verdict = RunVerdict.of(record)
    few = figures.with_fewer_checks(record, verdict)
    parts = {  # in the order of the page, by what the table of contents calls them
        "What decided": figures.deciding(record, few, verdict),
        "Uncertainty and trust": figures.uncertainty_and_trust(record, few, verdict),
        "Rules": _rules(record, verdict),
        "Agreement": figures.shares(few, verdict, is_larger_better=True),
        "Changes": figures.shares(few, verdict, is_larger_better=False),
        "Training loss": figures.training_loss(few, verdict),
        "Class pairs": pair_map(record, verdict),
        "Worst pairs": _worst_pairs(record, verdict),
        "Distance": spread(record, verdict, "near_boundary"),
        "Local uncertainty": spread(record, verdict, "local_uncertainty"),
        "Trust": spread(record, verdict, "log_trust"),
        "Doubtful labels": _doubtful(record, verdict),
        "Cost": figures.cost(record, few, verdict),
        "Settings": _settings(record),
        "Sources": _sources(record, others),
    }
    shown = {link: part for link, part in parts.items() if part is not None}
    title, why = headline(record, verdict)
    above = _missing(record) + _tiles(record, verdict)
    return assembled(title, title, f"{why} {level(record, verdict)}", shown, above)


def assembled(window: str, title: str, text: str, parts: Mapping[str, Section | Figure], above: str = "") -> Content:
    """Content of a page of these parts, by what the table of contents calls them; `above` is HTML before the first."""
    sections = {link: part.section if isinstance(part, Figure) else part for link, part in parts.items()}
    kind = '<p class="kind">Boundary uncertainty report</p>'
    head = f"<header>{kind}<h1>{escaped(title)}</h1><p>{escaped(text)}</p></header>"
    links = "".join(f'<a href="#section-{part.name}">{escaped(link)}</a>' for link, part in sections.items())
    nav = f'<nav aria-label="On this page">{links}</nav>'
    main = "".join((head, nav, above, *(part.html for part in sections.values())))
    drawings = [part.drawing for part in parts.values() if isinstance(part, Figure)]
    return Content(f"{escaped(window)} – boundary uncertainty", main, drawings)  # noqa: RUF001


def _missing(record: RunRecord) -> str:
    notes, n_checks = [*record.missing, *record.remarks], len(record.checks)
    if n_bad := sum(not math.isfinite(value) for value in record.values("boundary_uncertainty")):
        notes.append(f"Boundary uncertainty is not finite in {n_bad} of {n_checks} checks: gaps in the curve.")
    if record.details and (without := sum(place not in record.details for place in record.places)):
        notes.append(f"{without} of {n_checks} checks have no details here.")
    if (step := figures.drawing_step(record)) > 1:
        notes.append(f"The curves show one of every {step} checks, besides the kept one and the last.")
    return f'<ul class="notes">{"".join(f"<li>{escaped(note)}</li>" for note in notes)}</ul>' if notes else ""


def _tiles(record: RunRecord, verdict: RunVerdict) -> str:
    if not record.checks:
        return ""
    check, last, axis = record.check_at(verdict.kept), record.checks[-1], record.axis
    tiles = []
    if check is not None:
        within = f" (epoch {check['epoch']})" if axis == "step" else ""
        kept = f"kept {axis}" if verdict.rule else "would be kept"
        tiles.append((kept, str(check[axis]), f"of {last[axis]}{within}"))
        if "expected_accuracy" in check:
            tiles.append(("expected accuracy", shown_number(check["expected_accuracy"]), "at the perturbed samples"))
        label, by_place = scores(record, verdict)
        if check[axis] in by_place and verdict.rule not in SIGNALS:
            tiles.append(("score", shown_number(by_place[check[axis]]), label))
        shown = record.details.get(check[axis])
        most = f"expected maximum {shown_number(shown.ceiling if shown else math.nan)}"
        tiles.append(("boundary uncertainty", shown_number(check["boundary_uncertainty"]), most))
        tiles.append(("trust score", shown_number(check["trust_score"]), "above 1: agrees with the nearest class"))
    tiles.append(("checks", str(len(record.checks)), f"last: {axis} {last[axis]}"))
    spent, training = record.costs
    if training > 0 and math.isfinite(spent):
        since = ", since the run resumed" if math.isnan(record.values("seconds")[0]) else ""
        beside = f"{duration(spent)} beside {duration(training)} of training{since}"
        tiles.append(("cost", f"{spent / training:.0%}", beside))
    if math.isfinite(record.setup_seconds):
        tiles.append(("preparation", duration(record.setup_seconds), "once, before the first epoch"))
    cells = (
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd><dd>{escaped(note)}</dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles" style="{_columns(len(tiles))}">{"".join(cells)}</dl>'


def _columns(n_tiles: int) -> str:
    """Number of columns for which no row has a gap: the first tile takes the rest."""
    n_columns = min((5, 4, 3), key=lambda columns: -n_tiles % columns)
    return f"--columns:{n_columns};--first:{1 + -n_tiles % n_columns}"


def _rules(record: RunRecord, verdict: RunVerdict) -> Section | None:
    if not record.checks:
        return None
    rows = []
    columns = ("expected_accuracy", "boundary_uncertainty", "trust_score", "label_agreement")
    for rule in dict.fromkeys((*RULE_NAMES, *verdict.by_rule)):
        label = escaped(rule_label(rule))
        name = f"<strong>{label}</strong>, this run's" if rule == verdict.rule else label
        check = verdict.by_rule.get(rule)
        if check is None:
            why = "kept none: no finite check counted" if rule in verdict.by_rule else "not in the table"
            rows.append([name, why, "", "", "", ""])
        else:
            values = (shown_number(check.get(column, math.nan)) for column in columns)
            rows.append([name, str(check[record.axis]), *values])
    note = (
        "Each rule is replayed on the checks of this run that count, but without patience. The run itself may"
        " have kept another epoch if it resumed from elsewhere."
    )
    head = ("rule", record.axis, "expected accuracy", "U", "trust", "label agreement")
    return Section("rules", "What each rule would have kept", note, table(head, rows, numbers=(1, 2, 3, 4, 5)))


def _worst_pairs(record: RunRecord, verdict: RunVerdict) -> Section | None:
    shown = shown_details(record, verdict)
    if shown is None or not shown[1].pairs:
        return None
    found = sorted(shown[1].pairs, key=lambda pair: -pair[2] * (1 - pair[4] if math.isfinite(pair[4]) else 0))
    rows = [
        [
            class_name(record, first),
            class_name(record, second),
            shown_number(value),
            shortened(f"{share:.2%}", 12) if math.isfinite(share) else "",
            shortened(f"{weight:.1f}", 12) if math.isfinite(weight) else "",
        ]
        for first, second, share, weight, value in found[:10]
    ]
    reading = (
        "Pairs with the largest product of share of samples and 1 - boundary uncertainty. If few samples are near a"
        " boundary, its number is noisy."
    )
    body = table(("class", "and class", "U", "samples", "near the boundary"), rows, numbers=(2, 3, 4))
    return Section("worst-pairs", "The pairs that cost most", reading, body)


def _doubtful(record: RunRecord, verdict: RunVerdict) -> Section | None:
    shown = shown_details(record, verdict)
    if shown is None or not shown[1].doubtful:
        return None
    place, doubtful = shown[0], shown[1].doubtful[:_MOST]
    times = Counter(row for one in record.details.values() for row in {doubt.row for doubt in one.doubtful})
    rows = [
        [
            str(doubt.row),
            *(class_name(record, index) for index in (doubt.label, doubt.prediction, doubt.nearest_class)),
            shown_number(doubt.trust),
            f"{times[doubt.row]} of {len(record.details)}",
            _suspicion(doubt),
        ]
        for doubt in doubtful
    ]
    suspects = ", ".join(dict.fromkeys(str(doubt.row) for doubt in doubtful if doubt.label != doubt.nearest_class))
    indices = f"<p>Indices of those whose nearest class is not their label:</p><pre>[{suspects}]</pre>"
    head = ("index", "label", "prediction", "nearest class", "trust", "listed in", "disagreement")
    button = '<button type="button" data-file="doubtful-labels.csv">Save as CSV</button>'
    reading = (
        f"{len(rows)} samples, by the trust in their label or in the prediction, whichever is lower. If the"
        " neighbours are against the label, it may be wrong: look there first, above all at samples listed in many"
        " checks."
    )
    body = f"{button}{table(head, rows, numbers=(0, 4, 5), is_tall=True)}{indices if suspects else ''}"
    return Section("doubtful", f"Samples that trust doubts most, at {record.axis} {place}", reading, body)


def _suspicion(doubt: Doubtful) -> str:
    if doubt.nearest_class == doubt.label:
        return "" if doubt.prediction == doubt.label else "label and neighbours against the prediction"
    if doubt.nearest_class == doubt.prediction:
        return "prediction and neighbours against the label"
    return "neighbours against the label, which was learned" if doubt.label == doubt.prediction else "all three differ"


def _settings(record: RunRecord) -> Section | None:
    tables = []
    for title, group in (("Settings", record.settings), ("Data", record.data), ("Versions", record.versions)):
        rows = [[escaped(name, 80), escaped(shown_value(value), 300)] for name, value in group.items()]
        if rows:
            tables.append(f"<div><h3>{title}</h3>{table((), rows)}</div>")
    shown = f'<div class="groups">{"".join(tables)}</div>'
    return Section("settings", "Settings and versions", "", shown) if tables else None


def _sources(record: RunRecord, others: Sequence[Path]) -> Section:
    facts = [
        ("record", last_parts(record.path)),
        ("started", record.started),
        ("last written", record.last_written.strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("checkpoint", last_parts(record.end.best_model_path) if record.end else ""),
    ]
    rows = [[escaped(name), f"<code>{escaped(value)}</code>"] for name, value in facts if value]
    listed = "".join(f"<li><code>{escaped(last_parts(path))}</code></li>" for path in others[:_MOST])
    more = f"<li>and {len(others) - _MOST} more</li>" if len(others) > _MOST else ""
    nearby = f"<h3>Other records nearby</h3><ul>{listed}{more}</ul>" if others else ""
    reading = f"<p>How to read this page: <code>docs/watching.md</code> of bu-torch {__version__}.</p>"
    return Section("sources", "Where this comes from", "", f"{table((), rows)}{nearby}{reading}")


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), is_tall: bool = False
) -> str:
    """A table of cells in HTML, in blocks of lines if it is too wide; `numbers` are the columns set to the right."""
    kinds = [' class="number"' if place in numbers else "" for place in range(len(head) or 2)]
    named = [f'{kind} data-name="{name}"' for kind, name in zip(kinds, head, strict=False)] or kinds

    def line(tag: str, attributes: Sequence[str], cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}{a}>{cell}</{tag}>' for a, cell in zip(attributes, cells, strict=True))}</tr>"

    top = f"<thead>{line('th', kinds, head)}</thead>" if head else ""
    body = "".join(line("td", named, row) for row in rows)
    return f'<div class="scroll{" tall" if is_tall else ""}"><table>{top}<tbody>{body}</tbody></table></div>'


def shown_value(value: Any) -> str:
    """A setting as Python writes it, without quotes and folders."""
    try:
        return without_folders(value if isinstance(value, str) else repr(value))
    except RecursionError:
        return "nested too deeply to be shown"
