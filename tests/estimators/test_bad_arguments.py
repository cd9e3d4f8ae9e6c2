"""Arguments that the estimators refuse after they are made: by name, expectation and what came."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from bu_torch import BoundaryUncertainty, LabelProbabilities, LabelRegression, LabelVotes, TrustScore

X, Y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
RING = (torch.arange(60).unsqueeze(1) + torch.arange(5)) % 60
EYE = np.eye(2)


def logits(x):
    return torch.stack((-x[:, 0], x[:, 0]), dim=1)


@pytest.fixture(scope="module")
def fitted():
    return {
        "uncertainty": BoundaryUncertainty(10).fit(X, Y),
        "probabilities": LabelProbabilities().fit(X, Y, RING),
        "regression": LabelRegression().fit(X, Y),
        "votes": LabelVotes().fit(Y, RING),
        "trust": TrustScore().fit(EYE, [0, 1]),
    }


@pytest.mark.parametrize(
    ("estimator", "call", "message"),
    [
        ("uncertainty", lambda e: e.score(LogisticRegression()), "pass `classifier.decision_function`"),
        ("uncertainty", lambda e: e.score_logits(logits(X[:9])), "each of the 1 x 60 perturbed inputs, got 9"),
        ("uncertainty", lambda e: e.standardize(X[:, :2]), "`inputs` must have 3 features a sample"),
        ("probabilities", lambda e: e.predict_proba(X[:59]), "`perturbed` must hold a multiple of the 60 samples"),
        ("probabilities", lambda e: e.predict_proba(X / 0), "`perturbed` must be finite"),
        ("probabilities", lambda e: e.predict_proba(X[:, :2]), "must have 3 features a sample, as in `fit`, got 2"),
        ("probabilities", lambda e: e.score(X, torch.zeros(59)), "`predictions` must have one entry a sample, 60"),
        ("probabilities", lambda e: e.fit(X, [0] * 59, RING), "`labels` must have one entry a sample, 60"),
        ("probabilities", lambda e: e.fit(X[:59], [0] * 60, RING), "`labels` must have one entry a sample"),
        ("regression", lambda e: e.fit(X[0], [0, 1, 0]), "`features` must have shape"),
        ("regression", lambda e: e.fit(X / 0, Y), "`features` must be finite"),
        ("regression", lambda e: e.fit(X, Y[1:]), "`labels` must have one entry a sample"),
        ("regression", lambda e: e.predict_proba([[1.0]]), "`features` must have 3 features a sample, .* got 1"),
        ("votes", lambda e: e.fit(Y[1:], RING), "`labels` must have one entry a sample, 60, got 59"),
        ("votes", lambda e: e.score(Y[1:]), "`predictions` must hold a multiple of the 60 points, got 59"),
        ("trust", lambda e: e.class_distances(np.eye(3)), "2 features a sample, .* got 3"),
        ("trust", lambda e: e.class_distances(EYE, [1, 2]), r"`left_out` must hold rows in \[0, 2\), got 2"),
        ("trust", lambda e: e.score(EYE, [0]), "`predictions` must have one .* 2, got 1"),
        ("trust", lambda e: TrustScore("disagreement").fit(np.eye(10), [0] * 10), "more than n_neighbors=10 samples"),
    ],
)
def test_bad_arguments_are_named(fitted, estimator, call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(fitted[estimator])
