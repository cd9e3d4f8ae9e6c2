"""Odd samples and odd ends of a training: rows of two tables, whose columns are the ways in, in both `test_odd.py`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from problems import Given, blobs
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


def broken():
    x = X.clone()
    x[3, 1], x[7, 0] = torch.nan, -torch.inf
    return x


# By what is odd: what is said, inputs, labels, and what becomes of the logits.
REFUSED = {
    "NaN and infinity": ("must be finite, got NaN or infinity in 2 of 120 samples", broken(), Y, unchanged),
    "no samples": ("at least one (value a )?sample", X[:0], Y[:0], unchanged),
    "too few samples": ("n_neighbors=10.*a smaller `n_neighbors`", X[:9], Y[:9], unchanged),
    "one class": ("`labels` must hold at least two classes, got only class 2", X, 0 * Y + 2, unchanged),
    "fractions": ("`labels` must hold integer classes, got fractional .*regression", X, Y + 0.5, unchanged),
    "negative": (r"`labels` must hold classes 0, 1, \.\.\., got -1: if they are", X, Y - 1, unchanged),
    "strings": ("labels.*must be a tensor.*`LabelEncoder`", X.numpy(), np.array(list("abc") * 40), unchanged),
    "few columns": ("2 columns of logits, fewer than|at least 3 columns, .*got 2", X, Y, lambda z: z[:, :2]),
}
# Labels that are the same as `Y`.
LABELS = {"bytes": Y.byte(), "unsigned": Y.to(torch.uint16), "arrays": Y.numpy().astype("u4"), "floats": Y.double()}
NOT_FINITE = {
    "all": lambda logits: logits * torch.nan,
    "a few": lambda logits: torch.where(torch.arange(len(logits)).unsqueeze(1) % 50 == 0, -torch.inf, logits),
}


class Ending(NamedTuple):
    """What is said after a training of four epochs, at the beginning of which something may `happen`."""

    kept: str
    warned: str = ""
    reason: str = "Training (ended|ran until `(max|num_train)_epochs=4`)"
    happen: Callable[..., None] = lambda layers, epoch: None
    settings: Mapping[str, Any] = MappingProxyType({})
    scores: tuple[float, ...] = (0.1, 0.9, 0.5)

    def options(self):
        return {**FEW, "averaging": None, "rule": Given(self.scores), **self.settings}

    @property
    def best_epoch(self):
        return None if "no epoch" in self.kept else 1


def narrow(layers, epoch):
    if epoch == 2:
        layers[0], layers[2] = nn.Linear(4, 2), nn.Linear(2, 3)


def append(layers, epoch):
    if epoch == 2:
        layers.append(nn.Linear(3, 3))


def failing(error, at=3):
    def happen(layers, epoch):
        if epoch == at:
            raise error

    return happen


KEPT, NONE_KEPT = "kept .*epoch 1 .*: its weights are ", "kept no epoch: "
NO_FINITE = f"{NONE_KEPT}no finite check counted"
EARLY, ABSENT = "all checks were of epochs before `start_from_epoch=9`", r"3\.weight, \S*3\.bias"
ENDS = {
    "by itself": Ending(f"{KEPT}in the model"),
    "early checks": Ending(NONE_KEPT + EARLY, settings={"start_from_epoch": 9}),
    "NaN": Ending(NO_FINITE, reason=r"epoch 0: .* not finite \(nan\)", scores=(float("nan"),)),
    "patience": Ending(f"{KEPT}in the model", reason="epoch 3: .* in the last 2 checks", settings={"patience": 2}),
    "other shapes": Ending(f"{KEPT}not in the model", "another shape or kind in the module, .*0.weight", happen=narrow),
    "more weights": Ending(f"{KEPT}(not|partly) in the model", f"(lack|leave out 2).*: .*{ABSENT}", happen=append),
}
FAILURES = {
    "before a check": Ending(
        f"{NONE_KEPT}no check was made", "", "was interrupted", failing(KeyboardInterrupt(), at=0)
    ),
    "Ctrl-C": Ending(KEPT, "", r"Training was interrupted \(KeyboardInterrupt\)", failing(KeyboardInterrupt())),
    "an error": Ending(f"{KEPT}not in the model", "", "Training failed: ValueError: boom", failing(ValueError("boom"))),
    "no words": Ending(f"{KEPT}not in the model", "", r"Training failed: OSError\.", failing(OSError())),
}
