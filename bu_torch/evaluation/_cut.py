"""The line cut into classes, and inputs of the estimators for a continuum."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bu_torch.internal.inputs import as_labels

_FAR = 40.0  # standard deviations beyond which float64 holds no normal density


class Cut:
    """Measurements and the classes that edges cut their line into.

    Args:
        z: Measurements, shape (n,).
        edges: Inner class boundaries, shape (C - 1,).
        sigma: Name and value of a standard deviation, if the quantity needs one.
        predictions: Predicted classes, shape (n,), if the quantity needs them.

    Attributes:
        gaps: Distances b_j - z to all edges, the infinite ends included, (n, C + 1).
        own: The class of each z, (n,).
        sigma: The standard deviation.
        predicted: The predicted classes, (n,); those of z without any.
    """

    def __init__(self, z: Any, edges: Any, sigma: tuple[str, Any] = ("sigma", 0), predictions: Any = None) -> None:
        measured = as_tensor(z, "z")
        z = measurements(measured)
        edges = as_tensor(edges, "edges").detach().to(z.device)
        if edges.ndim != 1 or len(edges) == 0:
            raise ValueError(f"`edges` must have shape (C - 1,) with C >= 2 classes, got {tuple(edges.shape)}.")
        if measured.is_floating_point():
            edges = edges.to(measured.dtype)
        edges = edges.double()
        if not bool((edges[1:] > edges[:-1]).all()) or bool(edges.isnan().any()):
            raise ValueError(f"`edges` must increase in the precision of `z` and hold no NaN, got {edges.tolist()}.")
        ends = torch.nn.functional.pad(edges, (1, 1), value=math.inf)
        ends[0] = -math.inf
        self.gaps, self.own = ends - z.unsqueeze(1), torch.bucketize(z, edges, right=True)
        self.sigma = number(*sigma)
        self.predicted = self.own if predictions is None else self._checked(predictions)

    def _checked(self, predictions: Any) -> Tensor:
        predictions = as_labels(predictions, len(self.gaps), "predictions").to(self.gaps.device)
        n_classes = self.gaps.shape[1] - 1
        if int(predictions.max()) >= n_classes:
            raise ValueError(f"`predictions` must hold classes in [0, {n_classes}), got {int(predictions.max())}.")
        return predictions

    def at_predicted(self, values: Tensor) -> Tensor:
        """Values (n, C) at each row's predicted class, (n,)."""
        return values.gather(1, self.predicted.unsqueeze(1)).squeeze(1)

    def outside(self) -> Tensor:
        """Probability to fall outside of each class, (n, C), as the sum of two tails: small ones keep their digits."""
        t = self._standardized()
        return _below(t[:, :-1]) + _below(-t[:, 1:])

    def inside(self) -> Tensor:
        """Probability to fall into each class, (n, C), as a difference of tails of the same side."""
        t = self._standardized()
        low, high = t[:, :-1], t[:, 1:]
        above = low > 0  # such an interval is mirrored
        low, high = torch.where(above, -high, low), torch.where(above, -low, high)
        middle = (torch.special.erf(high / math.sqrt(2)) - torch.special.erf(low / math.sqrt(2))) / 2
        return torch.where(high > 0, middle, _below(high) - _below(low))

    def penalties(self) -> Tensor:
        """Eq. 8 for each class, (n, C)."""
        return self.gaps[:, :-1].clamp(min=0) ** 2 + self.gaps[:, 1:].clamp(max=0) ** 2

    def expected_penalties(self) -> Tensor:
        """Eq. 31 for each class, (n, C)."""
        return _expected_square(self.gaps[:, :-1], self.sigma) + _expected_square(-self.gaps[:, 1:], self.sigma)

    def _standardized(self) -> Tensor:
        """Distances to the edges in standard deviations; without any error an edge at z counts as below it."""
        if self.sigma > 0:
            return self.gaps / self.sigma
        return torch.where(self.gaps > 0, math.inf, -math.inf).to(self.gaps)


def measurements(z: Any, name: str = "z") -> Tensor:
    """`z` as finite float64, (n,)."""
    z = as_tensor(z, name).detach().double()
    if z.ndim != 1 or len(z) == 0:
        raise ValueError(f"`{name}` must have shape (n,) with n >= 1, got {tuple(z.shape)}.")
    n_bad = int((~z.isfinite()).sum())
    if n_bad:
        raise ValueError(f"`{name}` must be finite, got NaN or infinity in {n_bad} of {len(z)} samples.")
    return z


def as_tensor(value: Any, name: str) -> Tensor:
    """`value` as a tensor; plain numbers keep the float64 that Python gave them."""
    try:
        if not isinstance(value, Tensor):
            value = torch.tensor(np.array(value, dtype=getattr(value, "dtype", np.float64)))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be a tensor or an array of numbers, got {type(value).__name__}.") from error
    if value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"`{name}` must be real, got {value.dtype}.")
    return value


def number(name: str, value: Any, high: float = math.inf) -> float:
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


def _below(t: Tensor) -> Tensor:
    """Phi(t), to the last digits in both tails, where `torch.special.ndtr` gives 0 below -8.3."""
    return torch.special.erfc(-t / math.sqrt(2)) / 2


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
