"""Compare ways to stop a training on tables of your own: test errors, and epochs trained.

    bu-torch compare FOLDER

Each CSV file holds numbers and a column that is called `label`, with classes. Half of its rows (at most 2500) train a
small network, the rest (at most 4000) tests it. Columns are standardised. Wrong labels raise all test errors: compare
their differences.
"""

import argparse
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from bu_torch.functional.metrics import OfCounts, best_threshold
from bu_torch.internal.inputs import as_tensor, check_integer, check_number
from bu_torch.internal.output import printable, say
from bu_torch.internal.replica import copy_of
from bu_torch.run.settings import AVERAGING
from bu_torch.run.stopper import BoundaryUncertaintyStopper
from bu_torch.run.weights import WeightAverage
from bu_torch.signals.metrics import ACCURACY, METRIC_HELP, ExpectedMetric, as_metric, metric_from
from bu_torch.space.features import standardization, standardize

_LEAST_ROWS = 80
_MOST_CLASSES_A_ROW = 1 / 3
_MOST_TRAINED, _MOST_TESTED = 2500, 4000
_PATIENCE = 20
_BATCH = 32
_Net = Callable[[Tensor], Tensor]  # inputs (n, d) -> logits (n, J)
Split = tuple[Tensor, Tensor]  # inputs (n, d) float32, classes (n,) int64
_NOTE = """\
hold-out 25 %: trains on three quarters and keeps the epoch with the best accuracy or metric on the rest, no average.
refit 20 %: a fifth chooses the epoch, then all labels are used to train up to it. averaged: the last epoch, with the
moving average of weights that bu-torch uses. best epoch: chosen in hindsight, without averaging. logistic, boosting:
logistic regression and gradient boosting of scikit-learn, as they are. one class: always predicts the one that is best
on the training half. For costs, balanced accuracy and F1 of two classes each way predicts with a threshold of its own:
the one that bu-torch names; the best on the hold-out set, or for the models by cross-validation; for the last epoch on
the rows that it was trained on.
±: standard deviation over the trainings of a table; in the last lines, standard error."""


def add_options(add: Callable[..., Any]) -> None:
    """Add what the command takes."""
    add("tables", nargs="+", type=Path, metavar="CSV", help="a file, or a folder of them")
    add("--seeds", type=int, default=2, metavar="N", help="trainings of each table, on different halves (%(default)s)")
    add("--epochs", type=int, default=150, metavar="N", help="length of a whole training (%(default)s)")
    decides = f"what decides and is compared: {METRIC_HELP} (accuracy)"
    add("--metric", default="accuracy", metavar="METRIC", help=decides)
    add("--noise", type=float, default=0.0, metavar="P", help="share of training labels redrawn at random (0)")


def run(options: argparse.Namespace) -> None:
    """Print a row of results for each table."""
    n_seeds = check_integer("--seeds", options.seeds, 1)
    n_epochs = check_integer("--epochs", options.epochs, 1)
    noise = check_number("--noise", options.noise, 0, below=1)
    metric = as_metric(metric_from(options.metric))
    log, n_threads, started = logging.getLogger("bu_torch"), torch.get_num_threads(), time.perf_counter()
    level = log.level
    found: list[Comparison] = []
    try:
        log.setLevel(logging.WARNING)  # hides the messages of each training
        torch.set_num_threads(1)  # enough for a small network
        for path in _files(options.tables):
            try:
                table = read_table(path)
                runs = [compare(table, seed, n_epochs, noise, metric) for seed in range(n_seeds)]
            except (OSError, TypeError, ValueError) as error:  # no table, or too few samples of a class
                say(f"Left out: `{path}`: {printable(error)}")
                continue
            if not found:
                say(_row("test error" if metric == ACCURACY else metric.title, runs[0].results))
            results = pd.DataFrame([run.results for run in runs])
            means, spreads = results.mean(skipna=False), results.std(skipna=False)
            shown = [f"{means[way]:.3f}" + (f"±{spreads[way]:.3f}" if n_seeds > 1 else "") for way in results]
            say(_row(path.name.partition(".csv")[0], shown))
            found += runs
    finally:
        log.setLevel(level)
        torch.set_num_threads(n_threads)
    if not found:
        raise ValueError("No table is left to compare.")
    results = pd.DataFrame([run.results for run in found])
    say(_row("mean", results.mean(skipna=False)))
    if len(found) > 1:
        ours = results.pop("bu-torch")
        differences = results.sub(ours, axis=0)
        means, errors = differences.mean(skipna=False), differences.sem(skipna=False)
        say(_row("minus bu-torch", ["", *(f"{means[way]:+.3f}±{errors[way]:.3f}" for way in differences)]))
    say(_row("epochs trained", map(round, pd.DataFrame([run.epochs for run in found]).mean())))
    say(f"\n{_NOTE}\nTrainings of each: {len(found)}, in {time.perf_counter() - started:.0f} s.")


def _files(places: Sequence[Path]) -> list[Path]:
    folders = {place: sorted((*place.glob("*.csv"), *place.glob("*.csv.gz"))) for place in places if place.is_dir()}
    files = [file for place in places for file in folders.get(place, [place])]
    if not files:
        raise ValueError(f"There is no file `*.csv` or `*.csv.gz` in {', '.join(map(str, places))}.")
    return files


def _row(title: str, cells: Iterable[str | float]) -> str:
    shown = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells)
    return f"{title[:24]:25}" + "".join(f"{cell:>14}" for cell in shown)


class Comparison(NamedTuple):
    """Results on one table, and the number of epochs trained."""

    results: dict[str, float]  # test error, or the metric on test data, by the way to choose the epoch
    epochs: dict[str, int]  # by the same names


def read_table(path: Path) -> Split:
    """Features and classes of a CSV file with a column `label`; raises if it is no such table, or has few rows."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows are longer than the header
            frame = pd.read_csv(path, index_col=False)
    except (OSError, ValueError, Warning) as error:
        raise ValueError(f"it cannot be read as columns separated by commas: {str(error)[:200]}") from error
    named = ", ".join(map(repr, map(str, frame.columns[:5])))
    if "label" not in frame or len(frame.columns) < 2:
        raise ValueError(f"it must have columns separated by commas, one of them called `label`, got {named}.")
    if str(frame.columns[0]).startswith("Unnamed"):
        raise ValueError(f"it must name each column, got {named}: save it by `to_csv(..., index=False)`.")
    codes, classes = frame.pop("label").factorize(sort=True)
    if n_missing := int((codes < 0).sum()):
        raise ValueError(f"it must have a label in each row, got {n_missing} missing ones (NA counts as one).")
    if len(frame) < _LEAST_ROWS or not 2 <= len(classes) <= _MOST_CLASSES_A_ROW * len(frame):
        raise ValueError(
            f"it must have at least {_LEAST_ROWS} rows, half of them for training, and two classes or more, not"
            f" numbers to predict, got rows: {len(frame)}, classes: {len(classes)}."
        )
    features = as_tensor(frame, "table").float()
    if len(bad := frame.columns[~features.isfinite().all(dim=0).numpy()]):
        raise ValueError(f"it must hold finite numbers, got missing or infinite ones in the column '{bad[0]}'.")
    return features, torch.from_numpy(codes).long()


def compare(
    table: Split, seed: int, n_epochs: int, noise: float = 0.0, metric: ExpectedMetric = ACCURACY
) -> Comparison:
    """Train on half of a table in all ways that `_NOTE` explains, and test on the other half.

    The network has hidden layers of 128 and 64 units, and trains with AdamW in batches of 32. A share `noise` of the
    training labels is redrawn at random. With accuracy, errors are compared.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    train, test = _split(table, seed, noise)
    n_classes, n_tested = len(table[1].unique()), len(test[1].unique())
    if metric != ACCURACY and not metric.compares_probabilities and n_tested < n_classes:
        raise ValueError(f"the test half must have samples of all {n_classes} classes for {metric}, got {n_tested}.")
    scorer = _Scorer(metric, int(table[1].max()) + 1)
    quarter, fifth = (_hold_out(train, test, scorer, share, seed, n_epochs) for share in (0.25, 0.2))
    stopper = BoundaryUncertaintyStopper(*train, seed=seed, patience=_PATIENCE, metric=metric)
    average, n_ours = WeightAverage(AVERAGING), 0
    of_all, refit = [], math.nan
    with stopper:
        for epoch, net in enumerate(_train(train, scorer.n_classes, seed, n_epochs)):
            of_all.append(scorer.value(net, test, scorer.threshold(net, test)))
            if epoch == fifth.epoch:
                refit = scorer.value(net, test, fifth.threshold)
            average.update(net)
            if not n_ours and stopper.check(net):
                n_ours = epoch + 1
        averaged = copy_of(net, average.values)
        last, of_average = (scorer.value(one, test, scorer.threshold(one, train)) for one in (net, averaged))
        stopper.restore(net)
        threshold = next(one.get("threshold") for one in stopper.history if one["epoch"] == stopper.best_epoch)
        kept = scorer.value(net, test, threshold)  # a blind choice has one too, though nothing recommends it
    values = {
        "bu-torch": kept,
        "hold-out 25 %": quarter.value,
        "refit 20 %": refit,
        "last epoch": last,
        "averaged": of_average,
        "best epoch": max(of_all),
        "logistic": _of_model(LogisticRegression(max_iter=1000), train, test, scorer),
        "boosting": _of_model(HistGradientBoostingClassifier(random_state=seed), train, test, scorer),
        "one class": _one_class(train, test, scorer),
    }
    results = {way: 1 - value if metric == ACCURACY else metric.sign * value for way, value in values.items()}
    ran = {"bu-torch": n_ours or n_epochs, "hold-out 25 %": quarter.n_epochs}
    ran["refit 20 %"] = fifth.n_epochs + fifth.epoch + 1
    return Comparison(results, ran | dict.fromkeys(("last epoch", "averaged", "best epoch"), n_epochs))


class _Scorer(NamedTuple):
    """Values of a metric for networks on labelled rows; larger is better."""

    metric: ExpectedMetric
    n_classes: int

    @property
    def of_counts(self) -> OfCounts | None:
        """Formula of a metric that has a threshold of class 1 of two; None for others."""
        return self.metric.of_counts if self.n_classes == 2 else None

    def threshold(self, net: _Net, rows: Split) -> float | None:
        """Threshold of class 1 that is best on these rows; None if the metric has none."""
        if self.of_counts is None:
            return None
        return float(best_threshold(self.of_counts, _logits(net, rows[0]), self._certain(rows[1]))[0])

    def value(self, net: _Net, rows: Split, threshold: float | None) -> float:
        logits, labels = _logits(net, rows[0]), rows[1]
        if threshold is None or self.of_counts is None:
            return self.metric.sign * float(self.metric.formula(logits, self._certain(labels), None))
        found, positive = logits.softmax(dim=1)[:, 1] >= threshold, labels == 1
        numbers = (found & positive, found & ~positive, positive, ~positive)
        return float(self.of_counts(*(one.double().sum() for one in numbers)))

    def _certain(self, labels: Tensor) -> Tensor:
        return nn.functional.one_hot(labels, self.n_classes).double()


class _HeldOut(NamedTuple):
    value: float
    epoch: int
    threshold: float | None
    n_epochs: int = 0


def _hold_out(train: Split, test: Split, scorer: _Scorer, share: float, seed: int, n_epochs: int) -> _HeldOut:
    order = torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(seed))
    rest, held = order.tensor_split([len(order) - int(share * len(order))])
    held_out = train[0][held], train[1][held]
    best, found = (-math.inf, 0.0), _HeldOut(math.nan, 0, None)
    for epoch, net in enumerate(_train((train[0][rest], train[1][rest]), scorer.n_classes, seed, n_epochs)):
        threshold = scorer.threshold(net, held_out)
        loss = float(nn.functional.cross_entropy(_logits(net, held_out[0]), held_out[1]))
        score = (scorer.value(net, held_out, threshold), -loss)
        if score > best:
            best, found = score, _HeldOut(scorer.value(net, test, threshold), epoch, threshold)
        elif epoch - found.epoch >= _PATIENCE:
            break
    return found._replace(n_epochs=epoch + 1)


def _of_model(model: Any, train: Split, test: Split, scorer: _Scorer) -> float:
    """Value of a model with scikit-learn's settings; its threshold is the best one by five-fold cross-validation."""
    from sklearn.model_selection import cross_val_predict

    x, y = train[0].numpy(), train[1].numpy()
    present = torch.from_numpy(model.fit(x, y).classes_)

    def as_logits(probabilities: Any) -> Tensor:
        wide = torch.zeros(len(probabilities), scorer.n_classes, dtype=torch.float64)
        wide[:, present] = torch.from_numpy(probabilities).double()
        return wide.clamp(min=1e-9).log()

    threshold = None
    if scorer.of_counts is not None:
        left_out = as_logits(cross_val_predict(model, x, y, cv=5, method="predict_proba"))
        threshold = scorer.threshold(lambda _: left_out, train)
    return scorer.value(lambda inputs: as_logits(model.predict_proba(inputs.numpy())), test, threshold)


def _one_class(train: Split, test: Split, scorer: _Scorer) -> float:
    """Value of the class that scores most alone on the training rows."""
    threshold = None if scorer.of_counts is None else 0.5

    def value_of(label: int, rows: Split) -> float:
        logits = nn.functional.one_hot(torch.tensor(label), scorer.n_classes).float()
        return scorer.value(lambda inputs: logits.expand(len(inputs), -1), rows, threshold)

    best = max(range(scorer.n_classes), key=lambda label: value_of(label, train))
    return value_of(best, test)


def _train(samples: Split, n_classes: int, seed: int, n_epochs: int) -> Iterator[nn.Module]:
    """Yield the network after each epoch."""
    inputs, labels = samples
    torch.manual_seed(seed)
    net = nn.Sequential(
        *(nn.Linear(inputs.shape[1], 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, n_classes))
    )
    steps = torch.optim.AdamW(net.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(seed)
    for _ in range(n_epochs):
        for batch in torch.randperm(len(labels), generator=order).split(_BATCH):
            steps.zero_grad()
            nn.functional.cross_entropy(net(inputs[batch]), labels[batch]).backward()
            steps.step()
        yield net


@torch.no_grad()
def _logits(net: _Net, inputs: Tensor) -> Tensor:
    return net(inputs)


def _split(table: Split, seed: int, noise: float) -> tuple[Split, Split]:
    """Training and test rows, standardised by the training rows."""
    features, labels = table
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    train, test = order.tensor_split(2)
    train, test = train[:_MOST_TRAINED], test[:_MOST_TESTED]
    features = standardize(features, *standardization(features[train]))
    given = labels[train]
    is_redrawn = torch.rand(len(given), generator=generator) < noise
    drawn = torch.randint(int(labels.max()) + 1, (len(given),), generator=generator)
    return (features[train], torch.where(is_redrawn, drawn, given)), (features[test], labels[test])
