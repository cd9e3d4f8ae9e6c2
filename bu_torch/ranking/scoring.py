"""Scoring for the searches of scikit-learn, with every sample in training."""

import copy
import threading
from typing import Any

from bu_torch.functional.checks import check_choice
from bu_torch.internal.inputs import check_integer
from bu_torch.ranking.estimators import encode, estimator_logits
from bu_torch.ranking.rank import MEASURED, Judge
from bu_torch.rule.rules import DEFAULT_RULE
from bu_torch.samples.subset import stratified_rows
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.measuring import Signals

_fitted: dict[str, Signals] = {}  # of this process, the latest last: a search copies and pickles its scorer
_lock = threading.RLock()


class BoundaryUncertaintyScorer:
    """A scorer for `GridSearchCV` and the like that needs no held-out samples: one split, all samples in it.

    It fits `Signals` on the samples, once for all candidates of a search and in each process of it, and reads each
    fitted classifier at the perturbed samples as `rank_models` does. Samples are perturbed in the units of X, before
    the first step of a pipeline. Labels may be of any kind.

    Args:
        signal: Signal to score by, larger is better: `"boundary_uncertainty"`, `"trust_score"`, `"expected_accuracy"`,
            or another that `Signals` measures of one classifier (`"omission"` is negated, because less is better). None
            gives all of them in a dict, for a search with several metrics (`refit="expected_accuracy"`).
        signals: Settings other than those of `Signals()`; copies of it are fitted.
        max_samples: Look at a stratified subset of so many samples; None for all.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If `signals` is nothing of the kind, or an integer is none.

    Example:
        >>> import numpy as np
        >>> from sklearn.model_selection import GridSearchCV
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> y = np.array(["no", "yes"]).repeat(100)
        >>> X = np.random.default_rng(0).normal(size=(200, 2)) + 2 * (y == "yes")[:, None]
        >>> everything, grid = np.arange(len(y)), {"n_neighbors": [1, 15, 199]}
        >>> scorer, cv = BoundaryUncertaintyScorer(), [(everything, everything)]
        >>> GridSearchCV(KNeighborsClassifier(), grid, scoring=scorer, cv=cv).fit(X, y).best_params_
        {'n_neighbors': 15}
    """

    def __init__(
        self,
        signal: str | None = "boundary_uncertainty",
        *,
        signals: Signals | None = None,
        max_samples: int | None = None,
    ) -> None:
        self.signal = None if signal is None else check_choice("signal", signal, MEASURED)
        if not isinstance(signals, Signals | None):
            raise TypeError(f"`signals` must be a bu_torch.Signals or None, got {signals!r:.100}.")
        self.signals = Signals() if signals is None else signals
        self.max_samples = None if max_samples is None else check_integer("max_samples", max_samples, 1)

    def __call__(self, estimator: Any, X: Any, y: Any) -> float | dict[str, float]:
        """The signal, or all by name, of an `estimator` fitted on X (N, d), array or frame, and y (N,), of any kind.

        Raises:
            ValueError: As in `BoundaryUncertainty.fit`, or if the classifier does not give a finite column a class.
        """
        classes, labels = encode(y)
        inputs = self.signals.boundary.as_inputs(X, "X")
        if len(labels) != len(inputs):
            raise ValueError(f"`y` must have one entry a sample, {len(inputs)}, got {len(labels)}.")
        if self.max_samples is not None and self.max_samples < len(labels):
            rows = stratified_rows(len(labels), self.max_samples, self.signals.boundary.seed, labels)
            inputs, labels = inputs[rows], labels[rows]
        key = self.signals.fingerprint_of(inputs, labels)
        with _lock:  # candidates that are scored by threads share one, which they must not widen at once
            fitted = _fitted.pop(key, None) or copy.deepcopy(self.signals).fit(inputs, labels)
            _fitted[key] = fitted
            for oldest in list(_fitted)[:-4]:
                del _fitted[oldest]
            read = estimator_logits(estimator, classes, X if hasattr(X, "iloc") else None)
            values = Judge(DEFAULT_RULE, fitted, batch_size=4096).measure(read, type(estimator).__name__)
        signed = {name: value if SIGNALS[name].is_larger_better else -value for name, value in values.items()}
        return signed if self.signal is None else signed[self.signal]
