"""Results of a small network on a table, by several ways to choose the epoch."""

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bu_torch.functional.metrics import best_threshold
from bu_torch.internal.inputs import as_tensor
from bu_torch.internal.replica import copy_of
from bu_torch.run.settings import AVERAGING
from bu_torch.run.stopper import BoundaryUncertaintyStopper
from bu_torch.run.weights import WeightAverage
from bu_torch.signals.metrics import ACCURACY, ExpectedMetric
from bu_torch.space.features import standardization, standardize

LEAST_ROWS = 80
_MOST_CLASSES_A_ROW = 1 / 3
_MOST_TRAINED, _MOST_TESTED = 2500, 4000
_PATIENCE = 20
_BATCH = 32
_Net = Callable[[Tensor], Tensor]  # inputs (n, d) -> logits (n, J)
Split = tuple[Tensor, Tensor]  # inputs (n, d) float32, classes (n,) int64


class Comparison(NamedTuple):
    """Results on one table, and the number of epochs trained."""

    results: dict[str, float]  # test error, or the metric on test data, by the way to choose the epoch
    epochs: dict[str, int]  # by the same names


def read_table(path: Path) -> Split:
    """Features and classes of a CSV file with a column `label`; raises if it is no such table, or has few rows."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("Tables are read with pandas: `pip install pandas`.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows are longer than the header
            frame = pd.read_csv(path, index_col=False)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, Warning) as error:
        raise ValueError(f"`{path}` cannot be read as columns separated by commas: {str(error)[:200]}") from error
    named = ", ".join(map(repr, map(str, frame.columns[:5])))
    if "label" not in frame or len(frame.columns) < 2:
        raise ValueError(f"`{path}` must have columns separated by commas, one of them called `label`, got {named}.")
    if str(frame.columns[0]).startswith("Unnamed"):
        raise ValueError(f"`{path}` must name each column, got {named}: save it by `to_csv(..., index=False)`.")
    codes, classes = frame.pop("label").factorize(sort=True)
    if n_missing := int((codes < 0).sum()):
        raise ValueError(f"`{path}` must have a label in each row, got {n_missing} missing ones (NA counts as one).")
    if len(frame) < LEAST_ROWS or not 2 <= len(classes) <= _MOST_CLASSES_A_ROW * len(frame):
        raise ValueError(
            f"`{path}` must have at least {LEAST_ROWS} rows, half of them for training, and two classes or more, not"
            f" numbers to predict, got rows: {len(frame)}, classes: {len(classes)}."
        )
    features = as_tensor(frame, str(path)).float()
    if len(bad := frame.columns[~features.isfinite().all(dim=0).numpy()]):
        raise ValueError(f"`{path}` must hold finite numbers, got missing or infinite ones in the column '{bad[0]}'.")
    return features, torch.from_numpy(codes).long()


def compare(
    table: Split, seed: int, n_epochs: int, noise: float = 0.0, metric: ExpectedMetric = ACCURACY
) -> Comparison:
    """Train on half of a table, at most 2500 rows, and test on the other half, at most 4000.

    The network has hidden layers of 128 and 64 units, and trains with AdamW in batches of 32. A share `noise` of the
    training labels is redrawn at random. A hold-out set is a part of the training half; the epoch with the best
    `metric` on it is kept, and the least loss among ties. "Refit" trains on all labels to the epoch that a fifth chose.
    With accuracy, errors are compared. With a metric that has a threshold, each way predicts with its own: that of the
    callback, or the best one on the hold-out set, or on the training rows where there is none.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    train, test = _split(table, seed, noise)
    n_classes, n_tested = len(table[1].unique()), len(test[1].unique())
    if metric != ACCURACY and not metric.is_of_sharp and n_tested < n_classes:
        raise ValueError(f"the test half must have samples of all {n_classes} classes for {metric}, got {n_tested}.")
    scorer = _Scorer(_ERROR if metric == ACCURACY else metric, int(table[1].max()) + 1)
    quarter, fifth = (_hold_out(train, test, scorer, share, seed, n_epochs) for share in (0.25, 0.2))
    stopper = BoundaryUncertaintyStopper(*train, seed=seed, patience=_PATIENCE, metric=metric)
    stopper.has_progress_bar = False
    average, n_ours = WeightAverage(AVERAGING), 0
    of_all, refit = [], math.nan
    with stopper:
        for epoch, net in enumerate(_train(train, scorer.n_classes, seed, n_epochs)):
            of_all.append(scorer.result(net, test, scorer.threshold(net, test)))
            if epoch == fifth.epoch:
                refit = scorer.result(net, test, fifth.threshold)
            average.update(net)
            if not n_ours and stopper.check(net):
                n_ours = epoch + 1
        averaged = copy_of(net, average.values())
        last, of_average = (scorer.result(one, test, scorer.threshold(one, train)) for one in (net, averaged))
        stopper.restore(net)
        threshold = next(one.get("threshold") for one in stopper.history if one["epoch"] == stopper.best_epoch)
        kept = scorer.result(net, test, threshold)  # a blind choice has one too, though nothing recommends it
    results = {
        "bu-torch": kept,
        "hold-out 25 %": quarter.result,
        "refit 20 %": refit,
        "last epoch": last,
        "averaged": of_average,
        "best epoch": scorer.best(of_all),
        "logistic": _of_model(LogisticRegression(max_iter=1000), train, test, scorer),
        "boosting": _of_model(HistGradientBoostingClassifier(random_state=seed), train, test, scorer),
        "one class": _one_class(train, test, scorer),
    }
    ran = {"bu-torch": n_ours or n_epochs, "hold-out 25 %": quarter.n_epochs}
    ran["refit 20 %"] = fifth.n_epochs + fifth.epoch + 1
    return Comparison(results, ran | dict.fromkeys(("last epoch", "averaged", "best epoch"), n_epochs))


def _error(logits: Tensor, certain: Tensor, _: Tensor | None) -> Tensor:
    return (logits.argmax(dim=1) != certain.argmax(dim=1)).double().mean()


_ERROR = ExpectedMetric("error", "test error", False, _error)


class _Scorer(NamedTuple):
    """Results of networks on labelled rows, by a metric."""

    metric: ExpectedMetric
    n_classes: int

    def best(self, results: list[float]) -> float:
        return max(results) if self.metric.is_larger_better else min(results)

    def threshold(self, net: _Net, rows: Split) -> float | None:
        """Threshold of class 1 that is best on these rows; None if the metric has none."""
        if self.metric.of_counts is None or self.n_classes != 2:
            return None
        return float(best_threshold(self.metric.of_counts, _logits(net, rows[0]), self._certain(rows[1]))[0])

    def result(self, net: _Net, rows: Split, threshold: float | None = None) -> float:
        logits, labels = _logits(net, rows[0]), rows[1]
        if threshold is None or self.metric.of_counts is None:
            return float(self.metric.formula(logits, self._certain(labels), None))
        found, positive = logits.softmax(dim=1)[:, 1] >= threshold, labels == 1
        numbers = (found & positive, found & ~positive, positive, ~positive)
        return self.metric.sign * float(self.metric.of_counts(*(one.double().sum() for one in numbers)))

    def _certain(self, labels: Tensor) -> Tensor:
        return nn.functional.one_hot(labels, self.n_classes).double()


class _HeldOut(NamedTuple):
    result: float
    epoch: int
    n_epochs: int
    threshold: float | None


def _hold_out(train: Split, test: Split, scorer: _Scorer, share: float, seed: int, n_epochs: int) -> _HeldOut:
    order = torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(seed), device="cpu")
    rest, held = order.tensor_split([len(order) - int(share * len(order))])
    held_out = train[0][held], train[1][held]
    best, found = (-math.inf, 0.0), _HeldOut(math.nan, 0, 0, None)
    for epoch, net in enumerate(_train((train[0][rest], train[1][rest]), scorer.n_classes, seed, n_epochs)):
        threshold = scorer.threshold(net, held_out)
        result = scorer.result(net, held_out, threshold)
        loss = float(nn.functional.cross_entropy(_logits(net, held_out[0]), held_out[1]))
        score = (scorer.metric.sign * result, -loss)
        if score > best:
            best, found = score, _HeldOut(scorer.result(net, test, threshold), epoch, 0, threshold)
        elif epoch - found.epoch >= _PATIENCE:
            break
    return found._replace(n_epochs=epoch + 1)


def _of_model(model: Any, train: Split, test: Split, scorer: _Scorer) -> float:
    """Result of a model with scikit-learn's settings; its threshold is the best one by five-fold cross-validation."""
    from sklearn.model_selection import cross_val_predict

    x, y = train[0].numpy(), train[1].numpy()
    present = torch.from_numpy(model.fit(x, y).classes_)

    def as_logits(probabilities: Any) -> Tensor:
        wide = torch.zeros(len(probabilities), scorer.n_classes, dtype=torch.float64, device="cpu")
        wide[:, present] = torch.from_numpy(probabilities).double()
        return wide.clamp(min=1e-9).log()

    threshold = None
    if scorer.threshold(_constant(torch.zeros(scorer.n_classes)), train) is not None:
        left_out = as_logits(cross_val_predict(model, x, y, cv=5, method="predict_proba"))
        threshold = scorer.threshold(lambda _: left_out, train)
    return scorer.result(lambda inputs: as_logits(model.predict_proba(inputs.numpy())), test, threshold)


def _one_class(train: Split, test: Split, scorer: _Scorer) -> float:
    """Result of the class that scores most alone on the training rows."""
    alone = [_constant(one) for one in nn.functional.one_hot(torch.arange(scorer.n_classes)).float()]
    threshold = None if scorer.threshold(alone[0], train) is None else 0.5
    each = [scorer.result(net, train, threshold) for net in alone]
    return scorer.result(alone[each.index(scorer.best(each))], test, threshold)


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
        for batch in torch.randperm(len(labels), generator=order, device="cpu").split(_BATCH):
            steps.zero_grad()
            nn.functional.cross_entropy(net(inputs[batch]), labels[batch]).backward()
            steps.step()
        yield net


@torch.no_grad()
def _logits(net: _Net, inputs: Tensor) -> Tensor:
    return net(inputs)


def _constant(logits: Tensor) -> _Net:
    """Network that gives the same logits (J,) for all inputs."""
    return lambda inputs: logits.expand(len(inputs), -1)


def _split(table: Split, seed: int, noise: float) -> tuple[Split, Split]:
    """Training and test rows, standardised by the training rows."""
    features, labels = table
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator, device="cpu")
    train, test = order.tensor_split(2)
    train, test = train[:_MOST_TRAINED], test[:_MOST_TESTED]
    features = standardize(features, *standardization(features[train]))
    given = labels[train]
    is_redrawn = torch.rand(len(given), generator=generator, device="cpu") < noise
    drawn = torch.randint(int(labels.max()) + 1, (len(given),), generator=generator, device="cpu")
    return (features[train], torch.where(is_redrawn, drawn, given)), (features[test], labels[test])
