"""Weights of classes in the loss, as the first training steps pass them together with the labels of the batch."""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bu_torch.callbacks.watch import holds_labels, is_transformed

_LOSSES = {
    one: inspect.signature(one)
    for one in (nn.functional.cross_entropy, nn.functional.nll_loss, nn.functional.binary_cross_entropy_with_logits)
}
CANNOT_BE_TOLD = (
    "bu-torch counts all classes alike: the module has a loss that weighs classes, and in this training it"
    " cannot be seen if that is for these labels. To weigh classes in boundary uncertainty, too, pass `class_weight=`."
)
_ENOUGH = 32  # labels
_ASK = "To weigh classes in boundary uncertainty, too, pass `class_weight=`."


class _Call(NamedTuple):
    """A loss of a training step."""

    weights: list[float] | None  # of classes
    is_of_labels: bool  # its targets are the labels of the batch


class LossWatch:
    """Notes which weights of classes the losses of the first training steps take for the labels of their batches."""

    def __init__(self) -> None:
        self._labels: Tensor | None = None
        self._n_labels = 0
        self._strategy: Any = None  # while a step is watched
        self._step: list[_Call] = []  # losses of the running step, in order
        self._calls: list[_Call] | None = None  # of all steps: a loss is of the labels if it was in each

    @property
    def is_settled(self) -> bool:
        """True if so many labels were seen that other targets do not equal them by chance."""
        return self._n_labels >= _ENOUGH

    def begin(self, strategy: Any, labels: Tensor | None) -> None:
        """Watch the training step of a trainer's strategy; the labels are those of the batch, None if unknown."""
        self.end()
        self._strategy, self._labels = strategy, labels
        self._n_labels += _ENOUGH if labels is None else len(labels)
        strategy.training_step = _Watched(strategy.training_step, vars(strategy).get("training_step"), self._note)

    def end(self) -> None:
        """Watch no longer."""
        if self._strategy is None:
            return
        own = vars(self._strategy).pop("training_step", None)
        while isinstance(own, _Watched):  # also for other callbacks, whose step has ended too
            own = own.before
        if own is not None:
            self._strategy.training_step = own
        before, self._strategy = self._calls, None
        self._calls, self._step = self._step, []
        if before and not self._calls:  # the step was skipped
            self._calls = before
        elif before is not None:
            pairs = zip(before, self._calls, strict=False)
            self._calls = [one._replace(is_of_labels=one.is_of_labels and two.is_of_labels) for one, two in pairs]

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = _LOSSES[func].bind(*args, **kwargs).arguments
        weights = _weights(given, is_binary=func is nn.functional.binary_cross_entropy_with_logits)
        target = given["target"]
        is_of_labels = isinstance(target, Tensor) and holds_labels(target.detach().cpu(), self._labels)
        if self._labels is None or target.numel() != self._labels.numel():
            weights = None if func is nn.functional.binary_cross_entropy_with_logits else weights
        self._step.append(_Call(weights, is_of_labels))

    def found(self, n_classes: int, present: set[int] | None = None) -> tuple[list[float] | None, str]:
        """Weights of so many classes, or None if all count alike, and a line for the user if that cannot be told.

        Those of classes that are not among the `present` ones are 1.
        """
        calls = self._calls or []
        alike, of_labels = (1.0,) * n_classes, [call.weights for call in calls if call.is_of_labels]
        distinct = {alike if one is None or len(one) < n_classes else tuple(one[:n_classes]) for one in of_labels}
        absent = set() if present is None else {*range(n_classes)} - present
        weights = [1.0 if place in absent else one for place, one in enumerate(next(iter(distinct), alike))]
        if len(distinct) == 1 and _are_positive(weights):
            return (weights if len(set(weights)) > 1 else None), ""
        if distinct:
            why = f"{len(distinct)} losses of the labels weigh the classes differently" if len(distinct) > 1 else ""
            why = why or "a loss of the labels has a weight that is not positive"
            return None, f"bu-torch counts all classes alike: {why}. {_ASK}"
        if all(call.weights is None for call in calls):
            return None, ""
        if self._labels is None:
            return None, CANNOT_BE_TOLD
        return None, (
            "bu-torch counts all classes alike: a loss weighs classes, but its targets in the first"
            f" step were not the labels of the batch. {_ASK}"
        )


class _Watched(TorchFunctionMode):
    """A training step whose losses are noted, unless a graph is being compiled or training cannot follow them."""

    def __init__(self, step: Callable[..., Any], before: Any, note: Callable[..., None]) -> None:
        super().__init__()
        self.step, self.note = step, note
        self.before = before  # attribute of the strategy itself that this one replaces; None if the step is its class's

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self:
            return self.step(*args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _LOSSES and result.requires_grad and not (torch.compiler.is_compiling() or is_transformed()):
            self.note(func, args, kwargs or {})
        return result


def _weights(given: dict[str, Any], *, is_binary: bool) -> list[float] | None:
    """Weights that a loss was called with; two classes that share one logit have that of the second."""
    weights = given.get("pos_weight" if is_binary else "weight")
    if not isinstance(weights, Tensor) or weights.is_meta or (is_binary and weights.numel() != 1):
        return None
    found: list[float] = weights.detach().double().flatten().tolist()
    return [1.0, *found] if is_binary else found


def describe_weights(weights: list[float]) -> str:
    """Log line on the weights of the loss, which the callbacks take."""
    first, n_classes = ", ".join(f"{weight:.4g}" for weight in weights[:10]), len(weights)
    return (
        f"bu-torch weighs the classes by {first}{', ...' * (n_classes > 10)}, as the loss of these labels"
        f" does. To change it: `class_weight=[1.0] * {n_classes}` counts all samples alike."
    )


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
