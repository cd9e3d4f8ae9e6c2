"""The figures of a page: what each shows of a record, and how it is read."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from bu_torch.report import drawing
from bu_torch.report.drawing import Figure, axis, curve, dots, ring, within_reach
from bu_torch.report.record import RunRecord
from bu_torch.report.text import escaped
from bu_torch.report.verdict import RunVerdict, rule_label, scores, why_not_highest
from bu_torch.signals.catalogue import SIGNALS

# In short, and marks of sizes that leave each to be seen where they coincide.
_RULES = {
    "expected_accuracy": ("accuracy", ring("star", 25, drawing.GREEN)),
    "boundary_uncertainty": ("uncertainty", ring("circle", 12, drawing.BLUE)),
    "trust_score": ("trust", ring("square", 9, drawing.ORANGE)),
}
# By the sign of what is better.
_SHARES = {
    True: (
        "agreement",
        "Expected accuracy and agreement",
        "Shares of the perturbed samples; more is better. If agreement with the labels rises while the others fall, the"
        " network overfits. Each axis begins above the lowest values, so that the largest, with a dot, stands out.",
    ),
    False: (
        "changes",
        "Changed predictions and omission",
        "Shares of the perturbed samples; less is better. If predictions still change, training has not"
        " settled. Omission is the part of the best boundary that the network's boundary leaves out. Each axis ends"
        " below the largest values.",
    ),
}
_LEAST_SPAN = 0.005  # of an axis of shares
_MOST_POINTS = 4000  # of a curve; more are narrower than a pixel


def drawing_step(record: RunRecord) -> int:
    """One of how many checks the curves show."""
    return max(1, math.ceil(len(record.checks) / _MOST_POINTS))


def with_fewer_checks(record: RunRecord, verdict: RunVerdict) -> RunRecord:
    """The record with as many checks as a curve can show."""
    places = set(drawing.thinned(record.places, _MOST_POINTS, verdict.kept))
    return dataclasses.replace(record, checks=[check for check in record.checks if check[record.axis] in places])


def with_room(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis that shows all from `low` to `high`, with some room at each end."""
    room = 0.08 * (high - low) or 0.01
    return low - room, high + room


def _upper_range(values: list[float], kept: list[float], least_span: float = 0.0) -> tuple[float, float]:
    """Limits of an axis on which the largest of finite values are seen: early ones lie far below, and are cut off."""
    low, high = float(np.quantile(values, 0.25 if len(values) > 8 else 0)), max(values)
    return with_room(min([low, *within_reach(kept), high - least_span]), high)


def deciding(record: RunRecord, few: RunRecord, verdict: RunVerdict) -> Figure | None:
    """The score by which the run decided, at a `few` of its checks."""
    label, by_place = scores(record, verdict)
    places = [place for place in few.places if place in by_place]
    values = [by_place[place] for place in places]
    finite = within_reach(values)
    if not finite:
        return None
    traces = [curve(places, values, "score", drawing.BLUE)]
    kept = [by_place[verdict.kept]] if verdict.kept in places else []
    if kept:
        name, hover = "kept" if verdict.rule else "would be kept", f"{record.axis} %{{x}}: %{{y:.4f}}"
        traces.append(dots([verdict.kept], kept, name, ring("circle", 14, drawing.RED), hovertemplate=hover))
    limits = _upper_range(finite, kept)
    layout = {"xaxis": axis(record.axis), "yaxis": axis("score", range=list(limits))}
    reading = f"{label.capitalize()}. {why_not_highest(record, verdict) or 'The check with the highest score is kept.'}"
    if record.settings.get("averaging"):
        reading += " All values are measured on averaged weights."
    if limits[0] > min(finite):
        reading += " The axis begins above the lowest values, so that the largest stands out."
    title = "What decided" if verdict.rule else "What would have decided"
    return Figure("deciding", title, reading, traces, layout, 320, verdict)


def uncertainty_and_trust(record: RunRecord, few: RunRecord, verdict: RunVerdict) -> Figure | None:
    """Boundary uncertainty and trust, with the check that each rule would have kept."""
    if not record.checks:
        return None
    detailed = [place for place in record.places if place in record.details]
    ceilings = [record.details[place].ceiling for place in detailed]
    curves = [
        curve(few.places, few.values("boundary_uncertainty"), "boundary uncertainty", drawing.BLUE),
        curve(detailed, ceilings, "its expected maximum", drawing.GREY, dash="dot"),
        curve(few.places, few.values("trust_score"), "trust score", drawing.ORANGE) | {"yaxis": "y2"},
    ]
    traces = [one for one in curves if any(value is not None for value in one["y"])] + _marks(verdict, record.axis)
    layout = {
        "xaxis": axis(record.axis, anchor="y2"),
        "yaxis": axis("U", domain=[0.46, 1], rangemode="tozero"),
        "yaxis2": axis("trust", domain=[0, 0.4], anchor="x"),
    }
    reading = (
        "Larger is better in both. Boundary uncertainty tells whether both classes mix along the decision boundary,"
        " trust whether predictions agree with the nearest samples. The marks show the check that each"
        " rule would have kept."
    )
    title = "Boundary uncertainty and trust"
    return Figure("scores", title, reading, traces, layout, 520, verdict)


def _marks(verdict: RunVerdict, axis_name: str) -> list[dict[str, Any]]:
    """Marks of the check that each rule would have kept, on both curves."""
    traces = []
    for rule, check in verdict.by_rule.items():
        if check is None:
            continue
        title, mark = _RULES.get(rule) or (escaped(rule_label(rule), 24), ring("diamond", 19, drawing.VIOLET))
        for yaxis, name in (("y", "boundary_uncertainty"), ("y2", "trust_score")):
            one = dots([check[axis_name]], [check[name]], f"rule: {title}", mark)
            legend = {"yaxis": yaxis, "legendgroup": rule, "showlegend": yaxis == "y"}
            traces.append(one | legend | {"hovertemplate": f"{axis_name} %{{x}}: %{{y:.4f}}"})
    return traces


def shares(record: RunRecord, verdict: RunVerdict, *, is_larger_better: bool) -> Figure | None:
    """Each share in a panel of its own, with an axis on which its best values are seen."""
    kept = record.check_at(verdict.kept) or {}
    rows = []
    signals = [signal for signal in SIGNALS.values() if signal.panel == "shares"]
    for signal, colour in zip(signals, itertools.cycle(drawing.SHARE_COLOURS), strict=False):
        values = record.values(signal.name)
        finite = within_reach(values)
        if signal.is_larger_better != is_larger_better or not finite:
            continue
        traces = [curve(record.places, values, signal.title, colour)]
        at_kept = [kept.get(signal.name, math.nan)]
        if is_larger_better:
            limits = _upper_range(finite, at_kept, _LEAST_SPAN)
            largest = [record.places[values.index(max(finite))]]
            marker = {"size": 9, "color": colour}
            traces.append(dots(largest, [max(finite)], "largest", marker, hoverinfo="skip"))
        else:
            high = max([float(np.quantile(finite, 0.75)), *within_reach(at_kept), _LEAST_SPAN])
            limits = -0.04 * high, 1.1 * high
        rows.append((signal.title, traces, limits))
    if not rows:
        return None
    traces, layout = drawing.stacked(rows, record.axis)
    layout["showlegend"] = False
    return Figure(*_SHARES[is_larger_better], traces, layout, 90 + 130 * len(rows), verdict)


def training_loss(record: RunRecord, verdict: RunVerdict) -> Figure | None:
    """The training loss, if the module logs it."""
    values = record.values("train_loss")
    if not any(math.isfinite(value) for value in values):
        return None
    layout = {"xaxis": axis(record.axis), "yaxis": axis("loss", rangemode="tozero")}
    reading = "The training loss, as the module logs it. It keeps falling while a network memorises wrong labels."
    traces = [curve(record.places, values, "training loss", drawing.GREY)]
    return Figure("loss", "Training loss", reading, traces, layout, 280, verdict)


def cost(record: RunRecord, few: RunRecord, verdict: RunVerdict) -> Figure | None:
    """Time of the checks, and of all else."""
    totals, checks = (_differences(record, name) for name in ("seconds", "check_seconds"))
    others = {place: totals[place] - checks[place] for place in totals}
    if not any(map(math.isfinite, others.values())):
        return None
    curves = [
        curve(few.places, [spent[place] for place in few.places], name, colour) | {"hovertemplate": "%{y:.3~s}s"}
        for name, spent, colour in (("check", checks, drawing.BLUE), ("all else", others, drawing.GREY))
    ]
    layout = {"xaxis": axis(record.axis), "yaxis": axis("seconds", type="log", minor={"showgrid": False})}
    reading = (
        "Seconds that each check took, beside all other time since the previous check: training and its callbacks. The"
        " axis is logarithmic."
    )
    return Figure("cost", "What the checks cost", reading, curves, layout, 320, verdict)


def _differences(record: RunRecord, name: str) -> dict[int, float]:
    """Differences by check of a total; NaN if it is not known, or falls as a clock must not."""
    differences, before = {}, 0.0
    for place, total in zip(record.places, record.values(name), strict=True):
        differences[place] = total - before if total >= before else math.nan
        before = total if math.isfinite(total) else before
    return differences
