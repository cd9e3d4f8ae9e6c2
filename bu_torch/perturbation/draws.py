"""Perturbed samples: moved a little at random, moved toward a near sample, mixed with it, or read again."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from bu_torch.functional.checks import check_choice, check_tensor
from bu_torch.internal.inputs import as_features, as_flat_features, as_floats, as_tensor, is_finite
from bu_torch.internal.network import Packing
from bu_torch.neighbors.graph import distance_among
from bu_torch.space.extractors import as_tokens, is_pooled
from bu_torch.space.features import standardization, standardize

_NEAREST = 5  # neighbours to choose from
_LOW, _HIGH = 0.3, 0.7  # range of the fraction of the way to the chosen one

Law = Literal["sphere", "uniform"]


def perturb(
    features: Any, nearest_distance: Any, generator: torch.Generator | None = None, *, law: Law = "sphere"
) -> Tensor:
    """Move each sample by the distance to its nearest neighbour, in a random direction.

    Ha et al. (2021), Algorithm 1: x + d(x) r. A constant feature does not change.

    Args:
        features: Samples, shape (N, d), tensor or array of numbers, finite, any device.
        nearest_distance: d(x) of each sample (`NeighborGraph.nearest_distance`), shape (N,), >= 0.
        generator: Source of the directions, the same for all dtypes and devices; None for a CPU generator of seed 0.
        law: With `"sphere"`, r is uniform on the unit sphere of the features that vary: the sample moves by exactly
            d(x). With `"uniform"`, each component of r is uniform in [-1, 1], one reading of the paper's "uniform
            across the features": the length of a move grows with the number of features.

    Returns:
        The perturbed samples (N, d), float64 for float64 features and integers beyond 2^24, float32 for all others.

    Raises:
        TypeError, ValueError: If an argument has the wrong type, shape or values, or a perturbed sample would leave the
            range of its dtype.

    Example:
        >>> features = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
        >>> (perturb(features, torch.tensor([1.0, 2.0, 3.0])) - features).norm(dim=1).round(decimals=4)
        tensor([1., 2., 3.])
    """
    features = as_flat_features(features)
    distance = as_tensor(nearest_distance, "nearest_distance").detach().to(features.device)
    is_right = not distance.is_complex() and distance.shape == features.shape[:1]
    if not is_right or not bool(((distance >= 0) & distance.isfinite()).all()):
        raise ValueError(f"`nearest_distance` must hold {len(features)} finite numbers >= 0, got {distance}.")
    check_choice("law", law, get_args(Law))
    generator = _generator_or_default(generator)
    draw = torch.randn if law == "sphere" else torch.rand
    direction = draw(features.shape, generator=generator, dtype=torch.float32, device=generator.device)
    direction = direction.to(features.device, features.dtype)
    if law == "uniform":
        direction = 2 * direction - 1
    direction *= features.amax(dim=0) != features.amin(dim=0)
    if law == "sphere":
        direction = torch.nn.functional.normalize(direction, dim=1)
    return check_perturbed(features + distance.to(features.dtype).unsqueeze(1) * direction, features)


def perturb_toward_neighbors(inputs: Any, neighbors: Any, generator: torch.Generator | None = None) -> Tensor:
    """Move each sample a part of the way, 0.3 to 0.7, to one of its five nearest samples, whatever their classes.

    For images and signals, whose values depend on each other: a random direction would be white noise, unlike any
    sample, but a mixture of two near samples stays near the data. It is our own replacement for Algorithm 1 of Ha et
    al. (2021), who leave the operation open for such inputs (section 4.2.2).

    Takes finite samples (N, ...); clusters (N, M) with M >= 2, the sample itself first (`NeighborGraph.neighbors`); and
    the source of the choices, None for a CPU generator of seed 0. Gives perturbed samples (N, ...), float64 for float64
    inputs and integers beyond 2^24, float32 for all others. Raises TypeError or ValueError for other arguments.
    """
    inputs = as_features(inputs, "inputs")
    return _toward_neighbors(mixture, inputs, neighbors, generator)[:]


def exchange_tokens(tokens: Any, neighbors: Any, generator: torch.Generator | None = None) -> Tensor:
    """Replace some tokens of each text by those of one of its five nearest texts, whatever their classes.

    A text takes a run of its neighbour's tokens, from the same places, so that phrases stay whole. Of the places where
    the texts differ, a share of 0.3 to 0.7 is exchanged. The run may begin anywhere; at the end it continues at the
    beginning. This crossover of genetic algorithms is our own counterpart of `perturb_toward_neighbors`.

    Takes token ids (N, L) or (N, ..., L), integers, and clusters and generator as `perturb_toward_neighbors` does. Rows
    beside the ids (N, 2, L), such as a mask, are exchanged in the same places. Gives texts of the shape and dtype of
    `tokens`. Raises TypeError or ValueError for other arguments.
    """
    tokens = as_tokens(tokens)
    return _toward_neighbors(exchange_run, tokens, neighbors, generator)[:]


def keeps_integers(perturbation: Any) -> bool:
    """Whether integer samples stay integers under this perturbation."""
    return perturbation not in (None, "random", "neighbors", "uniform")


def check_perturbed(perturbed: Tensor, features: Tensor) -> Tensor:
    """Raise if a perturbed sample has left the range of its dtype."""
    if not is_finite(perturbed):
        raise ValueError(
            f"`features` must be small enough to be perturbed within the range of {features.dtype}, got a magnitude of"
            f" {float(features.abs().max()):.3g}: scale them down."
        )
    return perturbed


def mixture(inputs: Tensor, others: Tensor, part: Tensor) -> Tensor:
    """Inputs (n, ...) moved by a fraction `part` (n,) of the way to `others`, floating point."""
    return as_floats(inputs).lerp(as_floats(others), part.view(-1, *[1] * (inputs.ndim - 1)))


def exchange_run(tokens: Tensor, others: Tensor, share: Tensor, begin: Tensor) -> Tensor:
    """Replace a `share` (n,) of the places where `tokens` and `others` (n, ..., L) differ by those of `others`.

    The run begins at a fraction `begin` (n,), in [0, 1), of these places.
    """
    length = tokens.shape[-1]
    is_other = (tokens != others).view(len(tokens), -1, length).any(dim=1)
    n_others = is_other.sum(dim=1, keepdim=True)
    n_exchanged = (share.unsqueeze(1) * n_others).round()
    place = (is_other.cumsum(dim=1) - 1 - (begin.unsqueeze(1) * n_others).long()) % n_others.clamp(min=1)
    is_exchanged = is_other & (place < n_exchanged)
    return torch.where(is_exchanged.view(len(tokens), *[1] * (tokens.ndim - 2), length), others, tokens)


@dataclass(frozen=True)
class MixedMove:
    """Perturbation of samples with numbers and indices: numbers move toward a neighbour's, indices are exchanged."""

    packing: Packing  # rows of its indices are exchanged in the same places

    def between(self, inputs: Tensor, others: Tensor, part: Tensor, begin: Tensor) -> Tensor:
        """Perturb `inputs` (n, D) by a fraction `part` (n,) toward `others`; runs of indices begin at `begin` (n,)."""
        (numbers, indices), (other_numbers, other_indices) = map(self.packing.numbers_and_indices, (inputs, others))
        exchanged = exchange_run(indices, other_indices, part, begin)
        return torch.cat((mixture(numbers, other_numbers, part), exchanged.flatten(1)), dim=1)


@dataclass(frozen=True, eq=False)
class Readings:
    """Perturbation of samples that random augmentation changes: further readings of each."""

    inputs: Tensor  # (n_draws, N, ...), or more readings


PerturbationName = Literal["random", "neighbors", "tokens", "reading", "uniform"]  # the last for the papers alone
Perturbation = PerturbationName | Callable[[Tensor, Tensor, torch.Generator], Tensor] | MixedMove | Readings


def kind_of(perturbation: Perturbation | None, inputs: Tensor) -> str:
    """Name of the perturbation of inputs of this shape, or "mixed" or "custom"."""
    if isinstance(perturbation, MixedMove):
        return "mixed"
    if isinstance(perturbation, Readings):
        return "reading"
    if callable(perturbation):
        return "custom"
    if perturbation is None:
        return "random" if inputs.ndim == 2 else "neighbors"
    return perturbation


def are_rows(inputs: Tensor) -> bool:
    """True if samples are rows of a table, of numbers and perhaps categories: no images, and no token ids."""
    return inputs.ndim == 2 and inputs.is_floating_point()


class PerturbedInputs:
    """Inputs for the network, (n_draws * N, ...), draw after draw, made batch by batch from the samples.

    They are read like a tensor; the N unmoved samples may follow. The choices are those of `_toward_neighbors`.
    """

    def __init__(self, samples: Tensor, targets: Tensor, how: tuple[Tensor, ...], move: Callable[..., Tensor]) -> None:
        self.samples, self.how, self.move = samples, how, move
        self.targets = targets  # the sample that each input has moved toward
        self.shape = torch.Size((len(targets), *samples.shape[1:]))
        self.dtype = self[:1].dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def device(self) -> torch.device:
        return self.samples.device

    def __getitem__(self, rows: slice) -> Tensor:
        targets, start = self.targets[rows], rows.start or 0
        own = torch.arange(start, start + len(targets), device=self.device) % len(self.samples)
        return self.move(self.samples[own], self.samples[targets], *(choice[rows] for choice in self.how))

    def split(self, n_rows: int) -> Iterator[Tensor]:
        """Yield the inputs in batches of `n_rows`."""
        return (self[start : start + n_rows] for start in range(0, len(self), n_rows))

    def to(self, device: torch.device | str) -> Self:
        """The same on `device`."""
        moved = copy.copy(self)
        moved.samples, moved.targets = self.samples.to(device), self.targets.to(device)
        moved.how = tuple(choice.to(device) for choice in self.how)
        return moved


def followed_by(perturbed: Tensor | PerturbedInputs, samples: Tensor) -> Tensor | PerturbedInputs:
    """Perturbed inputs, then the N samples unmoved."""
    if isinstance(perturbed, Tensor):
        return torch.cat((perturbed, samples.to(perturbed)))
    own = torch.arange(len(samples), device=samples.device)  # a move toward itself, however far
    how = (torch.cat((choice, choice[: len(own)])) for choice in perturbed.how)
    return PerturbedInputs(perturbed.samples, torch.cat((perturbed.targets, own)), tuple(how), perturbed.move)


def draw_perturbed(
    inputs: Tensor,
    perturbation: Perturbation | None,
    n_draws: int,
    seed: int,
    neighbors: Tensor,
    nearest_distance: Tensor,
    space: str,
) -> Tensor | PerturbedInputs:
    """Draw independent perturbations of each input, by neighbours (N, M) and nearest distances (N,) in a space.

    Random directions are drawn in the space of the standardised inputs.
    """
    generator, kind = torch.Generator().manual_seed(seed), kind_of(perturbation, inputs)
    if isinstance(perturbation, Readings):
        return perturbation.inputs[:n_draws].to(inputs).flatten(0, 1)
    if callable(perturbation):
        custom = (perturbation(inputs.clone(), nearest_distance, generator) for _ in range(n_draws))
        return torch.cat([_check_custom(perturbed, inputs) for perturbed in custom])
    if kind not in ("random", "uniform"):
        move: Callable[..., Tensor] = exchange_run if kind == "tokens" else mixture
        if isinstance(perturbation, MixedMove):
            move = perturbation.between
        return _toward_neighbors(move, inputs, neighbors, generator, n_draws)
    law: Law = "sphere" if kind == "random" else "uniform"
    flat = as_floats(inputs.flatten(1))
    mean, scale = standardization(inputs.flatten(1))
    points = standardize(flat, mean, scale)
    # A metric of trace d keeps the mean length of a step in a random direction.
    is_own_space = space in ("inputs", "metric") if are_rows(inputs) else space == "inputs" and not is_pooled(inputs)
    distance = nearest_distance if is_own_space else distance_among(points, neighbors)
    # The step is added to the raw input, so a constant feature does not change by a bit.
    steps = (perturb(points, distance, generator, law=law) - points for _ in range(n_draws))
    return torch.cat([check_perturbed(flat + step * scale.to(flat), flat).reshape(inputs.shape) for step in steps])


def _generator_or_default(generator: Any) -> torch.Generator:
    if generator is None:
        return torch.Generator().manual_seed(0)
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"`generator` must be a `torch.Generator` or None, got {type(generator).__name__}.")
    return generator


def _toward_neighbors(
    move: Callable[..., Tensor], inputs: Tensor, neighbors: Any, generator: torch.Generator | None, n_draws: int = 1
) -> PerturbedInputs:
    """Choose for each sample, in each draw, a neighbour, a part of the way, and where a run begins if there is one."""
    neighbors = as_tensor(neighbors, "neighbors").to(inputs.device)
    check_tensor("neighbors", neighbors, (len(inputs), "M"), inputs.device, below=len(inputs))
    if neighbors.shape[1] < 2:
        raise ValueError(f"`neighbors` must have shape (N, M) with M >= 2, got {tuple(neighbors.shape)}.")
    generator = _generator_or_default(generator)
    options: dict[str, Any] = {"generator": generator, "device": generator.device}
    own, draws = torch.arange(len(inputs), device=inputs.device), []
    for _ in range(n_draws):
        places = 1 + torch.randint(min(_NEAREST, neighbors.shape[1] - 1), (len(inputs),), **options).to(inputs.device)
        part = _LOW + (_HIGH - _LOW) * torch.rand(len(inputs), **options).to(as_floats(inputs[:1]))
        begin = [] if move is mixture else [torch.rand(len(inputs), **options).to(inputs.device)]
        draws.append((neighbors[own, places].long(), part, *begin))
    targets, *how = map(torch.cat, zip(*draws, strict=True))
    return PerturbedInputs(inputs, targets, tuple(how), move)


def _check_custom(perturbed: Any, inputs: Tensor) -> Tensor:
    """The result of a user's perturbation, with the dtype and device of the inputs."""
    if not isinstance(perturbed, Tensor) or perturbed.shape != inputs.shape:
        got = tuple(perturbed.shape) if isinstance(perturbed, Tensor) else type(perturbed).__name__
        raise ValueError(f"`perturbation` must give a tensor of the shape {tuple(inputs.shape)}, got {got}.")
    if not is_finite(perturbed):
        raise ValueError("`perturbation` must give finite inputs, got NaN or infinity.")
    return perturbed.detach().to(inputs)
