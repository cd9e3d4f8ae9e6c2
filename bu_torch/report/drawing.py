"""Figures of a page for plotly.js. `page.js` adds the colours that differ between light and dark pages.

`plotly/` holds the npm package plotly.js-cartesian-dist-min, the part of plotly.js that draws curves and maps.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bu_torch.report.verdict import RunVerdict

Json = dict[str, Any]
Panel = tuple[str, list[Json], tuple[float, float]]  # title, traces and range of an axis
BLUE, ORANGE, VIOLET, GREEN, GREY, RED = "#3b82f6", "#d97706", "#a855f7", "#16a34a", "#8590a2", "#dc2626"
COLOURS = (BLUE, ORANGE, GREEN, RED, VIOLET, "#0891b2", "#ec4899", "#65a30d", "#92400e", GREY)
_LINE_HEIGHT = 18  # pixels for a label


class Section(NamedTuple):
    """A part of a page."""

    name: str
    title: str
    reading: str  # a sentence or two on how to read it
    body: str  # HTML
    drawing: Json | None = None  # its figure for plotly.js


def figure(
    name: str,
    title: str,
    reading: str,
    traces: list[Json],
    layout: Json,
    height: int,
    verdict: RunVerdict | None = None,
    *,
    scale: str = "",
    most_width: int = 0,
) -> Section:
    """A section with a figure of these traces; the kept check of a `verdict` is marked.

    `scale` names the colours of a map in `page.js`. Sizes are in pixels; `most_width` 0 allows the width of the page.
    """
    drawn: Json = {
        "margin": {"l": 8, "r": 12, "t": 24, "b": 8},
        "hovermode": "closest" if scale else "x unified",
        "legend": {"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "xanchor": "left", "x": 0},
        "uirevision": "kept",  # a redrawn page keeps its zoom
    } | layout
    if verdict is not None and (kept := verdict.kept) is not None:
        drawn["shapes"] = [{"type": "line", "x0": kept, "x1": kept, "y0": 0, "y1": 1, "yref": "paper"}]
        labels, text = drawn.get("annotations", []), f"{verdict.kept_label}: {kept}"
        label = {"x": kept, "y": 1, "yref": "paper", "yanchor": "bottom", "text": text, "showarrow": False}
        drawn["annotations"] = [*labels, label | ({"yshift": _LINE_HEIGHT} if labels else {})]
    size = f"height:{height}px" + (f";max-width:{most_width}px" if most_width else "")
    body = f'<div class="plot" id="{name}" style="{size}"></div>'
    return Section(name, title, reading, body, {"name": name, "data": traces, "layout": drawn, "scale": scale})


def stacked(panels: Sequence[Panel], axis_name: str) -> tuple[list[Json], Json]:
    """Traces and layout of panels, one below the other."""
    height = 1 / (len(panels) + 0.25 * (len(panels) - 1))  # with gaps of a quarter of a panel
    layout: Json = {
        "xaxis": {"title": {"text": axis_name}, "anchor": f"y{len(panels)}" if len(panels) > 1 else "y"},
        "hoversubplots": "axis",
        "annotations": [],
        "margin": {"l": 8, "r": 12, "t": 24 + _LINE_HEIGHT, "b": 8},
    }
    traces = []
    for place, (title, drawn_here, limits) in enumerate(panels):
        top = 1 - 1.25 * height * place
        number = "" if place == 0 else str(place + 1)
        layout[f"yaxis{number}"] = {"domain": [max(0.0, top - height), top], "nticks": 5, "range": list(limits)}
        label = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom"}
        layout["annotations"].append(label | {"text": title, "showarrow": False})
        traces += [trace | {"yaxis": f"y{number}"} for trace in drawn_here]
    return traces, layout


def axis(title: str, **more: Any) -> Json:
    """An axis with a title."""
    return {"title": {"text": title}} | more


def curve(x: list[Any], y: Sequence[float], name: str, colour: str) -> Json:
    """A trace of values by epoch or step."""
    shown = {"line": {"color": colour, "width": 2}, "hovertemplate": "%{y:.4f}", "yaxis": "y"}
    return dots(x, y, name, {"size": 5}, mode="lines+markers" if len(x) <= 40 else "lines", **shown)


def dots(x: list[Any], y: Sequence[float], name: str, marker: Json, **more: Any) -> Json:
    """A trace of points, with gaps for values that are not finite; digits too small to see are cut off."""
    values = [float(f"{value:.7g}") if math.isfinite(value) else None for value in y]
    return {"type": "scatter", "mode": "markers", "x": x, "y": values, "name": name, "marker": marker} | more


def ring(symbol: str, size: int, colour: str) -> Json:
    """An open marker around a point of a curve."""
    return {"symbol": f"{symbol}-open", "size": size, "color": colour, "line": {"width": 2.5}}


def within_reach(values: Iterable[float | None]) -> list[float]:
    """Values that an axis can span: they are finite, and so are their sums."""
    return [value for value in values if value is not None and abs(value) < 1e300]
