"""Weights of classes that the loss of a module has."""

import torch
from torch import Tensor, nn


def weights_of_loss(module: nn.Module, n_classes: int) -> tuple[str, list[float]] | None:
    """Find the loss of a module, and the weights that it gives the classes: its name in the module, and one a class.

    None if no loss has weights for so many classes, if all of them are alike or one is not positive, or if there are
    several such losses: which of them is the main one, nobody can tell.
    """
    found = []
    for name, part in module.named_modules():
        weights = None
        if isinstance(part, nn.CrossEntropyLoss | nn.NLLLoss):
            weights = _by_class(part.weight, n_classes)
        elif isinstance(part, nn.BCEWithLogitsLoss):
            weights = _of_two(part.pos_weight, n_classes)
        if weights is not None:
            found.append((name, weights))
    if len(found) != 1 or len(set(found[0][1])) == 1:
        return None
    return found[0]


def listed(weights: list[float]) -> str:
    """Weights in words, the first few of many."""
    return ", ".join(f"{weight:.4g}" for weight in weights[:10]) + (", ..." if len(weights) > 10 else "")


def _of_two(pos_weight: Tensor | None, n_classes: int) -> list[float] | None:
    """Weights of two classes that share one logit."""
    if pos_weight is None or pos_weight.numel() != 1 or n_classes != 2:
        return None
    return _by_class(torch.cat((pos_weight.new_ones(1), pos_weight.detach().flatten())), n_classes)


def _by_class(weights: Tensor | None, n_classes: int) -> list[float] | None:
    if weights is None or weights.shape != (n_classes,) or weights.is_meta:
        return None
    weights = weights.detach().cpu().double()
    return weights.tolist() if bool(((weights > 0) & weights.isfinite()).all()) else None
