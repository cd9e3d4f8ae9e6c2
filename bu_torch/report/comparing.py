"""Several runs on one page: their curves, kept checks, costs, and the settings that differ."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bu_torch.report import figures
from bu_torch.report.figures import COLOURS, Json, Panel, Section
from bu_torch.report.record import RunRecord
from bu_torch.report.sections import Content, assembled, signal_cells, table
from bu_torch.report.text import duration, escaped, shown_number, without_folders
from bu_torch.report.verdict import RunVerdict
from bu_torch.rule.rules import DEFAULT_RULE
from bu_torch.signals.catalogue import SIGNALS

_PANELS = ("accuracy_uncertainty_trust", "expected_accuracy", "boundary_uncertainty", "trust_score")


class _Run(NamedTuple):
    verdict: RunVerdict
    name: str
    colour: str


def comparison(records: Sequence[RunRecord]) -> Content:
    """Content of the page of several runs."""
    if strange := next((one for one in records if not isinstance(one, RunRecord)), None):
        raise TypeError(
            f"`records` must be what `read_record` returns, or a list of these, got {type(strange).__name__}."
        )
    if not 2 <= len(records) <= len(COLOURS):
        raise ValueError(f"`records` must be 2 to {len(COLOURS)} runs to compare, got {len(records)}.")
    paths = [record.path.resolve() for record in records]
    if again := next((path for path in paths if paths.count(path) > 1), None):
        raise ValueError(f"`records` must be different runs, but {again} is given twice.")
    runs = list(map(_Run, map(RunVerdict.of, records), _names(paths), COLOURS))
    caution = "A record tells the number of samples, not whether they are the same."
    if any(record.data != records[0].data for record in records):
        caution = "These runs differ in their data, so compare only the shapes of their curves, and their costs."
    elif any(record.weighting != records[0].weighting for record in records):
        caution = "Samples count differently in these runs: only runs in one panel can be compared by value."
    same = "Runs on the same samples, measured with the same settings, can be compared value by value."
    parts = {part.title: part for part in (_curves(runs), _kept(runs), _costs(runs), _differences(runs)) if part}
    window = f"{len(records)} runs"
    return assembled(window, f"{window} side by side", f"{same} {caution}", parts)


def _names(paths: Sequence[Path]) -> list[str]:
    """Names that distinguish the records: their paths without the common beginning and end."""
    names = [list(path.with_suffix("").parts) for path in paths]
    for end in (0, -1):
        while len({name[end] for name in names}) == 1 and min(map(len, names)) > 1:
            for name in names:
                name.pop(end)
    return [escaped("/".join(name), 60) for name in names]


def _curves(runs: Sequence[_Run]) -> Section | None:
    axis = "epoch" if all(run.verdict.record.axis == "epoch" for run in runs) else "step"
    rows: list[Panel] = []
    in_legend: set[str] = set()
    for title, name, here in _panels(runs):
        traces: list[Json] = []
        lows, highs = [], []
        for run in here:
            record, kept = run.verdict.record, run.verdict.kept
            column = run.verdict.scores if name == "score" else record.by_place(name)
            if within := figures.within_reach(column.values()):
                lows.append(statistics.median(within))  # first checks, far below, are cut off
                highs.append(max(within))
            at = {place: x for place, x in record.by_place(axis).items() if place in column and math.isfinite(x)}
            legend = {"legendgroup": run.name, "showlegend": run.name not in in_legend}
            mode = {"mode": "lines" if len(at) > 1 else "markers+lines"}
            values = [column[place] for place in at]
            traces.append(figures.curve(list(at.values()), values, run.name, run.colour) | legend | mode)
            if kept in at:
                lows += figures.within_reach([column[kept]])
                ring = figures.ring("circle", 12, run.colour)
                mark = figures.dots([at[kept]], [column[kept]], run.name, ring, hoverinfo="skip")
                traces.append(mark | legend | {"showlegend": False})
        if highs:
            in_legend |= {run.name for run in here}
            rows.append((title, traces, figures.with_room(min(lows), max(highs))))
    if not rows:
        return None
    traces, layout = figures.stacked(rows, axis)
    layout["margin"] = layout["margin"] | {"b": 24}
    reading = "One colour per run; a circle marks the kept check. Each axis begins above the lowest values."
    return figures.figure("curves", "Curves", reading, traces, layout, 120 + 150 * len(rows) + 22 * len(runs))


def _panels(runs: Sequence[_Run]) -> Iterator[tuple[str, str, list[_Run]]]:
    """Yield the title of each panel, the name of its column, and its runs."""
    rules = {run.verdict.rule or DEFAULT_RULE for run in runs}
    names = _PANELS if len(rules) > 1 or rules & set(_PANELS) else ("score", *_PANELS)
    weightings = dict.fromkeys(run.verdict.record.weighting for run in runs)
    for name, weighting in itertools.product(names, weightings):
        title = SIGNALS[name].title if name in SIGNALS else name
        if len(weightings) > 1:
            title += f" ({escaped(weighting or 'all samples count alike', 60)})"
        yield title, name, [run for run in runs if run.verdict.record.weighting == weighting]


def _kept(runs: Sequence[_Run]) -> Section:
    rows, endings = [], []
    for verdict, name, _ in runs:
        record = verdict.record
        last = f"{record.axis} {record.checks[-1][record.axis]}" if record.checks else "no check"
        kept = "none" if verdict.kept is None else f"{record.axis} {verdict.kept}"
        rows.append([name, kept, last, *signal_cells(record.check_at(verdict.kept) or {}, _PANELS)])
        endings.append(f"<li>{name}: {escaped(verdict.headline[1])}</li>")
    head = ("run", "kept", "last check", "accuracy, U and trust", "expected accuracy", "U", "trust")
    text = "For a run that only measured, this is the check that the default rule would have kept."
    body = table(head, rows, numbers=(1, 2, 3, 4, 5, 6)) + f"<ul>{''.join(endings)}</ul>"
    return Section("kept", "What was kept", text, body)


def _costs(runs: Sequence[_Run]) -> Section:
    rows = []
    for verdict, name, _ in runs:
        record = verdict.record
        spent, training = record.costs
        share = f"{spent / training:.0%}" if training > 0 and math.isfinite(spent) else shown_number(math.nan)
        times = (duration(seconds) for seconds in (record.setup_seconds, spent, training))
        rows.append([name, str(len(record.checks)), *times, share])
    head = ("run", "checks", "preparation", "callback in total", "training without it", "share")
    text = "Time of preparation, checks and saving, as a share of training time."
    return Section("costs", "Costs", text, table(head, rows, numbers=(1, 2, 3, 4, 5, 6)))


def _differences(runs: Sequence[_Run]) -> Section:
    rows = []
    for group in ("settings", "data", "versions"):
        of_runs: list[dict[str, Any]] = [getattr(run.verdict.record, group) for run in runs]
        for name in dict.fromkeys(name for one in of_runs for name in one):
            values = [one.get(name, "not recorded") for one in of_runs]
            if len(set(values)) > 1:
                rows.append([escaped(name, 80), *(escaped(without_folders(str(value)), 120) for value in values)])
    text = "Settings, data sizes and versions that differ between the runs."
    if not rows:
        text = "All recorded settings are the same in all runs. Loss function and optimiser are not recorded."
    head = ("", *(run.name for run in runs)) if rows else ()
    return Section("settings", "Settings that differ", text, table(head, rows))
