"""Error rates where the classes are intervals of a continuous quantity that is measured with error.

Mevik (2003): an object with inputs x has the quantity y = f(x) + epsilon, its measurement is z = y + delta, both errors
normal with standard deviations `sigma_epsilon` and `sigma_delta`. Inner edges b_1 < ... < b_(C-1) cut the line into the
classes 0 to C - 1, class j being [b_j, b_(j+1)) with infinite ends (the paper counts from 1): a z on an edge belongs to
the class above, as in `torch.bucketize(z, edges, right=True)`.

The estimators share these conventions:

- `z`, `edges` and `predictions` are tensors or arrays; edges are rounded to the dtype of z, then all is computed in
  float64, whatever the number of samples, and results are float64 scalars on the device of z.
- Inner edges may be infinite. The class outside of one is empty: its label is always wrong, infinitely so when squared.
- A standard deviation of 0 means that there is no such error, so that probabilities are 0 or 1. That is the limit, but
  for a z that lies on an edge: any error at all, however small, moves half of such objects over it.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bu_torch.internal.inputs import as_flat_features, as_labels, check_integer

_FAR = 40.0  # standard deviations beyond which float64 holds no normal density


class ErrorCountBounds(NamedTuple):
    """Between which values the share of objects whose true class is missed must lie."""

    lower: Tensor
    upper: Tensor


def data_error_rate(z: Any, edges: Any, sigma_delta: Any) -> Tensor:
    """Expected share of wrong class labels, c(z) in place of c(y).

    Mevik (2003), Eq. 18; z stands in for the y of Eq. 17.

    Args:
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.

    Returns:
        Scalar in [0, 1], float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> data_error_rate(torch.tensor([0.0, 2.0]), torch.tensor([1.0]), sigma_delta=1.0)
        tensor(0.1587, dtype=torch.float64)
    """
    gaps, own = _gaps(z, edges)
    return _at(_outside(_standardized(gaps, _number("sigma_delta", sigma_delta))), own).mean()


def data_squared_error_rate(z: Any, edges: Any, sigma_delta: Any) -> Tensor:
    """Expected squared error of the class labels c(z): squared distance from y to the interval of its label.

    Mevik (2003), Eq. 22; z stands in for the y of Eq. 21.

    Args:
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.

    Returns:
        Scalar >= 0 in squared units of z, float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> data_squared_error_rate(torch.tensor([0.0, 3.0]), torch.tensor([1.0]), sigma_delta=1.0)
        tensor(0.1248, dtype=torch.float64)
    """
    gaps, _ = _gaps(z, edges)
    probability = _inside(_standardized(gaps, _number("sigma_delta", sigma_delta)))
    expected = torch.where(probability > 0, probability * _penalties(gaps), 0.0)  # an empty class is infinitely far
    return expected.sum(dim=1).mean()


def error_count(predictions: Any, z: Any, edges: Any) -> Tensor:
    """Apparent error count: share of predictions other than the class label c(z).

    Mevik (2003), Eq. 23.

    Args:
        predictions: Predicted classes, shape (n,), integers in [0, C).
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.

    Returns:
        Scalar in [0, 1], float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> error_count(torch.tensor([0, 0]), torch.tensor([0.5, 1.0]), torch.tensor([1.0]))
        tensor(0.5000, dtype=torch.float64)
    """
    gaps, own = _gaps(z, edges)
    return (_predicted(predictions, gaps) != own).double().mean()


def error_count_bounds(count: Any, data_error: Any) -> ErrorCountBounds:
    """Bounds of the true error count, which no one sees, around the apparent one.

    Mevik (2003), Eq. 24: |count - d| <= true <= count + d for a share d of wrong labels, the lower one exact for two
    classes. The upper bound stops at 1 here, which the paper does not write.

    Args:
        count: Apparent error count (`error_count`), in [0, 1].
        data_error: Share d of wrong labels, in [0, 1]; `data_error_rate` estimates it.

    Returns:
        The bounds, float64 scalars on the device of `count`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is not in [0, 1].

    Example:
        >>> error_count_bounds(0.25, 0.125)
        ErrorCountBounds(lower=tensor(0.1250, dtype=torch.float64), upper=tensor(0.3750, dtype=torch.float64))
    """
    device = count.device if isinstance(count, Tensor) else None
    share, wrong = _number("count", count, high=1), _number("data_error", data_error, high=1)
    lower, upper = torch.tensor([abs(share - wrong), min(share + wrong, 1.0)], dtype=torch.float64, device=device)
    return ErrorCountBounds(lower, upper)


def adjusted_error_count(predictions: Any, z: Any, edges: Any, sigma_delta: Any) -> Tensor:
    """Error count in which each sample weighs as much as its label is likely to be right.

    Mevik (2003), Eq. 25.

    Args:
        predictions: Predicted classes, shape (n,), integers in [0, C).
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z; 0 gives `error_count`.

    Returns:
        Scalar in [0, 1], float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> adjusted_error_count([0, 0], [0.0, 1.0], [1.0], sigma_delta=1.0)
        tensor(0.3728, dtype=torch.float64)
    """
    gaps, own = _gaps(z, edges)
    weights = _at(_inside(_standardized(gaps, _number("sigma_delta", sigma_delta))), own)
    return (weights * (_predicted(predictions, gaps) != own)).sum() / weights.sum()


def error_rate(predictions: Any, z: Any, edges: Any, sigma_epsilon: Any) -> Tensor:
    """Probability of misclassification, as if z were f(x).

    Mevik (2003), Eq. 26. In the paper's simulation it is biased upwards and varies less than the error counts.

    Args:
        predictions: Predicted classes, shape (n,), integers in [0, C).
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_epsilon: Standard deviation of y given x, >= 0, in units of z; 0 gives `error_count`.

    Returns:
        Scalar in [0, 1], float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> error_rate(torch.tensor([0]), torch.tensor([0.0]), torch.tensor([1.0]), sigma_epsilon=1.0)
        tensor(0.1587, dtype=torch.float64)
    """
    gaps, _ = _gaps(z, edges)
    outside = _outside(_standardized(gaps, _number("sigma_epsilon", sigma_epsilon)))
    return _at(outside, _predicted(predictions, gaps)).mean()


def minimal_error_rate(z: Any, edges: Any, sigma_epsilon: Any) -> Tensor:
    """Error rate that no classifier can go below, as if z were f(x).

    Mevik (2003), Eq. 27.

    Args:
        z: Measurements, shape (n,), real, finite. With f(x) in their place this is Eq. 7.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_epsilon: Standard deviation of y given x, >= 0, in units of z.

    Returns:
        Scalar in [0, 1), float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> minimal_error_rate(torch.tensor([0.0, 1.0]), torch.tensor([1.0]), sigma_epsilon=1.0)
        tensor(0.3293, dtype=torch.float64)
    """
    gaps, _ = _gaps(z, edges)
    return _outside(_standardized(gaps, _number("sigma_epsilon", sigma_epsilon))).amin(dim=1).mean()


def squared_error_count(predictions: Any, z: Any, edges: Any) -> Tensor:
    """Apparent squared error count: mean squared distance from z to the interval of the predicted class.

    Mevik (2003), Eq. 28 with the penalty of Eq. 8.

    Args:
        predictions: Predicted classes, shape (n,), integers in [0, C).
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.

    Returns:
        Scalar >= 0 in squared units of z, float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> squared_error_count(torch.tensor([1, 0]), torch.tensor([2.5, 2.5]), torch.tensor([1.5, 2.0]))
        tensor(0.6250, dtype=torch.float64)
    """
    gaps, _ = _gaps(z, edges)
    return _at(_penalties(gaps), _predicted(predictions, gaps)).mean()


def adjusted_squared_error_count(predictions: Any, z: Any, edges: Any, sigma_delta: Any) -> Tensor:
    """Squared error count less what the measurement error adds to the square of each apparent error.

    Mevik (2003), Eq. 29. It is not cut off at 0, which would bias it: a classifier whose few errors are all nearer to
    an edge than sigma_delta comes out slightly negative.

    Args:
        predictions: Predicted classes, shape (n,), integers in [0, C).
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z; 0 gives `squared_error_count`.

    Returns:
        Scalar >= -sigma_delta^2 in squared units of z, float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> adjusted_squared_error_count([1, 0], [2.5, 2.5], [1.5, 2.0], sigma_delta=0.5)
        tensor(0.3750, dtype=torch.float64)
    """
    sigma = _number("sigma_delta", sigma_delta)
    return squared_error_count(predictions, z, edges) - sigma**2 * error_count(predictions, z, edges)


def squared_error_rate(predictions: Any, z: Any, edges: Any, sigma_epsilon: Any) -> Tensor:
    """Expected squared distance from y to the interval of the predicted class, as if z were f(x).

    Mevik (2003), Eq. 30 and 31. (Eq. 11 prints the class c of y where it means the predicted class j.)

    Args:
        predictions: Predicted classes, shape (n,), integers in [0, C).
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_epsilon: Standard deviation of y given x, >= 0, in units of z; 0 gives `squared_error_count`.

    Returns:
        Scalar >= 0 in squared units of z, float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> squared_error_rate(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([1.0]), sigma_epsilon=1.0)
        tensor(0.5000, dtype=torch.float64)
    """
    gaps, _ = _gaps(z, edges)
    expected = _expected_penalties(gaps, _number("sigma_epsilon", sigma_epsilon))
    return _at(expected, _predicted(predictions, gaps)).mean()


def minimal_squared_error_rate(z: Any, edges: Any, sigma_epsilon: Any) -> Tensor:
    """Squared error rate that no classifier can go below, as if z were f(x).

    Mevik (2003), Eq. 32.

    Args:
        z: Measurements, shape (n,), real, finite. With f(x) in their place this is Eq. 12.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_epsilon: Standard deviation of y given x, >= 0, in units of z.

    Returns:
        Scalar >= 0 in squared units of z, float64, on the device of z.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> minimal_squared_error_rate(torch.tensor([1.0]), torch.tensor([1.0]), sigma_epsilon=1.0)
        tensor(0.5000, dtype=torch.float64)
    """
    gaps, _ = _gaps(z, edges)
    return _expected_penalties(gaps, _number("sigma_epsilon", sigma_epsilon)).amin(dim=1).mean()


def sigma_epsilon_of_replicates(z: Any, groups: Any, sigma_delta: Any) -> Tensor:
    """Estimate sigma_epsilon from objects that share their inputs.

    Mevik (2003), section 8.1: the variance of z within a group is that of epsilon + delta. Groups are pooled by their
    degrees of freedom, which for groups of one size is the paper's average; a group of one says nothing.

    Args:
        z: Measurements, shape (n,), real, finite, one of each object. Repeated measurements of one object would give
            sigma_delta instead.
        groups: For each object the number of its inputs x, shape (n,), integers >= 0.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.

    Returns:
        Scalar >= 0, float64, on the device of z; 0 where the measurement error alone explains the spread.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values, or no group has two objects.

    Example:
        >>> sigma_epsilon_of_replicates([1.0, 3.0, 7.0, 9.0], [0, 0, 1, 1], sigma_delta=1.0)
        tensor(1., dtype=torch.float64)
    """
    z = _measurements(z)
    group = as_labels(groups, len(z), "groups", are_classes=False).to(z.device).unique(return_inverse=True)[1]
    size = torch.bincount(group)
    if len(size) == len(z):
        raise ValueError("`groups` must hold at least one group of two objects or more, got none.")
    mean = torch.zeros_like(size, dtype=torch.float64).index_add_(0, group, z) / size
    variance = ((z - mean[group]) ** 2).sum() / (len(z) - len(size))
    return _without_measurement_error(variance, sigma_delta)


def sigma_epsilon_of_residuals(z: Any, fitted: Any, sigma_delta: Any, *, n_parameters: int = 0) -> Tensor:
    """Estimate sigma_epsilon from the residuals of a regression of z on x.

    Mevik (2003), section 8.1. A model that fits badly makes it too large, one that overfits too small; the paper does
    not say how to count the fitted parameters, here they lower the degrees of freedom.

    Args:
        z: Measurements, shape (n,), real, finite.
        fitted: The regression's values for the same objects, shape (n,), real, finite.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.
        n_parameters: Parameters fitted on these objects, the intercept included, >= 0 and < n; 0 where `fitted` comes
            from cross-validation.

    Returns:
        Scalar >= 0, float64, on the device of z; 0 where the measurement error alone explains the residuals.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> sigma_epsilon_of_residuals([1.0, 3.0], [3.0, 1.0], sigma_delta=0.0)
        tensor(2., dtype=torch.float64)
    """
    z = _measurements(z)
    fitted = _measurements(fitted, "fitted")
    if len(fitted) != len(z):
        raise ValueError(f"`fitted` must have one entry a sample, {len(z)}, got {len(fitted)}.")
    if check_integer("n_parameters", n_parameters, 0) >= len(z):
        raise ValueError(f"`n_parameters` must be less than the number of samples, {len(z)}, got {n_parameters}.")
    variance = ((z - fitted.to(z.device)) ** 2).sum() / (len(z) - n_parameters)
    return _without_measurement_error(variance, sigma_delta)


def sigma_epsilon_of_neighbors(z: Any, features: Any, sigma_delta: Any, *, n_neighbors: int = 10) -> Tensor:
    """Estimate sigma_epsilon from the spread of z among neighbours in x.

    Mevik (2003), section 8.1, names a weighted local estimate and leaves it open. Here each sample and its nearest
    others give a variance with tricube weights (1 - (r / r_k)^3)^3 of the distances r, r_k that of the farthest, with
    the divisor that makes it unbiased where f is constant; the variances are averaged. The slope of f makes it too
    large, the more so the larger the neighbourhoods are.

    Args:
        z: Measurements, shape (n,), real, finite.
        features: The inputs x, shape (n, d), real, finite; distances are Euclidean.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.
        n_neighbors: Other samples in a neighbourhood, >= 2 and < n.

    Returns:
        Scalar >= 0, float64, on the device of z; 0 where the measurement error alone explains the spread.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If an argument has the wrong shape or values.

    Example:
        >>> sigma_epsilon_of_neighbors([0.0, 2.0] * 50, torch.zeros(100, 1), sigma_delta=1.0, n_neighbors=99)
        tensor(0.1005, dtype=torch.float64)
    """
    from bu_torch.neighbors.search import nearest  # the other estimators need torch alone

    z = _measurements(z)
    features = as_flat_features(features).to(z.device)
    if len(features) != len(z):
        raise ValueError(f"`features` must have one row a sample, {len(z)}, got {len(features)}.")
    if check_integer("n_neighbors", n_neighbors, 2) >= len(z):
        raise ValueError(f"`n_neighbors` must be less than the number of samples, {len(z)}, got {n_neighbors}.")
    own = torch.arange(len(z), device=z.device)
    found = nearest(features, features, n_neighbors, exclude=own)
    rows = torch.cat((own.unsqueeze(1), found.rows), dim=1)
    distances = torch.nn.functional.pad(found.distances.double(), (1, 0))
    relative = torch.where(distances[:, -1:] > 0, distances / distances[:, -1:], 0.0)
    weights = (1 - relative**3) ** 3
    weights = weights / weights.sum(dim=1, keepdim=True)
    mean = (weights * z[rows]).sum(dim=1, keepdim=True)
    spread = (weights * (z[rows] - mean) ** 2).sum(dim=1)
    return _without_measurement_error(_local_mean(spread, 1 - (weights**2).sum(dim=1)), sigma_delta)


def _local_mean(spread: Tensor, divisor: Tensor) -> Tensor:
    """Mean of the local variances; a neighbourhood in which one sample has all the weight has none."""
    return (spread[divisor > 0] / divisor[divisor > 0]).mean()


def _without_measurement_error(variance: Tensor, sigma_delta: Any) -> Tensor:
    return (variance - _number("sigma_delta", sigma_delta) ** 2).clamp(min=0).sqrt()


def _gaps(z: Any, edges: Any) -> tuple[Tensor, Tensor]:
    """Distances b_j - z to all edges, the infinite ends included, (n, C + 1), and the class of z, (n,)."""
    measured = _as_tensor(z, "z")
    z = _measurements(measured)
    edges = _as_tensor(edges, "edges").detach().to(z.device)
    if edges.ndim != 1 or len(edges) == 0:
        raise ValueError(f"`edges` must have shape (C - 1,) with C >= 2 classes, got {tuple(edges.shape)}.")
    if measured.is_floating_point():
        edges = edges.to(measured.dtype)
    edges = edges.double()
    if not bool((edges[1:] > edges[:-1]).all()) or bool(edges.isnan().any()):
        raise ValueError(f"`edges` must increase in the precision of `z` and hold no NaN, got {edges.tolist()}.")
    ends = torch.nn.functional.pad(edges, (1, 1), value=math.inf)
    ends[0] = -math.inf
    return ends - z.unsqueeze(1), torch.bucketize(z, edges, right=True)


def _measurements(z: Any, name: str = "z") -> Tensor:
    """`z` as finite float64, (n,)."""
    z = _as_tensor(z, name).detach().double()
    if z.ndim != 1 or len(z) == 0:
        raise ValueError(f"`{name}` must have shape (n,) with n >= 1, got {tuple(z.shape)}.")
    n_bad = int((~z.isfinite()).sum())
    if n_bad:
        raise ValueError(f"`{name}` must be finite, got NaN or infinity in {n_bad} of {len(z)} samples.")
    return z


def _as_tensor(value: Any, name: str) -> Tensor:
    """`value` as a tensor; plain numbers keep the float64 that Python gave them."""
    try:
        if not isinstance(value, Tensor):
            value = torch.tensor(np.array(value, dtype=getattr(value, "dtype", np.float64)))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be a tensor or an array of numbers, got {type(value).__name__}.") from error
    if value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"`{name}` must be real, got {value.dtype}.")
    return value


def _predicted(predictions: Any, gaps: Tensor) -> Tensor:
    predictions = as_labels(predictions, gaps.shape[0], "predictions").to(gaps.device)
    n_classes = gaps.shape[1] - 1
    if int(predictions.max()) >= n_classes:
        raise ValueError(f"`predictions` must hold classes in [0, {n_classes}), got {int(predictions.max())}.")
    return predictions


def _number(name: str, value: Any, high: float = math.inf) -> float:
    """`value`, a number or a tensor or array of one, as a float in [0, high]."""
    kind = f"a number in [0, {high}]" if high < math.inf else "a finite number >= 0"
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise TypeError(f"`{name}` must be {kind}, got {value!r}.")
    try:
        number = float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be {kind}, got {value!r}.") from error
    if not 0 <= number <= high or number == math.inf:
        raise ValueError(f"`{name}` must be {kind}, got {number}.")
    return number


def _at(values: Tensor, classes: Tensor) -> Tensor:
    """Of each row the entry of its class: (n, C), (n,) -> (n,)."""
    return values.gather(1, classes.unsqueeze(1)).squeeze(1)


def _below(t: Tensor) -> Tensor:
    """Phi(t), to the last digits in both tails, where `torch.special.ndtr` gives 0 below -8.3."""
    return torch.special.erfc(-t / math.sqrt(2)) / 2


def _standardized(gaps: Tensor, sigma: float) -> Tensor:
    """Distances to the edges in standard deviations; without any error an edge at z counts as below it."""
    if sigma > 0:
        return gaps / sigma
    return torch.where(gaps > 0, math.inf, -math.inf).to(gaps)


def _outside(t: Tensor) -> Tensor:
    """Probability to fall outside of each class, (n, C), as the sum of two tails: small ones keep their digits."""
    return _below(t[:, :-1]) + _below(-t[:, 1:])


def _inside(t: Tensor) -> Tensor:
    """Probability to fall into each class, (n, C), as a difference of tails of the same side."""
    low, high = t[:, :-1], t[:, 1:]
    above = low > 0  # such an interval is mirrored
    low, high = torch.where(above, -high, low), torch.where(above, -low, high)
    middle = (torch.special.erf(high / math.sqrt(2)) - torch.special.erf(low / math.sqrt(2))) / 2
    return torch.where(high > 0, middle, _below(high) - _below(low))


def _penalties(gaps: Tensor) -> Tensor:
    """Eq. 8 for each class, (n, C)."""
    return gaps[:, :-1].clamp(min=0) ** 2 + gaps[:, 1:].clamp(max=0) ** 2


def _expected_penalties(gaps: Tensor, sigma: float) -> Tensor:
    """Eq. 31 for each class, (n, C)."""
    return _expected_square(gaps[:, :-1], sigma) + _expected_square(-gaps[:, 1:], sigma)


def _expected_square(gap: Tensor, sigma: float) -> Tensor:
    """E[(gap - e)^2; e < gap] for e ~ N(0, sigma^2): (gap^2 + sigma^2) Phi(t) + gap sigma phi(t) at t = gap / sigma.

    Below 0 the two terms cancel but for one part in t^4, so there phi(t) is taken out of both, which leaves Mills'
    ratio.
    """
    if sigma == 0:
        return gap.clamp(min=0) ** 2
    t = (gap / sigma).clamp(-_FAR, _FAR)
    density = torch.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(-t.clamp(max=0) / math.sqrt(2))
    below = sigma**2 * density * ((t**2 + 1) * mills + t).clamp(min=0)
    above = (gap**2 + sigma**2) * _below(t) + sigma**2 * t * density
    return torch.where(t < 0, below, above)
