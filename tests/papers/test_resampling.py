import numpy as np
import pytest
import torch
from problems import blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit, cross_validate
from sklearn.tree import DecisionTreeClassifier

from bu_torch.evaluation import cross_validation_error, holdout_error


class Majority:
    """Predicts the commonest class it saw; knows nothing of scikit-learn, draws global random numbers."""

    seen = None

    def fit(self, features, labels):
        assert self.seen is None
        np.random.rand()
        torch.rand(1)
        self.seen = np.bincount(labels).argmax()

    def predict(self, features):
        return torch.full((len(features), 1), float(self.seen))


@pytest.mark.parametrize("n_folds", [2, 5])
def test_agrees_with_scikit_learn(n_folds):
    features, labels = blobs()
    estimate = cross_validation_error(LogisticRegression(), features, labels, n_folds=n_folds, seed=3)
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=np.random.RandomState(3))
    expected = cross_validate(LogisticRegression(), features.numpy(), labels.numpy(), cv=folds, return_train_score=True)
    np.testing.assert_allclose(estimate.errors, 1 - expected["test_score"], atol=1e-12)
    assert estimate.error == pytest.approx(1 - expected["test_score"].mean())
    assert estimate.training_error == pytest.approx(1 - expected["train_score"].mean())


def test_holdout_agrees_with_scikit_learn():
    features, labels = blobs()
    estimate = holdout_error(DecisionTreeClassifier(random_state=0), features, labels, test_size=0.25, n_repeats=3)
    splits = StratifiedShuffleSplit(3, test_size=0.25, random_state=0)
    expected = cross_validate(
        DecisionTreeClassifier(random_state=0), features.numpy(), labels.numpy(), cv=splits, return_train_score=True
    )
    np.testing.assert_allclose(estimate.errors, 1 - expected["test_score"], atol=1e-12)
    assert estimate.training_error == 0


def test_any_object_with_fit_and_predict_is_taken_and_left_as_it_was(random_states):
    labels = torch.tensor([0] * 30 + [1] * 10)
    before = random_states()
    model = Majority()
    estimate = cross_validation_error(model, torch.zeros(40, 2, 2), labels, n_folds=5, n_repeats=2)
    assert estimate.errors.tolist() == [0.25] * 10
    assert estimate.error == estimate.training_error == 0.25
    assert holdout_error(model, torch.zeros(40, 2), labels, test_size=0.5).error == 0.25
    assert model.seen is None
    assert random_states() == before


class Failing(Majority):
    def fit(self, features, labels):
        raise ZeroDivisionError("in fit")


class Vague(Majority):
    def predict(self, features):
        return [0.5] * len(features)


def test_what_an_estimator_raises_comes_through():
    with pytest.raises(ZeroDivisionError, match="in fit"):
        cross_validation_error(Failing(), *blobs())
    with pytest.raises(ValueError, match=r"`estimator.predict\(features\)` must hold integer classes, got fractional"):
        holdout_error(Vague(), *blobs())
