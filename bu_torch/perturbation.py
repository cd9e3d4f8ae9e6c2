"""Perturbed samples: each training sample, moved by the distance to its nearest neighbour."""

from typing import Any

import torch
from torch import Tensor

from bu_torch._inputs import as_flat_features, as_tensor


def perturb(features: Any, nearest_distance: Any, generator: torch.Generator | None = None) -> Tensor:
    """Move each sample by the distance to its nearest neighbour, in a random direction.

    Ha et al. (2021), Algorithm 1: x + d(x) r. The paper leaves the law of r open. Here r is uniform on the unit sphere
    of the features that vary, so the sample moves by exactly d(x) in any dimension and a feature that is constant over
    all samples (a blank pixel) stays as it is.

    Args:
        features: Samples, shape (N, d), tensor or array of numbers, finite, any device.
        nearest_distance: d(x) of each sample (`NeighborGraph.nearest_distance`), shape (N,), >= 0.
        generator: Source of the directions. None stands for a fresh CPU generator with seed 0: the global generator is
            never used. Directions are drawn in float32 on the generator's device, so one seed gives the same
            directions for float32 and float64 and on every device.

    Returns:
        The perturbed samples, shape (N, d), on the device of the features; float64 for float64 features and integers
        beyond 2^24, float32 for all others.

    Raises:
        ValueError: If shapes do not fit, a distance is negative or not finite, or a perturbed sample would leave the
            range of its dtype.
        TypeError: If an argument is not made of real numbers.

    Example:
        >>> features = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
        >>> (perturb(features, torch.tensor([1.0, 2.0, 3.0])) - features).norm(dim=1).round(decimals=4)
        tensor([1., 2., 3.])
    """
    features = as_flat_features(features)
    distance = as_tensor(nearest_distance, "nearest_distance").to(features.device)
    if distance.is_complex():
        raise TypeError(f"`nearest_distance` must be real, got {distance.dtype}.")
    distance = distance.detach().to(features.dtype)
    if distance.shape != features.shape[:1]:
        raise ValueError(f"`nearest_distance` must have shape ({features.shape[0]},), got {tuple(distance.shape)}.")
    if not bool(((distance >= 0) & distance.isfinite()).all()):
        raise ValueError(f"`nearest_distance` must be finite and >= 0, got a minimum of {float(distance.min())}.")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    direction = torch.randn(features.shape, generator=generator, dtype=torch.float32, device=generator.device)
    direction = direction.to(features.device, features.dtype)
    direction *= features.amax(dim=0) != features.amin(dim=0)
    length = direction.norm(dim=1, keepdim=True)
    direction /= torch.where(length > 0, length, torch.ones_like(length))
    return check_perturbed(features + distance.unsqueeze(1) * direction, features)


def check_perturbed(perturbed: Tensor, features: Tensor) -> Tensor:
    """Return perturbed samples unless one has left the range of its dtype."""
    if not bool(perturbed.isfinite().all()):
        raise ValueError(
            f"`features` must be small enough to be perturbed within the range of {features.dtype}, got a magnitude of"
            f" {float(features.abs().max()):.3g}: scale them down."
        )
    return perturbed
