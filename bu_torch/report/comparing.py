"""Several runs on one page: their curves, what was kept, what it cost, and the settings that differ."""

import math
import os
import statistics
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from bu_torch.report.drawing import (
    BLUE,
    BROWN,
    CYAN,
    GREEN,
    GREY,
    LIME,
    ORANGE,
    PINK,
    RED,
    VIOLET,
    Figure,
    curve,
    finite_or_none,
    plotly_drawing,
    stacked,
)
from bu_torch.report.figures import with_fewer_checks, with_room
from bu_torch.report.page import Content, page, write_page
from bu_torch.report.record import RunRecord
from bu_torch.report.sections import contents, figure_section, header, shown_value, table_section
from bu_torch.report.text import duration, escaped, figure
from bu_torch.report.verdict import RunVerdict, headline, scores
from bu_torch.signals.catalogue import SIGNALS

_COLOURS = (BLUE, ORANGE, GREEN, RED, VIOLET, CYAN, PINK, LIME, BROWN, GREY)
_PANELS = ("expected_accuracy", "boundary_uncertainty", "trust_score")
_MOST_NAME = 60


def write_comparison(records: Sequence[RunRecord], path: str | PathLike[str]) -> Path:
    """Write a page with several runs side by side; a file that is there is replaced as a whole or not at all.

    Args:
        records: What `read_record` has read, 2 to 10 different records.
        path: Where to; folders are made if need be.

    Returns:
        The path.

    Raises:
        OSError: If it cannot be written.
        ValueError: If there are fewer records or more, if two are the same, or if the settings of one are none that a
            rule takes.
    """
    return write_page(page(comparison(records)), path)


def comparison(records: Sequence[RunRecord]) -> Content:
    """Content of the page of several runs.

    Args:
        records: What `read_record` has read, 2 to 10 different records.

    Returns:
        Its parts.

    Raises:
        ValueError: As `write_comparison`.
    """
    if not 2 <= len(records) <= len(_COLOURS):
        raise ValueError(f"`records` must be 2 to {len(_COLOURS)} runs to compare, got {len(records)}.")
    paths = [record.path.resolve() for record in records]
    if again := next((path for path in paths if paths.count(path) > 1), None):
        raise ValueError(f"`records` must be different runs, but {again} is there twice.")
    names, verdicts = _names(paths), [RunVerdict.of(record) for record in records]
    curves = _curves(records, verdicts, names)
    tables = {
        "kept": _kept(records, verdicts, names),
        "costs": _costs(records, names),
        "settings": _differences(records, names),
    }
    plots = {} if curves is None else {curves.name: figure_section(curves)}
    titles = {"curves": "Curves", "kept": "What was kept", "costs": "Costs", "settings": "Settings that differ"}
    shown = tables | plots
    main = (
        header(f"{len(records)} runs side by side", _caution(records)),
        contents({name: title for name, title in titles.items() if name in shown}),
        *(shown[name] for name in titles if name in shown),
    )
    drawings = [] if curves is None else [{"name": curves.name, **curves.drawing}]
    has_ended = all(record.end is not None for record in records)
    return Content(f"{len(records)} runs – boundary uncertainty", "".join(main), drawings, has_ended)  # noqa: RUF001


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
    return [escaped(name, _MOST_NAME) for name in names]


def _caution(records: Sequence[RunRecord]) -> str:
    """When values of different runs mean the same."""
    same = "Runs on the same samples, measured with the same settings, can be compared value by value."
    # Records of an earlier version say less of their data.
    common = set.intersection(*(set(record.data) for record in records))
    if any(record.data[name] != records[0].data[name] for record in records for name in common):
        return f"{same} These runs differ in their data, so compare their shapes and costs alone."
    return f"{same} Whether the samples are the same, a record does not tell; it tells their number."


def _curves(records: Sequence[RunRecord], verdicts: Sequence[RunVerdict], names: Sequence[str]) -> Figure | None:
    axis = "epoch" if all(record.axis == "epoch" for record in records) else "step"
    thinned = [with_fewer_checks(record, verdict) for record, verdict in zip(records, verdicts, strict=True)]
    rows: list[tuple[str, list[dict[str, Any]], tuple[float, float]]] = []
    for title, columns in _panels(thinned, verdicts, axis):
        if not any(math.isfinite(value) for _, values in columns for value in values):
            continue
        traces: list[dict[str, Any]] = []
        values_kept: list[float] = []
        for (places, values), record, verdict, name, colour in zip(
            columns, thinned, verdicts, names, _COLOURS, strict=False
        ):
            legend = {"legendgroup": name, "showlegend": not rows}
            mode = "lines" if len(places) > 1 else "markers+lines"
            traces.append(curve(places, values, name, colour) | legend | {"mode": mode})
            check = record.check_at(verdict.kept)
            if check is not None and check[axis] in places:
                values_kept.append(values[places.index(check[axis])])
                marker = {"symbol": "circle-open", "size": 12, "color": colour, "line": {"width": 2.5}}
                at_kept = {"x": [check[axis]], "y": finite_or_none(values_kept[-1:]), "marker": marker}
                dot = {"type": "scatter", "mode": "markers", "name": name, "hoverinfo": "skip"}
                traces.append(dot | at_kept | legend | {"showlegend": False})
        rows.append((title, traces, _limits([values for _, values in columns], values_kept)))
    if not rows:
        return None
    traces, layout = stacked(rows, axis)
    layout["margin"] = layout["margin"] | {"b": 24}
    reading = (
        "One colour a run; a circle marks what was kept. More is better in all. The score is that of the rule that"
        " decided, where all runs have the same. Each axis begins above the lowest values, so the largest are seen."
    )
    height = 120 + 150 * len(rows) + 22 * len(records)
    return Figure("curves", "Curves", reading, plotly_drawing(traces, layout, None), height)


def _limits(values_of_runs: Sequence[Sequence[float]], kept: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis that shows the upper half of each run's values, and what was kept; first checks are cut off."""
    finite = [[value for value in values if math.isfinite(value)] for values in values_of_runs]
    medians = [statistics.median(values) for values in finite if values]
    return with_room(min([*medians, *filter(math.isfinite, kept)]), max(max(values) for values in finite if values))


def _panels(
    records: Sequence[RunRecord], verdicts: Sequence[RunVerdict], axis: str
) -> list[tuple[str, list[tuple[list[Any], list[float]]]]]:
    """Title of each panel, with places and values of each run."""
    panels = [
        (SIGNALS[name].title, [([check[axis] for check in record.checks], record.values(name)) for record in records])
        for name in _PANELS
    ]
    rules = {verdict.rule or verdict.stand_in for verdict in verdicts}
    if len(rules) == 1 and not rules & set(_PANELS):
        columns = []
        for record, verdict in zip(records, verdicts, strict=True):
            _, places, values = scores(record, verdict)
            at = dict(zip(places, values, strict=True))
            checks = [check for check in record.checks if check[record.axis] in at]
            columns.append(([check[axis] for check in checks], [at[check[record.axis]] for check in checks]))
        panels.insert(0, ("score", columns))
    return panels


def _kept(records: Sequence[RunRecord], verdicts: Sequence[RunVerdict], names: Sequence[str]) -> str:
    rows, endings = [], []
    for record, verdict, name in zip(records, verdicts, names, strict=True):
        check = record.check_at(verdict.kept) or {}
        values = (figure(check.get(signal, math.nan)) for signal in _PANELS)
        last = f"{record.axis} {record.checks[-1][record.axis]}" if record.checks else "no check"
        kept = "none" if verdict.kept is None else f"{record.axis} {verdict.kept}"
        rows.append([name, kept, last, *values])
        endings.append(f"<li>{name}: {escaped(headline(record, verdict)[1])}</li>")
    return table_section(
        "kept",
        "What was kept",
        "A run that only measured shows what the default rule would have kept.",
        ("run", "kept", "last check", "expected accuracy", "U", "trust"),
        rows,
        numbers=(1, 2, 3, 4, 5),
        after=f"<ul>{''.join(endings)}</ul>",
    )


def _costs(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    rows = []
    for record, name in zip(records, names, strict=True):
        last = record.checks[-1] if record.checks else {}
        spent, total = last.get("check_seconds", math.nan), last.get("seconds", math.nan)
        share = f"{spent / total:.1%}" if total > 0 and math.isfinite(spent) else figure(math.nan)
        n_checks = str(len(record.checks))
        rows.append([name, n_checks, duration(record.setup_seconds), duration(spent), duration(total), share])
    return table_section(
        "costs",
        "Costs",
        "Time until the last check. Preparation is what comes before the first epoch.",
        ("run", "checks", "preparation", "checks took", "of", "share"),
        rows,
        numbers=(1, 2, 3, 4, 5),
    )


def _differences(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    rows = []
    for group in ("settings", "data", "versions"):
        of_runs: list[dict[str, Any]] = [getattr(record, group) for record in records]
        for name in dict.fromkeys(name for one in of_runs for name in one):
            values = [shown_value(one[name]) if name in one else None for one in of_runs]
            if len(set(values)) > 1:
                cells = ("not recorded" if value is None else escaped(value, 120) for value in values)
                rows.append([escaped(name, 80), *cells])
    text = "Settings, sizes of the data and versions that are not the same in all runs."
    if not rows:
        return table_section(
            "settings",
            "Settings that differ",
            "All recorded settings are the same in all runs. Loss function and optimiser are not recorded.",
            (),
            (),
        )
    return table_section("settings", "Settings that differ", text, ("", *names), rows, is_escaped=True)
