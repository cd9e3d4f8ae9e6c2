"""Choosing an SVM's width and a number of prototypes by anchors along the gradient: Figs. 4.8 and 4.9.

Ha (2019), section 4.6.7. The SVMs have two classes, Gaussian kernels and C by cross-validation; the prototype-based
classifiers have the centroids of K-means in each class, as many for all, and the nearest decides. Beside
`GradientAnchorUncertainty` stand Proposal 1 (for the SVMs; at most 3000 anchors) and Proposal 2. `pair` is gradient
anchors with the gap of the anchor's two classes, which differs where there are more than two. Gradients want an SVM
written in torch. `--ratio` takes so many samples of one class for each of the other, where there are two (the thesis
has a table of 10 : 1). A choice is near if its L_val exceeds the least by no more than a tenth of the range of L_val.

    python examples/gradient_selection.py

The run of `docs/papers.md` with a ratio has the options

    --ratio 10 --samples 600 --folds 5 --data GMM banknote breast_cancer_wisconsin german ionosphere sonar spambase
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.svm import SVC
from svms import choose_c, fold_errors
from torch import Tensor

from bu_torch import BisectionAnchorUncertainty, GradientAnchorUncertainty, ParzenUncertainty, PrototypeClassifier

matplotlib.use("Agg")
from matplotlib import pyplot as plt

warnings.filterwarnings("ignore", message=".*look like probabilities")  # an SVM that predicts one class everywhere

FOLDER = Path(__file__).parent
TABLES = FOLDER.parent / "benchmarks" / "data"
MEANS = torch.tensor([[-1.5, 0], [1, 1.5], [0, -0.8], [2, 0], [4, 1.5]])  # GMM: the first four; GMM_5c: one a class
COLORS = {"-U, bisection": "tab:purple", "-U, gradient": "tab:orange", "-U, Proposal 2": "tab:blue",
          "-U, pair": "gold"}  # fmt: skip
TWO_CLASSES = {"GMM": None, "abalone3": (0, 1), "banknote": None, "breast_cancer_wisconsin": None, "german": None,
               "ionosphere": None, "landsat": (1, 5), "sonar": None, "spambase": None}  # fmt: skip


class Svm(SVC):
    """With a decision function that has gradients."""

    def logits(self, inputs: Tensor) -> Tensor:
        vectors, weights, bias = (torch.tensor(a) for a in (self.support_vectors_, self.dual_coef_[0], self.intercept_))
        return torch.exp(-self.gamma * torch.cdist(inputs.double(), vectors.double()).square()) @ weights + bias


class Prototypes(ClassifierMixin, BaseEstimator):
    """So many prototypes of each class."""

    def __init__(self, k: int) -> None:
        self.k = k

    def fit(self, features: np.ndarray, labels: np.ndarray) -> "Prototypes":
        self.classifier, self.classes_ = PrototypeClassifier(self.k).fit(features, labels), np.unique(labels)
        return self

    def logits(self, inputs: Tensor) -> Tensor:
        return torch.stack([-torch.cdist(inputs, found).amin(dim=1) for found in self.classifier.prototypes_], dim=1)

    def predict(self, features: np.ndarray) -> np.ndarray:
        return self.logits(torch.as_tensor(features)).argmax(dim=1).numpy()


def read(name: str, n_samples: int, classes: tuple[int, int] | None = None, ratio: int = 1) -> tuple[Tensor, Tensor]:
    """Standardised features and labels, of two classes alone where they are given, in this ratio if it is not 1."""
    if name.startswith("GMM"):
        generator = torch.Generator().manual_seed(0)
        part = torch.arange(n_samples) % (5 if name == "GMM_5c" else 4)
        features = MEANS[part] + 0.75 * torch.randn(n_samples, 2, generator=generator)
        labels = part if name == "GMM_5c" else part // 2
    else:
        table = pd.read_csv(TABLES / f"{name}.csv.gz")
        table = table[table["label"].isin(classes)] if classes else table
        table = table.sample(min(n_samples, len(table)), random_state=0)
        labels = torch.tensor(table.pop("label").rank(method="dense").to_numpy().astype(int) - 1)
        features = torch.tensor(table.to_numpy("float32"))
    if ratio > 1:
        few = torch.nonzero(labels == 1).flatten()[: int((labels == 0).sum()) // ratio]
        rows = torch.cat((torch.nonzero(labels == 0).flatten(), few)).sort().values
        features, labels = features[rows], labels[rows]
    spread = features.std(dim=0)
    return (features - features.mean(dim=0)) / torch.where(spread == 0, 1.0, spread), labels


def sweep(features: Tensor, labels: Tensor, candidates: dict, estimators: dict, n_folds: int) -> pd.DataFrame:
    """L_val and U by each estimator, one row for each candidate."""
    fitted = {name: estimator.fit(features, labels) for name, estimator in estimators.items()}
    rows = {}
    for value, candidate in candidates.items():
        error = fold_errors(candidate, features, labels, n_folds)[0]
        candidate.fit(features.numpy(), labels.numpy())
        rows[value] = {"L_val": error} | {name: float(e.score(candidate.logits)) for name, e in fitted.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def experiments(
    names: list[str], n_samples: int, n_folds: int, ratio: int, is_quick: bool
) -> Iterator[tuple[str, pd.DataFrame]]:
    both = {"gradient": GradientAnchorUncertainty, "Proposal 2": lambda: ParzenUncertainty(n_draws=4)}
    for name in names:
        if name in TWO_CLASSES:
            estimators = {"bisection": BisectionAnchorUncertainty(max_anchors=3000, n_halvings=20)}
            estimators |= {key: make() for key, make in both.items()}
            exponents = (-13, -1, 7) if is_quick else range(-15, 12, 2)
            data = read(name, n_samples, TWO_CLASSES[name], ratio)
            c = 1.0 if is_quick else choose_c(*data)
            svms = {exponent: Svm(C=c, gamma=2.0**exponent) for exponent in exponents}
            yield f"SVM, {name}", sweep(*data, svms, estimators, n_folds)
        if ratio > 1 and TWO_CLASSES.get(name, ()) is not None:
            continue  # prototypes of more than two classes
        data = read(name, n_samples, ratio=ratio)
        estimators = {key: make() for key, make in both.items()}
        if len(data[1].unique()) > 2:
            estimators["pair"] = GradientAnchorUncertainty(gap="pair")
        prototypes = {k: Prototypes(k) for k in ((1, 4, 32) if is_quick else (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48))}
        yield f"PBC, {name}", sweep(*data, prototypes, estimators, n_folds)


def main(arguments: list[str] | None = None) -> dict[str, pd.DataFrame]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    files = sorted(file.name.removesuffix(".csv.gz") for file in TABLES.glob("*.csv.gz"))
    parser.add_argument("--data", nargs="+", choices=["GMM", "GMM_5c", *files], default=["GMM", "GMM_5c", *files])
    parser.add_argument("--samples", type=int, default=400, help="at most so many of each")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--ratio", type=int, default=1, help="of the two classes; 1 leaves them as they are")
    parser.add_argument("--smoke", action="store_true", help="GMM alone, three candidates of each kind, two folds")
    parser.add_argument("--plot", type=Path, default=FOLDER / "gradient_selection.png")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.data, options.samples, options.folds = ["GMM"], 300, 2

    tables = {}
    print("candidate, and in brackets its L_val, of least L_val and of largest U (with that U)")
    near: dict[str, list[bool]] = {}
    for name, rows in experiments(options.data, options.samples, options.folds, options.ratio, options.smoke):
        tables[name] = rows
        best = rows["L_val"].idxmin()
        said = [f"L_val {best} ({rows['L_val'][best]:.3f})"]
        for column in rows.columns[1:]:
            pick = rows[column].idxmax()
            said.append(f"{column} {pick} ({rows['L_val'][pick]:.3f}; {rows[column][pick]:.2f})")
            limit = rows["L_val"].min() + (rows["L_val"].max() - rows["L_val"].min()) / 10
            near.setdefault(f"{name[:3]}, {column}", []).append(bool(rows["L_val"][pick] <= limit))
        print(f"{name:>28}  " + "  ".join(said), flush=True)
    for name, found in near.items():
        print(f"{name}: near the least on {sum(found)} of {len(found)}")
    draw(tables, options.plot)
    return tables


def draw(tables: dict[str, pd.DataFrame], path: Path) -> None:
    n_rows = -(-len(tables) // 4)
    figure, axes = plt.subplots(n_rows, 4, figsize=(20, 3.2 * n_rows), squeeze=False)
    figure.subplots_adjust(left=0.04, right=0.96, top=1 - 0.1 / n_rows, bottom=0.25 / n_rows, hspace=0.45, wspace=0.4)
    for axis in axes.flat[len(tables) :]:
        axis.axis("off")
    for (name, rows), axis in zip(tables.items(), axes.flat, strict=False):
        rows["L_val"].plot(ax=axis, color="black", linestyle="--", title=f"{name} (L_val: dashed)")
        (-rows.drop(columns="L_val")).add_prefix("-U, ").plot(ax=axis, secondary_y=True, color=COLORS, legend=False)
        axis.set_xlabel("log2 gamma" if name.startswith("SVM") else "prototypes of a class")
    lines = [plt.Line2D([], [], color=color) for color in COLORS.values()]
    figure.legend(lines, [f"{name} (right)" for name in COLORS], loc="lower center", ncols=4)
    figure.savefig(path, dpi=60)
    plt.close(figure)


if __name__ == "__main__":
    main()
