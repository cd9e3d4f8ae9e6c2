"""A search of scikit-learn with one split: every candidate trains on all samples, and is scored at moved ones.

Run `python examples/recipes/sklearn_search.py`.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from bu_torch import Signals


def score(signals: Signals, signal: str, estimator: Any, X: Any, y: Any) -> float:
    """Signal of a fitted classifier; `signals` are fitted on all samples, so the split's X and y are not needed."""
    moved = signals.perturbed_inputs.numpy()
    if hasattr(estimator, "decision_function"):  # an SVC needs `decision_function_shape="ovr"`, the default
        logits = estimator.decision_function(moved)
    else:
        shares = estimator.predict_proba(moved)
        logits = np.log(np.maximum(shares, shares[shares > 0].min() / 2))
    return float(signals.measure(torch.from_numpy(logits)).values[signal])


def moons(n_samples: int = 400, flipped: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two moons, with a share of the labels flipped."""
    inputs, labels = make_moons(n_samples, noise=0.25, random_state=seed)
    is_flipped = torch.rand(n_samples, generator=torch.Generator().manual_seed(seed)).numpy() < flipped
    return inputs.astype("float32"), np.where(is_flipped, 1 - labels, labels)


def main() -> GridSearchCV:
    inputs, labels = moons()
    names = np.array(["lower", "upper"])[labels]
    grid, everything = {"gamma": 2.0 ** np.arange(-7, 12, 2)}, np.arange(len(labels))
    # Labels of any kind: a classifier's columns are its sorted classes, and so are these places.
    signals = Signals().fit(inputs, np.unique(names, return_inverse=True)[1])

    def search(signal: str) -> GridSearchCV:
        scoring = partial(score, signals, signal)
        return GridSearchCV(SVC(), grid, scoring=scoring, cv=[(everything, everything)]).fit(inputs, names)

    found = search("boundary_uncertainty")
    new_inputs, new_labels = moons(2000, flipped=0, seed=1)
    print("    gamma      U  test error")
    for place, (gamma, value) in enumerate(
        zip(found.cv_results_["param_gamma"], found.cv_results_["mean_test_score"], strict=True)
    ):
        error = 1 - SVC(gamma=gamma).fit(inputs, labels).score(new_inputs, new_labels)
        print(f"{gamma:9.4f}  {value:.3f}  {error:.3f}" + (" <- chosen" if place == found.best_index_ else ""))
    # What counts most in the default score of the callback.
    print(f"expected accuracy chooses {search('expected_accuracy').best_params_['gamma']:.4f}")
    return found


if __name__ == "__main__":
    main()
