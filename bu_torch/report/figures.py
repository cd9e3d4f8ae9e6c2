"""The curves of a page: what each shows of a record, and how it is read."""

import itertools
import math
from dataclasses import replace

import numpy as np

from bu_torch.report import drawing
from bu_torch.report.drawing import Section, axis, curve, dots, figure, ring, within_reach
from bu_torch.report.text import escaped
from bu_torch.report.verdict import RunVerdict, rule_title
from bu_torch.signals.catalogue import SIGNALS

# In short, and marks of sizes that leave each to be seen where they coincide.
_RULES = {
    "accuracy_and_trust": ("accuracy and trust", ring("star", 25, drawing.GREEN)),
    "expected_accuracy": ("accuracy", ring("triangle-up", 17, drawing.GREY)),
    "boundary_uncertainty": ("uncertainty", ring("circle", 12, drawing.BLUE)),
    "trust_score": ("trust", ring("square", 9, drawing.ORANGE)),
}
# Title and reading of each figure of signals, and the height of a panel in pixels.
_SIGNALS = {
    "scores": (
        "Boundary uncertainty and trust",
        "Boundary uncertainty is large if both classes mix along the decision boundary, trust if predictions agree"
        " with the nearest samples. The rings show the check that each rule would have kept.",
        190,
    ),
    "agreement": ("Expected accuracy and agreement", "Shares of the perturbed samples.", 130),
    "changes": (
        "Changed predictions and omission",
        "Share of the perturbed samples whose prediction has changed since the last check, and omission: the part of"
        " the best boundary that the network's boundary leaves out. Each axis ends below the largest values.",
        130,
    ),
}
_COLOURS = dict(zip(SIGNALS, itertools.cycle(drawing.COLOURS), strict=False))
_LEAST_SPAN = 0.005  # on an axis of shares
MOST_POINTS = 4000  # in a curve; more are narrower than a pixel


def with_fewer_checks(verdict: RunVerdict) -> RunVerdict:
    """The verdict on a record with as many checks as a curve can show."""
    record = verdict.record
    places = set(drawing.thinned(record.places, MOST_POINTS, verdict.kept))
    checks = [check for check in record.checks if check[record.axis] in places]
    return replace(verdict, record=replace(record, checks=checks))


def with_room(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis that shows all from `low` to `high`, with some room at each end."""
    room = 0.08 * (high - low) or 0.01
    return low - room, high + room


def _upper_range(values: list[float], kept: list[float], least_span: float = 0.0) -> tuple[float, float]:
    """Limits of an axis on which the largest of finite values are seen: early ones lie far below, and are cut off."""
    low, high = float(np.quantile(values, 0.25 if len(values) > 8 else 0)), max(values)
    return with_room(min([low, *within_reach(kept), high - least_span]), high)


def deciding(few: RunVerdict) -> Section | None:
    """The score by which the run decided, at a `few` of its checks."""
    record, kept = few.record, few.kept
    places = [place for place in record.places if place in few.scores]
    values = [few.scores[place] for place in places]
    finite = within_reach(values)
    if not finite:
        return None
    traces, at_kept = [curve(places, values, "score", drawing.BLUE)], []
    if kept in places:
        at_kept = [few.scores[kept]]
        hover = {"hovertemplate": f"{record.axis} %{{x}}: %{{y:.4f}}"}
        traces.append(dots([kept], at_kept, few.kept_label, ring("circle", 14, drawing.RED), **hover))
    limits = _upper_range(finite, at_kept)
    layout = {"xaxis": axis(record.axis), "yaxis": axis("score", range=list(limits))}
    reading = f"{few.title.capitalize()}. {few.why_not_highest or 'The check with the highest score is kept.'}"
    if record.settings.get("averaging"):
        reading += " All values are measured on averaged weights."
    if limits[0] > min(finite):
        reading += " The axis begins above the lowest values, so that the largest stands out."
    title = "What decided" if few.rule else "What would have decided"
    return figure("deciding", title, reading, traces, layout, 320, few)


def signals(few: RunVerdict, name: str) -> Section | None:
    """Some of the signals, each in a panel of its own, with an axis on which its best values are seen."""
    record = few.record
    kept = record.check_at(few.kept) or {}
    rows: list[drawing.Panel] = []
    for signal in SIGNALS.values():
        of_shares = "agreement" if signal.is_larger_better else "changes"
        values = record.values(signal.name)
        finite = within_reach(values)
        figure_of = {"shares": of_shares, "score": "deciding"}.get(signal.panel, "scores")
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
        for rule, check in few.by_rule.items() if name == "scores" else ():
            title, mark = _RULES.get(rule) or (escaped(rule_title(rule), 24), ring("diamond", 19, drawing.VIOLET))
            legend = {"legendgroup": rule, "showlegend": not rows, "hoverinfo": "skip"}
            if check is not None:
                traces.append(dots([check[record.axis]], [check[signal.name]], f"rule: {title}", mark, **legend))
        rows.append((signal.title, traces, limits))
    if not rows:
        return None
    title, reading, height = _SIGNALS[name]
    if name != "changes":
        reading += " Each axis begins above the lowest values, so that the largest, with a dot, stands out."
    return figure(name, title, reading, *drawing.stacked(rows, record.axis), 90 + height * len(rows), few)


def training_loss(few: RunVerdict) -> Section | None:
    """The training loss, if the module logs it."""
    values = few.record.values("train_loss")
    if not any(map(math.isfinite, values)):
        return None
    layout = {"xaxis": axis(few.record.axis), "yaxis": axis("loss", rangemode="tozero")}
    reading = "The training loss, as the module logs it. It can keep falling while a network memorises wrong labels."
    traces = [curve(few.record.places, values, "training loss", drawing.GREY)]
    return figure("loss", "Training loss", reading, traces, layout, 280, few)


def cost(verdict: RunVerdict, places: list[int]) -> Section | None:
    """Time of the checks, and of all else, at these places."""
    totals, checks = (_differences(verdict, name) for name in ("seconds", "check_seconds"))
    others = {place: totals[place] - checks[place] for place in totals}
    if not any(map(math.isfinite, others.values())):
        return None
    curves = [
        curve(places, [spent[place] for place in places], name, colour) | {"hovertemplate": "%{y:.3~s}s"}
        for name, spent, colour in (("check", checks, drawing.BLUE), ("all else", others, drawing.GREY))
    ]
    layout = {"xaxis": axis(verdict.record.axis), "yaxis": axis("seconds", type="log", minor={"showgrid": False})}
    reading = (
        "Seconds that each check took, beside all other time since the previous check: training and its callbacks. The"
        " axis is logarithmic."
    )
    return figure("cost", "What the checks cost", reading, curves, layout, 320, verdict)


def _differences(verdict: RunVerdict, name: str) -> dict[int, float]:
    """Differences by check of a total; NaN if it is not known, or falls as a clock must not."""
    differences, before = {}, 0.0
    for place, total in verdict.record.by_place(name).items():
        differences[place] = total - before if total >= before else math.nan
        before = total if math.isfinite(total) else before
    return differences
