"""Early stopping of an MLP on Letter Recognition without validation data: the experiment of Fig. 9.

Ha et al. (2021), section 6: 20000 letters in 16 features, half for training, half for testing, features standardised
on the training half; an MLP with hidden layers of 128 and 64 units, ReLU, cross entropy, RMSprop. A second network,
trained on 75 % of the training half, shows what a hold-out set of the other 25 % says. U on the test set is the whole
method with the test half as its own reference: its own neighbours, perturbation and prototypes.

As in the paper U alone decides, each sample is perturbed once, all samples of the training half are measured after each
epoch, and the weights are those of the epoch, not an average (`BoundaryUncertaintyStopping.as_published`). The number
of epochs is not given there. Here training runs for all of `--max-epochs`; the epoch of the largest U is printed, and
the one that a patience of 20 epochs would keep, and so for the least error on the hold-out set. A third training has
the callback's defaults: another rule, averaged weights, fewer samples a check. `perturbation_laws.py` has more seeds.

    python examples/letter_mlp.py
"""

import argparse
import time
from pathlib import Path

import lightning as L
import matplotlib
import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping, ParzenUncertainty

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
RUNS = FOLDER / "runs"
PATIENCE = 20  # epochs, the callback's default
Split = tuple[Tensor, Tensor]


class LetterMLP(L.LightningModule):
    """16 features to 26 letters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 26))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Split, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.parameters(), lr=1e-3)


class Curves(L.Callback):
    """What the figure shows beside the callback's own history: errors, and U of other samples, after each epoch."""

    def __init__(self, errors: dict[str, Split], uncertainties: dict[str, ParzenUncertainty]) -> None:
        self.errors = errors
        self.uncertainties = uncertainties
        self.values: dict[str, list[float]] = {name: [] for name in (*errors, *uncertainties)}
        self.seconds = 0.0

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        started = time.perf_counter()
        for name, split in self.errors.items():
            self.values[name].append(error(pl_module, split))
        for name, uncertainty in self.uncertainties.items():
            self.values[name].append(float(uncertainty.score(pl_module)))
        self.seconds += time.perf_counter() - started


@torch.no_grad()
def error(module: nn.Module, split: Split) -> float:
    """Share of samples that are classified wrongly."""
    x, y = split
    return float((module(x).argmax(dim=1) != y).float().mean())


def load(n_samples: int, seed: int = 0) -> tuple[Split, Split]:
    """Training and test half, standardised on the training half."""
    table = pd.read_csv(FOLDER.parent / "benchmarks" / "data" / "letter.csv.gz", nrows=n_samples)
    labels = table.pop("label").to_numpy()
    x_train, x_test, y_train, y_test = train_test_split(
        table.to_numpy(np.float32), labels, test_size=0.5, stratify=labels, random_state=seed
    )
    mean, scale = x_train.mean(axis=0), x_train.std(axis=0)
    return (
        (torch.from_numpy((x_train - mean) / scale), torch.from_numpy(y_train)),
        (torch.from_numpy((x_test - mean) / scale), torch.from_numpy(y_test)),
    )


def train(split: Split, max_epochs: int, *callbacks: L.Callback, show: bool = True) -> tuple[LetterMLP, float]:
    """A network trained on all of `split`, and the seconds that took."""
    L.seed_everything(0, verbose=False)
    module = LetterMLP()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=show,
        enable_progress_bar=show,
        enable_model_summary=show,
        default_root_dir=RUNS,
        log_every_n_steps=10,
    )
    started = time.perf_counter()
    trainer.fit(module, DataLoader(TensorDataset(*split), batch_size=128, shuffle=True))
    return module, time.perf_counter() - started


def keep_by_patience(values: list[float], patience: int) -> int:
    """Epoch of the largest value before the first `patience` epochs in a row without improvement."""
    best = 0
    for epoch, value in enumerate(values):
        if value > values[best]:
            best = epoch
        elif epoch - best >= patience:
            break
    return best


def plot(path: Path, curves: Curves, held_out: list[float], training_u: list[float], kept: dict[str, int]) -> None:
    """The three panels of Fig. 9."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    left.plot(curves.values["test error"], color="tab:red", label="test error (left)")
    left.plot([], color="black", label="-U (right)")
    left.set(ylabel="error rate", title="Test set")
    twin = left.twinx()
    twin.plot([-u for u in curves.values["test U"]], color="black")
    twin.set(ylabel="-U")
    middle.plot(held_out, color="black", linestyle=":", label="hold-out error, trained on 75 %")
    middle.plot(curves.values["training error"], color="tab:orange", label="training error")
    middle.set(ylabel="error rate", title="Hold-out and training")
    right.plot([-u for u in training_u], color="tab:blue", label="training set")
    right.plot([-u for u in curves.values["test U"]], color="black", label="test set")
    right.set(ylabel="-U", title="Boundary uncertainty")
    for axis in (left, middle, right):
        axis.set(xlabel="epoch")
        for (name, epoch), line in zip(kept.items(), ("--", ":"), strict=False):
            axis.axvline(epoch, color="tab:green", linewidth=1, linestyle=line, label=name)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-epochs", type=int, default=150)
    parser.add_argument("--samples", type=int, default=20000, help="how many of the 20000 samples to use")
    parser.add_argument("--plot", type=Path, default=FOLDER / "letter_mlp.png", help="where the figure goes")
    parser.add_argument("--smoke", action="store_true", help="1300 samples, three epochs")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.samples, options.max_epochs = 1300, 3

    training, test = load(options.samples)
    n_samples = len(training[1])
    curves = Curves(
        errors={"training error": training, "test error": test},
        uncertainties={"test U": ParzenUncertainty(pairs_at="sample").fit(*test)},
    )
    stopping = BoundaryUncertaintyStopping.as_published()
    _, seconds = train(training, options.max_epochs, stopping, curves, show=False)
    training_u = [entry["boundary_uncertainty"] for entry in stopping.history]
    errors = curves.values["test error"]
    n_epochs = len(errors)

    fitted, held_back = train_test_split(range(n_samples), test_size=0.25, stratify=training[1], random_state=0)
    second = Curves({"hold-out error": (training[0][held_back], training[1][held_back]), "test error": test}, {})
    train((training[0][fitted], training[1][fitted]), n_epochs, second, show=False)

    default = BoundaryUncertaintyStopping()
    module, _ = train(training, options.max_epochs, default, show=False)

    early = keep_by_patience(training_u, PATIENCE)
    kept = {f"kept with patience {PATIENCE}": early}
    if early != stopping.best_epoch:
        kept["largest U of the training set"] = stopping.best_epoch
    plot(options.plot, curves, second.values["hold-out error"], training_u, kept)
    print(f"U of {n_samples} training samples after each of {n_epochs} epochs")
    print(f"kept epoch: {stopping.best_epoch} (U {training_u[stopping.best_epoch]:.4f})")
    print(f"test error of the kept epoch: {errors[stopping.best_epoch]:.4f}")
    print(f"kept epoch with patience {PATIENCE}: {early} (U {training_u[early]:.4f})")
    print(f"test error of the kept epoch with patience {PATIENCE}: {errors[early]:.4f}")
    for name, patience in {"": n_epochs, f" with patience {PATIENCE}": PATIENCE}.items():
        epoch = keep_by_patience([-one for one in second.values["hold-out error"]], patience)
        print(f"test error of what hold-out keeps{name}: {second.values['test error'][epoch]:.4f} (epoch {epoch})")
    print(f"test error of the last epoch: {errors[-1]:.4f} (epoch {n_epochs - 1})")
    print(f"test error of the best epoch in hindsight: {min(errors):.4f} (epoch {errors.index(min(errors))})")
    gap = [abs(u - v) for u, v in zip(training_u, curves.values["test U"], strict=True)]
    print(f"U of training and test set differ by: {max(gap):.3f} at most, {sum(gap) / n_epochs:.3f} on average")
    print(f"largest U of the test set: epoch {int(np.argmax(curves.values['test U']))}")
    print(f"kept epoch of the default: {default.best_epoch}")
    print(f"reason of the default: {default.stopping_reason}")
    print(f"test error of what the default keeps: {error(module, test):.4f}")
    print(
        f"time in checks: {stopping.check_seconds:.1f} s of {seconds - curves.seconds:.1f} s,"
        f" before the first epoch: {stopping.setup_seconds:.1f} s"
    )
    print(f"figure: {options.plot}")


if __name__ == "__main__":
    main()
