"""Weights of classes in the loss, as the first training step passes them together with the labels of the batch."""

import inspect
import math
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bu_torch.callbacks.watch import holds_labels

_LOSSES = {
    one: inspect.signature(one)
    for one in (
        nn.functional.cross_entropy,
        nn.functional.nll_loss,
        nn.functional.binary_cross_entropy_with_logits,
    )
}
CANNOT_BE_TOLD = (
    "Boundary uncertainty counts all classes alike: the module has a loss that weighs classes, and in this training it"
    " cannot be seen if that is for these labels. To weigh classes in boundary uncertainty, too, pass `class_weight=`."
)
_ASK = "To weigh classes in boundary uncertainty, too, pass `class_weight=`."


class LossWatch(TorchFunctionMode):
    """Notes which weights of classes the losses of one training step take for the labels of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = False
        self._labels: Tensor | None = None
        self._of_labels: list[list[float] | None] = []  # weights, one entry a call with these labels
        self._has_others = False  # a loss for other targets, or for none that are known, has weights

    def begin(self, labels: Tensor | None) -> None:
        """Watch from now on; the labels (n,) are those of the batch, or None if they are not known."""
        self.end()
        self.is_on, self._labels = True, labels
        self.__enter__()

    def end(self) -> None:
        """Watch no longer."""
        if self.is_on:
            self.is_on = False
            self.__exit__(None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOSSES:
            given = _LOSSES[func].bind(*args, **(kwargs or {})).arguments
            weights = _weights(given, is_binary=func is nn.functional.binary_cross_entropy_with_logits)
            target = given["target"]
            if isinstance(target, Tensor) and holds_labels(target.detach().cpu(), self._labels):
                self._of_labels.append(weights)
            elif weights is not None:
                self._has_others = True
        return func(*args, **(kwargs or {}))

    def found(self, n_classes: int) -> tuple[list[float] | None, str]:
        """Weights of so many classes, or None if all count alike, and a line for the user if that cannot be told."""
        distinct = {tuple(one[:n_classes]) for one in self._of_labels if one is not None and len(one) >= n_classes}
        if len(distinct) == 1 and _are_positive(weights := list(next(iter(distinct)))):
            return (weights if len(set(weights)) > 1 else None), ""
        if distinct:
            why = f"{len(distinct)} losses of the labels weigh the classes differently" if len(distinct) > 1 else ""
            why = why or "a loss of the labels has a weight that is not positive"
            return None, f"Boundary uncertainty counts all classes alike: {why}. {_ASK}"
        if self._has_others and not self._of_labels:
            return None, (
                "Boundary uncertainty counts all classes alike: a loss weighs classes, but its targets in the first"
                f" step were not the labels of the batch. {_ASK}"
            )
        return None, ""


def _weights(given: dict[str, Any], *, is_binary: bool) -> list[float] | None:
    """Weights that a loss was called with; two classes that share one logit have that of the second."""
    weights = given.get("pos_weight" if is_binary else "weight")
    if not isinstance(weights, Tensor) or weights.is_meta or (is_binary and weights.numel() != 1):
        return None
    found: list[float] = weights.detach().double().flatten().tolist()
    return [1.0, *found] if is_binary else found


def weighted_losses(module: nn.Module, n_classes: int) -> list[list[float]]:
    """Weights of the losses in a module that have some for so many classes: what the first step probably shows."""
    found = []
    for part in module.modules():
        if isinstance(part, nn.CrossEntropyLoss | nn.NLLLoss | nn.BCEWithLogitsLoss):
            is_binary = isinstance(part, nn.BCEWithLogitsLoss)
            weights = _weights(part._buffers, is_binary=is_binary)
            is_told = weights is None or len(weights) != n_classes or len(set(weights)) == 1 or weights in found
            if weights is not None and not is_told and _are_positive(weights):
                found.append(weights)
    return found


def _are_positive(weights: list[float]) -> bool:
    return all(0 < weight < math.inf for weight in weights)
