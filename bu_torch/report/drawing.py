"""Figures of a page for plotly.js, in colours for light and for dark pages.

`plotly/` holds the part of plotly.js that draws curves and maps, as npm has it: plotly.js-cartesian-dist-min.
Backgrounds, grids and text come from `THEMES`, which the page puts in as it is read; curves are seen on both.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bu_torch.report.text import escaped
from bu_torch.report.verdict import RunVerdict

Json = dict[str, Any]
Panel = tuple[str, list[Json], tuple[float, float]]  # title, traces and range of an axis
BLUE, ORANGE, VIOLET, GREEN, GREY, RED = "#3b82f6", "#d97706", "#a855f7", "#16a34a", "#8590a2", "#dc2626"
_PINK, _CYAN, _LIME, _BROWN = "#ec4899", "#0891b2", "#65a30d", "#92400e"
SHARE_COLOURS = (RED, BLUE, GREEN, ORANGE, GREY, VIOLET, _PINK, _CYAN, _LIME, _BROWN)
RUN_COLOURS = (BLUE, ORANGE, GREEN, RED, VIOLET, _CYAN, _PINK, _LIME, _BROWN, GREY)
_LINE_HEIGHT = 18  # of a label, in pixels


def _theme(text: str, grid: str, panel: str, mark: str) -> Json:
    axis = {"gridcolor": grid, "zerolinecolor": grid, "linecolor": grid, "tickcolor": grid, "automargin": True}
    return {
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": text, "family": "system-ui, sans-serif", "size": 13},
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {"bgcolor": panel, "bordercolor": grid, "font": {"color": text}, "align": "left"},
            "shapedefaults": {"line": {"color": mark, "width": 1.5, "dash": "dash"}},
            "annotationdefaults": {"font": {"color": mark, "size": 12}, "bgcolor": panel},
        }
    }


THEMES = {
    "light": _theme(text="#1c2430", grid="#dfe4ea", panel="#ffffff", mark="#0f1720"),
    "dark": _theme(text="#e3e8ef", grid="#333c48", panel="#191f27", mark="#f4f7fb"),
}
# The stronger the colour, the worse the boundary; a good one fades into the page.
WORSE = {
    "light": [[0, "#8f2d0c"], [0.35, "#e2682a"], [0.7, "#f9bd8d"], [1, "#fbe8d6"]],
    "dark": [[0, "#ffb37a"], [0.35, "#cf6423"], [0.7, "#743b19"], [1, "#3a2a21"]],
}
MORE = {
    "light": [[0, "#f5f8fd"], [0.25, "#a9c8f7"], [0.6, "#3b82f6"], [1, "#142f66"]],
    "dark": [[0, "#171d26"], [0.25, "#1f3e74"], [0.6, "#3b82f6"], [1, "#d6e6ff"]],
}
COLOUR_BAR = {"thickness": 10, "outlinewidth": 0, "len": 0.9, "ticks": ""}
BELOW = {"orientation": "h", "title": {"text": "U", "side": "top"}, "len": 0.5, "x": 0, "xanchor": "left"}


class Section(NamedTuple):
    """A part of a page."""

    name: str
    title: str
    reading: str  # one sentence or two on how to read it
    body: str  # HTML

    @property
    def html(self) -> str:
        """The section as the page has it."""
        reading = f"<p>{escaped(self.reading)}</p>" if self.reading else ""
        return f'<section id="section-{self.name}"><h2>{escaped(self.title)}</h2>{reading}{self.body}</section>'


class Figure(NamedTuple):
    """A figure, which has a section of its own; sizes are in pixels."""

    name: str
    title: str
    reading: str
    traces: list[Json]
    layout: Json
    height: int
    verdict: RunVerdict | None = None  # its kept check is marked
    scales: Json | None = None  # colours of a map by theme
    most_width: int = 0  # 0 for that of the page

    @property
    def section(self) -> Section:
        """The section with room for the figure."""
        size = f"height:{self.height}px" + (f";max-width:{self.most_width}px" if self.most_width else "")
        body = f'<div class="plot" id="{self.name}" style="{size}"></div>'
        return Section(self.name, self.title, self.reading, body)

    @property
    def drawing(self) -> Json:
        """The figure as plotly.js takes it."""
        layout: Json = {
            "margin": {"l": 8, "r": 12, "t": 24, "b": 8},
            "hovermode": "closest" if self.scales else "x unified",
            "legend": {"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "xanchor": "left", "x": 0},
            "uirevision": "kept",  # a page that is drawn again keeps what was zoomed to
        } | self.layout
        if self.verdict is not None and (kept := self.verdict.kept) is not None:
            layout["shapes"] = [{"type": "line", "x0": kept, "x1": kept, "y0": 0, "y1": 1, "yref": "paper"}]
            text = f"{'kept' if self.verdict.rule else 'would be kept'}: {kept}"
            labels = layout.get("annotations", [])
            annotation = {"x": kept, "y": 1, "yref": "paper", "yanchor": "bottom", "text": text, "showarrow": False}
            layout["annotations"] = [*labels, annotation | ({"yshift": _LINE_HEIGHT} if labels else {})]
        return {"name": self.name, "data": self.traces, "layout": layout, "scales": self.scales}


def stacked(panels: Sequence[Panel], axis_name: str) -> tuple[list[Json], Json]:
    """Traces and layout of panels one below another."""
    height = 1 / (len(panels) + 0.25 * (len(panels) - 1))  # a quarter of a panel lies between two
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


def curve(x: list[Any], y: Sequence[float], name: str, colour: str, dash: str = "solid") -> Json:
    """A trace of values by epoch or step, with gaps where one is not finite."""
    mode = "lines+markers" if len(x) <= 40 and dash == "solid" else "lines"
    line = {"color": colour, "dash": dash, "width": 2}
    shown = {"line": line, "marker": {"size": 5}, "hovertemplate": "%{y:.4f}"}
    return {"type": "scatter", "mode": mode, "x": x, "y": finite_or_none(y), "name": name, "yaxis": "y"} | shown


def dots(x: list[Any], y: Sequence[float], name: str, marker: Json, **more: Any) -> Json:
    """A trace of single points."""
    shown = {"type": "scatter", "mode": "markers", "marker": marker}
    return shown | {"x": x, "y": finite_or_none(y), "name": name} | more


def ring(symbol: str, size: int, colour: str) -> Json:
    """An open marker, around a point of a curve."""
    return {"symbol": f"{symbol}-open", "size": size, "color": colour, "line": {"width": 2.5}}


def within_reach(values: Iterable[float | None]) -> list[float]:
    """The values that an axis can span: finite, and not so large that a sum of them is not."""
    return [value for value in values if value is not None and abs(value) < 1e300]


def finite_or_none(values: Sequence[float]) -> list[float | None]:
    """`values` with a gap where one is not finite, which JSON cannot say, in as many digits as can be seen."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]


def thinned(places: list[int], most: int, kept: int | None) -> list[int]:
    """About `most` of the places, evenly, with the last and the kept one."""
    step = max(1, math.ceil(len(places) / most))
    return sorted({*places[::step], *places[-1:], *([kept] if kept in places else [])})
