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

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bu_torch.evaluation._cut import Cut, number


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
    cut = Cut(z, edges, ("sigma_delta", sigma_delta))
    return cut.at_predicted(cut.outside()).mean()


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
    cut = Cut(z, edges, ("sigma_delta", sigma_delta))
    probability = cut.inside()
    expected = torch.where(probability > 0, probability * cut.penalties(), 0.0)  # an empty class is infinitely far
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
    cut = Cut(z, edges, predictions=predictions)
    return (cut.predicted != cut.own).double().mean()


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
    share, wrong = number("count", count, high=1), number("data_error", data_error, high=1)
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
    cut = Cut(z, edges, ("sigma_delta", sigma_delta), predictions)
    weights = cut.inside().gather(1, cut.own.unsqueeze(1)).squeeze(1)
    return (weights * (cut.predicted != cut.own)).sum() / weights.sum()


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
    cut = Cut(z, edges, ("sigma_epsilon", sigma_epsilon), predictions)
    return cut.at_predicted(cut.outside()).mean()


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
    return Cut(z, edges, ("sigma_epsilon", sigma_epsilon)).outside().amin(dim=1).mean()


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
    cut = Cut(z, edges, predictions=predictions)
    return cut.at_predicted(cut.penalties()).mean()


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
    sigma = number("sigma_delta", sigma_delta)
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
    cut = Cut(z, edges, ("sigma_epsilon", sigma_epsilon), predictions)
    return cut.at_predicted(cut.expected_penalties()).mean()


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
    return Cut(z, edges, ("sigma_epsilon", sigma_epsilon)).expected_penalties().amin(dim=1).mean()
