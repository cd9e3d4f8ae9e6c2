"""The curves and maps of a page, each with a text on how to read it, for plotly.js.

`page.js` adds the colours that differ between light and dark pages. `plotly/` holds the npm package
plotly.js-cartesian-dist-min, the part of plotly.js that draws curves and maps.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bu_torch.report.record import RunRecord
from bu_torch.report.text import escaped, shown_number
from bu_torch.report.verdict import RunVerdict, rule_title
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.details import Pair

Json = dict[str, Any]
Panel = tuple[str, list[Json], tuple[float, float]]  # title, traces and range of an axis
BLUE, ORANGE, VIOLET, GREEN, GREY, RED = "#3b82f6", "#d97706", "#a855f7", "#16a34a", "#8590a2", "#dc2626"
COLOURS = (BLUE, ORANGE, GREEN, RED, VIOLET, "#0891b2", "#ec4899", "#65a30d", "#92400e", GREY)
_LINE_HEIGHT = 18  # pixels for a label
# Short names of rules, and their marks, of different sizes, so that all can be seen if they coincide.
_RULES = {
    "accuracy_uncertainty_trust": ("accuracy, uncertainty, trust", "star", 25, GREEN),
    "expected_accuracy": ("accuracy", "triangle-up", 17, GREY),
    "boundary_uncertainty": ("uncertainty", "circle", 12, BLUE),
    "trust_score": ("trust", "square", 9, ORANGE),
    "parzen_uncertainty": ("Proposal 2", "diamond", 21, VIOLET),
}
# Title and reading of each figure of signals, and the height of a panel in pixels.
_SIGNALS = {
    "scores": (
        "Boundary uncertainty and trust",
        "Boundary uncertainty is large if the boundary runs where the labels are most uncertain, trust if predictions"
        " agree with the nearest samples. Open marks show the check that each rule would have kept.",
        190,
    ),
    "agreement": ("Expected accuracy and agreement", "Shares of the perturbed samples.", 130),
    "changes": (
        "Changed predictions",
        "Share of the perturbed samples whose prediction has changed since the last check. The axis ends below the"
        " largest values.",
        130,
    ),
}
_COLOURS = dict(zip(SIGNALS, itertools.cycle(COLOURS), strict=False))
_LEAST_SPAN = 0.005  # on an axis of shares
_MOST_COLUMNS = 300  # in a map over the epochs
_PLAIN = {"showgrid": False, "zeroline": False}
_MAP: Json = {"type": "heatmap", "coloraxis": "coloraxis"}
_COLOUR_BAR = {"thickness": 10, "outlinewidth": 0, "len": 0.9, "ticks": ""}


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


def with_room(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis from `low` to `high`, with some room at each end."""
    room = 0.08 * (high - low) or 0.01
    return low - room, high + room


def _upper_range(values: list[float], kept: list[float], least_span: float = 0.0) -> tuple[float, float]:
    """Limits of an axis that shows the largest values and cuts off early values far below."""
    low, high = float(np.quantile(values, 0.25 if len(values) > 8 else 0)), max(values)
    return with_room(min([low, *within_reach(kept), high - least_span]), high)


def deciding(verdict: RunVerdict) -> Section | None:
    """The score by which the run decided, or would have decided."""
    record, kept = verdict.record, verdict.kept
    places = [place for place in record.places if place in verdict.scores]
    values = [verdict.scores[place] for place in places]
    finite = within_reach(values)
    if not finite:
        return None
    traces, at_kept = [curve(places, values, "score", BLUE)], []
    if kept in places:
        at_kept = [verdict.scores[kept]]
        hover = {"hovertemplate": f"{record.axis} %{{x}}: %{{y:.4f}}"}
        traces.append(dots([kept], at_kept, verdict.kept_label, ring("circle", 14, RED), **hover))
    limits = _upper_range(finite, at_kept)
    layout = {"xaxis": axis(record.axis), "yaxis": axis("score", range=list(limits))}
    reading = f"{verdict.title.capitalize()}. {verdict.why_not_highest or 'The check with the highest score is kept.'}"
    if record.settings.get("averaging"):
        reading += " All values are measured on averaged weights."
    if limits[0] > min(finite):
        reading += " The axis begins above the lowest values, so that the largest stands out."
    title = "What decided" if verdict.rule else "What would have decided"
    return figure("deciding", title, reading, traces, layout, 320, verdict)


def signals(verdict: RunVerdict, name: str) -> Section | None:
    """Figure of some signals, each in a panel whose axis shows its best values."""
    record = verdict.record
    kept = record.check_at(verdict.kept) or {}
    rows: list[Panel] = []
    for signal in SIGNALS.values():
        of_shares = "agreement" if signal.is_larger_better else "changes"
        values = record.values(signal.name)
        finite = within_reach(values)
        figure_of = of_shares if signal.panel == "shares" else signal.panel
        if name != figure_of or not finite:
            continue
        colour, at_kept = _COLOURS[signal.name], within_reach([kept.get(signal.name, math.nan)])
        traces = [curve(record.places, values, signal.title, colour) | {"showlegend": False}]
        if signal.is_larger_better:
            limits = _upper_range(finite, at_kept, _LEAST_SPAN)
            largest, marker = record.places[values.index(max(finite))], {"size": 9, "color": colour}
            traces.append(dots([largest], [max(finite)], "largest", marker, hoverinfo="skip", showlegend=False))
        else:
            high = max([float(np.quantile(finite, 0.75)), *at_kept, _LEAST_SPAN])
            limits = -0.04 * high, 1.1 * high
        for rule, check in verdict.by_rule.items() if name == "scores" else ():
            title, symbol, size, ink = _RULES.get(rule) or (escaped(rule_title(rule), 24), "diamond", 19, VIOLET)
            legend = {"legendgroup": rule, "showlegend": not rows, "hoverinfo": "skip"}
            if check is not None:
                traces.append(
                    dots(
                        [check[record.axis]], [check[signal.name]], f"rule: {title}", ring(symbol, size, ink), **legend
                    )
                )
        rows.append((signal.title, traces, limits))
    if not rows:
        return None
    title, reading, height = _SIGNALS[name]
    if name != "changes":
        reading += " Each axis begins above the lowest values, so that the largest, with a dot, stands out."
    return figure(name, title, reading, *stacked(rows, record.axis), 90 + height * len(rows), verdict)


def training_loss(verdict: RunVerdict) -> Section | None:
    """The training loss, if the module logs it."""
    values = verdict.record.values("train_loss")
    if not any(map(math.isfinite, values)):
        return None
    layout = {"xaxis": axis(verdict.record.axis), "yaxis": axis("loss", rangemode="tozero")}
    reading = "The training loss, as the module logs it. It can keep falling while a network memorises wrong labels."
    traces = [curve(verdict.record.places, values, "training loss", GREY)]
    return figure("loss", "Training loss", reading, traces, layout, 280, verdict)


def cost(verdict: RunVerdict) -> Section | None:
    """Time of the checks, and all other time."""
    record = verdict.record
    totals, checks = (_differences(record.values(name)) for name in ("seconds", "check_seconds"))
    others = [total - spent for total, spent in zip(totals, checks, strict=True)]
    if not any(map(math.isfinite, others)):
        return None
    curves = [
        curve(record.places, spent, name, colour) | {"hovertemplate": "%{y:.3~s}s"}
        for name, spent, colour in (("check", checks, BLUE), ("all else", others, GREY))
    ]
    layout = {"xaxis": axis(record.axis), "yaxis": axis("seconds", type="log", minor={"showgrid": False})}
    reading = "Seconds of each check, and all other time since the previous check. The axis is logarithmic."
    return figure("cost", "What the checks cost", reading, curves, layout, 320, verdict)


def _differences(totals: list[float]) -> list[float]:
    """Increase of a total from check to check; NaN if the total is unknown or falls, such as after a resume."""
    differences, before = [], 0.0
    for total in totals:
        differences.append(total - before if total >= before else math.nan)
        before = total if math.isfinite(total) else before
    return differences


def crossing(verdict: RunVerdict) -> Section | None:
    """Uncertainty of the labels from the boundary outward, at the kept check; None without details."""
    record, shown = verdict.record, verdict.details
    if not record.checks or shown is None:
        return None
    place, (network, attainable) = shown[0], shown[1].crossing
    share = [(part + 0.5) / len(network) for part in range(len(network))]
    traces = [
        curve(share, attainable, "the most uncertain first", GREY),
        curve(share, network, "the nearest to the network's boundary first", BLUE),
    ]
    layout = {
        "xaxis": axis("share of the samples, from the boundary outward", tickformat=".0%", range=[0, 1]),
        "yaxis": axis("uncertainty of the labels", rangemode="tozero"),
    }
    reading = (
        "Uncertainty is 1 where two classes are equally likely, by the labels nearby, and 0 where the class is certain."
        " The boundary runs where it should if the blue curve begins as high as the grey one, which no boundary can"
        " exceed. Boundary uncertainty is the mean of the blue curve on the left, where the nearest samples count most."
    )
    title = f"Uncertainty near the boundary, at {record.axis} {place}"
    return figure("crossing", title, reading, traces, layout, 340)


def pair_map(verdict: RunVerdict) -> Section | None:
    """Map of the pairs of classes that meet along the boundary at the kept check; None if there is only one pair."""
    record, shown = verdict.record, verdict.details
    if not record.checks or shown is None or len(shown[1].pairs) < 2:
        return None
    place, details = shown
    size: dict[int, float] = defaultdict(float)
    pairs: dict[tuple[int, ...], Pair] = {}
    for pair in details.pairs:
        for cell in itertools.permutations(pair[:2]):
            size[cell[0]] += pair.share if math.isfinite(pair.share) else 0
            pairs[cell] = pair
    values = {cell: pair.uncertainty for cell, pair in pairs.items() if abs(pair.uncertainty) < 1e300}
    classes = sorted(sorted(size, key=lambda index: -size[index])[:40])
    cells = [[(row, column) for column in classes] for row in classes]
    names = [escaped(record.class_name(index), 14) for index in classes]
    ticks = {"tickvals": list(range(len(classes))), "ticktext": names} | _PLAIN
    below = {"orientation": "h", "len": 0.5, "x": 0, "xanchor": "left", "y": 0, "yanchor": "top"}
    layout = {
        "xaxis": {**ticks, "side": "top", "tickangle": -60 if len(classes) > 6 else 0},
        "yaxis": {**ticks, "autorange": "reversed"},
        "coloraxis": {"colorbar": _COLOUR_BAR | below | {"title": {"text": "uncertainty", "side": "top"}}},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "plot_bgcolor": "rgba(133,144,162,0.2)",  # for cells without a value, on light and on dark pages
    }
    trace = _MAP | {
        "z": [[values.get(cell) for cell in row] for row in cells],
        "hovertext": [[_note(record, pairs[cell]) if cell in pairs else "" for cell in row] for row in cells],
    }
    trace |= {"hoverinfo": "text", "hoverongaps": False, "xgap": 1, "ygap": 1}
    if len(classes) <= 8:
        trace["texttemplate"] = "%{z:.2f}"
    reading = (
        "The stronger the colour, the more certain the labels are along the boundary between two classes, where they"
        " should be uncertain. The colours span the values shown. Grey cells have no value: the diagonal, and classes"
        " that do not meet."
    )
    if n_left_out := len(size) - len(classes):
        reading += f" The {len(classes)} classes with the longest boundaries are shown, {n_left_out} are not."
    if details.n_pairs_left_out:
        reading += f" {details.n_pairs_left_out} pairs with a shorter boundary are not in the record."
    side = max(22, 240 // len(classes)) * len(classes)
    title = f"Classes that meet along the boundary, at {record.axis} {place}"
    most_width = max(420, 160 + 3 * side // 2)
    return figure("pairs", title, reading, [trace], layout, 160 + side, scale="worse", most_width=most_width)


def _note(record: RunRecord, pair: Pair) -> str:
    names = " | ".join(escaped(record.class_name(index), 40) for index in pair[:2])
    return f"{names}<br>uncertainty {shown_number(pair.uncertainty)}, share of the boundary {shown_number(pair.share)}"


def trust(verdict: RunVerdict) -> Section | None:
    """Histogram of trust over the checks, as a map; checks whose bins differ from those of the last are left out."""
    record, title, axis_title = verdict.record, "Trust of single samples", "log trust"
    reading = "Trust in the predictions, by check. Below 0, the nearest class is not the predicted one."
    found = {place: one.log_trust for place, one in sorted(record.details.items())}
    if not record.checks or not found:
        return None
    edges = found[max(found)].edges
    same = [place for place in found if found[place].edges == edges]
    step = math.ceil(len(same) / _MOST_COLUMNS)
    places = sorted({*same[::step], same[-1], *([verdict.kept] if verdict.kept in same else [])})
    counts = np.array([found[place].counts for place in places], dtype=float)
    shares = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).T
    filled = np.flatnonzero(shares.any(axis=1)).tolist() or [0, -2]  # outer bins that are always empty are cut off
    # If one row holds nearly everything, such as all values beyond an edge, the colours span the other rows.
    fullest = sorted(shares.max(axis=1).tolist())
    most = next((share for share in (fullest[-2:-1] or fullest) if share > 0), 1.0)
    hover = f"{record.axis} %{{x}}, {axis_title} %{{y:.3~g}}: %{{z:.1%}}<extra></extra>"
    trace = _MAP | {"x": places, "y": edges, "z": shares.tolist(), "hovertemplate": hover}
    layout = {
        "xaxis": axis(record.axis, **_PLAIN),
        "yaxis": axis(axis_title, range=[edges[filled[0]], edges[filled[-1] + 1]], **_PLAIN),
        "coloraxis": {"cmin": 0, "cmax": most, "colorbar": _COLOUR_BAR | {"tickformat": ".2~%"}},
    }
    if fullest[-1] > most:
        reading += f" The fullest row, with up to {fullest[-1]:.0%}, exceeds the colours."
    return figure("log_trust", title, reading, [trace], layout, 340, verdict, scale="more")
