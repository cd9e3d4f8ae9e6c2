"""Regression on one-hot labels by one system of equations a fit."""

from functools import partial

import torch

from bu_torch.functional.probabilities import as_probabilities
from bu_torch.functional.regression import tangent_kernel


def by_solving(features, labels, penalty, points, kept=slice(None)):
    """Kernel ridge regression at any points, in one system of equations; centre, scale and shares are those of all."""
    center = features.double().mean(dim=0)
    scale = (features - center).square().mean().sqrt()
    samples = (features - center) / scale
    kernel = partial(tangent_kernel, second=samples[kept])
    unit = tangent_kernel(samples, samples).diagonal().mean()
    one_hot = torch.nn.functional.one_hot(labels).double()
    shares = one_hot.mean(dim=0)
    ridge = kernel(samples[kept]) / unit + penalty * torch.eye(len(samples[kept]), dtype=torch.float64)
    weights = torch.linalg.solve(ridge, one_hot[kept] - shares)
    return as_probabilities(kernel((points - center) / scale) / unit @ weights + shares)


def by_refitting(features, labels, penalty):
    """The same at each sample, solved anew without it."""
    rows = torch.arange(len(labels))
    return torch.cat([by_solving(features, labels, penalty, features[row : row + 1], rows != row) for row in rows])
