"""Maps of a page: boundaries by pairs of classes, and histograms over the checks."""

import itertools
import math

import numpy as np

from bu_torch.report.drawing import BELOW, COLOUR_BAR, MORE, WORSE, Figure, axis, thinned, within_reach
from bu_torch.report.record import RunRecord
from bu_torch.report.text import escaped, shortened, shown_number
from bu_torch.report.verdict import RunVerdict, shown_details
from bu_torch.signals.details import Pair

_MOST_COLUMNS = 300  # of a map over the epochs
_PLAIN = {"showgrid": False, "zeroline": False}
# Title, axis and reading of each histogram over the checks.
SPREADS = {
    "near_boundary": (
        "Distance from the boundary",
        "kernel widths",
        "Each column is a check: the distances of the perturbed samples from the decision boundary, in kernel widths."
        " Samples at the bottom are on the boundary; the top row holds all that are farther. As a network grows"
        " certain, samples move up, and few are left to measure at.",
    ),
    "local_uncertainty": (
        "Local uncertainty",
        "u",
        "Each column is a check: the mix of both classes around each sample. At the top both are equally likely; at the"
        " bottom one is alone, or the boundary is too far to tell.",
    ),
    "log_trust": (
        "Trust of single samples",
        "log trust",
        "Trust in the predictions, by check: below 0, the nearest class is not the predicted one. If a tail stays"
        " there, its samples are worth a look; the least trusted are listed below.",
    ),
}


def class_name(record: RunRecord, index: int, most: int = 60) -> str:
    """A class in words, escaped: plotly understands some HTML in its labels."""
    names = record.classes or []
    return escaped(names[index] if index < len(names) else index, most)


def pair_map(record: RunRecord, verdict: RunVerdict) -> Figure | None:
    """Boundary uncertainty of each two classes, at the kept check."""
    shown = shown_details(record, verdict)
    if not record.checks or shown is None or not shown[1].pairs:
        return None
    place, details = shown
    classes, n_classes_left_out = _classes_shown(details.pairs)
    values, notes = _pair_grids(record, details.pairs, classes)
    names = [class_name(record, index, 14) for index in classes]
    ticks = {"tickvals": list(range(len(classes))), "ticktext": names} | _PLAIN
    low, high = _colour_range(within_reach(itertools.chain(*values)))
    layout = {
        "xaxis": {**ticks, "side": "top", "tickangle": -60 if len(classes) > 6 else 0},
        "yaxis": {**ticks, "autorange": "reversed"},
        "coloraxis": {"cmin": low, "cmax": high, "colorbar": COLOUR_BAR | BELOW | {"y": 0, "yanchor": "top"}},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
    }
    cells = {"type": "heatmap", "hoverongaps": False, "xgap": 1, "ygap": 1}
    blanks = [  # cells without a value, those of the diagonal darker
        [1 if row == column else 0 if value is None else None for column, value in enumerate(line)]
        for row, line in enumerate(values)
    ]
    greys = [[0, "rgba(133,144,162,0.10)"], [1, "rgba(133,144,162,0.55)"]]  # for light and for dark pages
    traces = [
        cells | {"z": blanks, "zmin": 0, "zmax": 1, "colorscale": greys, "showscale": False, "hoverinfo": "skip"},
        cells | {"z": values, "hovertext": notes, "hoverinfo": "text", "coloraxis": "coloraxis"},
    ]
    if len(classes) <= 8:
        traces[1]["texttemplate"] = "%{z:.2f}"
    reading = (
        "The stronger the colour, the less the two classes mix along the boundary between them. The colours span the"
        " values shown. The diagonal is grey; a faint cell is a pair with no sample near its boundary."
    )
    if n_classes_left_out:
        reading += f" The {len(classes)} classes with the worst boundaries are shown, {n_classes_left_out} are not."
    if details.n_pairs_left_out:
        reading += f" {details.n_pairs_left_out} pairs with fewer samples near their boundary are not in the record."
    side = max(22, 240 // len(classes)) * len(classes)
    title = f"Which boundaries are bad: pairs of classes at {record.axis} {place}"
    most_width = max(420, 160 + 3 * side // 2)
    return Figure("pairs", title, reading, traces, layout, 160 + side, scales=WORSE, most_width=most_width)


def _colour_range(values: list[float]) -> tuple[float, float]:
    """From the smallest to the largest value, a twentieth of many left out at each end."""
    if not values:
        return 0.0, 1.0
    low, high = np.quantile(values, [0.05, 0.95] if len(values) > 40 else [0, 1]).tolist()
    return (low, high) if high - low > 1e-6 else (low - 0.05, low + 0.05)


def _pair_grids(
    record: RunRecord, pairs: list[Pair], classes: list[int]
) -> tuple[list[list[float | None]], list[list[str]]]:
    """U of each two classes, and a note on it, in rows and columns of `classes`; symmetric."""
    places = {index: position for position, index in enumerate(classes)}
    values: list[list[float | None]] = [[None] * len(classes) for _ in classes]
    notes = [[""] * len(classes) for _ in classes]
    for first, second, share, weight, value in pairs:
        if first not in places or second not in places:
            continue
        near = f"{shortened(f'{weight:.1f}', 12)} effective samples near the boundary"
        if not weight >= 1e-6:
            near = "none near the boundary: counts as separable"
        names = " | ".join(class_name(record, index, 40) for index in (first, second))
        note = f"{names}<br>U {shown_number(value)}, {shortened(f'{share:.2%}', 12)} of the samples<br>{near}"
        for row, column in ((places[first], places[second]), (places[second], places[first])):
            values[row][column] = value if math.isfinite(value) else None
            notes[row][column] = note
    return values, notes


def _classes_shown(pairs: list[Pair]) -> tuple[list[int], int]:
    """Classes to show in ascending order, those with the most samples on bad boundaries, and how many are left out."""
    loss: dict[int, float] = {}
    for first, second, share, _, value in pairs:
        for index in (first, second):
            loss[index] = loss.get(index, 0.0) + share * (1 - value if math.isfinite(value) else 0)
    worst = sorted(loss, key=lambda index: -loss[index])[:40]
    return sorted(worst), len(loss) - len(worst)


def spread(record: RunRecord, verdict: RunVerdict, name: str) -> Figure | None:
    """A histogram over the checks, as a map; those whose bins differ from the last one's are left out."""
    title, axis_title, reading = SPREADS[name]
    found = {place: getattr(one, name) for place, one in sorted(record.details.items())}
    if not record.checks or not found:
        return None
    edges = found[max(found)].edges
    alike = (place for place, one in found.items() if len(one.edges) == len(edges))
    same = [place for place in alike if np.allclose(found[place].edges, edges, equal_nan=True)]
    places = thinned(same, _MOST_COLUMNS, verdict.kept)
    counts = np.array([found[place].counts for place in places], dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    filled = np.flatnonzero(shares.any(axis=0)).tolist() or [0]  # outer bins that are always empty are left out
    edges, shares = edges[filled[0] : filled[-1] + 2], shares[:, filled[0] : filled[-1] + 1].T
    n_bins = len(shares)
    ranges = [f"{_edge(low, '-∞')} to {_edge(high, '∞')}" for low, high in itertools.pairwise(edges)]
    # One row may hold nearly all, such as that of all beyond an edge: the others are to be told apart.
    fullest = sorted(shares.max(axis=1).tolist())
    most = next((share for share in (fullest[-2:-1] or fullest) if share > 0), 1.0)
    trace = {
        "type": "heatmap",
        "x": places,
        "y": list(range(n_bins)),
        "z": shares.tolist(),
        "hovertext": [[text] * len(places) for text in ranges],
        "hovertemplate": f"{record.axis} %{{x}}, {axis_title} %{{hovertext}}: %{{z:.1%}}<extra></extra>",
        "coloraxis": "coloraxis",
    }
    ticks = range(0, n_bins + 1, max(1, math.ceil(n_bins / 8)))
    names = [_edge(edges[place], "-∞" if place == 0 else "∞") for place in ticks]
    layout = {
        "xaxis": axis(record.axis, **_PLAIN),
        "yaxis": axis(axis_title, tickvals=[place - 0.5 for place in ticks], ticktext=names, **_PLAIN),
        "coloraxis": {"cmin": 0, "cmax": most, "colorbar": COLOUR_BAR | {"tickformat": ".2~%"}},
    }
    if fullest[-1] > most:
        reading += f" The fullest row, with up to {fullest[-1]:.0%}, is beyond the colours."
    return Figure(name, title, reading, [trace], layout, 340, verdict, MORE)


def _edge(value: float, infinite: str) -> str:
    return f"{value:.3g}" if math.isfinite(value) else infinite
