"""Classes that have samples, numbered as columns of arrays."""

from typing import Self

import torch
from torch import Tensor


class PresentClasses:
    """Classes among labels (N,), ascending, and their columns; `n_classes` is the largest label + 1.

    Public shapes have `n_classes` columns; cost and memory depend only on the classes that have samples.
    """

    def __init__(self, labels: Tensor) -> None:
        self.classes = torch.unique(labels)
        self.n_classes = int(self.classes[-1]) + 1
        # Present classes come first, in order, then absent ones, so that each class has a column of its own.
        is_present = torch.zeros(self.n_classes, dtype=torch.bool, device=labels.device)
        is_present[self.classes] = True
        order = torch.cat((self.classes, (~is_present).nonzero().squeeze(1)))
        self._columns = order.argsort()

    def __len__(self) -> int:
        return len(self.classes)

    def columns(self, classes: Tensor) -> Tensor:
        """Columns of classes, (n,) int64: below C for those present, from C on for all others."""
        if len(self) == self.n_classes:
            return classes
        return torch.where(classes < self.n_classes, self._columns[classes.clamp(max=self.n_classes - 1)], classes)

    def spread(self, columns: Tensor, fill: float) -> Tensor:
        """Expand an array (n, C), or wider, to a column for each class, (n, J); absent classes get `fill`."""
        if len(self) == self.n_classes:
            return columns[:, : self.n_classes]
        spread = columns.new_full((len(columns), self.n_classes), fill)
        spread[:, self.classes] = columns[:, : len(self)]
        return spread

    def to(self, device: torch.device | str) -> Self:
        """Move the mapping, in place."""
        self.classes = self.classes.to(device)
        self._columns = self._columns.to(device)
        return self
