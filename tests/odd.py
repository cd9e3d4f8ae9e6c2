"""Odd samples: rows of a table, whose columns are the ways in, in both `test_odd.py`."""

import numpy as np
import torch
from problems import blobs
from torch import nn
from torch.utils.data import Dataset

X, Y = blobs()
FEW = {"n_neighbors": 10, "n_draws": 1}


def unchanged(logits):
    return logits


class Network(nn.Module):
    """The same weights each time."""

    def __init__(self, output=unchanged):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        self.output = output

    def forward(self, x):
        return self.output(self.layers(x))


class Rows(Dataset):
    """Samples one by one, in pairs or under names."""

    def __init__(self, inputs, labels, *names):
        self.inputs, self.labels, self.names = inputs, labels, names

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        pair = self.inputs[i], self.labels[i]
        return dict(zip(self.names, pair, strict=True)) if self.names else pair


# By what is odd: what is said, inputs, labels, and what becomes of the logits.
REFUSED = {
    "NaN": ("must be finite", torch.where(torch.arange(120)[:, None] == 3, torch.nan, X), Y, unchanged),
    "no samples": ("at least one (value a )?sample", X[:0], Y[:0], unchanged),
    "too few samples": ("n_neighbors=10", X[:9], Y[:9], unchanged),
    "one class": ("`labels` must hold at least two classes", X, 0 * Y + 2, unchanged),
    "fractions": ("`labels` must hold integer classes", X, Y + 0.5, unchanged),
    "negative": ("`labels` must hold integer classes", X, Y - 1, unchanged),
    "strings": ("labels.*must be a tensor", X.numpy(), np.array(list("abc") * 40), unchanged),
    "few columns": ("logits in 2 columns|at least 3 columns, .*got 2", X, Y, lambda z: z[:, :2]),
}
# Labels that are the same as `Y`.
LABELS = {"bytes": Y.byte(), "unsigned": Y.to(torch.uint16), "arrays": Y.numpy().astype("u4"), "floats": Y.double()}
