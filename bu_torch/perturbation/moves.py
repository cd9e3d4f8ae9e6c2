"""Moves between samples, and perturbations that are no name and no function: mixed moves, further readings."""

from dataclasses import dataclass

import torch
from torch import Tensor


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


def move_toward(inputs: Tensor, others: Tensor, part: Tensor) -> Tensor:
    """Move `inputs` (n, ...) by a fraction `part` (n,) of the way to `others`, in place."""
    return inputs.lerp_(others, part.view(-1, *[1] * (inputs.ndim - 1)))


@dataclass(frozen=True)
class MixedMove:
    """Perturbation of samples with numbers and indices: numbers move toward a neighbour's, indices are exchanged."""

    n_numbers: int  # columns of a sample that hold numbers; the others hold indices
    n_rows: int  # rows of equal length that the indices form, such as ids and their mask, exchanged in the same places

    def between(self, inputs: Tensor, others: Tensor, part: Tensor, begin: Tensor) -> Tensor:
        """Perturb `inputs` (n, D) by a fraction `part` (n,) toward `others`; runs of indices begin at `begin` (n,)."""
        numbers = move_toward(inputs[:, : self.n_numbers], others[:, : self.n_numbers], part)
        own, theirs = (one[:, self.n_numbers :].reshape(len(one), self.n_rows, -1) for one in (inputs, others))
        return torch.cat((numbers, exchange_run(own, theirs, part, begin).flatten(1)), dim=1)


@dataclass(frozen=True, eq=False)
class Readings:
    """Perturbation of samples that random augmentation changes: further readings of each."""

    inputs: Tensor  # (n_draws, N, ...), or more readings
