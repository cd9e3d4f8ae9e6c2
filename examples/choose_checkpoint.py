"""Choosing among the checkpoints of a run afterwards, without validation data.

The network and the data of `letter_mlp.py`; every epoch is saved. All checkpoints are ranked by what the stopping
callback measures at each check, on the training half alone. Test errors show what the choices are worth.

    python examples/choose_checkpoint.py
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import lightning as L
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import Signals, load_checkpoint, rank_checkpoints

LETTERS = Path(__file__).parents[1] / "benchmarks" / "data" / "letter.csv.gz"
RULES = ("accuracy_uncertainty_trust", "expected_accuracy", "boundary_uncertainty", "trust_score")
Split = tuple[Tensor, Tensor]


class LetterMLP(L.LightningModule):
    """16 features to 26 letters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 26))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Split, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.parameters(), lr=1e-3)


def load(n_samples: int, noise: float) -> tuple[Split, Split]:
    """Training half, a share of its labels drawn anew, and test half; standardised on the training half."""
    table = pd.read_csv(LETTERS, nrows=n_samples)
    labels = table.pop("label").to_numpy()
    x_train, x_test, y_train, y_test = train_test_split(
        table.to_numpy(np.float32), labels, test_size=0.5, stratify=labels, random_state=0
    )
    generator = np.random.default_rng(0)
    is_redrawn = generator.random(len(y_train)) < noise
    y_train[is_redrawn] = generator.integers(0, 26, is_redrawn.sum())
    mean, scale = x_train.mean(axis=0), x_train.std(axis=0)
    return (
        (torch.from_numpy((x_train - mean) / scale), torch.from_numpy(y_train)),
        (torch.from_numpy((x_test - mean) / scale), torch.from_numpy(y_test)),
    )


def train(split: Split, max_epochs: int, folder: Path) -> LetterMLP:
    """Train a network, and save it after every epoch."""
    L.seed_everything(0, verbose=False)
    module = LetterMLP()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    trainer.fit(module, DataLoader(TensorDataset(*split), batch_size=128, shuffle=True))
    return module


@torch.no_grad()
def error(module: nn.Module, weights: dict[str, Tensor], split: Split) -> float:
    """Share of samples that these weights classify wrongly."""
    module.load_state_dict(weights)
    return float((module(split[0]).argmax(dim=1) != split[1]).float().mean())


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-epochs", type=int, default=40)
    parser.add_argument("--samples", type=int, default=20000, help="how many of the 20000 samples to use")
    parser.add_argument("--noise", type=float, default=0.0, help="share of the training labels that are drawn anew")
    parser.add_argument("--smoke", action="store_true", help="3000 samples, four epochs")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.samples, options.max_epochs = 3000, 4

    training, test = load(options.samples, options.noise)
    with TemporaryDirectory() as folder:
        module = train(training, options.max_epochs, Path(folder))
        saved = sorted(
            (load_checkpoint(file) for file in Path(folder).iterdir()), key=lambda checkpoint: checkpoint.step
        )
        errors = [error(module, checkpoint.state_dict, test) for checkpoint in saved]
        signals = Signals().fit(*training)  # once, for all that follows
        rows = {}
        for rule in RULES:
            ranking = rank_checkpoints(folder, module, training, rule=rule, signals=signals)
            rows[rule] = (ranking.best.epoch, errors[ranking.best.epoch])
            if rule == RULES[0]:
                print(ranking)
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["epoch", "test error"])
    print(f"\n{table.to_string(float_format='{:.4f}'.format)}")
    hindsight = int(np.argmin(errors))
    print(f"test error of the last epoch: {errors[-1]:.4f} (epoch {len(errors) - 1})")
    print(f"test error of the best epoch in hindsight: {errors[hindsight]:.4f} (epoch {hindsight})")
    print(f"mean test error of all epochs: {np.mean(errors):.4f}")
    table.attrs["errors"] = errors
    return table


if __name__ == "__main__":
    main()
