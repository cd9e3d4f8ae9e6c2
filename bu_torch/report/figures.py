"""The curves of a page, each with a text on how to read it, for plotly.js.

`page.js` adds the colours that differ between light and dark pages. `plotly/` holds the npm package
plotly.js-cartesian-dist-min, the part of plotly.js that draws curves.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bu_torch.report.record import RunRecord
from bu_torch.report.text import escaped
from bu_torch.rule.rules import DEFAULT_RULE
from bu_torch.signals.catalogue import SIGNALS, Details

Json = dict[str, Any]
BLUE, ORANGE, VIOLET, GREEN, GREY, RED = "#3b82f6", "#d97706", "#a855f7", "#16a34a", "#8590a2", "#dc2626"
_COLOURS = dict(zip(SIGNALS, itertools.cycle((BLUE, ORANGE, GREEN, RED, VIOLET, "#0891b2", "#ec4899")), strict=False))
_LINE_HEIGHT = 18  # pixels for a label
_PANEL_HEIGHT = 150
_LEAST_SPAN = 0.005  # of an axis


class Section(NamedTuple):
    """A part of a page."""

    name: str
    title: str
    reading: str  # a sentence or two on how to read it
    body: str  # HTML
    drawing: Json | None = None  # its figure for plotly.js


def title_of(name: str) -> str:
    """Name of a signal or rule in words; a loss or cost counts by its negative."""
    words = f"expected {name[4:]}, negated" if name.startswith("neg_") else name
    return SIGNALS[name].title if name in SIGNALS else words.replace("_", " ")


def score_name(record: RunRecord) -> str:
    """The rule that decided, or else the default."""
    return record.settings.get("rule") or DEFAULT_RULE


def scores_that_count(record: RunRecord) -> dict[int, float]:
    """Finite scores of the checks that count, by epoch or step."""
    name, first = score_name(record), record.settings.get("start_from_epoch") or 0
    counted = (check for check in record.checks[record.n_not_compared :] if check["epoch"] >= first)
    return {check[record.axis]: check[name] for check in counted if math.isfinite(check.get(name, math.nan))}


def curves(record: RunRecord) -> Section | None:
    """The score, each signal and the training loss, in panels one below the other."""
    names = dict.fromkeys((score_name(record), *SIGNALS, "train_loss"))
    shown = {name: values for name in names if _within_reach(values := record.values(name))}
    if not shown:
        return None
    height = 1 / (len(shown) + 0.25 * (len(shown) - 1))  # with gaps of a quarter of a panel
    layout: Json = {
        "xaxis": _axis(record.axis, anchor=f"y{len(shown)}" if len(shown) > 1 else "y"),
        "hoversubplots": "axis",
        "annotations": [],
        "margin": {"l": 8, "r": 12, "t": 24 + _LINE_HEIGHT, "b": 8},
    }
    traces = []
    for place, (name, values) in enumerate(shown.items()):
        top, number = 1 - 1.25 * height * place, "" if place == 0 else str(place + 1)
        limits = _range(record, name, values)
        layout[f"yaxis{number}"] = {"domain": [max(0.0, top - height), top], "nticks": 5, "range": list(limits)}
        label = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom"}
        title = "training loss" if name == "train_loss" else escaped(title_of(name), 60)
        layout["annotations"].append(label | {"text": title, "showarrow": False})
        curve = _curve(record.places, values, title, _COLOURS.get(name, GREY))
        traces.append(curve | {"yaxis": f"y{number}", "showlegend": False})
    check = record.check_at(record.kept)
    if check is not None:
        line = {"type": "line", "x0": record.kept, "x1": record.kept, "y0": 0, "y1": 1, "yref": "paper"}
        layout["shapes"] = [line]
        label = {"x": record.kept, "y": 1, "yref": "paper", "yanchor": "bottom", "yshift": _LINE_HEIGHT}
        layout["annotations"].append(label | {"text": f"kept: {record.kept}", "showarrow": False})
    reading = "The first curve is the score; the line marks the kept check." if check else ""
    reading += " Each axis shows the best values: early ones far from them are cut off."
    if record.settings.get("averaging"):
        reading += " All values but the loss are measured on averaged weights."
    if "train_loss" in shown and record.is_resumed:
        reading += " Training losses before the run resumed are in the record of the earlier run."
    return _figure("curves", "Curves", reading.lstrip(), traces, layout, 90 + _PANEL_HEIGHT * len(shown))


def crossing(record: RunRecord, details: Details, where: str) -> Section:
    """Uncertainty of the labels from the boundary outward."""
    network, attainable = details.crossing
    share = [(part + 0.5) / len(network) for part in range(len(network))]
    traces = [
        _curve(share, attainable, "the most uncertain first", GREY),
        _curve(share, network, "the nearest to the network's boundary first", BLUE),
    ]
    layout = {
        "xaxis": _axis("share of the samples, from the boundary outward", tickformat=".0%", range=[0, 1]),
        "yaxis": _axis("uncertainty of the labels", rangemode="tozero"),
    }
    reading = (
        "Uncertainty is 1 where two classes are equally likely, by the labels nearby, and 0 where the class is certain."
        " The boundary runs where it should if the blue curve begins as high as the grey one, which no boundary can"
        " exceed. Boundary uncertainty is the mean of the blue curve on the left, where the nearest samples count most."
    )
    for first, second, met, _ in details.meeting:
        names = " and ".join(record.class_name(index)[:60] for index in (first, second))
        reading += f" Classes {names} meet on {met:.0%} of the boundary, where other classes are likelier."
    return _figure("crossing", f"Uncertainty near the boundary, {where}", reading, traces, layout, 340)


def _figure(name: str, title: str, reading: str, traces: list[Json], layout: Json, height: int) -> Section:
    """A section with a figure of these traces; its height is in pixels."""
    drawn: Json = {
        "margin": {"l": 8, "r": 12, "t": 24, "b": 8},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "xanchor": "left", "x": 0},
        "uirevision": "kept",  # a redrawn page keeps its zoom
    } | layout
    body = f'<div class="plot" id="{name}" style="height:{height}px"></div>'
    return Section(name, title, reading, body, {"name": name, "data": traces, "layout": drawn})


def _axis(title: str, **more: Any) -> Json:
    return {"title": {"text": title}} | more


def _curve(x: Sequence[float], y: Sequence[float], name: str, colour: str) -> Json:
    """A trace with gaps for values that are not finite; digits too small to see are cut off."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= 40 else "lines",
        "x": list(x),
        "y": [float(f"{value:.7g}") if math.isfinite(value) else None for value in y],
        "name": name,
        "marker": {"size": 5},
        "line": {"color": colour, "width": 2},
        "hovertemplate": "%{y:.4f}",
        "yaxis": "y",
    }


def _within_reach(values: Iterable[float]) -> list[float]:
    """Values that an axis can span: they are finite, and so are their sums."""
    return [value for value in values if abs(value) < 1e300]


def _range(record: RunRecord, name: str, values: list[float]) -> tuple[float, float]:
    """Limits of an axis that shows the best values, and that of the kept check."""
    finite = _within_reach(values)
    kept = _within_reach([(record.check_at(record.kept) or {}).get(name, math.nan)])
    share = 0.25 if len(finite) > 8 else 0.0  # of the checks, the worst
    is_larger_better = name != "train_loss" and (name not in SIGNALS or SIGNALS[name].is_larger_better)
    low, high = min(finite), max(finite)
    if is_larger_better:
        low = min(float(np.quantile(finite, share)), *kept, high - _LEAST_SPAN)
    else:
        high = max(float(np.quantile(finite, 1 - share)), *kept, low + _LEAST_SPAN)
    room = 0.06 * (high - low) or abs(high) / 10 or 1.0
    return low - room, high + room
