"""Stopping quality: how good is the epoch that each rule keeps, beside a hold-out set and the last epoch?

Each case is a table, a share of label noise, a seed and a setting of the network. Half of the table trains (at most
2500 samples), the rest tests. One Lightning training on all training labels, watched by the shipped monitor, gives the
curves that the rules without validation data decide on; a second one, on 75 % of them, gives those of a hold-out set.
After each epoch, the weights and their average are both read, in the same training: signals and test error on all
labels, hold-out accuracy, hold-out loss and test error on part of them. Every rule is causal: at an epoch it knows that
epoch and those before. The callback's default decides on averages, and keeps one; so does each rule whose name ends in
`average`. Those with `no limit` train on to the last epoch, the others wait 20 epochs for a better one.

Reported are the test error of what is kept and the excess error, which is that minus the error of the best epoch in
hindsight of the training on all labels, raw weights. An average may be better than all of those: then its excess is
negative. Ratios are of means over tables, and NaN where that of the reference is not positive.

`--bagging` adds the mean of the class probabilities of four networks, each trained on three quarters of the labels and
kept by its accuracy on the fourth; that costs three more trainings. Seconds are those of the trainings that a rule
needs, with the monitor's preparation and checks where it reads them; what rivals measure after an epoch (leave-one-out
loss, marginal likelihood, changed predictions, evidence) is not counted.

    python benchmarks/quality.py --quick
    python benchmarks/quality.py
    python benchmarks/quality.py --bagging
    python benchmarks/quality.py --csv mine.csv
    python benchmarks/quality.py --unseen --settings rmsprop
    python benchmarks/quality.py --name quality-small --settings wide plain_sgd --tables german sonar
    python benchmarks/quality.py --name quality-noise --settings rmsprop --noise 0.1 0.4
    python benchmarks/quality.py --name quality-500 --settings rmsprop --epochs 500
    python benchmarks/quality.py --name quality-500 --redraw
"""

import argparse
import dataclasses
import itertools
import json
import logging
import math
import platform
import time
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import rivals
import torch
from judging import (
    AVERAGE,
    KEPT,
    PATIENCE,
    Columns,
    Kept,
    Record,
    breakdown,
    judge,
    largest,
    plot,
    show,
    summarise,
)
from torch import Tensor, nn
from torch.multiprocessing import get_context
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor
from bu_torch.rule.rules import STANDARD_ERROR, SelectionRule
from bu_torch.run.averaging import WeightAverage
from bu_torch.run.settings import AVERAGING

FOLDER = Path(__file__).parent
DATA = {file.name.partition(".csv")[0]: file for file in sorted((FOLDER / "data").rglob("*.csv*"))}
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
FORMAT = 3  # of curves that are kept, to be raised when they change
N_FOLDS = 4
Split = tuple[Tensor, Tensor]


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
    """What is read after each epoch: of the weights, and of their average in the columns that begin with `averaged_`.

    Test error; on all labels the signals, of raw weights too, changed training predictions and what rivals measure; on
    part of them loss and accuracy of those held out. Time is counted from the start of `fit` without what this callback
    itself takes; `check_seconds` is the monitor's part of it.

    Args:
        test: Test samples.
        train: Training samples.
        monitor: Has measured the average before; None for a training that is not watched.
        setting: Of the case.
        held_out: Samples that are not trained on.
        is_member: Whether the training ends where hold-out accuracy stops.
    """

    def __init__(
        self,
        test: Split,
        train: Split,
        monitor: BoundaryUncertaintyMonitor | None,
        setting: str,
        held_out: Split | None = None,
        *,
        is_member: bool = False,
    ) -> None:
        self.test, self.train, self.monitor, self.setting = test, train, monitor, setting
        self.held_out, self.is_member = held_out, is_member
        self.average = WeightAverage(AVERAGING)
        self.rows: list[dict[str, float]] = []
        self.kept: dict[str, Tensor] = {}  # by prefix, probabilities of test samples where hold-out accuracy is kept
        self.predictions: Tensor | None = None
        self.perturbed_predictions: Tensor | None = None
        self.best: tuple[float, Tensor | None] = (-math.inf, None)  # expected accuracy, and predictions
        self.checks: dict[str, list[dict[str, float]]] = {"": [], AVERAGE: []}
        self.own_seconds = 0.0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started = time.perf_counter()
        self.start = nn.utils.parameters_to_vector(pl_module.parameters()).detach().clone()

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        now = time.perf_counter()
        row = {name: float(value) for name, value in trainer.callback_metrics.items()}
        row |= {"seconds": now - self.started - self.own_seconds, "check_seconds": 0.0}
        self.rows.append(row)
        pl_module.eval()
        average = self.average
        if self.monitor is None:
            average.update(pl_module)
        else:
            average = self.monitor.tracker.average
            row["check_seconds"] = self.monitor.setup_seconds + self.monitor.check_seconds
            signals = self.monitor.tracker.groundwork.signals
            measured = {name: self.monitor.history[-1][name] for name in (*signals.NAMES, STANDARD_ERROR)}
            for name in signals.NAMES:
                row.pop(name)
            row |= {AVERAGE + name: value for name, value in self.with_kept(measured, AVERAGE).items()}
            row |= self.signals(pl_module, self.monitor)
        self.look(pl_module, "")
        with average.inside(pl_module):
            self.look(pl_module, AVERAGE)
        if self.setting == PLAIN_SGD and self.monitor is not None:
            with torch.enable_grad():
                row["evidence"] = rivals.evidence(pl_module, self.train)
        pl_module.train()
        if self.is_member and all(self.held_back(prefix)[1] < len(self.rows) - 1 for prefix in self.kept):
            trainer.should_stop = True
        self.own_seconds += time.perf_counter() - now

    def signals(self, module: nn.Module, monitor: BoundaryUncertaintyMonitor) -> dict[str, float]:
        """What the monitor would measure of the weights themselves, from what it has prepared."""
        signals = monitor.tracker.groundwork.signals
        logits, _ = rivals.read(module, signals.perturbed_inputs)
        accuracy, best = self.best
        measured = signals.measure(logits, self.perturbed_predictions, best)
        self.perturbed_predictions = measured.predictions
        values = {name: float(value) for name, value in measured.values.items()}
        if values["expected_accuracy"] > accuracy:
            self.best = values["expected_accuracy"], measured.predictions
        return self.with_kept(values | {STANDARD_ERROR: float(measured.standard_error)}, "")

    def with_kept(self, values: dict[str, float], prefix: str) -> dict[str, float]:
        """What a check measured, and the check that the default rule keeps so far."""
        checks = self.checks[prefix]
        checks.append({"epoch": len(checks), **values})
        kept = SelectionRule().kept(checks)
        return values | {KEPT: len(checks) - 1 if kept is None else kept["epoch"]}

    def look(self, module: nn.Module, prefix: str) -> None:
        """Add to the row what is read of the weights that the module holds."""
        logits, _ = rivals.read(module, self.test[0])
        found = {"test_error": error(logits, self.test[1])}
        if self.monitor is not None:
            found |= self.look_at_training(module, prefix)
        if self.held_out is not None and prefix:  # of the weights themselves, Lightning has validated them
            held, labels = rivals.read(module, self.held_out[0])[0], self.held_out[1]
            found["val_accuracy"] = 1 - error(held, labels)
            found["val_loss"] = float(nn.functional.cross_entropy(held, labels))
        self.rows[-1].update({prefix + name: value for name, value in found.items()})
        if self.held_out is not None and self.held_back(prefix)[0] == len(self.rows) - 1:
            self.kept[prefix] = logits.softmax(dim=1)

    def look_at_training(self, module: nn.Module, prefix: str) -> dict[str, float]:
        logits, features = rivals.read(module, self.train[0])
        row = rivals.measure(module, logits, features, self.train[1])
        if not prefix:
            before, self.predictions = self.predictions, logits.argmax(dim=1)
            row["changed_predictions"] = 1.0 if before is None else float((self.predictions != before).float().mean())
            row["distance"] = float((nn.utils.parameters_to_vector(module.parameters()) - self.start).norm())
        return row

    def held_back(self, prefix: str) -> Kept:
        """What hold-out accuracy keeps, so far, of weights or averages."""
        return largest([row[f"{prefix}val_accuracy"] for row in self.rows], PATIENCE)

    def columns(self) -> dict[str, list[float]]:
        return {name: [row[name] for row in self.rows] for name in self.rows[-1]}


def silent_trainer(max_epochs: int, callbacks: list[L.Callback]) -> L.Trainer:
    """A trainer on the CPU that leaves no files and prints nothing."""
    return L.Trainer(
        max_epochs=max_epochs,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def predict(module: nn.Module, inputs: Tensor) -> Tensor:
    return rivals.read(module, inputs)[0].argmax(dim=1)


def error(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) != labels).float().mean())


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


def train(
    case: Case, split: Split, test: Split, n_classes: int, held_out: Split | None, *, is_member: bool = False
) -> Curves:
    """The curves of one Lightning training, watched by the shipped monitor unless there is a hold-out set."""
    L.seed_everything(case.seed, verbose=False)
    monitor = None
    if held_out is None:
        monitor = BoundaryUncertaintyMonitor(seed=case.seed, cache=None, averaging=AVERAGING)
    curves = Curves(test, split, monitor, case.setting, held_out, is_member=is_member)
    # The monitor logs before `Curves` looks, and Lightning validates before both.
    callbacks: list[L.Callback] = [curves] if monitor is None else [monitor, curves]
    trainer = silent_trainer(case.epochs, callbacks)
    loaders = [DataLoader(TensorDataset(*split), batch_size=32, shuffle=True)]
    if held_out is not None:
        loaders.append(DataLoader(TensorDataset(*held_out), batch_size=len(held_out[1])))
    trainer.fit(Net(split[0].shape[1:], n_classes, case.setting), *loaders)
    return curves


def run(case: Case, has_bagging: bool = False) -> Record:
    """Curves of all trainings of a case."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    split, test, n_classes = load(case)
    return train_all(case, split, partial(train, case, test=test, n_classes=n_classes), has_bagging)


def train_all(case: Case, split: Split, train: Callable[..., Curves], has_bagging: bool = False) -> Record:
    """Train on all labels, on 75 % of them and, for bagging, without each other quarter: `train(split, held_out)`."""
    on_all = train(split=split, held_out=None)
    on_part = train_part(case, split, train)
    record = {"case": dataclasses.asdict(case), "all": on_all.columns(), "part": on_part.columns()}
    if has_bagging:
        others = [train_part(case, split, partial(train, is_member=True), fold) for fold in range(N_FOLDS - 1)]
        record["bagging"] = bag([*others, on_part])
    return record


def train_part(case: Case, split: Split, train: Callable[..., Curves], fold: int = N_FOLDS - 1) -> Curves:
    """The curves of a training on 75 % of the labels, with the rest held out."""
    order = torch.randperm(len(split[1]), generator=torch.Generator().manual_seed(case.seed))
    folds = list(order.tensor_split([int(part * len(order) / N_FOLDS) for part in range(1, N_FOLDS)]))
    held = folds.pop(fold)
    kept = torch.cat(folds)
    return train(split=(split[0][kept], split[1][kept]), held_out=(split[0][held], split[1][held]))


def bag(members: list[Curves]) -> Columns:
    """Columns of one row: the mean of the networks that hold-out accuracy keeps, and what they cost together."""
    columns = {"check_seconds": [0.0]}
    for prefix in members[0].kept:
        probabilities = torch.stack([member.kept[prefix] for member in members]).mean(dim=0)
        stops = [member.held_back(prefix)[1] for member in members]
        columns[f"{prefix}test_error"] = [error(probabilities, members[0].test[1])]
        columns[f"{prefix}epochs"] = [float(sum(stop + 1 for stop in stops))]
        seconds = [member.rows[stop]["seconds"] for member, stop in zip(members, stops, strict=True)]
        columns[f"{prefix}seconds"] = [sum(seconds)]
    return columns


def recall(case: Case, folder: Path | None, run: Callable[[Case], Record] = run, kind: str = "quality") -> Record:
    """What `run` gives, or its record where `folder` holds it already."""
    if folder is None:
        return run(case)
    named = case
    if (own := Path(case.table)).is_file():  # known by what is in it
        named = dataclasses.replace(case, table=f"{own.stem}-{zlib.crc32(own.read_bytes()):08x}")
    file = folder / ("-".join([kind, f"v{FORMAT}", *(str(value) for value in dataclasses.astuple(named))]) + ".json")
    if file.exists():
        return json.loads(file.read_text())
    record = run(case)
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record))
    part.replace(file)
    return record


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
    parser.add_argument("--bagging", action="store_true", help="train three more networks a case, and average four")
    parser.add_argument("--name", help="of the files of results")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--redraw", action="store_true", help="train nothing, draw the saved results of `--name` again")
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
    begin = "quality-bagging" if options.bagging else "quality"
    options.name = options.name or (begin if kind is None else f"{begin}-{kind}")
    if options.redraw:
        saved = json.loads((options.results / f"{options.name}.json").read_text())
        plot(pd.DataFrame(saved["cases"]), options.results / f"{options.name}.png")
        return pd.DataFrame.from_dict(saved["summary"], orient="index")
    cases = [
        Case(table, noise, seed, setting, options.epochs)
        for seed, setting, noise in itertools.product(range(options.seeds), options.settings, options.noise)
        for table in options.tables
    ]
    started = time.perf_counter()
    with get_context("spawn").Pool(options.processes) as pool:
        train_case = partial(run, has_bagging=options.bagging)
        records = list(pool.imap(partial(recall, folder=options.curves, run=train_case, kind=begin), cases))
    judged = judge(records)
    summary = summarise(judged)

    options.results.mkdir(parents=True, exist_ok=True)
    if options.csv:  # by their names: whose folders they lay in is nobody's concern
        options.csv = options.tables = [Path(file).name for file in options.csv]
        judged["table"] = judged["table"].map(lambda file: Path(file).name)
    unsaid = ("results", "curves", "redraw")
    content = {
        "environment": environment(),
        "options": {key: str(value) for key, value in vars(options).items() if key not in unsaid},
        "summary": json.loads(summary.to_json(orient="index")),
        "breakdown": json.loads(breakdown(judged).to_json(orient="split")),
        "cases": json.loads(judged.to_json(orient="records")),
    }
    (options.results / f"{options.name}.json").write_text(json.dumps(content))
    plot(judged, options.results / f"{options.name}.png")
    show(summary, breakdown(judged))
    training = sum(record[part]["seconds"][-1] for record in records for part in ("all", "part"))
    took = time.perf_counter() - started
    print(f"{len(cases)} cases, {training:.0f} s of training in {took:.0f} s; {environment()}")
    return summary


if __name__ == "__main__":
    main()
