"""Wrong labels as they come about: at random, confused with a class near by, or where samples are hard to tell.

A kind of noise is written as `none` or `NAME-SHARE`: `uniform-0.2`, `pairs-0.4`, `hard-0.2`.
"""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from torch import Tensor, nn

KINDS = ("none", "uniform-0.2", "pairs-0.2", "pairs-0.4", "hard-0.2")


def corrupt(labels: Tensor, features: Tensor, n_classes: int, noise: str, generator: torch.Generator) -> Tensor:
    """A copy of labels (n,) with noise of this kind.

    - `uniform`: this share of the labels is drawn anew among all classes, and may be as it was.
    - `pairs`: of each class this share is called by the class whose mean is nearest.
    - `hard`: on average this share is called by the likeliest other class, each with a probability that grows with how
      unlikely a logistic regression on clean labels, cross-fitted, finds the true class.

    Args:
        labels: True classes.
        features: Of the samples, (n, ...), in which classes are near or hard to tell.
        n_classes: Number of classes.
        noise: The kind.
        generator: Draws which labels change.
    """
    name, _, share = noise.partition("-")
    drawn = torch.rand(len(labels), generator=generator)
    if name == "none":
        return labels.clone()
    if name == "uniform":
        others = torch.randint(0, n_classes, (len(labels),), generator=generator)
        return torch.where(drawn < float(share), others, labels)
    points = features.flatten(1).double()
    points = (points - points.mean(dim=0)) / points.std(dim=0).clamp(min=1e-9)
    if name == "pairs":
        return torch.where(drawn < float(share), nearest_classes(points, labels, n_classes)[labels], labels)
    if name != "hard":
        raise ValueError(f"`noise` must be `none` or begin with uniform-, pairs- or hard-, got {noise!r}.")
    likely = probabilities(points.numpy(), labels.numpy(), n_classes)
    doubt = 1 - likely.gather(1, labels.unsqueeze(1)).squeeze(1)
    likely.scatter_(1, labels.unsqueeze(1), -1.0)
    return torch.where(drawn < of_mean(doubt, float(share)), likely.argmax(dim=1), labels)


def nearest_classes(points: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """The class whose mean is nearest to that of each class, (J,)."""
    members = nn.functional.one_hot(labels, n_classes).double()
    means = members.T @ points / members.sum(dim=0).clamp(min=1).unsqueeze(1)
    distances = torch.cdist(means, means)
    distances[:, members.sum(dim=0) == 0] = torch.inf
    return distances.fill_diagonal_(torch.inf).argmin(dim=1)


def probabilities(points: np.ndarray, labels: np.ndarray, n_classes: int) -> Tensor:
    """Class probabilities (n, J) by a regression on the four other fifths of the samples."""
    found = cross_val_predict(
        LogisticRegression(C=0.1, max_iter=300), points, labels, cv=5, method="predict_proba"
    )  # columns are those of the classes that occur
    likely = torch.zeros(len(labels), n_classes, dtype=torch.float64)
    likely[:, np.unique(labels)] = torch.from_numpy(found)
    return likely


def of_mean(doubt: Tensor, share: float) -> Tensor:
    """Probabilities min(1, c doubt) with this mean, or 1 throughout where none reaches it."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if float((middle * doubt).clamp(max=1).mean()) < share else (low, middle)
    return (high * doubt).clamp(max=1)
