"""Class probabilities from labels: votes by a loop, regression by one system of equations a fit."""

import math
from functools import partial

import torch


def tangent_kernel(first, second):
    """Arora et al. (2019), section 3.1, for one hidden layer, of points with a constant feature of 1."""
    first, second = (torch.nn.functional.pad(points.double(), (0, 1), value=1.0) for points in (first, second))
    norms = first.norm(dim=1).unsqueeze(1) * second.norm(dim=1)
    cosine = (first @ second.T / norms).clamp(-1, 1)
    cosine = torch.where(torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist") == 0, 1.0, cosine)
    slopes = 2 * cosine * (math.pi - cosine.arccos())
    return norms * (slopes + (1 - cosine**2).sqrt()) / (math.pi * first.shape[1])


def as_probabilities(predictions):
    positive = predictions.clamp(min=0)
    return positive / positive.sum(dim=1, keepdim=True)


def votes(labels, neighbors, decay, n_classes, first=0, weights=None):
    """Shares of the votes of each cluster from its member number `first` on, float64."""
    found = torch.zeros(len(labels), n_classes, dtype=torch.float64)
    for row, members in enumerate(neighbors.tolist()):
        for rank, member in enumerate(members[first:], start=1):
            vote = 1.0 if rank == 1 else float(rank) ** -decay
            found[row, int(labels[member])] += vote * (1.0 if weights is None else float(weights[member]))
    return found / found.sum(dim=1, keepdim=True)


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


def by_refitting(features, labels, penalty, points, weights=None):
    """The same at a point for each sample, solved anew without the sample."""
    rows = torch.arange(len(labels))
    solved = [by_solving(features, labels, penalty, points[row : row + 1], rows != row, weights) for row in rows]
    return torch.cat(solved)
