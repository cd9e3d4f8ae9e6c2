"""The figures of a page: plotly's, without colours that hold in light or in dark alone.

Backgrounds, grids and text come from `THEMES`, which the page puts in as it is read; curves are seen on both.
"""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bu_torch.report.reading import Details, Histogram, Record
from bu_torch.report.text import escaped, figure
from bu_torch.report.verdict import Verdict

RULE_LABELS = {"consensus": "consensus", "boundary_uncertainty": "boundary uncertainty", "trust_score": "trust score"}
_BLUE, _ORANGE, _VIOLET, _GREEN, _GREY = "#3b82f6", "#d97706", "#a855f7", "#16a34a", "#8590a2"
# Of sizes that leave each to be seen where they coincide.
_RULE_MARKS = {
    "consensus": ("diamond", 19, _VIOLET),
    "boundary_uncertainty": ("circle", 12, _BLUE),
    "trust_score": ("square", 9, _ORANGE),
}
_MOST_COLUMNS = 300  # of a map over the epochs; more are narrower than a pixel
_MOST_CLASSES = 40
_FEW_CHECKS = 40  # up to so many, each is marked
_BLANK_WEIGHT = 1e-6  # effective samples; with fewer near its boundary a pair counts as separable


def _theme(text: str, grid: str, panel: str, mark: str) -> dict[str, Any]:
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
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": grid, "activecolor": text},
        }
    }


THEMES = {
    "light": _theme(text="#1c2430", grid="#dfe4ea", panel="#ffffff", mark="#0f1720"),
    "dark": _theme(text="#e3e8ef", grid="#333c48", panel="#191f27", mark="#f4f7fb"),
}
# The stronger the colour, the worse the boundary; a good one fades into the page.
_WORSE = {
    "light": [[0, "#8f2d0c"], [0.35, "#e2682a"], [0.7, "#f9bd8d"], [1, "#fbe8d6"]],
    "dark": [[0, "#ffb37a"], [0.35, "#cf6423"], [0.7, "#743b19"], [1, "#3a2a21"]],
}
_MORE = {
    "light": [[0, "#f5f8fd"], [0.25, "#a9c8f7"], [0.6, "#3b82f6"], [1, "#142f66"]],
    "dark": [[0, "#171d26"], [0.25, "#1f3e74"], [0.6, "#3b82f6"], [1, "#d6e6ff"]],
}


class Figure(NamedTuple):
    """A figure with what it says.

    Attributes:
        name: Its own in the page.
        title: Of its section.
        reading: How to read it, one sentence or two.
        drawing: `data` and `layout` for plotly, and `scales`, the colours of a map by theme.
        height: In pixels.
        least_width: In pixels; on a narrower screen it is scrolled.
        most_width: In pixels; 0 for that of the page.
    """

    name: str
    title: str
    reading: str
    drawing: dict[str, Any]
    height: int
    least_width: int = 0
    most_width: int = 0


def figures(record: Record, verdict: Verdict) -> list[Figure]:
    """All figures for which the record has something to show.

    Raises:
        ImportError: If plotly is not installed.
    """
    if not record.checks:
        return []
    makers: tuple[Callable[[Record, Verdict], Figure | None], ...] = (
        _scores,
        _agreement,
        _pairs,
        _near_boundary,
        _local_uncertainty,
        _log_trust,
        _cost,
    )
    made = (make(record, verdict) for make in makers)
    return [one for one in made if one is not None]


def class_name(record: Record, index: int, most: int = 60) -> str:
    """A class in words, escaped: plotly understands some HTML in its labels."""
    known = record.classes is not None and index < len(record.classes)
    return escaped(record.classes[index] if known and record.classes else index, most)


def shown_details(record: Record, verdict: Verdict) -> tuple[int, Details] | None:
    """The details of the kept epoch; where there are none, the last there are."""
    if not record.details:
        return None
    epoch = verdict.kept if verdict.kept in record.details else max(record.details)
    return epoch, record.details[epoch]


def plotly_script() -> str:
    """The code of plotly.js.

    Raises:
        ImportError: If plotly is not installed.
    """
    _graph_objects()
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _graph_objects() -> Any:
    try:
        from plotly import graph_objects
    except ImportError:
        raise ImportError("The page is drawn with plotly: pip install 'bu-torch[report]'.") from None
    return graph_objects


def _scores(record: Record, verdict: Verdict) -> Figure:
    go = _graph_objects()
    epochs = record.values("epoch")
    known = [record.details.get(check["epoch"]) for check in record.checks]
    ceilings = [math.nan if details is None else details.ceiling for details in known]
    curves = [
        _curve(epochs, record.values("boundary_uncertainty"), "boundary uncertainty", _BLUE),
        _curve(epochs, ceilings, "its ceiling", _GREY, dash="dot"),
        _curve(epochs, _smoothed(record, "boundary_uncertainty"), "smoothed", _BLUE, dash="dash"),
        _curve(epochs, record.values("trust_score"), "trust score", _ORANGE, yaxis="y2"),
        _curve(epochs, _smoothed(record, "trust_score"), "smoothed", _ORANGE, dash="dash", yaxis="y2"),
    ]
    layout = {
        "xaxis": {"title": {"text": "epoch"}, "anchor": "y2"},
        "yaxis": {"title": {"text": "U"}, "domain": [0.46, 1], "rangemode": "tozero"},
        "yaxis2": {"title": {"text": "trust"}, "domain": [0, 0.4], "anchor": "x"},
    }
    drawing = _drawn(
        go, [curve for curve in curves if any(v is not None for v in curve["y"])] + _marks(verdict), layout, verdict
    )
    return Figure(
        "scores",
        "Boundary uncertainty and trust",
        "Larger is better in both. Boundary uncertainty asks whether both classes mix along the decision boundary,"
        " trust whether predictions agree with the nearest samples. The dotted curve is what boundary uncertainty could"
        " reach with as many samples near the boundary as there are; the marks are what each rule would have kept.",
        drawing,
        520,
    )


def _marks(verdict: Verdict) -> list[dict[str, Any]]:
    """What each rule would have kept, on both curves."""
    traces = []
    for rule, check in verdict.by_rule.items():
        if check is None:
            continue
        symbol, size, colour = _RULE_MARKS[rule]
        for axis, name in (("y", "boundary_uncertainty"), ("y2", "trust_score")):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [check["epoch"]],
                    "y": _known([check[name]]),
                    "yaxis": axis,
                    "name": f"rule: {RULE_LABELS[rule]}",
                    "legendgroup": rule,
                    "showlegend": axis == "y",
                    "marker": {"symbol": f"{symbol}-open", "size": size, "color": colour, "line": {"width": 2.5}},
                    "hovertemplate": "epoch %{x}: %{y:.4g}",
                }
            )
    return traces


def _agreement(record: Record, verdict: Verdict) -> Figure | None:
    go = _graph_objects()
    epochs = record.values("epoch")
    signals = (
        ("label_agreement", "with the labels", _BLUE),
        ("vote_agreement", "with the votes nearby", _GREEN),
        ("neighbor_agreement", "with the nearest class", _ORANGE),
        ("prediction_changes", "changed since the last check", _GREY),
        ("omission", "boundary left out (omission)", _VIOLET),
    )
    curves = [_curve(epochs, record.values(name), label, colour) for name, label, colour in signals]
    curves = [curve for curve in curves if any(value is not None for value in curve["y"])]
    if not curves:
        return None
    layout = {"xaxis": {"title": {"text": "epoch"}}, "yaxis": {"title": {"text": "share"}}}
    return Figure(
        "agreement",
        "What the consensus rule looks at",
        "Shares of the moved samples. Predictions should agree with labels, votes and nearest classes, and change"
        " little; agreement with the labels that still rises while the others fall is the sign of overfitting."
        " Omission, where smaller is better, decides nothing.",
        _drawn(go, curves, layout, verdict),
        380,
    )


def _pairs(record: Record, verdict: Verdict) -> Figure | None:
    shown = shown_details(record, verdict)
    if shown is None or not len(shown[1].pairs):
        return None
    go = _graph_objects()
    epoch, details = shown
    classes, n_left_out = _classes_shown(details.pairs)
    place = {index: position for position, index in enumerate(classes)}
    values: list[list[float | None]] = [[None] * len(classes) for _ in classes]
    notes = [[""] * len(classes) for _ in classes]
    for first, second, share, weight, value in details.pairs.tolist():
        k, m = int(first), int(second)
        if k not in place or m not in place:
            continue
        note = f"{class_name(record, k)} | {class_name(record, m)}<br>U {figure(value)}, {share:.2%} of the samples<br>"
        near = "none near the boundary: counts as separable" if not weight >= _BLANK_WEIGHT else "near the boundary"
        note += near if not weight >= _BLANK_WEIGHT else f"{weight:.1f} effective samples {near}"
        for row, column in ((place[k], place[m]), (place[m], place[k])):
            values[row][column] = value if math.isfinite(value) else None
            notes[row][column] = note
    ticks = {
        "tickvals": list(range(len(classes))),
        "ticktext": [class_name(record, index, 14) for index in classes],
        "showgrid": False,
        "zeroline": False,
    }
    reached = [value for row in values for value in row if value is not None]
    trace = {
        "type": "heatmap",
        "z": values,
        "hovertext": notes,
        "hoverinfo": "text",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "coloraxis": "coloraxis",
    }
    if len(classes) <= 8:
        trace["texttemplate"] = "%{z:.2f}"
    layout = {
        "xaxis": {**ticks, "side": "top", "tickangle": -60 if len(classes) > 6 else 0},
        "yaxis": {**ticks, "autorange": "reversed"},
        "coloraxis": {"cmin": 0, "cmax": max([*reached, 1e-9]), "colorbar": _COLOUR_BAR | _BELOW},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
    }
    n_unrecorded = details.n_pairs_left_out
    unrecorded = (
        f" {n_unrecorded} pairs with fewer samples near their boundary are not in the record." if n_unrecorded else ""
    )
    side = max(22, 240 // len(classes)) * len(classes)
    left_out = (
        f" The {len(classes)} classes with the worst boundaries are shown, {n_left_out} are not." if n_left_out else ""
    )
    return Figure(
        "pairs",
        f"Which boundaries are bad: pairs of classes at epoch {epoch}",
        "The stronger the colour, the less do the two classes mix along the boundary between them; a pair that no"
        f" sample lies between is blank.{left_out}{unrecorded}",
        _drawn(go, [trace], layout, None, _WORSE),
        160 + side,
        least_width=0 if len(classes) <= 8 else 100 + 20 * len(classes),
        most_width=max(420, 160 + 3 * side // 2),
    )


def _classes_shown(pairs: np.ndarray) -> tuple[list[int], int]:
    """Classes to show in ascending order, those with the most samples on bad boundaries, and how many are left out."""
    loss: dict[int, float] = {}
    for first, second, share, _, value in pairs.tolist():
        for index in (int(first), int(second)):
            loss[index] = loss.get(index, 0.0) + share * (1 - value if math.isfinite(value) else 0)
    worst = sorted(loss, key=lambda index: -loss[index])[:_MOST_CLASSES]
    return sorted(worst), len(loss) - len(worst)


def _near_boundary(record: Record, verdict: Verdict) -> Figure | None:
    return _spread(
        record,
        verdict,
        "near_boundary",
        "Distance from the boundary",
        "kernel widths",
        "Each column is a check: how many of the moved samples lie how far from the decision boundary, in kernel"
        " widths. Those at the bottom are on it, and the top row has all that are farther. A network that grows certain"
        " pushes them up, and few are left to measure at.",
    )


def _local_uncertainty(record: Record, verdict: Verdict) -> Figure | None:
    return _spread(
        record,
        verdict,
        "local_uncertainty",
        "Local uncertainty",
        "u",
        "How evenly both classes mix around each sample, by check: at the top both are equally likely there, at the"
        " bottom one of them is alone, or the boundary is too far to tell.",
    )


def _log_trust(record: Record, verdict: Verdict) -> Figure | None:
    return _spread(
        record,
        verdict,
        "log_trust",
        "Trust of single samples",
        "log trust",
        "Trust in the predictions, by check: below 0 the nearest class is another one than was predicted. A tail that"
        " stays there holds samples worth a look; those trusted least are listed below.",
    )


def _spread(record: Record, verdict: Verdict, name: str, title: str, axis: str, reading: str) -> Figure | None:
    """A histogram over the epochs, as a map; checks whose bins differ from the last one's are left out."""
    found = {epoch: one.histograms[name] for epoch, one in sorted(record.details.items()) if name in one.histograms}
    if not found:
        return None
    go = _graph_objects()
    all_edges = found[max(found)].edges
    epochs = _thinned([epoch for epoch, one in found.items() if _same(one.edges, all_edges)], verdict.kept)
    edges, columns = _trimmed(all_edges, [_shares(found[epoch]) for epoch in epochs])
    n_bins = len(edges) - 1
    ranges = [f"{_edge(low, '-∞')} to {_edge(high, '∞')}" for low, high in itertools.pairwise(edges)]
    # One row may hold nearly all, such as that of all beyond an edge: the others are to be told apart.
    fullest = sorted(max(column[place] for column in columns) for place in range(n_bins))
    most = next((share for share in (fullest[-2:-1] or fullest) if share > 0), 1.0)
    step = max(1, math.ceil(n_bins / 8))
    trace = {
        "type": "heatmap",
        "x": epochs,
        "y": list(range(n_bins)),
        "z": [list(row) for row in zip(*columns, strict=True)],
        "hovertext": [[text] * len(epochs) for text in ranges],
        "hovertemplate": f"epoch %{{x}}, {axis} %{{hovertext}}: %{{z:.1%}}<extra></extra>",
        "coloraxis": "coloraxis",
    }
    layout = {
        "xaxis": {"title": {"text": "epoch"}, "showgrid": False, "zeroline": False},
        "yaxis": {
            "title": {"text": axis},
            "tickvals": [place - 0.5 for place in range(0, n_bins + 1, step)],
            "ticktext": [_edge(edges[place], "-∞" if place == 0 else "∞") for place in range(0, n_bins + 1, step)],
            "showgrid": False,
            "zeroline": False,
        },
        "coloraxis": {"cmin": 0, "cmax": most, "colorbar": _COLOUR_BAR | {"tickformat": ".2~%"}},
    }
    return Figure(name, title, reading, _drawn(go, [trace], layout, verdict, _MORE), 340)


def _cost(record: Record, verdict: Verdict) -> Figure | None:
    go = _graph_objects()
    between, checks = _differences(record.values("seconds")), _differences(record.values("check_seconds"))
    training = [total - check for total, check in zip(between, checks, strict=True)]
    if not any(math.isfinite(value) for value in training):
        return None
    epochs = record.values("epoch")
    curves = [_curve(epochs, checks, "check", _BLUE), _curve(epochs, training, "all else", _GREY)]
    for curve in curves:
        curve["hovertemplate"] = "%{y:.3~s}s"
    layout = {
        "xaxis": {"title": {"text": "epoch"}},
        "yaxis": {"title": {"text": "seconds"}, "type": "log", "minor": {"showgrid": False}},
    }
    return Figure(
        "cost",
        "What the checks cost",
        "Seconds that each check took, beside all else since the one before: training, and what its callbacks do. The"
        " axis is logarithmic.",
        _drawn(go, curves, layout, verdict),
        320,
    )


_BELOW = {
    "orientation": "h",
    "title": {"text": "U", "side": "top"},
    "len": 0.5,
    "x": 0,
    "xanchor": "left",
    "y": 0,
    "yanchor": "top",
}
_COLOUR_BAR = {"thickness": 10, "outlinewidth": 0, "len": 0.9, "ticks": ""}


def _drawn(
    go: Any,
    traces: list[dict[str, Any]],
    layout: dict[str, Any],
    verdict: Verdict | None,
    scales: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A figure that plotly has checked, as JSON; `verdict` marks the kept epoch."""
    layout = {
        "margin": {"l": 8, "r": 12, "t": 24, "b": 8},
        "hovermode": "closest" if scales else "x unified",
        "legend": {"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "xanchor": "left", "x": 0},
        "uirevision": "kept",  # a page that is drawn again keeps what was zoomed to
    } | layout
    if verdict is not None and verdict.kept is not None:
        mark = {"x0": verdict.kept, "x1": verdict.kept, "y0": 0, "y1": 1, "yref": "paper"}
        layout["shapes"] = [{"type": "line", **mark}]
        text = f"{'kept' if verdict.rule else 'would be kept'}: {verdict.kept}"
        layout["annotations"] = [
            {"x": verdict.kept, "y": 1, "yref": "paper", "yanchor": "bottom", "text": text, "showarrow": False}
        ]
    made = json.loads(go.Figure({"data": traces, "layout": layout}).to_json())
    made["layout"].pop("template", None)
    return {"data": made["data"], "layout": made["layout"], "scales": scales}


def _curve(
    x: list[Any], y: Sequence[float], name: str, colour: str, dash: str = "solid", yaxis: str = "y"
) -> dict[str, Any]:
    mode = "lines+markers" if len(x) <= _FEW_CHECKS and dash == "solid" else "lines"
    return {
        "type": "scatter",
        "mode": mode,
        "x": x,
        "y": _known(y),
        "name": name,
        "yaxis": yaxis,
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"size": 5},
        "hovertemplate": "%{y:.4g}",
    }


def _smoothed(record: Record, name: str) -> list[float]:
    return record.values(f"{name}_smoothed")


def _known(values: Sequence[float]) -> list[float | None]:
    """`values` with a gap where one is not finite, which JSON cannot say."""
    return [value if math.isfinite(value) else None for value in values]


def _differences(totals: list[float]) -> list[float]:
    """What each check adds to a total that starts at 0; NaN where it is not known, or falls as a clock must not."""
    differences = []
    before = 0.0
    for total in totals:
        differences.append(total - before if total >= before else math.nan)
        before = total if math.isfinite(total) else before
    return differences


def _thinned(epochs: list[int], kept: int | None) -> list[int]:
    step = math.ceil(len(epochs) / _MOST_COLUMNS)
    return sorted({*epochs[::step], *epochs[-1:], *([kept] if kept in epochs else [])})


def _shares(histogram: Histogram) -> list[float]:
    total = sum(count for count in histogram.counts if math.isfinite(count))
    return [count / total if total > 0 else 0.0 for count in histogram.counts]


def _trimmed(edges: list[float], columns: list[list[float]]) -> tuple[list[float], list[list[float]]]:
    """Edges and columns without the outer bins that are always empty."""
    filled = [place for place in range(len(edges) - 1) if any(column[place] for column in columns)] or [0]
    start, stop = filled[0], filled[-1] + 1
    return edges[start : stop + 1], [column[start:stop] for column in columns]


def _same(edges: list[float], others: list[float]) -> bool:
    return len(edges) == len(others) and bool(np.allclose(edges, others, equal_nan=True))


def _edge(value: float, infinite: str) -> str:
    return f"{value:.3g}" if math.isfinite(value) else infinite
