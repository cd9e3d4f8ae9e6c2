"""Maps of a page: boundaries by pairs of classes, and histograms over the checks."""

import itertools
import math

import numpy as np

from bu_torch.report.drawing import BELOW, BLANK, COLOUR_BAR, Json, Section, axis, figure, thinned
from bu_torch.report.record import RunRecord
from bu_torch.report.text import escaped, shown_number
from bu_torch.report.verdict import RunVerdict
from bu_torch.signals.details import Pair

_MOST_COLUMNS = 300  # in a map over the epochs
_PLAIN = {"showgrid": False, "zeroline": False}
# Title, axis and reading of each histogram over the checks.
SPREADS = {
    "near_boundary": (
        "Distance from the boundary",
        "kernel widths",
        "Distances of the perturbed samples from the decision boundary, by check. The top row holds all that are"
        " farther. As a network grows certain, samples move up, and few are left to measure at.",
    ),
    "local_uncertainty": (
        "Local uncertainty",
        "u",
        "Mix of both classes around each sample, by check. At the top both are equally likely; at the bottom one is"
        " alone, or the boundary is too far to tell.",
    ),
    "log_trust": (
        "Trust of single samples",
        "log trust",
        "Trust in the predictions, by check. Below 0, the nearest class is not the predicted one.",
    ),
}


def near_boundary(record: RunRecord, pair: Pair) -> str:
    """Neighbours of a sample of a pair that count as near its boundary, on average."""
    n_samples = record.data.get("n_samples")
    n_here = pair.share * n_samples if isinstance(n_samples, int) else 0
    return shown_number(pair.weight / n_here if n_here > 0 else math.nan)


def pair_map(record: RunRecord, verdict: RunVerdict) -> Section | None:
    """Boundary uncertainty of each two classes, at the kept check; not of two classes alone."""
    shown = verdict.details(record)
    if not record.checks or shown is None or len(shown[1].pairs) < 2:
        return None
    place, details = shown
    classes, n_classes_left_out = _classes_shown(details.pairs)
    values, notes = _pair_grids(record, details.pairs, classes)
    names = [escaped(record.class_name(index), 14) for index in classes]
    ticks = {"tickvals": list(range(len(classes))), "ticktext": names} | _PLAIN
    layout = {
        "xaxis": {**ticks, "side": "top", "tickangle": -60 if len(classes) > 6 else 0},
        "yaxis": {**ticks, "autorange": "reversed"},
        "coloraxis": {"colorbar": COLOUR_BAR | BELOW | {"y": 0, "yanchor": "top"}},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "plot_bgcolor": BLANK,
    }
    cells = {"type": "heatmap", "hoverinfo": "text", "hoverongaps": False, "xgap": 1, "ygap": 1}
    trace: Json = cells | {"z": values, "hovertext": notes, "coloraxis": "coloraxis"}
    if len(classes) <= 8:
        trace["texttemplate"] = "%{z:.2f}"
    reading = (
        "The stronger the colour, the less the two classes mix along the boundary between them. The colours span the"
        " values shown. Grey cells have none: the diagonal, and pairs that are no sample's two nearest classes."
    )
    if n_classes_left_out:
        reading += f" The {len(classes)} classes that lower it most are shown, {n_classes_left_out} are not."
    if details.n_pairs_left_out:
        reading += f" {details.n_pairs_left_out} pairs with fewer samples near their boundary are not in the record."
    side = max(22, 240 // len(classes)) * len(classes)
    title = f"Boundary uncertainty by pairs of classes, at {record.axis} {place}"
    most_width = max(420, 160 + 3 * side // 2)
    return figure("pairs", title, reading, [trace], layout, 160 + side, scale="worse", most_width=most_width)


def _pair_grids(
    record: RunRecord, pairs: list[Pair], classes: list[int]
) -> tuple[list[list[float | None]], list[list[str]]]:
    """U of each two classes, and a note on it, in rows and columns of `classes`; symmetric."""
    places = {index: position for position, index in enumerate(classes)}
    values: list[list[float | None]] = [[None] * len(classes) for _ in classes]
    notes = [[""] * len(classes) for _ in classes]
    for pair in pairs:
        if pair.first not in places or pair.second not in places:
            continue
        counted = f"near the boundary: {near_boundary(record, pair)} neighbours of a sample, on average"
        if not pair.weight >= 1e-6:
            counted = "none near the boundary: counts as separable"
        names = " | ".join(escaped(record.class_name(index), 40) for index in pair[:2])
        value, share = shown_number(pair.uncertainty), shown_number(pair.share)
        note = f"{names}<br>U {value}, share of the samples {share}<br>{counted}"
        for row, column in itertools.permutations((places[pair.first], places[pair.second])):
            values[row][column] = pair.uncertainty if abs(pair.uncertainty) < 1e300 else None
            notes[row][column] = note
    return values, notes


def lost(pair: Pair) -> float:
    """Amount by which a pair lowers boundary uncertainty from 1."""
    return pair.share * (1 - pair.uncertainty if math.isfinite(pair.uncertainty) else 0)


def _classes_shown(pairs: list[Pair]) -> tuple[list[int], int]:
    """Classes to show in ascending order, those that lower boundary uncertainty most, and how many are left out."""
    loss: dict[int, float] = {}
    for pair in pairs:
        for index in pair[:2]:
            loss[index] = loss.get(index, 0.0) + lost(pair)
    worst = sorted(loss, key=lambda index: -loss[index])[:40]
    return sorted(worst), len(loss) - len(worst)


def spread(record: RunRecord, verdict: RunVerdict, name: str) -> Section | None:
    """A histogram over the checks, as a map; those whose bins differ from the last one's are left out."""
    title, axis_title, reading = SPREADS[name]
    found = {place: getattr(one, name) for place, one in sorted(record.details.items())}
    if not record.checks or not found:
        return None
    edges = found[max(found)].edges
    same = [place for place in found if found[place].edges == edges]
    places = thinned(same, _MOST_COLUMNS, verdict.kept)
    counts = np.array([found[place].counts for place in places], dtype=float)
    shares = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).T
    filled = np.flatnonzero(shares.any(axis=1)).tolist() or [0, -2]  # outer bins that are always empty are left out
    # One row may hold nearly all, such as that of all beyond an edge: the others are to be told apart.
    fullest = sorted(shares.max(axis=1).tolist())
    most = next((share for share in (fullest[-2:-1] or fullest) if share > 0), 1.0)
    trace = {
        "type": "heatmap",
        "x": places,
        "y": edges,
        "z": shares.tolist(),
        "hovertemplate": f"{record.axis} %{{x}}, {axis_title} %{{y:.3~g}}: %{{z:.1%}}<extra></extra>",
        "coloraxis": "coloraxis",
    }
    layout = {
        "xaxis": axis(record.axis, **_PLAIN),
        "yaxis": axis(axis_title, range=[edges[filled[0]], edges[filled[-1] + 1]], **_PLAIN),
        "coloraxis": {"cmin": 0, "cmax": most, "colorbar": COLOUR_BAR | {"tickformat": ".2~%"}},
    }
    if fullest[-1] > most:
        reading += f" The fullest row, with up to {fullest[-1]:.0%}, is beyond the colours."
    return figure(name, title, reading, [trace], layout, 340, verdict, "more")
