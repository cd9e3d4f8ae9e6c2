"""Stopping quality: how good is the epoch that each rule keeps, beside a hold-out set and the last epoch?

Each case is a table, a share of label noise, a seed and a setting of the network. Half of the table trains (at most
2500 samples), the rest tests. One Lightning training on all training labels, watched by the shipped monitor, gives the
curves that the rules without validation data decide on; a second one, on 75 % of them, gives those of a hold-out set.
Every rule is causal: at an epoch it knows that epoch and those before. Reported are the test error of the kept epoch
and the excess error, which is that minus the error of the best epoch in hindsight of the training on all labels.

    python benchmarks/quality.py --quick
    python benchmarks/quality.py
    python benchmarks/quality.py --csv mine.csv
    python benchmarks/quality.py --unseen --settings rmsprop
    python benchmarks/quality.py --name quality-small --settings wide plain_sgd --tables german sonar
    python benchmarks/quality.py --name quality-noise --settings rmsprop --noise 0.1 0.4
    python benchmarks/quality.py --name quality-500 --settings rmsprop --epochs 500
"""

import argparse
import dataclasses
import itertools
import json
import logging
import platform
import time
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.multiprocessing import get_context
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor

FOLDER = Path(__file__).parent
DATA = {file.name.removesuffix(".csv.gz"): file for file in sorted((FOLDER / "data").rglob("*.csv.gz"))}
TABLES = tuple(name for name, file in DATA.items() if file.parent.name == "data")
UNSEEN = tuple(name for name, file in DATA.items() if file.parent.name == "unseen")
LEAST_ROWS = 80
PLAIN_SGD = "plain_sgd"


def mlp(*widths: int) -> Callable[[torch.Size, int], nn.Module]:
    def build(shape: torch.Size, n_classes: int) -> nn.Module:
        sizes = (shape.numel(), *widths)
        hidden = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(sizes[-1], n_classes))

    return build


SETTINGS: dict[str, tuple[Callable[[torch.Size, int], nn.Module], Callable[..., torch.optim.Optimizer]]] = {
    "rmsprop": (mlp(128, 64), lambda p: torch.optim.RMSprop(p, lr=1e-3)),
    "adamw": (mlp(128, 64), lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=1e-2)),
    "sgd": (mlp(128, 64), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    PLAIN_SGD: (mlp(128, 64), lambda p: torch.optim.SGD(p, lr=0.05)),
    "wide": (mlp(512, 512), lambda p: torch.optim.RMSprop(p, lr=1e-3)),
}
PATIENCE = 20
Split = tuple[Tensor, Tensor]
Columns = dict[str, list[float]]
Record = dict[str, Any]  # "case", and the columns of the training on "all" labels and on "part" of them
Kept = tuple[int, int]  # the kept epoch, and the last epoch that the rule needed


@dataclasses.dataclass(frozen=True)
class Case:
    """One training to judge rules on."""

    table: str
    noise: float
    seed: int
    setting: str
    epochs: int


class Classifier(L.LightningModule):
    """A network in training, and what a validation loop logs."""

    def __init__(self, net: nn.Module, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        super().__init__()
        self.net, self.optimizer = net, optimizer

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


class Net(Classifier):
    """The network of a setting, trained as the paper does."""

    def __init__(self, shape: torch.Size, n_classes: int, setting: str) -> None:
        build, optimizer = SETTINGS[setting]
        super().__init__(build(shape, n_classes), optimizer)


class Curves(L.Callback):
    """Test error, changed training predictions, time and all logged metrics after each epoch.

    Time is counted from the start of `fit` without what this callback itself takes; `check_seconds` is the monitor's
    part of it.
    """

    def __init__(self, test: Split, train: Split, monitor: BoundaryUncertaintyMonitor | None, setting: str) -> None:
        self.test, self.train, self.monitor, self.setting = test, train, monitor, setting
        self.rows: list[dict[str, float]] = []
        self.predictions: Tensor | None = None
        self.own_seconds = 0.0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        now = time.perf_counter()
        row = {name: float(value) for name, value in trainer.callback_metrics.items()}
        row["seconds"] = now - self.started - self.own_seconds
        row["check_seconds"] = 0.0
        if self.monitor is not None:
            row["check_seconds"] = self.monitor.setup_seconds + self.monitor.check_seconds
        with torch.no_grad():
            predictions = predict(pl_module, self.train[0])
            row["test_error"] = float((predict(pl_module, self.test[0]) != self.test[1]).float().mean())
        changed = 1.0 if self.predictions is None else float((predictions != self.predictions).float().mean())
        self.predictions = predictions
        row["changed_predictions"] = changed
        if self.setting == PLAIN_SGD:
            row["evidence"] = evidence(pl_module, self.train)
        self.rows.append(row)
        self.own_seconds += time.perf_counter() - now

    def columns(self) -> dict[str, list[float]]:
        return {name: [row[name] for row in self.rows] for name in self.rows[-1]}


def predict(module: nn.Module, inputs: Tensor) -> Tensor:
    n_rows = min(2000, max(1, 2**19 // inputs[0].numel()))  # of large images few, whose maps a cache holds
    return torch.cat([module(batch).argmax(dim=1) for batch in inputs.split(n_rows)])


def evidence(module: nn.Module, samples: Split, batch_size: int = 32, n_batches: int = 16) -> float:
    """The quantity of the EB criterion (Mahsereci et al. 2017), which stops SGD where it turns positive.

    1 - B / D sum_k g_k^2 / s_k over the D weights, with g the mean and s the variance of the gradients of the B samples
    of a batch; mean over batches. Weights whose gradients are all equal (dead units) are left out of the D.
    """

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(module, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    parameters = {name: value.detach() for name, value in module.named_parameters()}
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    values = []
    for x, y in list(zip(*(part.split(batch_size) for part in samples), strict=True))[:n_batches]:
        each = torch.cat([value.flatten(1) for value in gradients(parameters, x, y).values()], dim=1)
        variance = each.var(dim=0)
        ratio = (each.mean(dim=0).square() / variance)[variance > 0]
        values.append(1 - len(y) * float(ratio.mean()))
    return float(np.mean(values))


def read_table(case: Case) -> Split:
    """A table that is shipped, or the user's file of that path."""
    table = pd.read_csv(DATA.get(case.table, case.table))
    if "label" not in table:
        raise ValueError(f"`{case.table}` must have a column `label`, got the columns {', '.join(table)}.")
    labels = table.pop("label")
    if words := list(table.select_dtypes(exclude=["number", "bool"])):
        raise ValueError(f"`{case.table}` must hold numbers beside `label`, got others in {', '.join(words)}.")
    is_bad = ~np.isfinite(table.to_numpy(np.float64)).all(axis=1) | labels.isna().to_numpy()
    if is_bad.any():
        raise ValueError(f"`{case.table}` must have no empty or infinite cell, got {is_bad.sum()} rows with one.")
    if pd.api.types.is_float_dtype(labels) and (labels % 1 != 0).any():
        raise ValueError(f"`{case.table}` must hold classes in `label`, got fractions (a regression?).")
    return torch.tensor(table.to_numpy(np.float32)), torch.tensor(pd.factorize(labels, sort=True)[0])


def load(case: Case) -> tuple[Split, Split, int]:
    """Training and test samples, tables standardised on the training samples, and the number of classes."""
    return prepare(case, *read_table(case))


def prepare(case: Case, features: Tensor, labels: Tensor) -> tuple[Split, Split, int]:
    """`load` of the samples that it reads."""
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


def train(case: Case, split: Split, test: Split, n_classes: int, held_out: Split | None) -> Curves:
    """The curves of one Lightning training, watched by the shipped monitor unless there is a hold-out set."""
    L.seed_everything(case.seed, verbose=False)
    monitor = BoundaryUncertaintyMonitor(seed=case.seed, cache=None) if held_out is None else None
    curves = Curves(test, split, monitor, case.setting)
    # The monitor logs before `Curves` looks, and Lightning validates before both.
    callbacks: list[L.Callback] = [curves] if monitor is None else [monitor, curves]
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
    trainer.fit(Net(split[0].shape[1:], n_classes, case.setting), *loaders)
    return curves


def run(case: Case) -> Record:
    """Curves of both trainings of a case."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    split, test, n_classes = load(case)
    on_all = train(case, split, test, n_classes, None)
    on_part = train_part(case, split, test, n_classes)
    return {"case": dataclasses.asdict(case), "all": on_all.columns(), "part": on_part.columns()}


def train_part(case: Case, split: Split, test: Split, n_classes: int) -> Curves:
    """The curves of a training on 75 % of the labels, with the rest held out."""
    order = torch.randperm(len(split[1]), generator=torch.Generator().manual_seed(case.seed))
    kept, held = order.tensor_split([int(0.75 * len(order))])
    part = (split[0][kept], split[1][kept])
    return train(case, part, test, n_classes, (split[0][held], split[1][held]))


def recall(case: Case, folder: Path | None, run: Callable[[Case], Record] = run, kind: str = "quality") -> Record:
    """What `run` gives, or its record where `folder` holds it already."""
    if folder is None:
        return run(case)
    if (own := Path(case.table)).is_file():  # known by what is in it
        case = dataclasses.replace(case, table=f"{own.stem}-{zlib.crc32(own.read_bytes()):08x}")
    file = folder / ("-".join([kind, *(str(value) for value in dataclasses.astuple(case))]) + ".json")
    if file.exists():
        return json.loads(file.read_text())
    record = run(case)
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record))
    part.replace(file)
    return record


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


def smoothed(values: list[float], width: int = 17) -> list[float]:
    """Centred moving average, over fewer values at the ends."""
    half = width // 2
    return [float(np.mean(values[max(0, t - half) : t + half + 1])) for t in range(len(values))]


def label_wave(changes: list[float], width: int = 3) -> Kept:
    """Label Wave (Yuan et al. 2024): the first minimum of the moving average of changed predictions."""
    averages = [float(np.mean(changes[max(1, t - width + 1) : t + 1])) for t in range(1, len(changes))]
    for t in range(1, len(averages)):
        if averages[t] > averages[t - 1]:
            return t, t + 1
    return len(changes) - 1, len(changes) - 1


def first_positive(values: list[float]) -> Kept:
    epoch = next((epoch for epoch, value in enumerate(values) if value > 0), len(values) - 1)
    return epoch, epoch


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which epoch of which training is kept, decided from a training's curves."""

    decide: Callable[[Columns], Kept]
    decides_on: str = "all"
    keeps_from: str = "all"
    needs_checks: bool = False

    def seconds(self, record: Record, kept: int, stopped: int) -> float:
        """Wall time of what the rule needs: its training until it stops, and a second one where it keeps from it."""
        seconds = elapsed(record[self.decides_on], stopped, self.needs_checks)
        return seconds + (elapsed(record[self.keeps_from], kept, False) if self.keeps_from != self.decides_on else 0.0)


def elapsed(curves: Columns, epoch: int, with_checks: bool) -> float:
    return curves["seconds"][epoch] - (0.0 if with_checks else curves["check_seconds"][epoch])


RULES: dict[str, Rule] = {
    "best in hindsight": Rule(lambda c: smallest(c["test_error"])),
    # Not causal either: what is left where the trend of the test error is known, but not its jumps from epoch to epoch.
    "best of the smoothed test error": Rule(lambda c: smallest(smoothed(c["test_error"]))),
    "expected accuracy": Rule(lambda c: largest(c["expected_accuracy"], PATIENCE), needs_checks=True),
    "expected accuracy, no limit": Rule(lambda c: largest(c["expected_accuracy"]), needs_checks=True),
    "vote agreement": Rule(lambda c: largest(c["vote_agreement"], PATIENCE), needs_checks=True),
    "label agreement": Rule(lambda c: largest(c["label_agreement"], PATIENCE), needs_checks=True),
    "neighbor agreement": Rule(lambda c: largest(c["neighbor_agreement"], PATIENCE), needs_checks=True),
    "steadiest": Rule(lambda c: smallest(c["prediction_changes"], PATIENCE), needs_checks=True),
    "trust score": Rule(lambda c: largest(c["trust_score"], PATIENCE), needs_checks=True),
    "boundary uncertainty": Rule(lambda c: largest(c["boundary_uncertainty"], PATIENCE), needs_checks=True),
    "training loss plateau": Rule(lambda c: smallest(c["train_loss"], PATIENCE)),
    "Label Wave": Rule(lambda c: label_wave(c["changed_predictions"])),
    "EB criterion": Rule(lambda c: first_positive(c["evidence"])),
    "last epoch": Rule(lambda c: (len(c["test_error"]) - 1,) * 2),
    "hold-out accuracy": Rule(lambda c: largest(c["val_accuracy"], PATIENCE), "part", "part"),
    "hold-out accuracy, no limit": Rule(lambda c: largest(c["val_accuracy"]), "part", "part"),
    "hold-out loss": Rule(lambda c: smallest(c["val_loss"], PATIENCE), "part", "part"),
    "hold-out loss, no limit": Rule(lambda c: smallest(c["val_loss"]), "part", "part"),
    "hold-out accuracy, then retrain": Rule(lambda c: largest(c["val_accuracy"], PATIENCE), "part", "all"),
}
REFERENCES = ("hold-out accuracy", "last epoch")


def judge(records: list[Record]) -> pd.DataFrame:
    """One row a case and rule: test error and excess error of the kept epoch, and where the rule stopped."""
    rows = []
    for record in records:
        hindsight = min(record["all"]["test_error"])
        for name, rule in RULES.items():
            if name == "EB criterion" and "evidence" not in record["all"]:
                continue
            kept, stopped = rule.decide(record[rule.decides_on])
            error = record[rule.keeps_from]["test_error"][kept]
            row = {"rule": name, "kept": kept, "epochs_to_stop": stopped + 1, "test_error": error}
            row["seconds"] = rule.seconds(record, kept, stopped)
            rows.append({**record["case"], **row, "excess": error - hindsight})
    return pd.DataFrame(rows)


def summarise(judged: pd.DataFrame, n_bootstrap: int = 2000) -> pd.DataFrame:
    """Means over cases, and ratios of mean excess to each reference with a 90 % bootstrap interval over tables."""
    excess = judged.pivot_table(index=["table", "noise", "seed", "setting"], columns="rule", values="excess")
    by_table = excess.groupby("table").mean()
    draws = np.random.default_rng(0).integers(0, len(by_table), (n_bootstrap, len(by_table)))
    rows = []
    for rule in (rule for rule in RULES if rule in by_table):
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
        row["seconds"] = of_rule.seconds.mean()
        rows.append(row)
    return pd.DataFrame(rows).set_index("rule")


def breakdown(judged: pd.DataFrame) -> pd.DataFrame:
    """Mean excess of each rule as a ratio to that of hold-out accuracy, for each setting and share of label noise."""
    excess = judged.pivot_table(index="rule", columns=["setting", "noise"], values="excess", sort=False)
    return excess / excess.loc[REFERENCES[0]]


def plot(judged: pd.DataFrame, path: Path) -> None:
    """Mean excess error of each rule, one dot a table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rules = [rule for rule in RULES if rule != "best in hindsight" and (judged.rule == rule).any()]
    figure, axis = plt.subplots(figsize=(8, 0.45 * len(rules) + 1.2), layout="constrained")
    for row, rule in enumerate(reversed(rules)):
        by_table = judged[judged.rule == rule].groupby("table").excess.mean()
        axis.scatter(by_table, [row] * len(by_table), s=14, color="tab:gray", alpha=0.6)
        axis.scatter(by_table.mean(), row, s=60, color="tab:blue", marker="|", linewidth=3)
    axis.set(yticks=range(len(rules)), yticklabels=rules[::-1], xlabel="excess test error (dot: a table, bar: mean)")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def environment() -> dict[str, str]:
    packages = ("bu-torch", "torch", "lightning", "faiss-cpu", "scikit-learn")
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="five small tables, RMSprop, one seed, 60 epochs")
    which.add_argument("--unseen", action="store_true", help="the tables on which no rule was chosen")
    which.add_argument("--tables", nargs="+", default=TABLES, choices=tuple(DATA))
    which.add_argument("--csv", nargs="+", metavar="FILE", help="tables of your own: numbers, and a column `label`")
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.2])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--settings", nargs="+", default=["rmsprop", "adamw", "sgd"], choices=list(SETTINGS))
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--name", help="of the files of results")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--curves", type=Path, help="keep all curves in this folder, and use again those it holds")
    options = parser.parse_args(arguments)
    if options.quick:
        options.tables = ("banknote", "breast_cancer_wisconsin", "german", "ionosphere", "wine_red3")
        options.settings, options.seeds, options.epochs = ["rmsprop"], 1, 60
    elif options.unseen:
        options.tables = UNSEEN
    elif options.csv:
        options.tables = options.csv
        for file in options.csv:  # what cannot be trained on is said before any training
            if len(read_table(Case(file, 0.0, 0, "", 0))[1]) < LEAST_ROWS:
                raise ValueError(f"`{file}` must have at least {LEAST_ROWS} rows, half of them for training.")
    kind = next((kind for kind in ("quick", "unseen", "csv") if getattr(options, kind)), None)
    options.name = options.name or ("quality" if kind is None else f"quality-{kind}")
    cases = [
        Case(table, noise, seed, setting, options.epochs)
        for seed, setting, noise in itertools.product(range(options.seeds), options.settings, options.noise)
        for table in options.tables
    ]
    started = time.perf_counter()
    with get_context("spawn").Pool(options.processes) as pool:
        records = list(pool.imap(partial(recall, folder=options.curves), cases))
    judged = judge(records)
    summary = summarise(judged)

    options.results.mkdir(parents=True, exist_ok=True)
    content = {
        "environment": environment(),
        "options": {key: str(value) for key, value in vars(options).items() if key not in ("results", "curves")},
        "summary": json.loads(summary.to_json(orient="index")),
        "breakdown": json.loads(breakdown(judged).to_json(orient="split")),
        "cases": json.loads(judged.to_json(orient="records")),
    }
    (options.results / f"{options.name}.json").write_text(json.dumps(content))
    plot(judged, options.results / f"{options.name}.png")
    with pd.option_context("display.width", 200, "display.max_columns", None, "display.precision", 4):
        print(summary, breakdown(judged), sep="\n\n")
    training = sum(record[part]["seconds"][-1] for record in records for part in ("all", "part"))
    took = time.perf_counter() - started
    print(f"\n{len(cases)} cases, {training:.0f} s of training in {took:.0f} s; {environment()}")
    return summary


if __name__ == "__main__":
    main()
