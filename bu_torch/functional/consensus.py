"""Comparing two epochs by several signals of different units at once."""

import torch
from torch import Tensor


def standardized_gain(signals: Tensor, kept: int) -> Tensor:
    """By how much the last epoch is better than the kept one: the mean over the signals of the gain in units of spread.

    The spread of a signal is its standard deviation over all epochs so far, so that no signal needs a weight and the
    comparison is causal. A signal that has not moved yet, rounding aside, says nothing. This rule is this project's
    own; the papers select by one quantity.

    Args:
        signals: Values of S signals in T epochs, larger is better, shape (T, S), T >= 1, floating point.
        kept: The epoch to compare the last one with, 0 <= kept < T.

    Returns:
        Scalar, positive where the last epoch is better, in standard deviations, dtype and device of `signals`; NaN if
        a value is not finite.

    Raises:
        ValueError: If `signals` is not of shape (T, S), or `kept` is out of range.

    Example:
        >>> standardized_gain(torch.tensor([[0.0, 5.0], [1.0, 4.0], [4.0, 4.0]]), kept=0)
        tensor(0.1160)
    """
    if signals.ndim != 2 or 0 in signals.shape:
        raise ValueError(f"`signals` must have shape (T, S) with T, S >= 1, got {tuple(signals.shape)}.")
    if not 0 <= kept < signals.shape[0]:
        raise ValueError(f"`kept` must be in [0, {signals.shape[0]}), got {kept}.")
    return in_spreads(signals[-1] - signals[kept], signals).mean()


def standardized_standing(signals: Tensor) -> Tensor:
    """How far each of several classifiers is above their mean: the mean over the signals of the deviation in spreads.

    What `standardized_gain` compares two epochs by, for a set that has no order: the standings of two classifiers
    differ by their gain over each other where the spread is that over the whole set. Their mean is 0. This rule is this
    project's own.

    Args:
        signals: Values of S signals of T classifiers, larger is better, shape (T, S), T >= 1, floating point.

    Returns:
        Shape (T,), in standard deviations, dtype and device of `signals`; NaN if a value is not finite.

    Raises:
        ValueError: If `signals` is not of shape (T, S).

    Example:
        >>> standardized_standing(torch.tensor([[0.0, 5.0], [1.0, 4.0], [4.0, 4.0]]))
        tensor([ 0.2168, -0.5497,  0.3329])
    """
    if signals.ndim != 2 or 0 in signals.shape:
        raise ValueError(f"`signals` must have shape (T, S) with T, S >= 1, got {tuple(signals.shape)}.")
    return in_spreads(signals - signals.mean(dim=0), signals).mean(dim=1)


def in_spreads(differences: Tensor, signals: Tensor) -> Tensor:
    """Differences (..., S) in standard deviations of `signals` (T, S); 0 for a signal that does not move."""
    spread = signals.std(dim=0, correction=0)
    rounding = 8 * torch.finfo(signals.dtype).eps * signals.abs().amax(dim=0)
    return torch.where(spread <= rounding, torch.zeros_like(differences), differences / spread)
