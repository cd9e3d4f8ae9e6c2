"""What the examples with support vector machines share: their data, and C chosen as the papers choose it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import GridSearchCV, RepeatedStratifiedKFold, StratifiedKFold, cross_validate
from sklearn.svm import SVC
from torch import Tensor

TABLES = Path(__file__).parents[1] / "benchmarks" / "data"
MIXTURES = {  # of each component: class, share, mean, standard deviations
    "GMM": ((0, 1, (-1.5, 0), (0.8, 0.8)), (0, 1, (1, 1.5), (0.6, 0.6)), (1, 1, (0, -0.8), (0.8, 0.6)),
            (1, 1, (2, 0), (0.8, 0.8))),
    "GMM_separable": ((0, 1, (-3, -0.75), (0.4, 0.4)), (0, 1, (-1.5, 2.25), (0.4, 0.4)),
                      (1, 1, (0.9, -1.8), (0.4, 0.4)), (1, 1, (2.4, 1.2), (0.4, 0.4))),
    "GMM_inclusion": ((0, 2, (-1.2, 0), (1, 1.5)), (0, 1, (3, 0), (0.35, 0.7)), (1, 3, (2.5, 0), (1.2, 1.5))),
}  # fmt: skip
C_GRID = 2.0 ** np.arange(-3, 12, 2)
GAMMA_GRID = 2.0 ** np.arange(-11, 4, 2)
AT_MOST = 600  # samples for the choice of C


def fold_errors(
    estimator: Any, features: Tensor, labels: Tensor, n_folds: int, split: Any = None
) -> tuple[float, float]:
    """L_val and L_tr: mean errors on held-out samples and on those trained on, over stratified folds or a `split`."""
    cv = RepeatedStratifiedKFold(n_splits=n_folds, n_repeats=1, random_state=0) if split is None else split
    given = {"cv": cv, "scoring": "accuracy", "return_train_score": True}
    scores = cross_validate(estimator, features.numpy(), labels.numpy(), **given)
    return 1 - float(scores["test_score"].mean()), 1 - float(scores["train_score"].mean())


def mixture(name: str, n_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples of a mixture of Gaussians and their classes, about `n_samples`, ordered by component."""
    generator = torch.Generator().manual_seed(seed)
    unit = n_samples // sum(share for _, share, *_ in MIXTURES[name])
    parts = [
        (torch.tensor(mean) + torch.tensor(scale) * torch.randn(share * unit, 2, generator=generator), label)
        for label, share, mean, scale in MIXTURES[name]
    ]
    features = torch.cat([part for part, _ in parts])
    return features, torch.cat([torch.full((len(part),), label) for part, label in parts])


def raw(name: str, n_samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features and labels, at most `n_samples`, chosen at random."""
    if name in MIXTURES:
        return mixture(name, n_samples, seed)
    table = pd.read_csv(TABLES / f"{name}.csv.gz")
    labels = torch.tensor(table.pop("label").to_numpy())
    features = torch.tensor(table.to_numpy("float32"))
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:n_samples]
    return features[chosen], labels[chosen]


def standardized(features: Tensor, *others: Tensor) -> list[Tensor]:
    """The features with mean 0 and variance 1, and others in the same units."""
    mean, spread = features.mean(dim=0), features.std(dim=0)
    return [(part - mean) / torch.where(spread == 0, 1.0, spread) for part in (features, *others)]


def read(name: str, n_samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standardised features and labels, at most `n_samples`, chosen at random."""
    features, labels = raw(name, n_samples, seed)
    return standardized(features)[0], labels


def choose_c(features: Any, labels: Any, n_folds: int = 5) -> float:
    """C of least cross-validation error over a grid of C and gamma; of equal ones the smallest.

    Ha (2019), section 2.4.2, and Ha et al. (2021), section 6.1: C is fixed beforehand by cross-validation, then gamma
    alone is selected. Neither gives the grid. At most 600 samples are used, as 64 pairs are tried in each fold.
    """
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:AT_MOST].numpy()
    x, y = np.asarray(features)[chosen], np.asarray(labels)[chosen]
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    search = GridSearchCV(SVC(), {"C": C_GRID, "gamma": GAMMA_GRID}, cv=folds, refit=False).fit(x, y)
    return float(search.best_params_["C"])
