"""Standard deviation of a continuous quantity given the inputs, estimated in the three ways of Mevik (2003)."""

from typing import Any

import torch
from torch import Tensor

from bu_torch.internal.inputs import as_flat_features, as_labels, check_integer
from bu_torch.papers.continuum import measurements, number


def sigma_epsilon_of_replicates(z: Any, groups: Any, sigma_delta: Any) -> Tensor:
    """Estimate sigma_epsilon from objects that share their inputs.

    Mevik (2003), section 8.1: the variance of z within a group is that of epsilon + delta. Groups are pooled by their
    degrees of freedom, which for groups of equal size gives the paper's average. A group of one object is not used.

    Args:
        z: Measurements, shape (n,), finite, one per object (repeated measurements of an object give sigma_delta).
        groups: Group of each object, shape (n,), integers >= 0; objects of a group have the same inputs x.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.

    Returns:
        Scalar >= 0, float64, on the device of z; 0 if the measurement error alone explains the spread.

    Raises:
        TypeError, ValueError: If an argument is not real or has the wrong shape or values, or no group has two objects.
    """
    z = measurements(z)
    group = as_labels(groups, len(z), "groups", are_classes=False).to(z.device).unique(return_inverse=True)[1]
    size = torch.bincount(group)
    if len(size) == len(z):
        raise ValueError("`groups` must hold at least one group of two objects or more, got none.")
    mean = torch.zeros_like(size, dtype=torch.float64).index_add_(0, group, z) / size
    variance = ((z - mean[group]) ** 2).sum() / (len(z) - len(size))
    return _without_measurement_error(variance, sigma_delta)


def sigma_epsilon_of_residuals(z: Any, fitted: Any, sigma_delta: Any, *, n_parameters: int = 0) -> Tensor:
    """Estimate sigma_epsilon from the residuals of a regression of z on x.

    Mevik (2003), section 8.1. A model that fits badly makes the estimate too large, one that overfits makes it too
    small. The paper does not say how to count the fitted parameters; here they lower the degrees of freedom.

    Args:
        z: Measurements, shape (n,), finite.
        fitted: The regression's values for the same objects, shape (n,), finite.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.
        n_parameters: Parameters fitted on these objects, with the intercept, >= 0 and < n; 0 after cross-validation.

    Returns:
        Scalar >= 0, float64, on the device of z; 0 if the measurement error alone explains the residuals.

    Raises:
        TypeError, ValueError: If an argument is not real or has the wrong shape or values.
    """
    z = measurements(z)
    fitted = measurements(fitted, "fitted")
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

    Args:
        z: Measurements, shape (n,), finite.
        features: The inputs x, shape (n, d), finite; distances are Euclidean.
        sigma_delta: Standard deviation of the measurement error, >= 0, in units of z.
        n_neighbors: Other samples in a neighbourhood, >= 2 and < n.

    Returns:
        Scalar >= 0, float64, on the device of z; 0 if the measurement error alone explains the spread.

    Raises:
        TypeError, ValueError: If an argument is not real or has the wrong shape or values.
    """
    from bu_torch.neighbors.search import nearest  # the other estimators need torch alone

    z = measurements(z)
    features = as_flat_features(features).to(z.device)
    if len(features) != len(z):
        raise ValueError(f"`features` must have one row per sample, {len(z)}, got {len(features)}.")
    if check_integer("n_neighbors", n_neighbors, 2) >= len(z):
        raise ValueError(f"`n_neighbors` must be less than the number of samples, {len(z)}, got {n_neighbors}.")
    own = torch.arange(len(z), device=z.device)
    found = nearest(features, features, n_neighbors, exclude=own)
    rows = torch.cat((own.unsqueeze(1), found.rows), dim=1)
    distances = torch.nn.functional.pad(found.distances.double(), (1, 0))
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
    return (variance - number("sigma_delta", sigma_delta) ** 2).clamp(min=0).sqrt()
