"""Samples in the forms in which they are read: datasets and streams."""

import itertools

import torch
from problems import Made, blobs
from torch.utils.data import IterableDataset, TensorDataset

X, Y = blobs()
WHOLE = TensorDataset(X, Y)
PAIRS = list(zip(X, Y, strict=True))


BATCHES = Made(lambda i: (X[i * 40 : i * 40 + 40], Y[i * 40 : i * 40 + 40]), 3)


class Stream(IterableDataset):
    """Begins anew with each iterator."""

    def __init__(self, samples=PAIRS, length=None):
        self.samples, self.length = samples, length

    def __iter__(self):
        return iter(self.samples)

    def __len__(self):
        if self.length is None:
            raise TypeError("Streams have no length.")
        return self.length


class Endless(IterableDataset):
    """The samples again and again."""

    def __iter__(self):
        return itertools.cycle(PAIRS)


def equal(samples, rows):
    """Whether samples are those in these rows of `WHOLE`."""
    rows = torch.as_tensor(list(rows))
    return torch.equal(samples.inputs, X[rows]) and torch.equal(samples.labels, Y[rows])
