"""The curves of a page, each with a text on how to read it, for plotly.js.

`page.js` adds the colours that differ between light and dark pages. `plotly/` holds the npm package
plotly.js-cartesian-dist-min, the part of plotly.js that draws curves.
"""

import html
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from bu_torch.internal.output import printable
from bu_torch.report.record import RunRecord
from bu_torch.rule.rules import DEFAULT_RULE
from bu_torch.signals.catalogue import SIGNALS, Details

Json = dict[str, Any]
BLUE, ORANGE, VIOLET, GREEN, GREY, RED = "#3b82f6", "#d97706", "#a855f7", "#16a34a", "#8590a2", "#dc2626"
_COLOURS = dict(zip(SIGNALS, itertools.cycle((BLUE, ORANGE, GREEN, RED, VIOLET, "#0891b2", "#ec4899")), strict=False))
_LINE_HEIGHT = 18  # pixels for a label
_PANEL_HEIGHT = 150


class Section(NamedTuple):
    """A part of a page."""

    name: str
    title: str
    reading: str  # a sentence or two on how to read it
    body: str  # HTML
    drawing: Json | None = None  # its figure for plotly.js


def escaped(value: Any, most: int = 2000) -> str:
    """`value` printable, cut to `most` characters, and escaped for HTML, in attributes too."""
    text = printable(str(value)[: most + 1])  # cut first: cleaning a long text is slow
    return html.escape(text if len(text) <= most else f"{text[: most - 1]}…")


def title_of(name: str) -> str:
    """Name of a signal or rule in words; a loss or cost counts by its negative."""
    words = f"expected {name[4:]}, negated" if name.startswith("neg_") else name
    return SIGNALS[name].title if name in SIGNALS else words.replace("_", " ")


def score_name(record: RunRecord) -> str:
    """The rule that decided, or else the default."""
    return str(record.settings.get("rule") or DEFAULT_RULE)


def curves(record: RunRecord) -> Section | None:
    """The score, each signal and the training loss, in panels one below the other."""
    names = dict.fromkeys((score_name(record), *SIGNALS, "train_loss"))
    shown = {name: values for name in names if any(map(math.isfinite, values := record.values(name)))}
    if not shown:
        return None
    axes = [f"y{number}" if number > 1 else "y" for number in range(1, len(shown) + 1)]
    layout: Json = {
        "grid": {"rows": len(shown), "columns": 1, "subplots": [[f"x{axis}"] for axis in axes], "ygap": 0.25},
        "xaxis": {"title": {"text": record.axis}},
        "hoversubplots": "axis",
        "annotations": [],
        "margin": {"l": 8, "r": 12, "t": 24 + _LINE_HEIGHT, "b": 8},
    }
    traces, check = [], record.check_at(record.kept) or {}
    for axis, (name, values) in zip(axes, shown.items(), strict=True):
        layout[f"yaxis{axis[1:]}"] = {"nticks": 5, "range": _range(values, check.get(name, math.nan))}
        label = {"xref": "paper", "x": 0, "xanchor": "left", "yref": f"{axis} domain", "y": 1, "yanchor": "bottom"}
        title = "training loss" if name == "train_loss" else escaped(title_of(name), 60)
        layout["annotations"].append(label | {"text": title, "showarrow": False})
        curve = _curve(record.places, values, title, _COLOURS.get(name, GREY))
        traces.append(curve | {"yaxis": axis, "showlegend": False})
    if check:
        line = {"type": "line", "x0": record.kept, "x1": record.kept, "y0": 0, "y1": 1, "yref": "paper"}
        layout["shapes"] = [line]
        label = {"x": record.kept, "y": 1, "yref": "paper", "yanchor": "bottom", "yshift": _LINE_HEIGHT}
        layout["annotations"].append(label | {"text": f"kept: {record.kept}", "showarrow": False})
    reading = "The first curve decided; the line marks the kept check." if check else ""
    reading += " Each axis shows the later values: those of the first quarter of the checks may be cut off."
    if record.settings.get("averaging"):
        reading += " All values but the loss are measured on averaged weights."
    if "train_loss" in shown and math.isnan(shown["train_loss"][0]):
        reading += " Losses before the run was resumed are in its earlier record."
    return _figure("curves", "Curves", reading.lstrip(), traces, layout, 90 + _PANEL_HEIGHT * len(shown))


def crossing(record: RunRecord, details: Details, where: str) -> Section:
    """Uncertainty of the labels from the boundary outward."""
    network, attainable = details.crossing
    share = [(part + 0.5) / len(network) for part in range(len(network))]
    traces = [
        _curve(share, attainable, "the most uncertain first", GREY),
        _curve(share, network, "the nearest to the network's boundary first", BLUE),
    ]
    x = {"title": {"text": "share of the samples, from the boundary outward"}, "tickformat": ".0%", "range": [0, 1]}
    layout = {"xaxis": x, "yaxis": {"title": {"text": "uncertainty of the labels"}, "rangemode": "tozero"}}
    reading = (
        f"{where} Uncertainty is 1 where two classes are equally likely, by the labels nearby, and 0 where one is"
        " certain. The boundary runs where it should if the blue curve begins as high as the grey one, which no"
        " boundary can exceed. Boundary uncertainty is the mean of the blue curve on the left, where the nearest"
        " samples count most."
    )
    for first, second, met, _ in details.meeting:
        names = " and ".join(map(record.class_name, (first, second)))
        reading += f" Classes {names} meet on {met:.0%} of the boundary, where other classes are likelier."
    return _figure("crossing", "Uncertainty near the boundary", reading, traces, layout, 340)


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


def _range(values: list[float], kept: float) -> list[float] | None:
    """Limits of an axis that shows the later values, and that of the kept check; None for all values."""
    late = values[len(values) // 4 if len(values) > 8 else 0 :]
    shown = [value for value in (*late, kept) if math.isfinite(value)]
    if not shown:
        return None
    room = 0.06 * (max(shown) - min(shown)) or abs(shown[0]) / 10 or 1.0
    return [min(shown) - room, max(shown) + room]
