"""Weights of classes in the loss, as the graphs of the first training steps hold them beside the labels."""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bu_torch.callbacks.watch import holds_labels

_ENOUGH_LABELS, _ENOUGH_STEPS = 32, 2  # so other targets do not equal the labels by chance, nor weights agree
_LABELS_OF_ROWS = 1000  # so each class is among them, where a factor of each sample shows the weight of its class
_MOST_NODES = 1000  # a graph may be large, and the nodes of the loss come first
_SAME = 1e-3  # relative
_COUNTS_ALIKE = "bu-torch counts all classes alike"
_TO_WEIGH = "To weigh classes in boundary uncertainty, too, pass `class_weight=`."
_IF_WEIGHED = "If the loss weighs classes, pass `class_weight=`."
_Weights = dict[int, float]


class _Loss(NamedTuple):
    """A loss of a training step."""

    is_of_labels: bool  # its targets are the labels of the batch
    is_weighted: bool
    is_by_row: bool  # it has factors of the samples, which show the classes of the batch alone
    weights: _Weights | None  # by the classes that it shows; None if it weighs samples otherwise than by class


class LossWatch:
    """Notes which weights of classes the losses of the first training steps give the labels of their batches.

    They are read in the graph that leads to the loss, before its backward pass. So only what is trained by counts,
    however it was called, and training is not touched.
    """

    def __init__(self) -> None:
        self._labels: Tensor | None = None
        self._n_labels = self._n_steps = 0  # only steps with a loss count
        self._step: list[_Loss] | None = None
        self._steps: list[list[_Loss]] = []  # the steps whose loss shows targets

    @property
    def has_seen_enough(self) -> bool:
        """True if so much was seen that it does not agree by chance."""
        is_by_row = any(loss.is_by_row for step in self._steps for loss in step)
        return self._n_labels >= (_LABELS_OF_ROWS if is_by_row else _ENOUGH_LABELS) and self._n_steps >= _ENOUGH_STEPS

    def begin(self, labels: Tensor | None) -> None:
        """Begin a step; the labels are those of the batch, on the CPU, None if unknown."""
        self._labels = labels

    def see(self, loss: Tensor) -> None:
        """Note the losses that a step's loss was made of."""
        self._step = [] if self._step is None else self._step
        with suppress(Exception):  # no graph of the user's may end a training
            self._step += _losses_of(loss, self._labels)

    def end(self) -> None:
        """End the step, if one has begun."""
        if self._step is not None:
            self._n_steps += 1
            self._n_labels += _ENOUGH_LABELS if self._labels is None else len(self._labels)
            self._steps += [self._step] if self._step else []
        self._step, self._labels = None, None

    def found(self, n_classes: int, present: set[int] | None = None) -> tuple[list[float] | None, str]:
        """Weights of so many classes, or None if all count alike, and a line for the user if that cannot be told.

        Those of classes that are not among the `present` ones are 1.
        """
        present = {*range(n_classes)} if present is None else present
        if not self._steps:
            return None, f"{_COUNTS_ALIKE}: no loss with targets was seen. {_IF_WEIGHED}"
        why, agreeing = "", self._agreeing()
        is_weighted = any(loss.is_weighted for step in self._steps for loss in step)
        if len(agreeing) > 1:
            why = f"{len(agreeing)} losses of the labels weigh the classes differently"
        elif not agreeing:
            if is_weighted:
                why = (
                    "a loss has weights, but they differ between steps, or its targets are not the labels of the batch"
                )
        elif (weights := agreeing[0]) is None:
            why = "a loss weighs the labels, but not by their classes alone"
        elif is_weighted and len({weights.get(place) for place in present}) > 1:
            if present <= weights.keys() and all(0 < weights[place] < math.inf for place in present):
                return [weights[place] if place in present else 1.0 for place in range(n_classes)], ""
            why = (
                "a loss of the labels ignores a class, or has a weight that is not positive, or shows none for a class."
                " Samples to ignore have the label -100"
            )
        return None, f"{_COUNTS_ALIKE}: {why}. {_TO_WEIGH}" if why else ""

    def _agreeing(self) -> list[_Weights | None]:
        """Weights of the losses of the labels that every step has, each once."""
        first, *later = [[loss.weights for loss in step if loss.is_of_labels] for step in self._steps]
        found: list[_Weights | None] = []
        for weights in first:
            for others in later:
                same = [other for other in others if _agree(weights, other)]
                if not same:
                    break
                weights = None if weights is None else {**(same[0] or {}), **weights}
            else:
                if not any(_agree(weights, one) for one in found):
                    found.append(weights)
        return found


def _agree(one: _Weights | None, two: _Weights | None) -> bool:
    """Return True if the weights of the classes that both show are in the same ratios."""
    if one is None or two is None:
        return one is two
    places = [place for place in one if place in two and math.isfinite(one[place] * two[place])]
    largest = max(places, key=lambda place: one[place], default=None)
    return largest is None or all(
        math.isclose(one[place] * two[largest], two[place] * one[largest], rel_tol=_SAME) for place in places
    )


def _losses_of(loss: Tensor, labels: Tensor | None) -> Iterator[_Loss]:
    """Losses with targets in the graph that leads to a loss."""
    seen: set[Any] = set()
    left: list[tuple[Any, tuple[Tensor, ...]]] = [(loss.grad_fn, ())]
    while left and len(seen) < _MOST_NODES:
        node, factors = left.pop(0)
        # A gradient that is part of the loss, as in a gradient penalty, holds losses of its own.
        if node is None or node in seen or "BackwardBackward" in node.name():
            continue
        if (target := _saved(node, "target")) is not None:  # it may be reached again, with other factors
            yield _described(node, target, factors, labels)
            continue
        seen.add(node)
        constants, following = _constants(node), [one for one, _ in node.next_functions]
        # Cross-entropy with one-hot targets multiplies log-probabilities by them.
        target = next((one for one in constants if one.ndim == 2 and _is_of(labels, one)), None)
        factors = (*factors, *(one for one in constants if one is not target))
        if target is not None:
            yield _described(node, target, factors, labels)
            continue
        for place, one in enumerate(following):
            # The other factor of a product may hold constants, too: alpha[labels] * (1 - p) ** gamma of a focal loss.
            beside = following[1 - place] if _is_product(node) and len(following) == 2 else None
            left.append((one, (*factors, *(_constants(beside) if beside is not None else ()))))


def _is_product(node: Any) -> bool:
    return node.name().startswith(("Mul", "Div", "Dot", "Bmm"))


def _constants(node: Any) -> list[Tensor]:
    """Factors of a product or a quotient that nothing trains."""
    if not _is_product(node):
        return []
    saved = [_saved(node, name) for name in ("self", "other", "tensor", "mat2")]
    found = [one for one in saved if one is not None and not one.requires_grad and one.numel() > 1]
    return [1 / one for one in found] if node.name().startswith("Div") else found


def _saved(node: Any, name: str) -> Tensor | None:
    """A tensor that a node has saved; None if there is none, if it has changed, or if user code would run to get it."""
    try:
        raw = getattr(node, f"_raw_saved_{name}", None)
        if raw is None or getattr(raw, "unpack_hook", None) is not None:  # such as of activation checkpointing
            return None
        value = getattr(node, f"_saved_{name}")
    except RuntimeError:
        return None
    is_plain = isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_complex())
    return value if is_plain else None


def _is_of(labels: Tensor | None, target: Tensor) -> bool:
    if labels is None or target.ndim == 0 or len(target) != len(labels):
        return False
    return holds_labels(target.detach().cpu(), labels)


def _described(node: Any, target: Tensor, factors: tuple[Tensor, ...], labels: Tensor | None) -> _Loss:
    """Describe a loss by what its node has saved, and by the factors of its terms."""
    by_class, each = _saved(node, "weight"), list(factors)
    if node.name().startswith("Binary"):
        each += [] if by_class is None else [by_class]
        by_class, positive = None, _saved(node, "pos_weight")
        if positive is not None and (positive.numel() > 1 or target.shape[1:].numel() == 1):
            each.append(torch.where(target > 0, positive, torch.ones_like(positive)))
    # An ignored class gives its samples the weight 0; -100, the default, is saved as a large number.
    ignored = getattr(node, "_saved_ignore_index", -1)
    each += [(target != ignored).double()] if 0 <= ignored < 2**31 else []
    each = [one.detach().double().cpu() for one in each]
    by_class = None if by_class is None or by_class.amin() == by_class.amax() else by_class.detach().double().cpu()
    is_weighted = by_class is not None or any(one.amin() < one.amax() for one in each)
    if labels is None or not _is_of(labels, target):
        return _Loss(False, is_weighted, False, None)
    # Labels of mixed samples are shares of the classes.
    classes = labels.flatten().long() if labels.numel() == len(labels) else torch.empty(0, dtype=torch.long)
    weights, is_by_row = torch.ones(len(classes), dtype=torch.float64), False
    for one in each:
        if one.numel() == len(classes):
            weights, is_by_row = weights * one.flatten(), True
        elif target.ndim == 2 and one.shape in ((target.shape[1],), (1, target.shape[1])):
            by_class = one.flatten() if by_class is None else by_class * one.flatten()
        elif one.amin() < one.amax():
            return _Loss(True, True, False, None)
    shown = {int(one): weights[classes == one] for one in classes.unique() if one >= 0}
    if any(one.amax() > (1 + _SAME) * one.amin() for one in shown.values()):
        return _Loss(True, True, False, None)
    found = {place: float(one[0]) for place, one in shown.items()}
    if by_class is not None:
        places = range(len(by_class)) if not is_by_row else [place for place in found if place < len(by_class)]
        found = {place: found.get(place, 1.0) * float(by_class[place]) for place in places}
    return _Loss(True, is_weighted, is_by_row, found)


def describe_weights(weights: list[float], *, has_resumed: bool = False) -> str:
    """Log line on the weights of the loss, which the callbacks take."""
    first, n_classes = ", ".join(f"{weight:.4g}" for weight in weights[:10]), len(weights)
    whose = "did in the run that is resumed" if has_resumed else "does"
    return (
        f"bu-torch weighs the classes by {first}{', ...' * (n_classes > 10)}, as the loss of these labels {whose}. To"
        f" change it: `class_weight=[1.0] * {n_classes}` counts all samples alike."
    )


def weights_in(module: nn.Module, n_classes: int) -> list[float] | None:
    """Weights of the one loss in a module that has some for so many classes: what the first steps probably show."""
    found: list[list[float]] = []
    for part in module.modules():
        if isinstance(part, nn.CrossEntropyLoss | nn.NLLLoss | nn.BCEWithLogitsLoss):
            is_binary = isinstance(part, nn.BCEWithLogitsLoss)
            weights = part._buffers.get("pos_weight" if is_binary else "weight")
            if weights is not None and not weights.is_meta and weights.numel() == (1 if is_binary else n_classes):
                own = [1.0] * is_binary + weights.detach().double().flatten().tolist()
                is_no_weight = len(own) != n_classes or len(set(own)) == 1 or own in found
                found += [] if is_no_weight or not all(0 < one < math.inf for one in own) else [own]
    return found[0] if len(found) == 1 else None
