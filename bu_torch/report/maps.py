"""Maps of a page: boundaries by pairs of classes, and histograms over the checks."""

import itertools
import math
from collections import defaultdict

import numpy as np

from bu_torch.report.drawing import Json, Section, axis, figure, thinned
from bu_torch.report.record import RunRecord
from bu_torch.report.text import escaped, shown_number
from bu_torch.report.verdict import RunVerdict
from bu_torch.signals.details import Pair

_MOST_COLUMNS = 300  # in a map over the epochs
_PLAIN = {"showgrid": False, "zeroline": False}
_COLOUR_BAR = {"thickness": 10, "outlinewidth": 0, "len": 0.9, "ticks": ""}
# Title, axis and reading of each histogram over the checks.
_SPREADS = {
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


def lost(pair: Pair) -> float:
    """Amount by which a pair lowers boundary uncertainty from 1."""
    return pair.share * (1 - pair.uncertainty if math.isfinite(pair.uncertainty) else 0)


def pair_map(verdict: RunVerdict) -> Section | None:
    """Boundary uncertainty of each two classes, at the kept check; not of two classes alone."""
    record, shown = verdict.record, verdict.details
    if not record.checks or shown is None or len(shown[1].pairs) < 2:
        return None
    place, details = shown
    loss: dict[int, float] = defaultdict(float)
    values: dict[tuple[int, ...], float] = {}
    notes: dict[tuple[int, ...], str] = {}
    for pair in details.pairs:
        note = _note(record, pair)
        for cell in itertools.permutations(pair[:2]):
            loss[cell[0]] += lost(pair)
            values[cell], notes[cell] = pair.uncertainty, note
    classes = sorted(sorted(loss, key=lambda index: -loss[index])[:40])
    cells = [[(row, column) for column in classes] for row in classes]
    names = [escaped(record.class_name(index), 14) for index in classes]
    ticks = {"tickvals": list(range(len(classes))), "ticktext": names} | _PLAIN
    below = {"orientation": "h", "title": {"text": "U", "side": "top"}, "len": 0.5, "x": 0, "xanchor": "left"}
    layout = {
        "xaxis": {**ticks, "side": "top", "tickangle": -60 if len(classes) > 6 else 0},
        "yaxis": {**ticks, "autorange": "reversed"},
        "coloraxis": {"colorbar": _COLOUR_BAR | below | {"y": 0, "yanchor": "top"}},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "plot_bgcolor": "rgba(133,144,162,0.2)",  # cells that have no value, on light and on dark pages
    }
    trace: Json = {
        "type": "heatmap",
        "hoverinfo": "text",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "z": [[value if abs(value := values.get(cell, math.nan)) < 1e300 else None for cell in row] for row in cells],
        "hovertext": [[notes.get(cell, "") for cell in row] for row in cells],
        "coloraxis": "coloraxis",
    }
    if len(classes) <= 8:
        trace["texttemplate"] = "%{z:.2f}"
    reading = (
        "The stronger the colour, the less the two classes mix along the boundary between them. The colours span the"
        " values shown. Grey cells have none: the diagonal, and pairs that are no sample's two nearest classes."
    )
    if n_left_out := len(loss) - len(classes):
        reading += f" The {len(classes)} classes that lower it most are shown, {n_left_out} are not."
    if details.n_pairs_left_out:
        reading += f" {details.n_pairs_left_out} pairs with fewer samples near their boundary are not in the record."
    side = max(22, 240 // len(classes)) * len(classes)
    title = f"Boundary uncertainty by pairs of classes, at {record.axis} {place}"
    most_width = max(420, 160 + 3 * side // 2)
    return figure("pairs", title, reading, [trace], layout, 160 + side, scale="worse", most_width=most_width)


def _note(record: RunRecord, pair: Pair) -> str:
    """Note on the boundary of a pair."""
    counted = f"near the boundary: {near_boundary(record, pair)} neighbours of a sample, on average"
    if not pair.weight >= 1e-6:
        counted = "none near the boundary: counts as separable"
    names = " | ".join(escaped(record.class_name(index), 40) for index in pair[:2])
    value, share = shown_number(pair.uncertainty), shown_number(pair.share)
    return f"{names}<br>U {value}, share of the samples {share}<br>{counted}"


def spread(verdict: RunVerdict, name: str) -> Section | None:
    """A histogram over the checks, as a map; those whose bins differ from the last one's are left out."""
    record, (title, axis_title, reading) = verdict.record, _SPREADS[name]
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
        "coloraxis": {"cmin": 0, "cmax": most, "colorbar": _COLOUR_BAR | {"tickformat": ".2~%"}},
    }
    if fullest[-1] > most:
        reading += f" The fullest row, with up to {fullest[-1]:.0%}, is beyond the colours."
    return figure(name, title, reading, [trace], layout, 340, verdict, scale="more")
