"""The figures of a page: what each shows of a record, and how it is read."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

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
    thinned,
)
from bu_torch.report.maps import local_uncertainty, log_trust, near_boundary, pair_map
from bu_torch.report.record import RunRecord
from bu_torch.report.text import escaped
from bu_torch.report.verdict import RunVerdict, rule_label, scores
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
_FEW_CHECKS = 8


def figures(record: RunRecord, verdict: RunVerdict) -> list[Figure]:
    """All figures for which the record has something to show."""
    if not record.checks:
        return []
    makers: tuple[Callable[[RunRecord, RunVerdict], Figure | None], ...] = (
        _deciding,
        _scores,
        _agreement,
        _changes,
        _training_loss,
        pair_map,
        near_boundary,
        local_uncertainty,
        log_trust,
        _cost,
    )
    drawings = (make(record, verdict) for make in makers)
    return [one for one in drawings if one is not None]


def drawing_step(record: RunRecord) -> int:
    """One of how many checks the curves show."""
    return max(1, math.ceil(len(record.checks) / _MOST_POINTS))


def _deciding(record: RunRecord, verdict: RunVerdict) -> Figure | None:
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
        "y": finite_or_none(kept),
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
        plotly_drawing(
            [curve(list(by_place), list(by_place.values()), "score", BLUE), *([mark] if kept else [])], layout, verdict
        ),
        320,
    )


def _scores(record: RunRecord, verdict: RunVerdict) -> Figure:
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
    drawing = plotly_drawing(
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


def _marks(verdict: RunVerdict, axis_name: str) -> list[dict[str, Any]]:
    """Marks of the check that each rule would have kept, on both curves."""
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
                    "y": finite_or_none([check[name]]),
                    "yaxis": axis,
                    "name": f"rule: {_SHORT_RULES.get(rule) or escaped(rule_label(rule), 24)}",
                    "legendgroup": rule,
                    "showlegend": axis == "y",
                    "marker": {"symbol": f"{symbol}-open", "size": size, "color": colour, "line": {"width": 2.5}},
                    "hovertemplate": f"{axis_name} %{{x}}: %{{y:.4f}}",
                }
            )
    return traces


def _agreement(record: RunRecord, verdict: RunVerdict) -> Figure | None:
    return _share_panels(
        record,
        verdict,
        "agreement",
        "Expected accuracy and agreement",
        "Shares of the perturbed samples; more is better. Agreement with the labels that rises while the others fall is"
        " the sign of overfitting. Each axis begins above the lowest values, so that the largest, with a dot, is seen.",
        is_larger_better=True,
    )


def _changes(record: RunRecord, verdict: RunVerdict) -> Figure | None:
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
    record: RunRecord, verdict: RunVerdict, name: str, title: str, reading: str, *, is_larger_better: bool
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
    drawing = plotly_drawing(traces, layout | {"showlegend": False}, verdict)
    return Figure(name, title, reading, drawing, 90 + _ROW_HEIGHT * len(rows))


def _largest(places: list[int], values: list[float], colour: str) -> dict[str, Any]:
    """A dot at the largest value."""
    place = max(range(len(values)), key=lambda index: values[index] if math.isfinite(values[index]) else -math.inf)
    marker = {"size": 9, "color": colour}
    dot = {"x": [places[place]], "y": finite_or_none([values[place]]), "marker": marker, "hoverinfo": "skip"}
    return {"type": "scatter", "mode": "markers", "name": "largest", **dot}


def upper_range(values: list[float], kept: list[float], least_span: float = 0.0) -> tuple[float, float]:
    """Limits of an axis on which the largest of finite values are seen: early ones lie far below, and are cut off."""
    low, high = float(np.quantile(values, 0.25 if len(values) > _FEW_CHECKS else 0)), max(values)
    return with_room(min([low, *filter(math.isfinite, kept), high - least_span]), high)


def with_room(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis that shows all from `low` to `high`, with some room at each end."""
    room = 0.08 * (high - low) or 0.01
    return low - room, high + room


def _training_loss(record: RunRecord, verdict: RunVerdict) -> Figure | None:
    record = with_fewer_checks(record, verdict)
    values = record.values(_LOSS)
    if not any(math.isfinite(value) for value in values):
        return None
    layout = {"xaxis": {"title": {"text": record.axis}}, "yaxis": {"title": {"text": "loss"}, "rangemode": "tozero"}}
    reading = "The training loss, as the module logs it. It falls on while a network learns wrong labels by heart."
    drawing = plotly_drawing([curve(record.places, values, "training loss", GREY)], layout, verdict)
    return Figure("loss", "Training loss", reading, drawing, 280)


def _cost(record: RunRecord, verdict: RunVerdict) -> Figure | None:
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
        plotly_drawing(curves, layout, verdict),
        320,
    )


def _differences(record: RunRecord, name: str) -> list[float]:
    """Differences from check to check of a total; NaN if it is not known, or falls as a clock must not."""
    differences = []
    before = 0.0
    for total in record.values(name):
        differences.append(total - before if total >= before else math.nan)
        before = total if math.isfinite(total) else before
    return differences


def with_fewer_checks(record: RunRecord, verdict: RunVerdict) -> RunRecord:
    """The record with as many checks as a curve can show."""
    if drawing_step(record) == 1:
        return record
    places = set(thinned(record.places, _MOST_POINTS, verdict.kept))
    return dataclasses.replace(record, checks=[check for check in record.checks if check[record.axis] in places])
