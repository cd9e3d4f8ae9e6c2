"""Several runs on one page: their curves, what was kept, what it cost, and the settings that differ."""

import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bu_torch.report.drawing import RUN_COLOURS, Figure, Json, Panel, Section, curve, dots, ring, stacked, within_reach
from bu_torch.report.figures import with_fewer_checks, with_room
from bu_torch.report.record import RunRecord
from bu_torch.report.sections import Content, assembled, shown_value, table
from bu_torch.report.text import duration, escaped, shown_number
from bu_torch.report.verdict import RunVerdict, headline, scores
from bu_torch.rule.rules import DEFAULT_RULE
from bu_torch.signals.catalogue import SIGNALS

_PANELS = ("expected_accuracy", "boundary_uncertainty", "trust_score")


class _Run(NamedTuple):
    record: RunRecord
    verdict: RunVerdict
    name: str
    colour: str


def comparison(records: Sequence[RunRecord]) -> Content:
    """Content of the page of several runs."""
    if not 2 <= len(records) <= len(RUN_COLOURS):
        raise ValueError(f"`records` must be 2 to {len(RUN_COLOURS)} runs to compare, got {len(records)}.")
    paths = [record.path.resolve() for record in records]
    if again := next((path for path in paths if paths.count(path) > 1), None):
        raise ValueError(f"`records` must be different runs, but {again} is given twice.")
    verdicts = [RunVerdict.of(record) for record in records]
    runs = [_Run(*one) for one in zip(records, verdicts, _names(paths), RUN_COLOURS, strict=False)]
    # When values of different runs mean the same.
    caution = "A record tells the number of samples, not whether they are the same."
    if any(record.data != records[0].data for record in records):
        caution = "These runs differ in their data, so compare only their shapes and costs."
    same = "Runs on the same samples, measured with the same settings, can be compared value by value."
    parts = {part.title: part for part in (_curves(runs), _kept(runs), _costs(runs), _differences(runs)) if part}
    window = f"{len(records)} runs"
    return assembled(window, f"{window} side by side", f"{same} {caution}", parts)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names that tell the records apart: their paths without the part that is common to all."""
    top = os.path.commonpath([path.parent for path in paths])
    folders = [str(path.parent.relative_to(top)) for path in paths]
    last = [Path(folder).parts[-1:] for folder in folders]
    if len(set(last)) == 1 and len(set(folders)) == len(folders):  # all end in `checkpoints`, say
        folders = [str(Path(folder).parent) for folder in folders]
    names = [
        folder if folders.count(folder) == 1 else str(Path(folder, path.stem))
        for folder, path in zip(folders, paths, strict=True)
    ]
    return [escaped(name, 60) for name in names]


def _curves(runs: Sequence[_Run]) -> Figure | None:
    axis = "epoch" if all(run.record.axis == "epoch" for run in runs) else "step"
    few = [with_fewer_checks(run.record, run.verdict) for run in runs]
    at_place = [  # of the checks that a curve shows; not all tables tell steps
        {check[one.axis]: check[axis] for check in one.checks if math.isfinite(check.get(axis, math.nan))}
        for one in few
    ]
    rows: list[Panel] = []
    for title, columns in _panels(runs):
        finite = [values for column in columns if (values := within_reach(column.values()))]
        if not finite:
            continue
        traces: list[Json] = []
        lows = [statistics.median(values) for values in finite]  # first checks, far below, are cut off
        for run, column, at in zip(runs, columns, at_place, strict=True):
            places = [place for place in column if place in at]
            values = [column[place] for place in places]
            legend = {"legendgroup": run.name, "showlegend": not rows}
            mode = {"mode": "lines" if len(places) > 1 else "markers+lines"}
            traces.append(curve([at[place] for place in places], values, run.name, run.colour) | legend | mode)
            kept = run.verdict.kept
            if kept in places:
                lows += within_reach([column[kept]])
                circle = ring("circle", 12, run.colour)
                mark = dots([at[kept]], [column[kept]], run.name, circle, hoverinfo="skip")
                traces.append(mark | legend | {"showlegend": False})
        rows.append((title, traces, with_room(min(lows), max(map(max, finite)))))
    if not rows:
        return None
    traces, layout = stacked(rows, axis)
    layout["margin"] = layout["margin"] | {"b": 24}
    reading = (
        "One colour per run; a circle marks the kept check. Higher is better in every panel. If all runs have the same"
        " rule, its score is shown too. Each axis begins above the lowest values, so that the largest stand out."
    )
    height = 120 + 150 * len(rows) + 22 * len(runs)
    return Figure("curves", "Curves", reading, traces, layout, height)


def _panels(runs: Sequence[_Run]) -> list[tuple[str, list[dict[int, float]]]]:
    """Title of each panel, with the values of each run by their places."""
    panels = [
        (SIGNALS[name].title, [dict(zip(run.record.places, run.record.values(name), strict=True)) for run in runs])
        for name in _PANELS
    ]
    rules = {run.verdict.rule or DEFAULT_RULE for run in runs}
    if len(rules) == 1 and not rules & set(_PANELS):
        panels.insert(0, ("score", [scores(run.record, run.verdict)[1] for run in runs]))
    return panels


def _kept(runs: Sequence[_Run]) -> Section:
    rows, endings = [], []
    for record, verdict, name, _ in runs:
        check = record.check_at(verdict.kept) or {}
        values = (shown_number(check.get(signal, math.nan)) for signal in _PANELS)
        last = f"{record.axis} {record.checks[-1][record.axis]}" if record.checks else "no check"
        kept = "none" if verdict.kept is None else f"{record.axis} {verdict.kept}"
        rows.append([name, kept, last, *values])
        endings.append(f"<li>{name}: {escaped(headline(record, verdict)[1])}</li>")
    head = ("run", "kept", "last check", "expected accuracy", "U", "trust")
    text = "A run that only measured shows what the default rule would have kept."
    body = table(head, rows, numbers=(1, 2, 3, 4, 5)) + f"<ul>{''.join(endings)}</ul>"
    return Section("kept", "What was kept", text, body)


def _costs(runs: Sequence[_Run]) -> Section:
    rows = []
    for record, _, name, _ in runs:
        spent, training = record.costs
        share = f"{spent / training:.0%}" if training > 0 and math.isfinite(spent) else shown_number(math.nan)
        times = (duration(seconds) for seconds in (record.setup_seconds, spent, training))
        rows.append([name, str(len(record.checks)), *times, share])
    head = ("run", "checks", "preparation", "callback in all", "training beside it", "share")
    text = "Time of preparation, checks and saving, as a share of training time."
    return Section("costs", "Costs", text, table(head, rows, numbers=(1, 2, 3, 4, 5)))


def _differences(runs: Sequence[_Run]) -> Section:
    rows = []
    for group in ("settings", "data", "versions"):
        of_runs: list[dict[str, Any]] = [getattr(run.record, group) for run in runs]
        for name in dict.fromkeys(name for one in of_runs for name in one):
            values = [shown_value(one[name]) if name in one else None for one in of_runs]
            if len(set(values)) > 1:
                cells = ("not recorded" if value is None else escaped(value, 120) for value in values)
                rows.append([escaped(name, 80), *cells])
    text = "Settings, data sizes and versions that differ between the runs."
    if not rows:
        text = "All recorded settings are the same in all runs. Loss function and optimiser are not recorded."
    head = ("", *(run.name for run in runs)) if rows else ()
    return Section("settings", "Settings that differ", text, table(head, rows))
