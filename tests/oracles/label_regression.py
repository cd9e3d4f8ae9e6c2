"""Regression on one-hot labels by one system of equations a fit."""

from functools import partial

import torch

from bu_torch.functional.probabilities import as_probabilities, tangent_kernel


def by_solving(features, labels, penalty, points, kept=slice(None), weights=None):
    """Kernel ridge regression at any points, in one system of equations; centre, scale and shares are those of all."""
    center = features.double().mean(dim=0)
    scale = (features - center).square().mean().sqrt()
    samples = (features - center) / scale
    kernel = partial(tangent_kernel, second=samples[kept])
    unit = tangent_kernel(samples, samples).diagonal().mean()
    counted = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights / weights.mean()
    one_hot = torch.nn.functional.one_hot(labels).double()
    shares = (counted.unsqueeze(1) * one_hot).mean(dim=0)
    ridge = kernel(samples[kept]) / unit + penalty * torch.diag(1 / counted[kept])
    solved = torch.linalg.solve(ridge, one_hot[kept] - shares)
    return as_probabilities(kernel((points - center) / scale) / unit @ solved + shares)


def by_refitting(features, labels, penalty, weights=None):
    """The same at each sample, solved anew without it."""
    rows = torch.arange(len(labels))
    solved = [by_solving(features, labels, penalty, features[row : row + 1], rows != row, weights) for row in rows]
    return torch.cat(solved)
