"""Lines on a score that cannot see, and on a kept network that never predicts one of the classes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bu_torch.functional.weights import mean_of
from bu_torch.samples.balance import class_shares
from bu_torch.signals.measuring import Signals

_LEAST_GAIN = 0.01  # share of what one class alone leaves to gain
_LEAST_SKILL = 0.05
_MOST_NAMED = 5  # classes


def accuracy_alone(probabilities: Tensor, n_samples: int, weights: Tensor | None) -> tuple[int, float]:
    """Column of the class that scores most if it alone is predicted, and its expected accuracy.

    Probabilities (D * N, C) are those of D draws of N samples, whose weights (N,) have mean 1.
    """
    by_sample = probabilities.view(-1, n_samples, probabilities.shape[1]).mean(dim=0).double()
    weights = None if weights is None else weights.unsqueeze(1)
    scores = torch.stack([mean_of(column, weights) for column in by_sample.split(1, dim=1)])
    best = int(scores.argmax())
    return best, float(scores[best])


def blindness(highest: float, alone: float, name: str, skills: tuple[float, float]) -> str:
    """Say that expected accuracy cannot tell checks apart, and what to do; "" if it can.

    Args:
        highest: Highest expected accuracy of the checks.
        alone: Expected accuracy of the class that scores most alone.
        name: Name of this class.
        skills: Skill of the nearest samples and of a regression on all, by left-out labels.
    """
    nearest, regression = skills
    has_gain = highest - alone > _LEAST_GAIN * (1 - alone)
    if has_gain and max(skills) >= _LEAST_SKILL:
        return ""
    why = "hardly anything is known of left-out labels"
    if not has_gain:
        why = f"its highest value is {highest:.3f}, and always predicting {name} scores {alone:.3f}"
    return (
        f"Expected accuracy cannot tell these epochs apart: {why} (skill {nearest:.2f} by the nearest samples,"
        f" {regression:.2f} by regression; 1 is certain, 0 chance). Choose the epoch by some held-out samples, pass a"
        " `feature_extractor` in whose space near samples are alike, or `class_weight='balanced'` if a rare class"
        " matters."
    )


def unpredicted(expected: Sequence[float], names: Sequence[str], shares: Sequence[float]) -> str:
    """Name the classes that a network never predicts, with their shares; "" if there are none.

    Args:
        expected: Recall of each class, 0 for one that is never predicted.
        names: Names of the classes.
        shares: Share of each class in training.
    """
    missing = [place for place, recall in enumerate(expected) if recall == 0]
    if not missing:
        return ""
    missing.sort(key=lambda place: -shares[place])
    listed = ", ".join(f"{names[place]} ({shares[place]:.1%})" for place in missing[:_MOST_NAMED])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    only = [place for place in range(len(names)) if place not in missing]
    if len(only) == 1:
        (place,) = only
        return f"The kept network predicts {names[place]} ({shares[place]:.1%}) alone, and never {listed}{more}."
    return f"The kept network never predicts {listed}{more}."


def blindness_of(signals: Signals, named: Sequence[str] | None, highest: float) -> str:
    """`blindness` of checks on fitted signals; classes are `named` by their labels."""
    labels, weights, prepared = signals.boundary.labels, signals.boundary.weights, signals.preparation
    column, alone = accuracy_alone(prepared.probabilities, len(labels), weights)
    names, _ = _described(signals, named)
    return blindness(highest, alone, names[column], (signals.vote_skill, signals.regression_skill))


def unpredicted_of(signals: Signals, named: Sequence[str] | None, expected: Sequence[float]) -> str:
    """`unpredicted` of a check on fitted signals."""
    names, shares = _described(signals, named)
    return unpredicted(expected, names, shares) if len(expected) == len(names) else ""


def _described(signals: Signals, named: Sequence[str] | None) -> tuple[list[str], list[float]]:
    present, shares = class_shares(signals.boundary.labels, signals.boundary.weights)
    is_named = named is not None and int(present[-1]) < len(named)
    return [repr(named[c]) if named and is_named else f"class {c}" for c in present.tolist()], shares.tolist()
