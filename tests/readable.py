"""Samples in the forms in which they are read: datasets, streams and samplers."""

import itertools

import torch
from problems import Made, blobs
from torch.utils.data import IterableDataset, Sampler, TensorDataset

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


class Own(Sampler):
    """A user's sampler, of indices or of lists of them."""

    def __init__(self, entries):
        self.entries, self.n_passes = entries, 0

    def __iter__(self):
        self.n_passes += 1
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)


def equal(samples, rows):
    """Whether samples are those in these rows of `WHOLE`."""
    rows = torch.as_tensor(list(rows))
    return torch.equal(samples.inputs, X[rows]) and torch.equal(samples.labels, Y[rows])
