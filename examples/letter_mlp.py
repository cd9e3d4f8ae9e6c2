"""Early stopping of an MLP on Letter Recognition without validation data: the experiment of Fig. 9.

Ha et al. (2021), section 6: 20000 letters in 16 features, half for training, half for testing, features standardised
on the training half; an MLP with hidden layers of 128 and 64 units, ReLU, cross entropy, RMSprop. A second network,
trained on 75 % of the training half, shows what a hold-out set of the other 25 % says. U on the test set is the whole
method with the test half as its own reference: its own neighbours, perturbation and prototypes.

As in the paper U by Proposal 2 alone decides, each sample is perturbed once, all samples of the training half are
measured after each epoch, and the weights are those of the epoch, not an average
(`BoundaryUncertaintyStopping.as_published`). The number of epochs is not given there. Here training runs for all of
`--max-epochs`; errors are printed for the best value of all, and for what a patience of 20 epochs would keep. The
history of the same training has the boundary uncertainty of this package, from label probabilities. A third training
has the callback's defaults: another rule, averaged weights, fewer samples a check.

A seed decides halves, network, batches and perturbation. From one epoch to the next the error is unstable, so one seed
tells little: means over the seeds are printed. Each takes two to three minutes of a processor, so that `--seeds 0`
is a first look. `perturbation_laws.py` has other moves, and noise.

    python examples/letter_mlp.py
"""

import argparse
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
    """16 features to 26 letters, or other numbers of them."""

    def __init__(self, n_features: int = 16, n_classes: int = 26) -> None:
        super().__init__()
        first, last = nn.Linear(n_features, 128), nn.Linear(64, n_classes)
        self.net = nn.Sequential(first, nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), last)

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

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name, split in self.errors.items():
            self.values[name].append(error(pl_module, split))
        for name, uncertainty in self.uncertainties.items():
            self.values[name].append(float(uncertainty.score(pl_module)))


@torch.no_grad()
def error(module: nn.Module, split: Split) -> float:
    """Share of samples that are classified wrongly."""
    x, y = split
    return float((module(x).argmax(dim=1) != y).float().mean())


def load(n_samples: int, seed: int = 0, name: str = "letter") -> tuple[Split, Split]:
    """Training and test half of a table, standardised on the training half."""
    table = pd.read_csv(FOLDER.parent / "benchmarks" / "data" / f"{name}.csv.gz")
    table = table[:n_samples] if name == "letter" else table.sample(min(n_samples, len(table)), random_state=0)
    labels = table.pop("label").to_numpy()
    x_train, x_test, y_train, y_test = train_test_split(
        table.to_numpy(np.float32), labels, test_size=0.5, stratify=labels, random_state=seed
    )
    mean, scale = x_train.mean(axis=0), x_train.std(axis=0)
    scale[scale == 0] = 1
    return (
        (torch.from_numpy((x_train - mean) / scale), torch.from_numpy(y_train)),
        (torch.from_numpy((x_test - mean) / scale), torch.from_numpy(y_test)),
    )


def train(split: Split, seed: int, max_epochs: int, *callbacks: L.Callback) -> LetterMLP:
    """A network trained on all of `split`."""
    L.seed_everything(seed, verbose=False)
    module = LetterMLP()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=RUNS,
    )
    trainer.fit(module, DataLoader(TensorDataset(*split), batch_size=128, shuffle=True))
    return module


def keep_by_patience(values: list[float], patience: int) -> int:
    """Epoch of the largest value before the first `patience` epochs in a row without improvement."""
    best = 0
    for epoch, value in enumerate(values):
        if value > values[best]:
            best = epoch
        elif epoch - best >= patience:
            break
    return best


def run(seed: int, n_samples: int, max_epochs: int) -> tuple[pd.DataFrame, pd.Series]:
    """Curves of one seed, one row an epoch, and the error and the epoch of all that was kept."""
    training, test = load(n_samples, seed)
    published = BoundaryUncertaintyStopping.as_published(seed=seed)
    of_test = ParzenUncertainty(pairs_at="sample", seed=seed).fit(*test)
    curves = Curves({"training error": training, "test error": test}, {"test U": of_test})
    train(training, seed, max_epochs, published, curves)
    history = pd.DataFrame(published.history)
    epochs = pd.DataFrame(curves.values)
    epochs["training U"] = history["parzen_uncertainty"]
    epochs["U from label probabilities"] = history["boundary_uncertainty"]

    fitted, held_out = train_test_split(
        range(len(training[1])), test_size=0.25, stratify=training[1], random_state=seed
    )
    second = Curves({"hold-out error": (training[0][held_out], training[1][held_out]), "test error": test}, {})
    train((training[0][fitted], training[1][fitted]), seed, max_epochs, second)
    epochs["hold-out error"] = second.values["hold-out error"]
    epochs["test error, hold-out"] = second.values["test error"]

    default = BoundaryUncertaintyStopping(seed=seed)
    module = train(training, seed, max_epochs, default)
    kept = choices(epochs) | {"default": error(module, test), "default, epoch": default.best_epoch}
    return epochs.assign(epoch=range(len(epochs)), seed=seed), pd.Series(kept, name=seed)


def choices(epochs: pd.DataFrame) -> dict[str, float]:
    """Test error and epoch of what U and hold-out keep, with and without patience, and of the last and best epoch."""
    kept: dict[str, float] = {}
    errors = epochs["test error"]
    for name, values, of_values in (
        ("U", epochs["training U"], errors),
        ("U from label probabilities", epochs["U from label probabilities"], errors),
        ("hold-out", -epochs["hold-out error"], epochs["test error, hold-out"]),
    ):
        for label, patience in {name: len(epochs), f"{name}, patience {PATIENCE}": PATIENCE}.items():
            epoch = keep_by_patience(values.tolist(), patience)
            kept |= {label: of_values[epoch], f"{label}, epoch": epoch}
    return kept | {"last epoch": errors.iloc[-1], "best epoch": errors.min(), "best epoch, epoch": errors.argmin()}


def plot(path: Path, curves: pd.DataFrame) -> None:
    """The three panels of Fig. 9, and what it has not: means over the seeds, and their range."""
    figure, axes = plt.subplots(1, 5, figsize=(21, 3.8), layout="constrained")
    panels: dict[str, dict[str, str]] = {
        "Fig. 9: test error and -U (right)": {"test error": "tab:red"},
        "Fig. 9: hold-out and training": {"hold-out error": "black", "training error": "tab:orange"},
        "Fig. 9: -U by Proposal 2": {"training U": "tab:blue", "test U": "black"},
        "not there: what 75 % of the samples reach": {"test error": "tab:red", "test error, hold-out": "tab:pink"},
        "not there: -U from label probabilities": {"U from label probabilities": "tab:green"},
    }
    right = axes[0].twinx()
    right.plot(-curves.groupby("epoch")["test U"].mean(), color="black", label="-U of the test half")
    right.legend(fontsize=8, loc="center right")
    for axis, (title, columns) in zip(axes, panels.items(), strict=True):
        for name, color in columns.items():
            values = curves[name] * (-1 if "U" in name else 1)
            by_epoch = values.groupby(curves["epoch"])
            axis.plot(by_epoch.mean(), color=color, label=name.replace(", hold-out", " of the network of 75 %"))
            axis.fill_between(
                by_epoch.min().index, by_epoch.min(), by_epoch.max(), color=color, alpha=0.15, linewidth=0
            )
        axis.set(xlabel="epoch", title=title)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--max-epochs", type=int, default=150)
    parser.add_argument("--samples", type=int, default=20000, help="how many of the 20000 samples to use")
    parser.add_argument("--plot", type=Path, default=FOLDER / "letter_mlp.png", help="where the figure goes")
    parser.add_argument("--smoke", action="store_true", help="1300 samples, three epochs, two seeds")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.samples, options.max_epochs, options.seeds = 1300, 3, [0, 1]

    parts, kept = [], []
    for seed in options.seeds:
        epochs, row = run(seed, options.samples, options.max_epochs)
        parts.append(epochs)
        kept.append(row)
        if len(options.seeds) > 1:
            print(row.round(4).to_string(), flush=True)
    curves, table = pd.concat(parts, ignore_index=True), pd.DataFrame(kept)
    plot(options.plot, curves)
    print(f"\nU of {options.samples // 2} training samples after each of {options.max_epochs} epochs")
    if len(table) == 1:
        print(f"test errors and epochs of seed {options.seeds[0]}")
        print(table.iloc[0].round(4).to_string())
    else:
        print(f"test errors and epochs: means over the seeds {options.seeds}, their standard errors, and ranges")
        print(table.agg(["mean", "sem", "min", "max"]).T.round(4).to_string())
    named = ("U", "U from label probabilities", "default")
    for suffix in ("", f", patience {PATIENCE}"):
        errors = {name: table.get(name + suffix, table[name]) for name in named}
        wins = [f"{name} {(values < table['hold-out' + suffix]).sum()}" for name, values in errors.items()]
        print(f"seeds whose error is below that of hold-out{suffix}, of {len(table)}: {', '.join(wins)}")
    of_seeds = [one for _, one in curves.groupby("seed")]
    for name in ("training U", "U from label probabilities"):
        ranks = [one[name].corr(-one["test error"], method="spearman") for one in of_seeds]
        print(
            f"rank correlation with test accuracy, {name}: {np.mean(ranks):.2f} ({min(ranks):.2f} to {max(ranks):.2f})"
        )
    gap = curves["training U"] - curves["test U"]
    print(f"U of the training set is larger than that of the test set by {gap.mean():.3f} on average", end="")
    print(f"; they differ by {gap.abs().mean():.3f} on average, {gap.abs().max():.3f} at most")
    print(f"figure: {options.plot}")
    return table


if __name__ == "__main__":
    main()
