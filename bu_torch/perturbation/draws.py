"""Draws of perturbed samples, by the name of a perturbation or by a callable of the user."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from bu_torch.functional.checks import check_choice
from bu_torch.internal.inputs import is_finite
from bu_torch.neighbors.graph import first_positive
from bu_torch.perturbation.moves import check_perturbed, exchange_tokens, perturb, perturb_toward_neighbors
from bu_torch.space.features import standardize

PERTURBATIONS = ("random", "neighbors", "tokens")
Perturbation = Literal["random", "neighbors", "tokens"] | Callable[[Tensor, Tensor, torch.Generator], Tensor]
_BLOCK_ELEMENTS = 2**22  # float64 temporaries of 32 MB, whatever N


def check_perturbation(perturbation: Any) -> Perturbation | None:
    """Return `perturbation` if it is a name, a callable or None."""
    if not (perturbation is None or callable(perturbation) or isinstance(perturbation, str)):
        raise TypeError(
            "`perturbation` must be 'random', 'neighbors', 'tokens', a callable (inputs, nearest_distance,"
            f" generator) -> perturbed inputs, or None, got {type(perturbation).__name__}."
        )
    if isinstance(perturbation, str):
        check_choice("perturbation", perturbation, PERTURBATIONS)
    return perturbation


def kind_of(perturbation: Perturbation | None, inputs: Tensor) -> Literal["random", "neighbors", "tokens", "custom"]:
    """Name of the perturbation of inputs of this shape."""
    if callable(perturbation):
        return "custom"
    if perturbation is None:
        return "random" if inputs.ndim == 2 else "neighbors"
    return perturbation


def draw_perturbed(
    inputs: Tensor,
    perturbation: Perturbation | None,
    n_draws: int,
    seed: int,
    *,
    neighbors: Tensor,
    nearest_distance: Tensor,
    standardization: tuple[Tensor, Tensor],
    is_in_input_space: bool,
) -> Tensor:
    """Independent draws of the perturbed inputs, (n_draws, N, ...), for `BoundaryUncertainty`.

    `nearest_distance` (N,) is measured in the space of `neighbors` (N, M); `is_in_input_space` says that this is the
    space of inputs standardised by mean and scale (d,), in which random directions are drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    kind = kind_of(perturbation, inputs)
    if kind == "random":
        flat = inputs.flatten(1)
        flat = flat if flat.is_floating_point() else flat.float()
        points = standardize(flat, *standardization)
        distance = nearest_distance if is_in_input_space else _distance_among(points, neighbors)
    draws = []
    for _ in range(n_draws):
        if kind == "random":
            # Adding the step, and not mapping the sum back, leaves a constant feature exactly as it was.
            step = (perturb(points, distance, generator) - points) * standardization[1].to(flat.dtype)
            draws.append(check_perturbed(flat + step, flat).reshape(inputs.shape))
        elif callable(perturbation):
            draws.append(_check_custom(perturbation(inputs.clone(), nearest_distance, generator), inputs))
        else:
            move = exchange_tokens if kind == "tokens" else perturb_toward_neighbors
            draws.append(move(inputs, neighbors, generator))
    return torch.stack(draws)


def _distance_among(points: Tensor, neighbors: Tensor) -> Tensor:
    """Distance of each point to the nearest of its neighbours at a positive distance, (N,)."""
    rows = max(1, _BLOCK_ELEMENTS // (neighbors.shape[1] * points.shape[1]))
    blocks = (points[members].double() for members in neighbors.split(rows))
    return first_positive(points, torch.cat([(block[:, 1:] - block[:, :1]).norm(dim=2) for block in blocks]))


def _check_custom(perturbed: Any, inputs: Tensor) -> Tensor:
    """Return the result of a user's perturbation, of the dtype and device of the inputs."""
    if not isinstance(perturbed, Tensor) or perturbed.shape != inputs.shape:
        got = tuple(perturbed.shape) if isinstance(perturbed, Tensor) else type(perturbed).__name__
        raise ValueError(
            f"`perturbation` must give a tensor of the shape of the inputs, {tuple(inputs.shape)}, got {got}."
        )
    if not is_finite(perturbed):
        raise ValueError("`perturbation` must give finite inputs, got NaN or infinity.")
    return perturbed.detach().to(inputs)
