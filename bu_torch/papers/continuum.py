"""Error rates for classes that are intervals of a continuous quantity measured with error.

Mevik (2003): an object with inputs x has the quantity y = f(x) + epsilon, and its measurement is z = y + delta. Both
errors are normal, with standard deviations `sigma_epsilon` and `sigma_delta`. Inner edges b_1 < ... < b_(C-1) cut the
line into the classes 0 to C - 1; class j is [b_j, b_(j+1)), with infinite ends (the paper counts from 1). A z on an
edge belongs to the class above, as in `torch.bucketize(z, edges, right=True)`.

The estimators share these conventions:

- `z`, `edges` and `predictions` are tensors or arrays. Edges are rounded to the dtype of z; then everything is computed
  in float64, and results are float64 scalars on the device of z.
- Inner edges may be infinite. The class beyond one is empty: its label is always wrong, its squared error infinite.
- A standard deviation of 0 means no error: probabilities are 0 or 1. This is the limit of small errors, except for a z
  on an edge, where any error, however small, moves half of such objects over it.
"""

import math
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bu_torch.internal.inputs import as_flat_features, as_labels, as_tensor, check_integer, check_number, is_finite

_FAR = 40.0  # standard deviations beyond which float64 holds no normal density


def data_error_rate(z: Any, edges: Any, sigma_delta: Any) -> Tensor:
    """Expected share of wrong class labels, with c(z) for c(y); Mevik (2003), Eq. 18, with z for the y of Eq. 17.

    Arguments and errors are those of `adjusted_error_count`. Returns a scalar in [0, 1], float64, as z.
    """
    cut = _Cut(z, edges)
    return cut.at_predicted(cut.outside(_deviation("sigma_delta", sigma_delta))).mean()


def data_squared_error_rate(z: Any, edges: Any, sigma_delta: Any) -> Tensor:
    """Expected squared distance from y to the interval of its label c(z); Mevik (2003), Eq. 22, z for the y of Eq. 21.

    Arguments and errors are those of `adjusted_error_count`. Returns a scalar >= 0, in squared units of z.
    """
    cut = _Cut(z, edges)
    inside = cut.inside(_deviation("sigma_delta", sigma_delta))
    return torch.where(inside > 0, inside * cut.penalties(0), 0.0).sum(dim=1).mean()  # an empty class is infinitely far


def error_count(predictions: Any, z: Any, edges: Any) -> Tensor:
    """Apparent error count: share of predictions other than the class label c(z); Mevik (2003), Eq. 23.

    Arguments and errors are those of `adjusted_error_count`. Returns a scalar in [0, 1], float64, as z.
    """
    return error_rate(predictions, z, edges, 0)


def adjusted_error_count(predictions: Any, z: Any, edges: Any, sigma_delta: Any) -> Tensor:
    """Error count that weights each sample by the probability that its label is right; Mevik (2003), Eq. 25.

    Args:
        predictions: Predicted classes, shape (n,), integers in [0, C).
        z: Measurements, shape (n,), real, finite.
        edges: Inner class boundaries, shape (C - 1,), increasing, may be infinite.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z; 0 gives `error_count`.

    Returns:
        Scalar in [0, 1], float64, on the device of z.

    Raises:
        TypeError, ValueError: If an argument does not hold real numbers, or has the wrong shape or values.
    """
    cut = _Cut(z, edges, predictions)
    weights = cut.inside(_deviation("sigma_delta", sigma_delta)).gather(1, cut.own.unsqueeze(1)).squeeze(1)
    return (weights * (cut.predicted != cut.own)).sum() / weights.sum()


def error_rate(predictions: Any, z: Any, edges: Any, sigma_epsilon: Any) -> Tensor:
    """Probability of misclassification, as if z were f(x); Mevik (2003), Eq. 26.

    In the paper's simulation it is biased upwards and varies less than the error counts. Arguments and errors are those
    of `adjusted_error_count`, with `sigma_epsilon`, the standard deviation of y given x, in the place of `sigma_delta`.
    Returns a scalar in [0, 1], float64, as z.

    Example:
        >>> error_rate(torch.tensor([0]), torch.tensor([0.0]), torch.tensor([1.0]), sigma_epsilon=1.0)
        tensor(0.1587, dtype=torch.float64)
    """
    cut = _Cut(z, edges, predictions)
    return cut.at_predicted(cut.outside(_deviation("sigma_epsilon", sigma_epsilon))).mean()


def minimal_error_rate(z: Any, edges: Any, sigma_epsilon: Any) -> Tensor:
    """Lowest error rate of any classifier, as if z were f(x); Mevik (2003), Eq. 27.

    With f(x) in place of z this is Eq. 7. Arguments and errors are those of `adjusted_error_count`, `sigma_epsilon` is
    as in `error_rate`. Returns a scalar in [0, 1), float64, as z.
    """
    return _Cut(z, edges).outside(_deviation("sigma_epsilon", sigma_epsilon)).amin(dim=1).mean()


def squared_error_count(predictions: Any, z: Any, edges: Any) -> Tensor:
    """Apparent mean squared distance from z to the interval of the predicted class; Mevik (2003), Eq. 28 with Eq. 8.

    Arguments and errors are those of `adjusted_error_count`. Returns a scalar >= 0, in squared units of z.
    """
    return squared_error_rate(predictions, z, edges, 0)


def adjusted_squared_error_count(predictions: Any, z: Any, edges: Any, sigma_delta: Any) -> Tensor:
    """Squared error count minus the amount that the measurement error adds to each apparent error.

    Mevik (2003), Eq. 29. The value is not clipped at 0, which would bias it: it is slightly negative for a classifier
    whose few errors all lie nearer to an edge than sigma_delta. Arguments and errors are those
    of `adjusted_error_count`; 0 gives `squared_error_count`. Returns a scalar >= -sigma_delta^2, in squared units of z.
    """
    sigma = _deviation("sigma_delta", sigma_delta)
    return squared_error_count(predictions, z, edges) - sigma**2 * error_count(predictions, z, edges)


def squared_error_rate(predictions: Any, z: Any, edges: Any, sigma_epsilon: Any) -> Tensor:
    """Expected squared distance from y to the interval of the predicted class, as if z were f(x).

    Mevik (2003), Eq. 30 and 31. (Eq. 11 prints the class c of y where it means the predicted class j.) Arguments and
    errors are those of `adjusted_error_count`, `sigma_epsilon` is as in `error_rate`; 0 gives `squared_error_count`.
    Returns a scalar >= 0, in squared units of z.
    """
    cut = _Cut(z, edges, predictions)
    return cut.at_predicted(cut.penalties(_deviation("sigma_epsilon", sigma_epsilon))).mean()


def minimal_squared_error_rate(z: Any, edges: Any, sigma_epsilon: Any) -> Tensor:
    """Lowest squared error rate of any classifier, as if z were f(x); Mevik (2003), Eq. 32.

    With f(x) in place of z this is Eq. 12. Arguments and errors are those of `adjusted_error_count`, `sigma_epsilon` is
    as in `error_rate`. Returns a scalar >= 0, in squared units of z.
    """
    return _Cut(z, edges).penalties(_deviation("sigma_epsilon", sigma_epsilon)).amin(dim=1).mean()


def sigma_epsilon_of_residuals(z: Any, fitted: Any, sigma_delta: Any, *, n_parameters: int = 0) -> Tensor:
    """Estimate sigma_epsilon from the residuals of a regression of z on x.

    Mevik (2003), section 8.1. A model that fits badly makes the estimate too large, one that overfits makes it too
    small. The paper does not say how to count the fitted parameters; here they lower the degrees of freedom.

    Args:
        z: Measurements, shape (n,), finite, one per object (repeated measurements of an object give sigma_delta).
        fitted: The regression's values for the objects, shape (n,), finite.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.
        n_parameters: Number of parameters fitted on them, with the intercept, >= 0 and < n; 0 after cross-validation.

    Returns:
        Scalar >= 0, float64, on the device of z; 0 if the measurement error alone explains the spread.

    Raises:
        TypeError, ValueError: If an argument is not real or has the wrong shape or values.
    """
    z = _measurements(z)
    fitted = _measurements(fitted, "fitted")
    if len(fitted) != len(z):
        raise ValueError(f"`fitted` must have one entry per sample, {len(z)}, got {len(fitted)}.")
    if check_integer("n_parameters", n_parameters, 0) >= len(z):
        raise ValueError(f"`n_parameters` must be less than the number of samples, {len(z)}, got {n_parameters}.")
    variance = ((z - fitted.to(z.device)) ** 2).sum() / (len(z) - n_parameters)
    return _without_measurement_error(variance, sigma_delta)


def sigma_epsilon_of_neighbors(z: Any, features: Any, sigma_delta: Any, *, n_neighbors: int = 10) -> Tensor:
    """Estimate sigma_epsilon from the spread of z among neighbours in x.

    Mevik (2003), section 8.1, names a weighted local estimate without giving one. Here each sample and its nearest
    others give a variance with tricube weights (1 - (r / r_k)^3)^3, where r is a distance and r_k the distance to the
    farthest, or with equal weights if all others are as far. The divisor makes it unbiased if f is constant. The
    variances are averaged. A slope of f makes the estimate too large, more so for larger neighbourhoods.

    Takes the inputs x as `features` (n, d), finite, with Euclidean distances, and the number of other samples in a
    neighbourhood, >= 2 and < n. All else is as in `sigma_epsilon_of_residuals`.
    """
    from bu_torch.neighbors.graph import nearest  # all else needs torch alone

    z = _measurements(z)
    features = as_flat_features(features).to(z.device)
    if len(features) != len(z):
        raise ValueError(f"`features` must have one row per sample, {len(z)}, got {len(features)}.")
    if check_integer("n_neighbors", n_neighbors, 2) >= len(z):
        raise ValueError(f"`n_neighbors` must be less than the number of samples, {len(z)}, got {n_neighbors}.")
    distances, rows = nearest(features, None, n_neighbors)
    rows = torch.cat((torch.arange(len(z), device=z.device).unsqueeze(1), rows), dim=1)
    distances = torch.nn.functional.pad(distances, (1, 0))
    nearest_other, farthest = distances[:, 1:2], distances[:, -1:]
    is_scaled = nearest_other < (1 - 1e-6) * farthest  # others that are all as far count alike
    relative = torch.where(is_scaled, distances / farthest, 0.0)
    weights = (1 - relative**3) ** 3
    weights = weights / weights.sum(dim=1, keepdim=True)
    mean = (weights * z[rows]).sum(dim=1, keepdim=True)
    spread = (weights * (z[rows] - mean) ** 2).sum(dim=1)
    divisor = 1 - (weights**2).sum(dim=1)
    has_variance = divisor > 0  # not all the weight is on one sample
    return _without_measurement_error((spread[has_variance] / divisor[has_variance]).mean(), sigma_delta)


def _without_measurement_error(variance: Tensor, sigma_delta: Any) -> Tensor:
    return (variance - _deviation("sigma_delta", sigma_delta) ** 2).clamp(min=0).sqrt()


class _Cut:
    """Measurements (n,), and the C classes into which edges (C - 1,) cut the line."""

    def __init__(self, z: Any, edges: Any, predictions: Any = None) -> None:
        measured = as_real(z, "z")
        z = _measurements(measured)
        edges = as_real(edges, "edges").detach().to(z.device)
        if edges.ndim != 1 or len(edges) == 0:
            raise ValueError(f"`edges` must have shape (C - 1,) with C >= 2 classes, got {tuple(edges.shape)}.")
        edges = edges.to(measured.dtype if measured.is_floating_point() else edges.dtype).double()
        if not bool((edges[1:] > edges[:-1]).all()) or bool(edges.isnan().any()):
            raise ValueError(f"`edges` must increase in the precision of `z` and hold no NaN, got {edges.tolist()}.")
        ends = torch.cat((edges.new_tensor([-math.inf]), edges, edges.new_tensor([math.inf])))
        self.gaps = ends - z.unsqueeze(1)  # b_j - z for all edges, including the infinite ends, (n, C + 1)
        self.own = self.predicted = torch.bucketize(z, edges, right=True)  # class of each z, (n,)
        if predictions is not None:
            self.predicted = as_labels(predictions, len(z), "predictions").to(z.device)
            if (largest := int(self.predicted.max())) > len(edges):
                raise ValueError(f"`predictions` must hold classes in [0, {len(edges) + 1}), got {largest}.")

    def at_predicted(self, values: Tensor) -> Tensor:
        """Values (n, C) at each row's predicted class, (n,)."""
        return values.gather(1, self.predicted.unsqueeze(1)).squeeze(1)

    def outside(self, sigma: float) -> Tensor:
        """Probability of falling outside each class, (n, C), as the sum of two tails, so that small ones stay exact."""
        t = self._standardized(sigma)
        return _below(t[:, :-1]) + _below(-t[:, 1:])

    def inside(self, sigma: float) -> Tensor:
        """Probability of falling into each class, (n, C), as a difference of two tails on the same side."""
        t = self._standardized(sigma)
        low, high = t[:, :-1], t[:, 1:]
        above = low > 0  # such an interval is mirrored
        low, high = torch.where(above, -high, low), torch.where(above, -low, high)
        middle = (torch.special.erf(high / math.sqrt(2)) - torch.special.erf(low / math.sqrt(2))) / 2
        return torch.where(high > 0, middle, _below(high) - _below(low))

    def penalties(self, sigma: float) -> Tensor:
        """Eq. 31 for each class, (n, C); Eq. 8 if sigma is 0."""
        return _expected_square(self.gaps[:, :-1], sigma) + _expected_square(-self.gaps[:, 1:], sigma)

    def _standardized(self, sigma: float) -> Tensor:
        """Distances to the edges in standard deviations; if sigma is 0, an edge at z counts as below z."""
        if sigma > 0:
            return self.gaps / sigma
        return torch.where(self.gaps > 0, math.inf, -math.inf).to(self.gaps)


def _measurements(z: Any, name: str = "z") -> Tensor:
    """`z` as finite float64, (n,)."""
    z = as_real(z, name).detach().double()
    if z.ndim != 1 or len(z) == 0 or not is_finite(z):
        raise ValueError(f"`{name}` must be finite, (n,) with n >= 1, got shape {tuple(z.shape)}.")
    return z


def as_real(value: Any, name: str) -> Tensor:
    """`value` as a real tensor; Python's numbers become float64."""
    if not isinstance(value, Tensor):
        with suppress(TypeError, ValueError, RuntimeError):
            value = np.array(value, dtype=getattr(value, "dtype", np.float64))
    value = as_tensor(value, name)
    if value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"`{name}` must be real, got {value.dtype}.")
    return value


def _deviation(name: str, value: Any) -> float:
    """A number, or a tensor or array with one entry, as a float >= 0."""
    with suppress(AttributeError, RuntimeError, ValueError):
        value = value.item()
    return check_number(name, value, 0)


def _below(t: Tensor) -> Tensor:
    """Phi(t), accurate in both tails, where `torch.special.ndtr` gives 0 below -8.3."""
    return torch.special.erfc(-t / math.sqrt(2)) / 2


def _expected_square(gap: Tensor, sigma: float) -> Tensor:
    """E[(gap - e)^2; e < gap] for e ~ N(0, sigma^2): (gap^2 + sigma^2) Phi(t) + gap sigma phi(t) at t = gap / sigma.

    For t < 0 the two terms cancel up to one part in t^4; factoring out phi(t), which leaves Mills' ratio, avoids this.
    """
    if sigma == 0:
        return gap.clamp(min=0) ** 2
    t = (gap / sigma).clamp(-_FAR, _FAR)
    density = torch.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(-t.clamp(max=0) / math.sqrt(2))
    below = sigma**2 * density * ((t**2 + 1) * mills + t).clamp(min=0)
    above = (gap**2 + sigma**2) * _below(t) + sigma**2 * t * density
    return torch.where(t < 0, below, above)
