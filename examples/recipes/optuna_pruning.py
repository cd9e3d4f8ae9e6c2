"""Optuna without validation data: trials are compared, and pruned, by what the callback logs.

`expected_accuracy` is comparable between trials: each reads its network at the same moved samples.

    pip install optuna
    python examples/recipes/optuna_pruning.py
"""

import tempfile

import lightning as L
import optuna
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping
from bu_torch.integrations.optuna import BoundaryUncertaintyPruningCallback


class Classifier(L.LightningModule):
    """A small network; nothing in it knows of bu-torch."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def loader() -> DataLoader:
    """400 samples of two moons, a tenth of their labels flipped."""
    inputs, labels = make_moons(400, noise=0.25, random_state=0)
    labels[torch.rand(400, generator=torch.Generator().manual_seed(0)).numpy() < 0.1] ^= 1
    samples = TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
    return DataLoader(samples, batch_size=50, shuffle=True)


def objective(trial: optuna.Trial, folder: str, epochs: int) -> float:
    stopping = BoundaryUncertaintyStopping(patience=10)
    callbacks = [stopping, BoundaryUncertaintyPruningCallback(trial)]
    module = Classifier(lr=trial.suggest_float("lr", 1e-5, 1e-1, log=True))
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader())
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
