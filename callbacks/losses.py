"""Weights of classes in the losses that are modules of a network."""

import math
from typing import Any

from torch import nn


def loss_weights(module: nn.Module, n_classes: int) -> tuple[list[float] | None, str]:
    """The weight of each class in the losses of a module, None if they cannot tell, and a line for the log, or ""."""
    found: list[list[float]] = []
    for part in module.modules():
        if isinstance(part, nn.CrossEntropyLoss | nn.NLLLoss | nn.BCEWithLogitsLoss):
            is_binary = isinstance(part, nn.BCEWithLogitsLoss)
            weights: Any = part.pos_weight if is_binary else part.weight
            listed = [] if weights is None else weights.flatten().tolist()
            if is_binary and listed:
                listed = [1.0, *listed] if len(listed) == 1 and n_classes == 2 else [math.nan, *listed]
            found.append(listed if len(set(listed)) > 1 else [])
    if not any(found):
        return None, ""
    first, *others = found
    if any(other != first for other in others):
        why = "the losses of the module weigh the classes differently"
    elif len(first) < n_classes or not all(0 < weight < math.inf for weight in first):
        why = "the loss of the module does not have one positive weight for each class"
    else:
        listed_weights = ", ".join(f"{weight:.4g}" for weight in first[:10]) + ", ..." * (len(first) > 10)
        return first, (
            f"bu-torch weighs the classes by {listed_weights}, as the loss of the module does. To change it:"
            f" `class_weight=[1.0] * {len(first)}` counts all samples alike."
        )
    return None, f"bu-torch counts all classes alike: {why}. To weigh them in the score, too, pass `class_weight=`."
