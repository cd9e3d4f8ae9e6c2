"""Optuna's own studies and pruners."""

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

optuna = pytest.importorskip("optuna")

from problems import blobs, fit  # noqa: E402

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping  # noqa: E402
from bu_torch.integrations.optuna import BoundaryUncertaintyPruningCallback  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.WARNING)


class From(optuna.pruners.BasePruner):
    """Prunes from a step on."""

    def __init__(self, step):
        self.step = step

    def prune(self, study, trial):
        return trial.last_step >= self.step


def search(objective, step):
    study = optuna.create_study(direction="maximize", pruner=From(step))
    study.optimize(objective, n_trials=1)
    return study.trials[0]


def search_by_lightning(folder, watched, *monitor, step, max_epochs):
    def objective(trial):
        fit(folder, watched, BoundaryUncertaintyPruningCallback(trial, *monitor), max_epochs=max_epochs)
        return watched.best_score

    return search(objective, step)


@pytest.mark.parametrize("watching", [BoundaryUncertaintyStopping, BoundaryUncertaintyMonitor])
@pytest.mark.parametrize("monitor", ["expected_accuracy", "trust_score"])
def test_each_check_of_a_lightning_training_is_reported_until_the_trial_is_pruned(tmp_path, watching, monitor):
    watched = watching(n_draws=1)
    trial = search_by_lightning(tmp_path, watched, monitor, step=2, max_epochs=9)
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert trial.intermediate_values == {i: check[monitor] for i, check in enumerate(watched.history)}
    assert len(watched.history) == 3


def test_folds_of_a_trial_are_reported_one_after_another(tmp_path):
    def objective(trial):
        pruning = BoundaryUncertaintyPruningCallback(trial)
        for _ in range(2):
            fit(tmp_path, watched := BoundaryUncertaintyStopping(n_draws=1), pruning, max_epochs=3)
        return watched.best_score

    assert list(search(objective, step=99).intermediate_values) == [0, 1, 2, 3, 4, 5]


def test_epochs_without_a_check_report_nothing(tmp_path, recwarn):
    watched = BoundaryUncertaintyStopping(n_draws=1, every_n_epochs=2)
    trial = search_by_lightning(tmp_path, watched, step=99, max_epochs=6)
    assert list(trial.intermediate_values) == [0, 1, 2]
    assert not [one for one in recwarn if "already reported" in str(one.message)]


def test_a_plain_loop_reports_by_hand():
    stopper = BoundaryUncertaintyStopper(*blobs(), n_draws=1)

    def objective(trial):
        torch.manual_seed(0)
        model, pruning = nn.Linear(4, 3), BoundaryUncertaintyPruningCallback(trial)
        for _ in range(5):
            stopper.check(model)
            pruning.report(stopper)

    trial = search(objective, step=1)
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert trial.intermediate_values == {i: one["expected_accuracy"] for i, one in enumerate(stopper.history)}
    assert len(stopper.history) == 2


def test_a_signal_that_no_check_measures_is_named():
    stopper = BoundaryUncertaintyStopper(*blobs(), n_draws=1)
    stopper.check(nn.Linear(4, 3))
    trial = optuna.create_study(direction="maximize").ask()
    with pytest.raises(ValueError, match="`monitor` must be a signal that is measured, got 'expected_auroc'"):
        BoundaryUncertaintyPruningCallback(trial, "expected_auroc").report(stopper)


def test_a_study_that_minimises_and_a_signal_that_is_not_comparable_are_refused():
    with pytest.raises(ValueError, match='`direction="maximize"`'):
        BoundaryUncertaintyPruningCallback(optuna.create_study().ask())
    with pytest.raises(ValueError, match="of one objective"):
        BoundaryUncertaintyPruningCallback(optuna.create_study(directions=["maximize"] * 2).ask())
    with pytest.raises(ValueError, match="`monitor` must be"):
        BoundaryUncertaintyPruningCallback(optuna.create_study(direction="maximize").ask(), "prediction_changes")
    with pytest.raises(TypeError, match="`trial` must be a trial of Optuna, got Study"):
        BoundaryUncertaintyPruningCallback(optuna.create_study(direction="maximize"))


@pytest.mark.parametrize("others", [[], [BoundaryUncertaintyMonitor()]])
def test_a_callback_that_measures_must_come_before(tmp_path, others):
    trial = optuna.create_study(direction="maximize").ask()
    with pytest.raises(MisconfigurationException, match="before `BoundaryUncertaintyPruningCallback`, got none there"):
        fit(tmp_path, BoundaryUncertaintyPruningCallback(trial), *others)
