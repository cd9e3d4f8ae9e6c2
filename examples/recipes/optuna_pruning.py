"""Optuna without validation data: trials are compared, and pruned, by what the callback logs.

Optuna's pruning callback reads its key at the end of a validation, and here is none; two lines make it read at the end
of a training epoch. `expected_accuracy` is comparable between trials: each reads its network at the same moved samples.

    pip install optuna optuna-integration
    python examples/recipes/optuna_pruning.py
"""

import tempfile
from typing import Any

import optuna
from optuna_integration import PyTorchLightningPruningCallback
from shared_lightning import Classifier, loader, trainer

from bu_torch import BoundaryUncertaintyStopping


class PruningCallback(PyTorchLightningPruningCallback):
    """Optuna's, at the end of training epochs; list it behind ours."""

    def on_train_epoch_end(self, *args: Any) -> None:
        self.on_validation_end(*args)


def objective(trial: optuna.Trial, folder: str, epochs: int) -> float:
    stopping = BoundaryUncertaintyStopping(patience=10)
    callbacks = [stopping, PruningCallback(trial, monitor="expected_accuracy")]
    module = Classifier(lr=trial.suggest_float("lr", 1e-5, 1e-1, log=True))
    trainer(folder, epochs, logger=False, callbacks=callbacks).fit(module, loader())
    return next(check["expected_accuracy"] for check in stopping.history if check["epoch"] == stopping.best_epoch)


def main(trials: int = 12, epochs: int = 25) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=2)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
    with tempfile.TemporaryDirectory() as folder:
        study.optimize(lambda trial: objective(trial, folder, epochs), n_trials=trials)
    for trial in study.trials:
        print(f"lr {trial.params['lr']:.5f}: {trial.state.name.lower()} after {len(trial.intermediate_values)} epochs")
    print(f"best: lr {study.best_params['lr']:.5f}, expected accuracy {study.best_value:.3f}")
    return study


if __name__ == "__main__":
    main()
