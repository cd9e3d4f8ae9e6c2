"""A search of scikit-learn with one split: every candidate trains on all samples, and is scored at moved ones.

Run `python examples/recipes/sklearn_search.py`.
"""

import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from bu_torch import BoundaryUncertaintyScorer


def moons(n_samples: int = 400, flipped: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two moons, with a share of the labels flipped."""
    inputs, labels = make_moons(n_samples, noise=0.25, random_state=seed)
    is_flipped = torch.rand(n_samples, generator=torch.Generator().manual_seed(seed)).numpy() < flipped
    return inputs.astype("float32"), np.where(is_flipped, 1 - labels, labels)


def main() -> GridSearchCV:
    inputs, labels = moons()
    grid, everything = {"gamma": 2.0 ** np.arange(-7, 12, 2)}, np.arange(len(labels))
    one_split = [(everything, everything)]
    search = GridSearchCV(SVC(), grid, scoring=BoundaryUncertaintyScorer(), cv=one_split)
    search.fit(inputs, labels)
    new_inputs, new_labels = moons(2000, flipped=0, seed=1)
    print("    gamma      U  test error")
    for place, (gamma, value) in enumerate(
        zip(search.cv_results_["param_gamma"], search.cv_results_["mean_test_score"], strict=True)
    ):
        error = 1 - SVC(gamma=gamma).fit(inputs, labels).score(new_inputs, new_labels)
        print(f"{gamma:9.4f}  {value:.3f}  {error:.3f}" + (" <- chosen" if place == search.best_index_ else ""))
    # What decides by default in the callback.
    by_accuracy = GridSearchCV(SVC(), grid, scoring=BoundaryUncertaintyScorer("expected_accuracy"), cv=one_split)
    print(f"expected accuracy chooses {by_accuracy.fit(inputs, labels).best_params_['gamma']:.4f}")
    return search


if __name__ == "__main__":
    main()
