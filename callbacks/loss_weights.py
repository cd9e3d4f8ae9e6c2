"""Weights of classes in the loss: read from the module before training, and from the first loss."""

import contextlib
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

_MOST_NODES = 1000  # of the graph, from the loss downwards: the node with weights is near its top
_NODES = {"NllLossBackward0": "_saved_weight", "BinaryCrossEntropyWithLogitsBackward0": "_saved_pos_weight"}


class LossWeights:
    """Weights of classes to measure with, which are those of the loss, if the user gives none."""

    found: list[float] | None = None  # of the module's loss, one for each class
    has_compared = False

    def find(self, module: nn.Module, n_classes: int) -> str:
        """Search the module; what was found, in words, or ""."""
        self.found = weights_of_losses(module, n_classes)
        if self.found is None:
            return ""
        return (
            f"Boundary uncertainty weighs the classes by {_listed(self.found)}, as the module's loss does. To change"
            f" it: `class_weight=[1.0] * {n_classes}` counts all samples alike."
        )

    def compare(self, loss: Tensor, n_classes: int) -> str:
        """Look at the first loss of training; how it differs from what was found, in words, or ""."""
        self.has_compared = True
        of_loss = weights_in_graph(loss, n_classes)
        measured = self.found or [1.0] * n_classes
        if of_loss is None or _common([of_loss, measured]) is not None:
            return ""
        return (
            f"The loss weighs the classes by {_listed(of_loss)}, boundary uncertainty by {_listed(measured)}. To change"
            " it: pass the weights of the loss as `class_weight=`."
        )


def weights_of_losses(module: nn.Module, n_classes: int) -> list[float] | None:
    """Weights of classes that the losses of a module have; None if they have none, disagree, or are not positive."""
    found: list[list[float]] = []
    for part in module.modules():
        weights = None
        if isinstance(part, nn.CrossEntropyLoss | nn.NLLLoss):
            weights = _by_class(part.weight, n_classes)
        elif isinstance(part, nn.BCEWithLogitsLoss):
            weights = _of_two(part.pos_weight, n_classes)
        if weights is not None and len(set(weights)) > 1:
            found.append(weights)
    return _common(found)


def weights_in_graph(loss: Tensor, n_classes: int) -> list[float] | None:
    """Weights of classes in the graph of a loss; all 1 if it has none, None for a compiled or hand-written loss."""
    nodes, n_seen = deque([loss.grad_fn]), 0
    found: list[list[float]] = []
    while nodes and n_seen < _MOST_NODES:
        node = nodes.popleft()
        n_seen += 1
        if node is None:
            continue
        if (name := node.name()) in _NODES:
            weights = _read(node, _NODES[name], n_classes)
            if weights is None:
                return None
            found.append(weights)
        else:
            nodes.extend(following for following, _ in node.next_functions)
    return _common(found)


def _common(found: list[list[float]]) -> list[float] | None:
    """The first weights, if all are the same, whatever their scale."""
    scaled = [torch.tensor(weights, dtype=torch.float64) / (sum(weights) / len(weights)) for weights in found]
    return found[0] if found and all(torch.allclose(scaled[0], other, rtol=1e-4) for other in scaled) else None


def _listed(weights: list[float]) -> str:
    """Weights in words, the first few of many."""
    return ", ".join(f"{weight:.4g}" for weight in weights[:10]) + (", ..." if len(weights) > 10 else "")


def _read(node: Any, name: str, n_classes: int) -> list[float] | None:
    """Weights that a node of the graph has saved; None if they are of other classes, or were changed since."""
    with contextlib.suppress(AttributeError, RuntimeError):
        weights = getattr(node, name)
        if weights is None:
            return [1.0] * n_classes
        return (_of_two if "pos" in name else _by_class)(weights, n_classes)
    return None


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
