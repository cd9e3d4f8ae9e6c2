"""The samples near a decision boundary: which they are, how far away, and which neighbours to ask there.

Ha (2019) with Gaussian-kernel SVMs, C by cross-validation, and Proposal 1. Figs. 3.1 to 3.3: U from the k nearest of
all samples to each near-boundary sample, from the k nearest of the near-boundary samples, and from their clusters. Fig.
3.4: distances to the boundary (to the nearest anchor) of the near-boundary samples and of their seven nearest among
all. Fig. 4.7: how many samples are near the boundary by Proposal 1, and |F| of them and of all. Fig. 2.5: rare classes,
with and without the prior correction; as Cardiotocography is not at hand, Spambase thinned to one sample of spam to
nine others.

    python examples/near_boundary.py
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.svm import SVC
from svms import choose_c, fold_errors
from torch import Tensor

from bu_torch import BisectionAnchorUncertainty

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from bu_torch.papers.anchors import class_uncertainty

FOLDER = Path(__file__).parent
TABLES = FOLDER.parent / "benchmarks" / "data"
SIZES = (5, 7, 10, 15)
DIMENSIONS = ("banknote", "breast_cancer_wisconsin", "ionosphere", "spambase", "german")  # features ascend


def read(name: str, n_samples: int, share: float | None = None) -> tuple[Tensor, Tensor]:
    """Standardised features and labels; with `share`, so many of class 1."""
    table = pd.read_csv(TABLES / f"{name}.csv.gz").sample(frac=1, random_state=0)
    if share is not None:
        n_rare = round(share * n_samples)
        rare = table["label"] == 1
        table = pd.concat([table[rare][:n_rare], table[~rare][: n_samples - n_rare]])
    labels = torch.tensor(table.pop("label").to_numpy()[:n_samples])
    features = torch.tensor(table.to_numpy("float32")[:n_samples])
    spread = features.std(dim=0)
    return (features - features.mean(dim=0)) / torch.where(spread == 0, 1.0, spread), labels


def neighbors(base: Tensor, queries: Tensor, k: int) -> Tensor:
    return torch.as_tensor(NearestNeighbors(n_neighbors=min(k, len(base))).fit(base).kneighbors(queries)[1])


def knn_uncertainty(labels: Tensor, members: Tensor) -> float:
    """Mean entropy of the labels of each row of members, for two classes with equal priors."""
    counts = torch.nn.functional.one_hot(labels[members], 2).sum(dim=1).double()
    pairs = torch.tensor([[0, 1]]).expand(len(members), 2)
    priors = labels.bincount(minlength=2) / len(labels)
    return float(class_uncertainty(counts, pairs, priors=priors, measure="entropy").mean())


def schemes(
    features: Tensor, labels: Tensor, c: float, exponents: list[int], n_folds: int, limits: dict
) -> pd.DataFrame:
    """L_val and U by each scheme, one row for each gamma."""
    fitted = BisectionAnchorUncertainty(**limits).fit(features, labels)
    rows = {}
    for exponent in exponents:
        svm = SVC(C=c, gamma=2.0**exponent)
        row = {"L_val": fold_errors(svm, features, labels, n_folds)[0]}
        model = svm.fit(features, labels).decision_function
        near = fitted.anchors(model).samples.unique()
        for k in SIZES if len(near) else ():
            row[f"all, k = {k}"] = knn_uncertainty(labels, neighbors(features, features[near], k))
            row[f"near, k = {k}"] = knn_uncertainty(labels[near], neighbors(features[near], features[near], k))
        rows[exponent] = row | {"clusters": float(fitted.score(model)), "near": len(near)}
    return pd.DataFrame.from_dict(rows, orient="index").fillna(0)


def imbalance(
    features: Tensor, labels: Tensor, c: float, exponents: list[int], n_folds: int, limits: dict
) -> pd.DataFrame:
    """U with and without prior correction, and near-boundary samples of each class, one row for each gamma."""
    plain, corrected = (BisectionAnchorUncertainty(prior_correction=p, **limits) for p in (False, True))
    plain.fit(features, labels)
    corrected.fit(features, labels)
    rows = {}
    for exponent in exponents:
        svm = SVC(C=c, gamma=2.0**exponent)
        error = fold_errors(svm, features, labels, n_folds)[0]
        model = svm.fit(features, labels).decision_function
        common, rare = labels[plain.anchors(model).samples.unique()].bincount(minlength=2).tolist()
        values = {"U": float(plain.score(model)), "U, corrected": float(corrected.score(model))}
        rows[exponent] = {"L_val": error, **values, "rare": rare, "common": common}
    return pd.DataFrame.from_dict(rows, orient="index")


def distances(features: Tensor, labels: Tensor, c: float, exponent: int, limits: dict) -> dict[str, np.ndarray]:
    """To the nearest anchor: of near-boundary samples and of their seven nearest among all."""
    found = BisectionAnchorUncertainty(**limits).fit(features, labels)
    found = found.anchors(SVC(C=c, gamma=2.0**exponent).fit(features, labels).decision_function)
    near = found.samples.unique()
    asked = neighbors(features, features[near], 8)[:, 1:].reshape(-1)
    search = NearestNeighbors(n_neighbors=1).fit(found.points)
    return {k: search.kneighbors(features[rows])[0][:, 0] for k, rows in (("near", near), ("neighbors", asked))}


def near_boundary_ness(features: Tensor, labels: Tensor, c: float, limits: dict) -> dict[str, np.ndarray]:
    """|F| of all samples and of those near the boundary, in standard deviations of F."""
    model = SVC(C=c, gamma="scale").fit(features, labels).decision_function
    near = BisectionAnchorUncertainty(**limits).fit(features, labels).anchors(model).samples.unique()
    gap = abs(model(features)) / model(features).std()
    return {"all": gap, "near": gap[near]}


def main(arguments: list[str] | None = None) -> dict[str, pd.DataFrame]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=600, help="at most so many of each data set")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--smoke", action="store_true", help="fewer samples, two gammas, two folds")
    parser.add_argument("--plot", type=Path, default=FOLDER / "near_boundary.png")
    options = parser.parse_args(arguments)
    n_samples, n_folds, exponents = options.samples, options.folds, list(range(-15, 8, 2))
    limits = {"max_anchors": 3000, "n_halvings": 20}
    if options.smoke:
        n_samples, n_folds, exponents, limits = 150, 2, [-5, 3], {"max_anchors": 600, "n_halvings": 8}

    def data(name: str, n_samples: int, share: float | None = None) -> tuple[Tensor, Tensor, float]:
        features, labels = read(name, n_samples, share)
        return features, labels, 1.0 if options.smoke else choose_c(features, labels)

    tables = {"schemes": schemes(*data("ionosphere", n_samples), exponents, n_folds, limits)}
    print("ionosphere: U by three choices of neighbours\n", tables["schemes"].round(3).to_string(), "\n", flush=True)
    tables["imbalance"] = imbalance(*data("spambase", n_samples, 0.1), exponents, n_folds, limits)
    print("spambase, one in ten is spam\n", tables["imbalance"].round(3).to_string(), "\n", flush=True)
    away = {name: distances(*data(name, n_samples), -5, limits) for name in ("breast_cancer_wisconsin", "ionosphere")}
    tables["distances"] = pd.DataFrame({n: {k: np.median(v) for k, v in d.items()} for n, d in away.items()}).T
    print("median distance to the boundary, log2 gamma -5\n", tables["distances"].round(2).to_string(), "\n")
    ness = {}
    for name in DIMENSIONS[:: 3 if options.smoke else 1]:
        features, labels, c = data(name, min(n_samples, 300))
        ness[f"{name}, {features.shape[1]} features"] = near_boundary_ness(features, labels, c, limits)
    tables["dimension"] = pd.DataFrame(
        {
            name: {"share near": len(v["near"]) / len(v["all"]), **{k: v[k].mean() for k in v}}
            for name, v in ness.items()
        }
    ).T
    print("share of the samples near the boundary, mean |F|\n", tables["dimension"].round(2).to_string())
    draw(tables, away, ness, options.plot)
    return tables


def draw(tables: dict[str, pd.DataFrame], away: dict, ness: dict, path: Path) -> None:
    figure, axes = plt.subplots(3, 4, figsize=(18, 11))
    figure.subplots_adjust(left=0.04, right=0.97, top=0.96, bottom=0.05, hspace=0.3, wspace=0.35)
    rows = tables["schemes"]
    for axis, scheme in zip(axes[0], ("all", "near", "clusters"), strict=False):
        shown = -rows[[column for column in rows if column.startswith(scheme) and column != "near"]]
        rows["L_val"].plot(ax=axis, color="green", linestyle="--", title=f"ionosphere: {scheme}", xlabel="log2 gamma")
        shown.add_prefix("-U, ").plot(ax=axis, secondary_y=True)
    rows = tables["imbalance"]
    rows["L_val"].plot(ax=axes[0, 3], color="green", linestyle="--", title="spambase, 1 : 9", xlabel="log2 gamma")
    (-rows[["U", "U, corrected"]]).add_prefix("-").plot(ax=axes[0, 3], secondary_y=True)
    rows[["rare", "common"]].plot(ax=axes[1, 0], title="near-boundary samples", xlabel="log2 gamma")
    for axis, (name, values) in zip(axes[1, 1:3], away.items(), strict=True):
        axis.hist(values.values(), bins=25, density=True, label=list(values), color=["green", "red"])
        axis.set(title=f"{name}: distance to the boundary")
        axis.legend()
    for axis, (name, values) in zip((axes[1, 3], *axes[2]), ness.items(), strict=False):
        axis.hist(values.values(), bins=20, label=list(values))
        axis.set(title=f"{name}: |F|")
        axis.legend()
    for axis in axes[2, len(ness) - 1 :]:
        axis.axis("off")
    figure.savefig(path, dpi=70)
    plt.close(figure)


if __name__ == "__main__":
    main()
