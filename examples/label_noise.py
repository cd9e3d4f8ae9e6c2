"""Early stopping under label noise: without validation data, with a hold-out set, and to the last epoch.

An MLP of 128 and 64 units learns from 3000 of the 20000 samples of Letter Recognition, 20 % of whose labels are drawn
anew from all classes. The other 17000, whose labels are right, test it. Three trainings begin with the same weights:
one on all 3000 labels with `BoundaryUncertaintyStopping()`; one on 75 % of them with Lightning's own `EarlyStopping`
and `ModelCheckpoint` on the rest, whose labels are as noisy; one on all of them for 100 epochs. Nothing is tested
before all trainings have ended.

    python examples/label_noise.py
    python examples/label_noise.py --seeds 5
"""

import argparse
import logging
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import lightning as L
import matplotlib
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
RUNS = FOLDER / "runs" / "label_noise"
BLUE, ORANGE, GREY = "#2a6fbb", "#d9731a", "#9a9a9a"
PATIENCE = 20  # of the hold-out set; the callback's own default is the same
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

    def validation_step(self, batch: Split, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.log("val_loss", nn.functional.cross_entropy(logits, y))
        self.log("val_accuracy", (logits.argmax(dim=1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Weights(L.Callback):
    """Keeps the weights of each epoch: those of training or, given a `stopping`, the average that it measures."""

    def __init__(self, stopping: BoundaryUncertaintyStopping | None = None) -> None:
        self.stopping = stopping
        self.of_epochs: list[dict[str, Tensor]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        weights = pl_module.state_dict() if self.stopping is None else self.stopping.engine.state_to_keep(pl_module)
        self.of_epochs.append({name: weight.clone() for name, weight in weights.items()})

    def errors(self, test: Split) -> list[float]:
        """The test error after each epoch."""
        return [error(with_weights(weights), test) for weights in self.of_epochs]


class Result(NamedTuple):
    """What the trainings of one seed give: what each keeps, and curves of test errors, one value an epoch."""

    stopping: BoundaryUncertaintyStopping
    seconds: float
    kept_error: float
    held_out_error: float
    held_out_epoch: int
    average: list[float]
    held_out: list[float]
    all_labels: list[float]

    @property
    def best_epoch(self) -> int:
        """Of the training on all labels, in hindsight."""
        return int(np.argmin(self.all_labels))

    @property
    def errors(self) -> dict[str, float]:
        """The test errors to compare."""
        return {
            "kept": self.kept_error,
            "hold-out": self.held_out_error,
            "last epoch": self.all_labels[-1],
            "best in hindsight": self.all_labels[self.best_epoch],
        }


@torch.no_grad()
def error(module: nn.Module, split: Split) -> float:
    """Share of samples that are classified wrongly."""
    x, y = split
    return float((module(x).argmax(dim=1) != y).float().mean())


def with_weights(weights: dict[str, Tensor]) -> LetterMLP:
    module = LetterMLP()
    module.load_state_dict(weights)
    return module


def load(n_samples: int, noise: float, seed: int) -> tuple[Split, Split]:
    """Training samples with noisy labels, and all others with the right ones; standardised on the former."""
    table = pd.read_csv(FOLDER.parent / "benchmarks" / "data" / "letter.csv.gz")
    labels = table.pop("label").to_numpy()
    x_train, x_test, y_train, y_test = train_test_split(
        table.to_numpy(np.float32), labels, train_size=n_samples, stratify=labels, random_state=seed
    )
    generator = np.random.default_rng(seed)
    is_redrawn = generator.random(n_samples) < noise
    y_train[is_redrawn] = generator.integers(0, 26, is_redrawn.sum())
    mean, scale = x_train.mean(axis=0), x_train.std(axis=0)
    return (
        (torch.from_numpy((x_train - mean) / scale), torch.from_numpy(y_train)),
        (torch.from_numpy((x_test - mean) / scale), torch.from_numpy(y_test)),
    )


def train(split: Split, seed: int, max_epochs: int, *callbacks: L.Callback, held_out: Split | None = None) -> LetterMLP:
    """A network trained on `split`; the same seed gives the same first weights and order of samples."""
    L.seed_everything(seed, verbose=False)
    module = LetterMLP()
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=any(isinstance(c, BoundaryUncertaintyStopping | ModelCheckpoint) for c in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=RUNS / f"seed_{seed}",
        log_every_n_steps=10,
    )
    loader = DataLoader(TensorDataset(*split), batch_size=32, shuffle=True)
    trainer.fit(module, loader, None if held_out is None else DataLoader(TensorDataset(*held_out), batch_size=1000))
    return module


def compare(training: Split, test: Split, seed: int, max_epochs: int) -> Result:
    """The three trainings of a seed."""
    stopping = BoundaryUncertaintyStopping()
    averages = Weights(stopping)
    started = time.perf_counter()
    kept = train(training, seed, max_epochs, stopping, averages)
    seconds = time.perf_counter() - started

    x_part, x_held, y_part, y_held = train_test_split(*training, test_size=0.25, random_state=seed)
    early = EarlyStopping("val_accuracy", mode="max", patience=PATIENCE)
    checkpoint = ModelCheckpoint(monitor="val_accuracy", mode="max", filename="hold-out-{epoch}")
    on_part = Weights()
    train((x_part, y_part), seed, max_epochs, early, checkpoint, on_part, held_out=(x_held, y_held))
    saved = torch.load(checkpoint.best_model_path, weights_only=True)

    on_all = Weights()
    train(training, seed, max_epochs, on_all)
    return Result(
        stopping=stopping,
        seconds=seconds,
        kept_error=error(kept, test),
        held_out_error=error(with_weights(saved["state_dict"]), test),
        held_out_epoch=saved["epoch"],
        average=averages.errors(test),
        held_out=on_part.errors(test),
        all_labels=on_all.errors(test),
    )


def plot(path: Path, result: Result, title: str) -> None:
    """Above, test errors and what is kept; below, the score that the callback decides by."""
    stopping, errors = result.stopping, result.errors
    scores = [check[stopping.score_name] for check in stopping.history]
    last = len(result.all_labels) - 1
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(9.5, 4.8), sharex=True, layout="constrained", height_ratios=(5, 2)
    )

    def mark(name: str, epoch: int, color: str, marker: str, size: int, label: str) -> None:
        style = {"color": color, "marker": marker, "edgecolors": "black", "clip_on": False, "zorder": 4}
        upper.scatter(epoch, errors[name], size, label=f"{label}: {errors[name]:.3f}", **style)

    upper.plot(result.average, color=BLUE, linewidth=3, label="all labels, averaged weights", zorder=3)
    mark("kept", stopping.best_epoch, BLUE, "*", 280, "kept by the callback")
    upper.plot(result.held_out, color=ORANGE, linewidth=1.3, label="75 % of the labels")
    mark("hold-out", result.held_out_epoch, ORANGE, "D", 60, "kept by hold-out accuracy")
    upper.plot(result.all_labels, color="black", linewidth=0.8, label="all labels")
    mark("last epoch", last, "black", "s", 50, "last epoch")
    mark("best in hindsight", result.best_epoch, "white", "o", 50, "best epoch in hindsight")
    # The first epochs, far worse than all others, would flatten the rest.
    upper.set(title=title, ylabel="test error", xlim=(0, last))
    upper.set_ylim(0.9 * min(*errors.values(), *result.average), 1.25 * max(errors.values()))
    lower.plot(scores, color=BLUE, linewidth=3, label="the callback's score")
    star = {"color": BLUE, "marker": "*", "edgecolors": "black", "zorder": 4}
    lower.scatter(stopping.best_epoch, stopping.best_score, 280, label="kept", **star)
    spread = stopping.best_score - min(scores[len(scores) // 4 :])
    lower.set(xlabel="epoch", ylabel="score")
    lower.set_ylim(stopping.best_score - 1.5 * spread - 1e-3, stopping.best_score + 0.5 * spread + 1e-3)
    lower.plot([], color=GREY, linewidth=1, linestyle="--", label="the callback stops")
    for axis in (upper, lower):
        axis.axvline(stopping.best_epoch, color=BLUE, linewidth=1, linestyle=":", zorder=0)
        axis.axvline(len(scores) - 1, color=GREY, linewidth=1, linestyle="--", zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
    upper.legend(frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5)).get_texts()[1].set_weight("bold")
    lower.legend(frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def say(result: Result) -> None:
    """What one seed gave, in words."""
    stopping, errors = result.stopping, result.errors
    print(f"kept epoch: {stopping.best_epoch}")
    print(f"reason: {stopping.stopping_reason}")
    print(f"test error of what the callback kept: {errors['kept']:.4f}")
    print(f"test error of what a hold-out set kept: {errors['hold-out']:.4f} (epoch {result.held_out_epoch})")
    print(f"test error of the last epoch: {errors['last epoch']:.4f} (epoch {len(result.all_labels) - 1})")
    print(f"test error of the best epoch in hindsight: {errors['best in hindsight']:.4f} (epoch {result.best_epoch})")
    print(
        f"time of the callback: preparation {stopping.setup_seconds:.1f} s, checks {stopping.check_seconds:.1f} s"
        f" of {result.seconds:.1f} s in all"
    )


@contextmanager
def own_lines_alone() -> Iterator[None]:
    """Show the messages of the callback, and none of Lightning's."""
    lightning = logging.getLogger("lightning.pytorch")
    level = lightning.level
    lightning.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        lightning.setLevel(level)


def main(arguments: list[str] | None = None) -> list[Result]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="of splits, wrong labels and first weights")
    parser.add_argument("--samples", type=int, default=3000, help="how many letters train; the others test")
    parser.add_argument("--noise", type=float, default=0.2, help="share of training labels drawn anew")
    parser.add_argument("--max-epochs", type=int, default=100)
    parser.add_argument("--plot", type=Path, default=FOLDER / "label_noise.png", help="where the figure goes")
    parser.add_argument("--smoke", action="store_true", help="1000 samples, three epochs")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.samples, options.max_epochs = 1000, 3

    shutil.rmtree(RUNS, ignore_errors=True)  # what it wrote before
    results = []
    with own_lines_alone():
        for seed in range(options.seeds):
            training, test = load(options.samples, options.noise, seed)
            results.append(compare(training, test, seed, options.max_epochs))
    say(results[0])
    if options.seeds > 1:
        table = pd.DataFrame([result.errors for result in results], index=[f"seed {n}" for n in range(options.seeds)])
        table.loc["mean"] = table.mean()
        print(f"test errors of {options.seeds} seeds\n{table.to_string(float_format='{:.4f}'.format)}")
    title = f"{options.samples} training samples, {100 * options.noise:.0f} % of their labels drawn anew"
    plot(options.plot, results[0], title)
    print(f"figure: {options.plot}")
    return results


if __name__ == "__main__":
    main()
