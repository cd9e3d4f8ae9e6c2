"""The figures of a page: what each shows of a record, and how it is read."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bu_torch.report.drawing import (
    BELOW,
    BLUE,
    BROWN,
    COLOUR_BAR,
    CYAN,
    GREEN,
    GREY,
    LIME,
    MORE,
    ORANGE,
    PINK,
    RED,
    VIOLET,
    WORSE,
    Figure,
    curve,
    drawn,
    known,
    stacked,
)
from bu_torch.report.record import Histogram, Record
from bu_torch.report.text import escaped, figure, shortened
from bu_torch.report.verdict import Verdict, rule_label, scores, shown_details
from bu_torch.signals.catalogue import SIGNALS

# Of sizes that leave each to be seen where they coincide.
_RULE_MARKS = {
    "accuracy_and_uncertainty": ("star", 31, GREEN),
    "expected_accuracy": ("cross", 25, RED),
    "boundary_uncertainty": ("circle", 12, BLUE),
    "trust_score": ("square", 9, ORANGE),
}
_OTHER_MARK = ("diamond", 19, VIOLET)
_SHORT_RULES = {
    "accuracy_and_uncertainty": "accuracy, uncertainty",
    "expected_accuracy": "accuracy",
    "boundary_uncertainty": "uncertainty",
    "trust_score": "trust",
}
_LOSS = "train_loss"
_LEAST_SPAN = 0.005  # of an axis of shares
_ROW_HEIGHT = 130  # of a panel, in pixels
_SHARE_COLOURS = (RED, BLUE, GREEN, ORANGE, GREY, VIOLET, PINK, CYAN, LIME, BROWN)
_MOST_POINTS = 4000  # of a curve; more are narrower than a pixel
_MOST_COLUMNS = 300  # of a map over the epochs; likewise
_MOST_CLASSES = 40
_FEW_CHECKS = 8
_BLANK_WEIGHT = 1e-6  # effective samples; with fewer near its boundary a pair counts as separable


def figures(record: Record, verdict: Verdict) -> list[Figure]:
    """All figures for which the record has something to show."""
    if not record.checks:
        return []
    makers: tuple[Callable[[Record, Verdict], Figure | None], ...] = (
        _deciding,
        _scores,
        _agreement,
        _changes,
        _training_loss,
        _pairs,
        _near_boundary,
        _local_uncertainty,
        _log_trust,
        _cost,
    )
    made = (make(record, verdict) for make in makers)
    return [one for one in made if one is not None]


def drawing_step(record: Record) -> int:
    """One of how many checks the curves show."""
    return max(1, math.ceil(len(record.checks) / _MOST_POINTS))


def class_name(record: Record, index: int, most: int = 60) -> str:
    """A class in words, escaped: plotly understands some HTML in its labels."""
    has_name = record.classes is not None and index < len(record.classes)
    return escaped(record.classes[index] if has_name and record.classes else index, most)


def _deciding(record: Record, verdict: Verdict) -> Figure | None:
    label, places, values = scores(record, verdict)
    shown = set(with_fewer_checks(record, verdict).places)
    by_place = {place: value for place, value in zip(places, values, strict=True) if place in shown}
    finite = [value for value in by_place.values() if math.isfinite(value)]
    if not finite:
        return None
    kept = [by_place[verdict.kept]] if verdict.kept in by_place else []
    rule = "the check with the largest value is kept"
    if kept and kept[0] < max(finite):
        rule = "of the checks within half a standard error of the largest value, the latest is kept"
    limits = upper_range(finite, kept)
    layout = {
        "xaxis": {"title": {"text": record.axis}},
        "yaxis": {"title": {"text": "score"}, "range": list(limits)},
    }
    mark = {
        "type": "scatter",
        "mode": "markers",
        "x": [verdict.kept],
        "y": known(kept),
        "name": "kept" if verdict.rule else "would be kept",
        "marker": {"symbol": "circle-open", "size": 14, "color": RED, "line": {"width": 2.5}},
        "hovertemplate": f"{record.axis} %{{x}}: %{{y:.4f}}",
    }
    decided = "decided" if verdict.rule else "would have decided"
    return Figure(
        "deciding",
        f"What {decided}",
        f"{label.capitalize()}: {rule}."
        + (" All that is measured is of averaged weights." if record.settings.get("averaging") else "")
        + (" The axis begins above the lowest values, so that the largest is seen." if limits[0] > min(finite) else ""),
        drawn(
            [curve(list(by_place), list(by_place.values()), "score", BLUE), *([mark] if kept else [])], layout, verdict
        ),
        320,
    )


def _scores(record: Record, verdict: Verdict) -> Figure:
    detailed = [place for place in record.places if place in record.details]
    ceilings = [record.details[place].ceiling for place in detailed]
    record = with_fewer_checks(record, verdict)
    places = record.places
    curves = [
        curve(places, record.values("boundary_uncertainty"), "boundary uncertainty", BLUE),
        curve(detailed, ceilings, "its ceiling", GREY, dash="dot"),
        curve(places, record.values("trust_score"), "trust score", ORANGE, yaxis="y2"),
    ]
    layout = {
        "xaxis": {"title": {"text": record.axis}, "anchor": "y2"},
        "yaxis": {"title": {"text": "U"}, "domain": [0.46, 1], "rangemode": "tozero"},
        "yaxis2": {"title": {"text": "trust"}, "domain": [0, 0.4], "anchor": "x"},
    }
    drawing = drawn(
        [one for one in curves if any(value is not None for value in one["y"])] + _marks(verdict, record.axis),
        layout,
        verdict,
    )
    return Figure(
        "scores",
        "Boundary uncertainty and trust",
        "Larger is better in both. Boundary uncertainty asks whether both classes mix along the decision boundary,"
        " trust whether predictions agree with the nearest samples. The dotted curve, where there is one, is what a"
        " boundary with both classes equally likely along it would reach on average with as many samples near it; the"
        " marks are what each rule would have kept.",
        drawing,
        520,
    )


def _marks(verdict: Verdict, axis_name: str) -> list[dict[str, Any]]:
    """What each rule would have kept, on both curves."""
    traces = []
    for rule, check in verdict.by_rule.items():
        if check is None:
            continue
        symbol, size, colour = _RULE_MARKS.get(rule, _OTHER_MARK)
        for axis, name in (("y", "boundary_uncertainty"), ("y2", "trust_score")):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [check[axis_name]],
                    "y": known([check[name]]),
                    "yaxis": axis,
                    "name": f"rule: {_SHORT_RULES.get(rule) or escaped(rule_label(rule), 24)}",
                    "legendgroup": rule,
                    "showlegend": axis == "y",
                    "marker": {"symbol": f"{symbol}-open", "size": size, "color": colour, "line": {"width": 2.5}},
                    "hovertemplate": f"{axis_name} %{{x}}: %{{y:.4f}}",
                }
            )
    return traces


def _agreement(record: Record, verdict: Verdict) -> Figure | None:
    return _share_panels(
        record,
        verdict,
        "agreement",
        "Expected accuracy and agreement",
        "Shares of the perturbed samples; more is better. Agreement with the labels that rises while the others fall is"
        " the sign of overfitting. Each axis begins above the lowest values, so that the largest, with a dot, is seen.",
        is_larger_better=True,
    )


def _changes(record: Record, verdict: Verdict) -> Figure | None:
    return _share_panels(
        record,
        verdict,
        "changes",
        "Changed predictions and omission",
        "Shares of the perturbed samples; less is better. Predictions that still change say that training has not"
        " settled. Omission is the part of the best boundary that the network's boundary leaves out. Each axis ends"
        " below the largest values.",
        is_larger_better=False,
    )


def _share_panels(
    record: Record, verdict: Verdict, name: str, title: str, reading: str, *, is_larger_better: bool
) -> Figure | None:
    """Each share in a panel of its own, with an axis on which its best values are seen."""
    record = with_fewer_checks(record, verdict)
    kept = record.check_at(verdict.kept) or {}
    rows = []
    signals = [signal for signal in SIGNALS.values() if signal.panel == "shares"]
    for signal, colour in zip(signals, itertools.cycle(_SHARE_COLOURS), strict=False):
        values = record.values(signal.name)
        finite = [value for value in values if math.isfinite(value)]
        if signal.is_larger_better != is_larger_better or not finite:
            continue
        traces = [curve(record.places, values, signal.title, colour)]
        at_kept = [kept.get(signal.name, math.nan)]
        if is_larger_better:
            limits = upper_range(finite, at_kept, _LEAST_SPAN)
            traces.append(_largest(record.places, values, colour))
        else:
            high = max([float(np.quantile(finite, 0.75)), *filter(math.isfinite, at_kept), _LEAST_SPAN])
            limits = -0.04 * high, 1.1 * high
        rows.append((signal.title, traces, limits))
    if not rows:
        return None
    traces, layout = stacked(rows, record.axis)
    drawing = drawn(traces, layout | {"showlegend": False}, verdict)
    return Figure(name, title, reading, drawing, 90 + _ROW_HEIGHT * len(rows))


def _largest(places: list[int], values: list[float], colour: str) -> dict[str, Any]:
    """A dot at the largest value."""
    place = max(range(len(values)), key=lambda index: values[index] if math.isfinite(values[index]) else -math.inf)
    marker = {"size": 9, "color": colour}
    dot = {"x": [places[place]], "y": known([values[place]]), "marker": marker, "hoverinfo": "skip"}
    return {"type": "scatter", "mode": "markers", "name": "largest", **dot}


def upper_range(values: list[float], kept: list[float], least_span: float = 0.0) -> tuple[float, float]:
    """Limits of an axis on which the largest of finite values are seen: early ones lie far below, and are cut off."""
    low, high = float(np.quantile(values, 0.25 if len(values) > _FEW_CHECKS else 0)), max(values)
    return with_room(min([low, *filter(math.isfinite, kept), high - least_span]), high)


def with_room(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis that shows all from `low` to `high`, with some room at each end."""
    room = 0.08 * (high - low) or 0.01
    return low - room, high + room


def _training_loss(record: Record, verdict: Verdict) -> Figure | None:
    record = with_fewer_checks(record, verdict)
    values = record.values(_LOSS)
    if not any(math.isfinite(value) for value in values):
        return None
    layout = {"xaxis": {"title": {"text": record.axis}}, "yaxis": {"title": {"text": "loss"}, "rangemode": "tozero"}}
    reading = "The training loss, as the module logs it. It falls on while a network learns wrong labels by heart."
    drawing = drawn([curve(record.places, values, "training loss", GREY)], layout, verdict)
    return Figure("loss", "Training loss", reading, drawing, 280)


def _pairs(record: Record, verdict: Verdict) -> Figure | None:
    shown = shown_details(record, verdict)
    if shown is None or not len(shown[1].pairs):
        return None
    place, details = shown
    classes, n_classes_left_out = _classes_shown(details.pairs)
    is_small = len(classes) <= 8
    values, notes = _pair_grids(record, details.pairs, classes)
    trace = {
        "type": "heatmap",
        "z": values,
        "hovertext": notes,
        "hoverinfo": "text",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "coloraxis": "coloraxis",
        **({"texttemplate": "%{z:.2f}"} if is_small else {}),
    }
    ticks = {
        "tickvals": list(range(len(classes))),
        "ticktext": [class_name(record, index, 14) for index in classes],
        "showgrid": False,
        "zeroline": False,
    }
    low, high = _colour_range([value for row in values for value in row if value is not None])
    layout = {
        "xaxis": {**ticks, "side": "top", "tickangle": -60 if len(classes) > 6 else 0},
        "yaxis": {**ticks, "autorange": "reversed"},
        "coloraxis": {"cmin": low, "cmax": high, "colorbar": COLOUR_BAR | BELOW},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
    }
    reading = (
        "The stronger the colour, the less do the two classes mix along the boundary between them. The colours span the"
        " values that there are. The diagonal is grey; a faint cell is a pair that no sample lies between."
    )
    if n_classes_left_out:
        reading += f" The {len(classes)} classes with the worst boundaries are shown, {n_classes_left_out} are not."
    if details.n_pairs_left_out:
        reading += f" {details.n_pairs_left_out} pairs with fewer samples near their boundary are not in the record."
    side = max(22, 240 // len(classes)) * len(classes)
    return Figure(
        "pairs",
        f"Which boundaries are bad: pairs of classes at {record.axis} {place}",
        reading,
        drawn([_blanks(values), trace], layout, None, WORSE),
        160 + side,
        least_width=0 if is_small else 100 + 20 * len(classes),
        most_width=max(420, 160 + 3 * side // 2),
    )


def _blanks(values: list[list[float | None]]) -> dict[str, Any]:
    """The cells of a pair map that have no value, those of the diagonal darker; for light and for dark pages."""
    return {
        "type": "heatmap",
        "z": [
            [1 if row == column else 0 if value is None else None for column, value in enumerate(line)]
            for row, line in enumerate(values)
        ],
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, "rgba(133,144,162,0.10)"], [1, "rgba(133,144,162,0.55)"]],
        "showscale": False,
        "hoverinfo": "skip",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
    }


def _colour_range(values: list[float]) -> tuple[float, float]:
    """From the smallest to the largest value, a twentieth of many left out at each end."""
    if not values:
        return 0.0, 1.0
    low, high = np.quantile(values, [0.05, 0.95] if len(values) > 40 else [0, 1]).tolist()
    return (low, high) if high - low > 1e-6 else (low - 0.05, low + 0.05)


def _pair_grids(
    record: Record, pairs: np.ndarray, classes: list[int]
) -> tuple[list[list[float | None]], list[list[str]]]:
    """U of each two classes, and what is said of it, in rows and columns of `classes`; symmetric."""
    place = {index: position for position, index in enumerate(classes)}
    values: list[list[float | None]] = [[None] * len(classes) for _ in classes]
    notes = [[""] * len(classes) for _ in classes]
    for first, second, share, weight, value in pairs.tolist():
        pair = int(first), int(second)
        if not place.keys() >= set(pair):
            continue
        note = _pair_note(record, pair, share, weight, value)
        for row, column in (pair, pair[::-1]):
            values[place[row]][place[column]] = value if math.isfinite(value) else None
            notes[place[row]][place[column]] = note
    return values, notes


def _pair_note(record: Record, pair: tuple[int, int], share: float, weight: float, value: float) -> str:
    names = " | ".join(class_name(record, index, 40) for index in pair)
    near = "none near the boundary: counts as separable"
    if weight >= _BLANK_WEIGHT:
        near = f"{shortened(f'{weight:.1f}', 12)} effective samples near the boundary"
    return f"{names}<br>U {figure(value)}, {shortened(f'{share:.2%}', 12)} of the samples<br>{near}"


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
        "Each column is a check: how many of the perturbed samples lie how far from the decision boundary, in kernel"
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
    """A histogram over the checks, as a map; those whose bins differ from the last one's are left out."""
    found = {place: one.histograms[name] for place, one in sorted(record.details.items()) if name in one.histograms}
    if not found:
        return None
    all_edges = found[max(found)].edges
    places = [place for place, one in found.items() if _same(one.edges, all_edges)]
    places = _thinned(places, _MOST_COLUMNS, verdict.kept)
    edges, columns = _trimmed(all_edges, [_shares(found[place]) for place in places])
    n_bins = len(edges) - 1
    ranges = [f"{_edge(low, '-∞')} to {_edge(high, '∞')}" for low, high in itertools.pairwise(edges)]
    # One row may hold nearly all, such as that of all beyond an edge: the others are to be told apart.
    fullest = sorted(max(column[place] for column in columns) for place in range(n_bins))
    most = next((share for share in (fullest[-2:-1] or fullest) if share > 0), 1.0)
    step = max(1, math.ceil(n_bins / 8))
    trace = {
        "type": "heatmap",
        "x": places,
        "y": list(range(n_bins)),
        "z": [list(row) for row in zip(*columns, strict=True)],
        "hovertext": [[text] * len(places) for text in ranges],
        "hovertemplate": f"{record.axis} %{{x}}, {axis} %{{hovertext}}: %{{z:.1%}}<extra></extra>",
        "coloraxis": "coloraxis",
    }
    layout = {
        "xaxis": {"title": {"text": record.axis}, "showgrid": False, "zeroline": False},
        "yaxis": {
            "title": {"text": axis},
            "tickvals": [place - 0.5 for place in range(0, n_bins + 1, step)],
            "ticktext": [_edge(edges[place], "-∞" if place == 0 else "∞") for place in range(0, n_bins + 1, step)],
            "showgrid": False,
            "zeroline": False,
        },
        "coloraxis": {"cmin": 0, "cmax": most, "colorbar": COLOUR_BAR | {"tickformat": ".2~%"}},
    }
    if fullest[-1] > most:
        reading += f" The fullest row, with up to {fullest[-1]:.0%}, is beyond the colours."
    return Figure(name, title, reading, drawn([trace], layout, verdict, MORE), 340)


def _cost(record: Record, verdict: Verdict) -> Figure | None:
    between, checks = (_differences(record, name) for name in ("seconds", "check_seconds"))
    training = [total - check for total, check in zip(between, checks, strict=True)]
    if not any(math.isfinite(value) for value in training):
        return None
    costs = [
        {record.axis: check[record.axis], "check": spent, "training": rest}
        for check, spent, rest in zip(record.checks, checks, training, strict=True)
    ]
    record = with_fewer_checks(dataclasses.replace(record, checks=costs), verdict)
    places = record.places
    curves = [
        curve(places, record.values("check"), "check", BLUE),
        curve(places, record.values("training"), "all else", GREY),
    ]
    for one in curves:
        one["hovertemplate"] = "%{y:.3~s}s"
    layout = {
        "xaxis": {"title": {"text": record.axis}},
        "yaxis": {"title": {"text": "seconds"}, "type": "log", "minor": {"showgrid": False}},
    }
    return Figure(
        "cost",
        "What the checks cost",
        "Seconds that each check took, beside all else since the one before: training, and what its callbacks do. The"
        " axis is logarithmic.",
        drawn(curves, layout, verdict),
        320,
    )


def _differences(record: Record, name: str) -> list[float]:
    """What each check adds to a total; NaN where it is not known, or falls as a clock must not."""
    differences = []
    before = math.nan if record.n_left_out else 0.0
    for total in record.values(name):
        differences.append(total - before if total >= before else math.nan)
        before = total if math.isfinite(total) else before
    return differences


def with_fewer_checks(record: Record, verdict: Verdict) -> Record:
    """The record with as many checks as a curve can show."""
    if drawing_step(record) == 1:
        return record
    places = set(_thinned(record.places, _MOST_POINTS, verdict.kept))
    return dataclasses.replace(record, checks=[check for check in record.checks if check[record.axis] in places])


def _thinned(places: list[int], most: int, kept: int | None) -> list[int]:
    step = math.ceil(len(places) / most)
    return sorted({*places[::step], *places[-1:], *([kept] if kept in places else [])})


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
