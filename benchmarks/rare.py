"""Rare classes: what class weights and the metric do to the error, and to the error of each class.

    python benchmarks/rare.py FOLDER

FOLDER holds the tables `mlc_churn`, `credit_data`, `attrition` and `hpc_data` of the R package modeldata, as CSV files
with numbers and a column `label`. Networks and splits are those of `quality.py`; AdamW trains in batches of 32, for 100
epochs or until the rule ends it. Results and a picture are written beside those of the other benchmarks.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import tables
import torch
from tables import FOLDER, Split
from torch import Tensor, nn
from training import by_class, error

from bu_torch import BoundaryUncertaintyStopper

TABLES = ("mlc_churn", "credit_data", "attrition", "hpc_data")
EPOCHS, BATCH, PATIENCE = 100, 32, 20


class Way(NamedTuple):
    """Weights of classes in the loss and in the score, whether a hold-out set decides, and the metric that does."""

    has_weighted_loss: bool
    has_balanced_score: bool
    holds_out: bool = False
    metric: str = "accuracy"


MOVED = "the default, thresholds moved"
WAYS = {
    "the default": Way(False, False),
    'class_weight="balanced"': Way(False, True),
    'metric="balanced_accuracy"': Way(False, False, metric="balanced_accuracy"),
    "weighted loss": Way(True, True),
    "hold-out 25 %": Way(False, False, True),
    "hold-out 25 %, weighted loss": Way(True, True, True),
}


def train(samples: Split, test: Split, n_classes: int, seed: int, way: Way) -> Tensor:
    """Test logits of what is kept, moved so that the threshold of a metric of two classes lies at 0.5."""
    inputs, labels = samples
    held: Split | None = None
    if way.holds_out:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        rest, rows = order.tensor_split([len(order) - len(order) // 4])
        held, (inputs, labels) = (inputs[rows], labels[rows]), (inputs[rest], labels[rest])
    torch.manual_seed(seed)
    net = tables.mlp(128, 64)(inputs.shape[1:], n_classes)
    weights = balanced(labels, n_classes)
    loss = nn.CrossEntropyLoss(weight=weights if way.has_weighted_loss else None)
    steps = torch.optim.AdamW(net.parameters(), lr=1e-3)
    stopper = None if held else stopper_of(inputs, labels, way)
    best: tuple[float, int] = (-1.0, 0)
    kept: dict[str, Tensor] = {}
    for epoch in range(EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH):
            steps.zero_grad()
            loss(net(inputs[batch]), labels[batch]).backward()
            steps.step()
        if stopper is not None:
            if stopper.check(net):
                break
        elif held is not None:
            value = accuracy(net, held, is_balanced=way.has_balanced_score)
            if value > best[0]:
                best, kept = (value, epoch), {name: one.clone() for name, one in net.state_dict().items()}
            elif epoch - best[1] >= PATIENCE:
                break
    if stopper is None:
        net.load_state_dict(kept)
    else:
        stopper.restore(net)
    with torch.no_grad():
        return moved(net(test[0]), None if stopper is None else stopper.summary.get("threshold"))


def stopper_of(inputs: Tensor, labels: Tensor, way: Way) -> BoundaryUncertaintyStopper:
    class_weight = "balanced" if way.has_balanced_score else None
    return BoundaryUncertaintyStopper(inputs, labels, class_weight=class_weight, metric=way.metric, patience=PATIENCE)


def moved(logits: Tensor, threshold: float | None) -> Tensor:
    """Logits of two classes whose threshold of class 1's probability is moved to 0.5; others as they are."""
    if threshold is not None:
        logits[:, 1] -= torch.tensor(threshold).logit(eps=1e-6)
    return logits


def errors(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Error, and error with classes that count alike."""
    return {"test_error": error(logits, labels)} | by_class(logits, labels)


def balanced(labels: Tensor, n_classes: int) -> Tensor:
    """Weights of classes as scikit-learn's `"balanced"` has them."""
    counts = torch.bincount(labels, minlength=n_classes).clamp(min=1)
    return len(labels) / (n_classes * counts)


@torch.no_grad()
def accuracy(net: nn.Module, held: Split, *, is_balanced: bool) -> float:
    logits = net(held[0])
    return 1 - (by_class(logits, held[1])["test_balanced_error"] if is_balanced else error(logits, held[1]))


def plot(rows: pd.DataFrame, path: Path) -> None:
    """Draw error and balanced error of each way, a table beside another."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.style.use(FOLDER.parent / "docs" / "pictures.mplstyle")
    means = rows.groupby(["data", "way"])[["test_error", "test_balanced_error"]].mean()
    figure, axes = plt.subplots(1, rows.data.nunique(), figsize=(9, 2.6), layout="constrained")
    for axis, (data, part) in zip(axes, means.groupby(level="data"), strict=True):
        part = part.droplevel("data").reindex([*list(WAYS)[:3], MOVED, *list(WAYS)[3:]])
        places = range(len(part))
        axis.barh([place - 0.2 for place in places], part.test_error, 0.38, color="tab:gray", label="error")
        axis.barh([place + 0.2 for place in places], part.test_balanced_error, 0.38, color="tab:red", label="balanced")
        axis.set(title=data, yticks=list(places), yticklabels=list(part.index) if axis is axes[0] else [])
        axis.invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for seed, table in itertools.product(range(options.seeds), TABLES):
        samples, test, n_classes = tables.load(str(options.folder / f"{table}.csv.gz"), seed)
        found = {name: train(samples, test, n_classes, seed, way) for name, way in WAYS.items()}
        # Bayes's rule for classes that are all as frequent; with two, the threshold moves to the share of the class.
        found[MOVED] = found["the default"] + balanced(samples[1], n_classes).log()
        rows += [
            {"data": table, "seed": seed, "way": name, **errors(logits, test[1])} for name, logits in found.items()
        ]
        print(table, seed, file=sys.stderr, flush=True)
    frame = pd.DataFrame(rows)
    frame.round(5).to_csv(options.results / "rare.csv", index=False)
    plot(frame, options.results / "rare.png")
    columns = ["test_error", "test_balanced_error", "test_rarest_recall"]
    print(frame.groupby("way", sort=False)[columns].mean().round(3).to_string())
    print(frame.pivot_table(index="data", columns="way", values=columns[:2]).round(3).to_string())
    return frame


if __name__ == "__main__":
    main()
