"""Stopping quality: how good is the epoch that each rule keeps, beside a hold-out set and the last epoch?

Each case is a table, a share of label noise, a seed and a setting of the network. Half of the table trains (at most
2500 samples), the rest tests. One Lightning training on all training labels, watched by the shipped monitor, gives the
curves that the rules without validation data decide on; a second one, on 75 % of them, gives those of a hold-out set.
Every rule is causal: at an epoch it knows that epoch and those before. Reported are the test error of the kept epoch
and the excess error, which is that minus the error of the best epoch in hindsight of the training on all labels.

    python benchmarks/quality.py --quick
    python benchmarks/quality.py
    python benchmarks/quality.py --seeds 5 --noise 0 0.1 0.2 0.4 --settings rmsprop adamw sgd wide
"""

import argparse
import dataclasses
import itertools
import json
import logging
import platform
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.multiprocessing import get_context
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor
from bu_torch.functional import standardized_gain

FOLDER = Path(__file__).parent
TABLES = tuple(sorted(file.name.removesuffix(".csv.gz") for file in (FOLDER / "data").glob("*.csv.gz")))
SETTINGS: dict[str, tuple[tuple[int, int], Callable[..., torch.optim.Optimizer]]] = {
    "rmsprop": ((128, 64), lambda p: torch.optim.RMSprop(p, lr=1e-3)),
    "adamw": ((128, 64), lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=1e-2)),
    "sgd": ((128, 64), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "wide": ((512, 512), lambda p: torch.optim.RMSprop(p, lr=1e-3)),
}
PATIENCE = 20
Split = tuple[Tensor, Tensor]
Kept = tuple[int, int]  # the kept epoch, and the last epoch that the rule needed


@dataclasses.dataclass(frozen=True)
class Case:
    """One training to judge rules on."""

    table: str
    noise: float
    seed: int
    setting: str
    epochs: int


class Net(L.LightningModule):
    """An MLP as the paper trains it, and what a validation loop logs."""

    def __init__(self, n_features: int, n_classes: int, setting: str) -> None:
        super().__init__()
        (first, second), self.optimizer = SETTINGS[setting]
        self.net = nn.Sequential(
            nn.Linear(n_features, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, n_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Split, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Split, batch_idx: int) -> None:
        logits = self(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]))
        self.log("val_accuracy", (logits.argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


class Curves(L.Callback):
    """Test error, changed training predictions and all logged metrics after each epoch."""

    def __init__(self, test: Split, train: Split) -> None:
        self.test, self.train = test, train
        self.rows: list[dict[str, float]] = []
        self.predictions: Tensor | None = None

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        predictions = pl_module(self.train[0]).argmax(dim=1)
        changed = 1.0 if self.predictions is None else float((predictions != self.predictions).float().mean())
        self.predictions = predictions
        test_error = float((pl_module(self.test[0]).argmax(dim=1) != self.test[1]).float().mean())
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.rows.append({**logged, "test_error": test_error, "changed_predictions": changed})

    def columns(self) -> dict[str, list[float]]:
        return {name: [row[name] for row in self.rows] for name in self.rows[-1]}


def load(case: Case) -> tuple[Split, Split, int]:
    """Training and test samples, standardised on the training samples, and the number of classes."""
    table = pd.read_csv(FOLDER / "data" / f"{case.table}.csv.gz")
    labels = torch.tensor(table.pop("label").to_numpy())
    features = torch.tensor(table.to_numpy(np.float32))
    n_classes = int(labels.max()) + 1
    generator = torch.Generator().manual_seed(1000 + case.seed)
    order = torch.randperm(len(labels), generator=generator)
    half = len(labels) // 2
    train, test = order[: min(half, 2500)], order[half:]
    mean, scale = features[train].mean(dim=0), features[train].std(dim=0)
    features = (features - mean) / torch.where(scale > 0, scale, 1.0)
    noisy = labels[train].clone()
    is_redrawn = torch.rand(len(noisy), generator=generator) < case.noise
    noisy[is_redrawn] = torch.randint(0, n_classes, (int(is_redrawn.sum()),), generator=generator)
    return (features[train], noisy), (features[test], labels[test]), n_classes


def train(case: Case, split: Split, test: Split, n_classes: int, held_out: Split | None) -> tuple[Curves, float]:
    """The curves of one Lightning training, watched by the shipped monitor unless there is a hold-out set."""
    L.seed_everything(case.seed, verbose=False)
    curves = Curves(test, split)
    # The monitor logs before `Curves` looks, and Lightning validates before both.
    callbacks = [curves] if held_out is not None else [BoundaryUncertaintyMonitor(seed=case.seed), curves]
    trainer = L.Trainer(
        max_epochs=case.epochs,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    loaders = [DataLoader(TensorDataset(*split), batch_size=32, shuffle=True)]
    if held_out is not None:
        loaders.append(DataLoader(TensorDataset(*held_out), batch_size=len(held_out[1])))
    started = time.perf_counter()
    trainer.fit(Net(split[0].shape[1], n_classes, case.setting), *loaders)
    return curves, time.perf_counter() - started


def run(case: Case) -> dict[str, object]:
    """Curves of both trainings of a case."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    split, test, n_classes = load(case)
    on_all, seconds = train(case, split, test, n_classes, None)
    order = torch.randperm(len(split[1]), generator=torch.Generator().manual_seed(case.seed))
    kept, held = order.tensor_split([int(0.75 * len(order))])
    part = (split[0][kept], split[1][kept])
    on_part, part_seconds = train(case, part, test, n_classes, (split[0][held], split[1][held]))
    return {
        "case": dataclasses.asdict(case),
        "all": on_all.columns(),
        "part": on_part.columns(),
        "seconds": seconds,
        "part_seconds": part_seconds,
    }


def largest(values: list[float], patience: float = float("inf")) -> Kept:
    """The first largest value, waiting so many epochs for a larger one."""
    kept = 0
    for epoch, value in enumerate(values):
        if value > values[kept]:
            kept = epoch
        elif epoch - kept >= patience:
            return kept, epoch
    return kept, len(values) - 1


def smallest(values: list[float], patience: float = float("inf")) -> Kept:
    return largest([-value for value in values], patience)


def consensus(curves: dict[str, list[float]], patience: float = float("inf")) -> Kept:
    """What `rule="consensus"` of the shipped callback keeps."""
    signs = {"label_agreement": 1, "neighbor_agreement": 1, "prediction_changes": -1}
    signals = torch.tensor([[sign * v for v in curves[name]] for name, sign in signs.items()], dtype=torch.float64).T
    kept = 0
    for epoch in range(1, len(signals)):
        if standardized_gain(signals[: epoch + 1], kept) > 0:
            kept = epoch
        elif epoch - kept >= patience:
            return kept, epoch
    return kept, len(signals) - 1


def label_wave(changes: list[float], width: int = 3) -> Kept:
    """Label Wave (Yuan et al. 2024): the first minimum of the moving average of changed predictions."""
    averages = [float(np.mean(changes[max(1, t - width + 1) : t + 1])) for t in range(1, len(changes))]
    for t in range(1, len(averages)):
        if averages[t] > averages[t - 1]:
            return t, t + 1
    return len(changes) - 1, len(changes) - 1


# Each rule: which training's epochs it keeps, and how it decides from that or the other training's curves.
RULES: dict[str, tuple[str, Callable[[dict[str, dict[str, list[float]]]], Kept]]] = {
    "best in hindsight": ("all", lambda r: smallest(r["all"]["test_error"])),
    "boundary uncertainty": ("all", lambda r: largest(r["all"]["boundary_uncertainty"], PATIENCE)),
    "trust score": ("all", lambda r: largest(r["all"]["trust_score"], PATIENCE)),
    "consensus": ("all", lambda r: consensus(r["all"], PATIENCE)),
    "consensus, no limit": ("all", lambda r: consensus(r["all"])),
    "training loss plateau": ("all", lambda r: smallest(r["all"]["train_loss"], PATIENCE)),
    "Label Wave": ("all", lambda r: label_wave(r["all"]["changed_predictions"])),
    "last epoch": ("all", lambda r: (len(r["all"]["test_error"]) - 1,) * 2),
    "hold-out accuracy": ("part", lambda r: largest(r["part"]["val_accuracy"], PATIENCE)),
    "hold-out accuracy, no limit": ("part", lambda r: largest(r["part"]["val_accuracy"])),
    "hold-out loss": ("part", lambda r: smallest(r["part"]["val_loss"], PATIENCE)),
    "hold-out loss, no limit": ("part", lambda r: smallest(r["part"]["val_loss"])),
    "hold-out accuracy, then retrain": ("all", lambda r: largest(r["part"]["val_accuracy"], PATIENCE)),
}
REFERENCES = ("hold-out accuracy", "last epoch")


def judge(records: list[dict[str, object]]) -> pd.DataFrame:
    """One row a case and rule: test error and excess error of the kept epoch, and where the rule stopped."""
    rows = []
    for record in records:
        hindsight = min(record["all"]["test_error"])
        for rule, (training, decide) in RULES.items():
            kept, stopped = decide(record)
            error = record[training]["test_error"][kept]
            row = {"rule": rule, "kept": kept, "epochs_to_stop": stopped + 1, "test_error": error}
            rows.append({**record["case"], **row, "excess": error - hindsight})
    return pd.DataFrame(rows)


def summarise(judged: pd.DataFrame, n_bootstrap: int = 2000) -> pd.DataFrame:
    """Means over cases, and ratios of mean excess to each reference with a 90 % bootstrap interval over tables."""
    excess = judged.pivot_table(index=["table", "noise", "seed", "setting"], columns="rule", values="excess")
    by_table = excess.groupby("table").mean()
    draws = np.random.default_rng(0).integers(0, len(by_table), (n_bootstrap, len(by_table)))
    rows = []
    for rule in RULES:
        of_rule = judged[judged.rule == rule]
        row = {"rule": rule, "test error": of_rule.test_error.mean(), "excess": of_rule.excess.mean()}
        for reference in REFERENCES:
            ours, theirs = (by_table[name].to_numpy() for name in (rule, reference))
            with np.errstate(invalid="ignore", divide="ignore"):  # a resample may hold tables without any excess
                low, high = np.nanquantile(ours[draws].mean(axis=1) / theirs[draws].mean(axis=1), [0.05, 0.95])
            row[f"/ {reference}"] = ours.mean() / theirs.mean()
            row[f"/ {reference}, 90 %"] = f"{low:.2f}-{high:.2f}"
        theirs = excess[REFERENCES[0]]
        row["wins"] = float((excess[rule] < theirs).mean() + 0.5 * (excess[rule] == theirs).mean())
        row["worst table"] = float((by_table[rule] - by_table[REFERENCES[0]]).max())
        row["epochs"] = of_rule.epochs_to_stop.mean()
        rows.append(row)
    return pd.DataFrame(rows).set_index("rule")


def plot(judged: pd.DataFrame, path: Path) -> None:
    """Mean excess error of each rule, one dot a table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rules = [rule for rule in RULES if rule != "best in hindsight"]
    figure, axis = plt.subplots(figsize=(8, 0.45 * len(rules) + 1.2), layout="constrained")
    for row, rule in enumerate(reversed(rules)):
        by_table = judged[judged.rule == rule].groupby("table").excess.mean()
        axis.scatter(by_table, [row] * len(by_table), s=14, color="tab:gray", alpha=0.6)
        axis.scatter(by_table.mean(), row, s=60, color="tab:blue", marker="|", linewidth=3)
    axis.set(yticks=range(len(rules)), yticklabels=rules[::-1], xlabel="excess test error (dot: a table, bar: mean)")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five small tables, one seed, 60 epochs")
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.2])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--settings", nargs="+", default=["rmsprop"], choices=list(SETTINGS))
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    options = parser.parse_args(arguments)
    if options.quick:
        options.tables = ("banknote", "breast_cancer_wisconsin", "german", "ionosphere", "wine_red3")
        options.seeds, options.epochs = 1, 60
    cases = [
        Case(table, noise, seed, setting, options.epochs)
        for seed, setting, noise, table in itertools.product(
            range(options.seeds), options.settings, options.noise, options.tables
        )
    ]
    started = time.perf_counter()
    with get_context("spawn").Pool(options.processes) as pool:
        records = list(pool.imap_unordered(run, cases))
    records.sort(key=lambda record: cases.index(Case(**record["case"])))
    judged = judge(records)
    summary = summarise(judged)

    options.results.mkdir(parents=True, exist_ok=True)
    name = "quality-quick" if options.quick else "quality"
    environment = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("bu-torch", "torch", "lightning", "faiss-cpu", "scikit-learn")},
    }
    content = {
        "environment": environment,
        "options": {key: str(value) for key, value in vars(options).items() if key != "results"},
        "summary": json.loads(summary.to_json(orient="index")),
        "cases": json.loads(judged.to_json(orient="records")),
    }
    (options.results / f"{name}.json").write_text(json.dumps(content))
    plot(judged, options.results / f"{name}.png")
    with pd.option_context("display.width", 200, "display.max_columns", None, "display.precision", 4):
        print(summary)
    training = sum(record["seconds"] + record["part_seconds"] for record in records)
    print(f"{len(cases)} cases, {training:.0f} s of training in {time.perf_counter() - started:.0f} s; {environment}")
    return summary


if __name__ == "__main__":
    main()
