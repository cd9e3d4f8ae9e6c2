import copy
import pickle

import numpy as np
import problems
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from bu_torch import BoundaryUncertaintyScorer, Signals, rank_models
from bu_torch.ranking import scoring

INPUTS, CLASSES = problems.blobs(n=160, d=3)
X, Y = INPUTS.double().numpy() * [1.0, 100.0, 0.01], np.array(["ape", "bee", "cat"])[CLASSES.numpy()]


@pytest.fixture(autouse=True)
def empty_cache():
    scoring._fitted.clear()


def search(estimator, grid, x=X, y=Y, **arguments):
    everything = [(np.arange(len(y)), np.arange(len(y)))]
    arguments = {"scoring": BoundaryUncertaintyScorer(), "cv": everything, "error_score": "raise", **arguments}
    return GridSearchCV(estimator, grid, **arguments).fit(x, y)


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_search_over_a_pipeline_with_string_labels(n_jobs):
    pipeline = make_pipeline(StandardScaler(), SVC())
    grid = {"svc__gamma": [1e-4, 0.3, 1e4]}
    found = search(pipeline, grid, n_jobs=n_jobs)
    assert found.best_params_ == {"svc__gamma": 0.3}
    scores = found.cv_results_["mean_test_score"]
    for score, gamma in zip(scores, grid["svc__gamma"], strict=True):
        model = clone(pipeline).set_params(svc__gamma=gamma).fit(X, Y)
        assert score == pytest.approx(rank_models([model], X, Y).best.signals["boundary_uncertainty"])


def test_signals_are_fitted_once_for_all_candidates(monkeypatch):
    fits, fit = [], Signals.fit
    monkeypatch.setattr(Signals, "fit", lambda self, *a: fits.append(1) or fit(self, *a))
    search(KNeighborsClassifier(), {"n_neighbors": [1, 5, 9, 15]})
    assert len(fits) == 1
    search(KNeighborsClassifier(), {"n_neighbors": [1, 5]}, X + 1)
    assert len(fits) == 2
    for shift in range(6):
        BoundaryUncertaintyScorer()(KNeighborsClassifier().fit(X, Y), X + shift, Y)
    assert len(scoring._fitted) == 4


def test_all_signals_at_once_and_the_default_rule():
    grid, every = {"n_neighbors": [1, 9, 25, 119]}, BoundaryUncertaintyScorer(None)
    found = search(KNeighborsClassifier(), grid, scoring=every, refit="expected_accuracy")
    models = [KNeighborsClassifier(k).fit(X, Y) for k in grid["n_neighbors"]]
    assert found.best_index_ == int(rank_models(models, X, Y).best.name[0])
    assert found.cv_results_["mean_test_omission"].max() <= 0
    by_trust = search(KNeighborsClassifier(), grid, scoring=BoundaryUncertaintyScorer("trust_score"))
    assert by_trust.best_index_ == int(np.argmax(found.cv_results_["mean_test_trust_score"]))


def test_a_scorer_is_copied_pickled_and_cloned_and_leaves_random_states_alone(random_states):
    scorer = BoundaryUncertaintyScorer(signals=Signals(20, 2, 3), max_samples=90)
    model = LogisticRegression(max_iter=1000).fit(X, Y)
    before = random_states()
    value = scorer(model, X, Y)
    assert random_states() == before
    twins = [copy.deepcopy(scorer), pickle.loads(pickle.dumps(scorer))]  # noqa: S301
    grid = clone(GridSearchCV(model, {}, scoring=scorer))
    for twin in (*twins, grid.scoring):
        assert twin(model, X, Y) == value
    assert not scorer.signals.is_fitted
    assert value != BoundaryUncertaintyScorer(signals=Signals(20, 2, 4), max_samples=90)(model, X, Y)


def test_probabilities_count_as_logits_of_a_softmax():
    model = LogisticRegression(max_iter=1000).fit(X, Y)

    class Probabilities:
        classes_ = model.classes_
        predict, predict_proba = model.predict, model.predict_proba

    scorer = BoundaryUncertaintyScorer()
    assert scorer(Probabilities(), X, Y) == pytest.approx(scorer(model, X, Y), abs=1e-6)
    for other in (RandomForestClassifier(20, random_state=0), DecisionTreeClassifier(random_state=0)):
        assert 0 < scorer(other.fit(X, Y), X, Y) < 1


def test_frames_and_labels_of_two_classes():
    pandas = pytest.importorskip("pandas")
    frame, y = pandas.DataFrame(X, columns=["a", "b", "c"]), Y == "bee"
    pipeline, grid = make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [1e-4, 1.0]}
    pairs = ((frame, pandas.Series(y)), (X, y.astype(int)))
    found, plain = (search(pipeline, grid, *pair).cv_results_["mean_test_score"].tolist() for pair in pairs)
    assert found == pytest.approx(plain)


def test_samples_that_are_not_fit_are_refused():
    model = KNeighborsClassifier().fit(X, Y)
    for said, *arguments in (
        ("one entry a sample", model, X, Y[1:]),
        ("`X`", model, X * np.nan, Y),
        ("regression", model, X, np.linspace(0, 1, 160)),
        ("fitted", KNeighborsClassifier(), X, Y),
    ):
        with pytest.raises(ValueError, match=said):
            BoundaryUncertaintyScorer()(*arguments)
