"""Draws of perturbed samples, by the name of a perturbation or by a callable of the user."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bu_torch.functional.checks import check_choice
from bu_torch.internal.inputs import as_floats, is_finite
from bu_torch.neighbors.graph import distance_among
from bu_torch.perturbation.moves import (
    HIGH,
    LOW,
    NEAREST,
    between,
    check_perturbed,
    choose_neighbor,
    draw_begin,
    exchange_run,
    move_toward,
    perturb,
)
from bu_torch.space.features import standardize
from bu_torch.space.tokens import check_tokens


@dataclass(frozen=True)
class MixedMove:
    """A way to perturb numbers and indices at once: toward a neighbour, whose indices take the place of some.

    Attributes:
        n_numbers: Columns of a sample that hold numbers; the others hold indices.
        n_rows: Rows of equal length that the indices form, such as ids and their mask, exchanged in the same places.
    """

    n_numbers: int
    n_rows: int

    def between(self, inputs: Tensor, others: Tensor, part: Tensor, begin: Tensor) -> Tensor:
        """Move `inputs` (n, D) by `part` (n,) of the way to `others`; their runs of indices begin at `begin` (n,)."""
        numbers = move_toward(inputs[:, : self.n_numbers], others[:, : self.n_numbers], part)
        own, theirs = (one[:, self.n_numbers :].reshape(len(one), self.n_rows, -1) for one in (inputs, others))
        return torch.cat((numbers, exchange_run(own, theirs, part, begin).flatten(1)), dim=1)


PERTURBATIONS = ("random", "neighbors", "tokens")
Perturbation = (
    Literal["random", "neighbors", "tokens"] | Callable[[Tensor, Tensor, torch.Generator], Tensor] | MixedMove
)
PerturbationKind = Literal["random", "neighbors", "tokens", "mixed", "custom"]
_BATCH, _BATCH_ELEMENTS = 64, 2**24  # a multiple of so many rows, of about so many values


def check_perturbation(perturbation: Any) -> Perturbation | None:
    """Return `perturbation` if it is a name, a callable or None."""
    if not (perturbation is None or callable(perturbation) or isinstance(perturbation, str | MixedMove)):
        raise TypeError(
            "`perturbation` must be 'random', 'neighbors', 'tokens', a callable (inputs, nearest_distance,"
            f" generator) -> perturbed inputs, or None, got {type(perturbation).__name__}."
        )
    if isinstance(perturbation, str):
        check_choice("perturbation", perturbation, PERTURBATIONS)
    return perturbation


def kind_of(perturbation: Perturbation | None, inputs: Tensor) -> PerturbationKind:
    """Name of the perturbation of inputs of this shape."""
    if isinstance(perturbation, MixedMove):
        return "mixed"
    if callable(perturbation):
        return "custom"
    if perturbation is None:
        return "random" if inputs.ndim == 2 else "neighbors"
    return perturbation


class PerturbedInputs:
    """Inputs at which a network is read, (n_draws * N, ...), draw after draw, and perhaps the N samples after them.

    Moves toward a neighbour and exchanges of tokens are made batch by batch when they are read, to the same bits each
    time: only samples and random choices are held. Without choices the inputs themselves are held.
    """

    def __init__(
        self, samples: Tensor, choices: dict[str, Tensor] | None = None, mixed: MixedMove | None = None
    ) -> None:
        self._samples, self._choices, self._mixed = samples, choices or {}, mixed
        n_rows = len(self._choices.get("target", samples))
        self.shape = torch.Size((n_rows, *samples.shape[1:]))
        self.dtype = self.rows(0, 1).dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of a batch."""
        return self._samples.device

    def is_floating_point(self) -> bool:
        """Return True if a batch holds floating-point numbers."""
        return self.dtype.is_floating_point

    def rows(self, start: int, stop: int) -> Tensor:
        """Make the inputs from row `start` to row `stop`."""
        if not self._choices:
            return self._samples[start:stop]
        own, target, part, *begin = (choice[start:stop] for choice in self._choices.values())
        inputs, others = self._samples[own], self._samples[target]
        if self._mixed is not None:
            return self._mixed.between(inputs, others, part, *begin)
        if begin:
            return exchange_run(inputs, others, part, *begin)
        return move_toward(as_floats(inputs), as_floats(others), part)

    def split(self, n_rows: int) -> Iterator[Tensor]:
        """Make them batch by batch."""
        return (self.rows(start, start + n_rows) for start in range(0, len(self), n_rows))

    def blocks(self) -> Iterator[Tensor]:
        """Make them in batches of some 64 MB; all at once if they are held."""
        n_rows = _BATCH * max(1, _BATCH_ELEMENTS // self.shape[1:].numel() // _BATCH)
        return self.split(n_rows if self._choices else len(self))

    def __getitem__(self, rows: Tensor) -> "PerturbedInputs":
        """Some of the rows, with the samples that these need."""
        if not self._choices:
            return PerturbedInputs(self._samples[rows])
        choices = {name: choice[rows] for name, choice in self._choices.items()}
        both = torch.stack((choices["own"], choices["target"]))
        used, (choices["own"], choices["target"]) = torch.unique(both, return_inverse=True)
        return PerturbedInputs(self._samples[used], choices, self._mixed)

    def whole(self) -> Tensor:
        """Make all of them."""
        return self.rows(0, len(self))

    def to(self, device: torch.device | str) -> Self:
        """Move what is held to `device`, in place."""
        self._samples = self._samples.to(device)
        self._choices = {name: choice.to(device) for name, choice in self._choices.items()}
        return self


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
    ends_with_samples: bool = False,
) -> PerturbedInputs:
    """Draw independent perturbations of each input.

    `nearest_distance` (N,) is measured in the space of `neighbors` (N, M); `is_in_input_space` says that this is the
    space of inputs standardised by mean and scale (d,), in which random directions are drawn. With `ends_with_samples`
    the inputs themselves follow.
    """
    generator = torch.Generator().manual_seed(seed)
    kind = kind_of(perturbation, inputs)
    if kind == "tokens":
        check_tokens(inputs)
    if kind in ("neighbors", "tokens", "mixed"):
        draws = [_choose(inputs, neighbors, generator, has_run=kind != "neighbors") for _ in range(n_draws)]
        if ends_with_samples:
            unmoved = {name: torch.zeros_like(choice) for name, choice in draws[0].items()}
            own = draws[0]["own"]
            draws.append(unmoved | {"own": own, "target": own})
        choices = {name: torch.cat([draw[name] for draw in draws]) for name in draws[0]}
        return PerturbedInputs(inputs, choices, perturbation if isinstance(perturbation, MixedMove) else None)
    if kind == "random":
        flat = as_floats(inputs.flatten(1))
        points = standardize(flat, *standardization)
        distance = nearest_distance if is_in_input_space else distance_among(points, neighbors)
        scale = standardization[1].to(flat.dtype)
        # Adding the step, and not mapping the sum back, leaves a constant feature exactly as it was.
        steps = ((perturb(points, distance, generator) - points) * scale for _ in range(n_draws))
        held = [check_perturbed(flat + step, flat).reshape(inputs.shape) for step in steps]
    else:
        assert callable(perturbation)  # noqa: S101
        custom = (perturbation(inputs.clone(), nearest_distance, generator) for _ in range(n_draws))
        held = [_check_custom(perturbed, inputs) for perturbed in custom]
    return PerturbedInputs(torch.cat([*held, inputs.to(held[0])] if ends_with_samples else held))


def _choose(inputs: Tensor, neighbors: Tensor, generator: torch.Generator, *, has_run: bool) -> dict[str, Tensor]:
    """Choose for each sample a neighbour and a part of the way, of tokens also the beginning of the run."""
    target, share = choose_neighbor(inputs, neighbors, generator, NEAREST)
    choices = {"own": torch.arange(len(inputs), device=inputs.device), "target": target}
    floats = as_floats(inputs[:1])
    if not has_run:
        return choices | {"part": between(LOW, HIGH, share.to(floats))}
    return choices | {"part": between(LOW, HIGH, share).to(floats), "begin": draw_begin(inputs, generator)}


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
