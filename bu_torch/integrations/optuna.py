"""Pruning of Optuna's trials without validation data."""

from typing import Any

from bu_torch.callbacks.monitor import BoundaryUncertaintyMonitor
from bu_torch.callbacks.trainer import Callback, MisconfigurationException
from bu_torch.functional.checks import check_choice
from bu_torch.integrations.loaders import missing
from bu_torch.signals.catalogue import SIGNALS

try:
    from optuna import TrialPruned
    from optuna.study import StudyDirection
    from optuna.trial import BaseTrial
except ImportError as error:
    raise missing("optuna", "optuna") from error


class BoundaryUncertaintyPruningCallback(Callback):
    """Report each check to a trial of Optuna, and prune the trial if its pruner says so.

    For a Lightning trainer, listed behind `BoundaryUncertaintyStopping` or `BoundaryUncertaintyMonitor`; in any other
    training call `report` after each check. Trials on the same data are read at the same perturbed samples, so that
    their values can be compared. The number of a check, from 0, is the step that Optuna knows.

    Args:
        trial: The trial, of a study with one objective that is maximised.
        monitor: Signal to report, larger is better: `"expected_accuracy"`, `"boundary_uncertainty"`, ...

    Raises:
        ValueError: If the study minimises or has several objectives, `monitor` is no such signal, or a check has not
            measured it.
        TypeError: If `trial` is no trial.
        MisconfigurationException: When a fit begins, if no callback that measures stands before this one.
    """

    def __init__(self, trial: Any, monitor: str = "expected_accuracy") -> None:
        self.monitor = check_choice("monitor", monitor, [one.name for one in SIGNALS.values() if one.is_larger_better])
        if not isinstance(trial, BaseTrial):
            raise TypeError(f"`trial` must be a trial of Optuna, got {type(trial).__name__}.")
        directions = getattr(getattr(trial, "study", None), "directions", [StudyDirection.MAXIMIZE])
        if directions != [StudyDirection.MAXIMIZE]:
            raise ValueError(
                f'`trial` must belong to a `direction="maximize"` study of one objective: larger `{monitor}` is better.'
            )
        self.trial = trial
        self._n_reported = self._n_before = 0  # checks of this training that were reported; those of earlier ones

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        before = trainer.callbacks[: trainer.callbacks.index(self)]
        if not any(isinstance(one, BoundaryUncertaintyMonitor) for one in before):
            raise MisconfigurationException(
                "`callbacks` must list `BoundaryUncertaintyStopping` or `BoundaryUncertaintyMonitor` before"
                f" `{type(self).__name__}`, got none there."
            )
        for callback in before:
            if isinstance(callback, BoundaryUncertaintyMonitor):
                self._begin_anew(callback)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for callback in trainer.callbacks:
            if isinstance(callback, BoundaryUncertaintyMonitor):
                self.report(callback)

    def report(self, watched: Any) -> None:
        """Report the last check of a callback or stopper; raise `optuna.TrialPruned` if the trial's pruner says so."""
        if len(watched.history) > self._n_reported:
            check, self._n_reported = watched.history[-1], len(watched.history)
            if self.monitor not in check:
                raise ValueError(
                    f"`monitor` must be a signal that is measured, got {self.monitor!r}: pass `metric=` or `rule=` to"
                    " what measures."
                )
            self.trial.report(check[self.monitor], self._n_before + self._n_reported - 1)
            if self.trial.should_prune():
                raise TrialPruned(f"Pruned after {self._n_before + self._n_reported} checks by `{self.monitor}`.")

    def _begin_anew(self, watched: Any) -> None:
        """Count the checks of a further training behind those of the ones before."""
        if len(watched.history) < self._n_reported:
            self._n_before, self._n_reported = self._n_before + self._n_reported, 0
