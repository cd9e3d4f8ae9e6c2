"""Choosing the width of a Gaussian-kernel SVM without validation data: Figs. 6 to 8, 14 and 15.

Ha et al. (2021), section 6: SVMs with C = 1 and gamma from 2^-15 to 2^15 on standardised data. L_tr and L_val are
errors on the training and on the validation folds of cross-validation, U the boundary uncertainty of the SVM trained on
all samples, from the same samples. Three mixtures of Gaussians show what U sees: GMM (overlap), GMM_separable (an empty
region between the classes) and GMM_inclusion (a boundary in two parts, of which a stiff SVM leaves one out: the
omission beside U tells).

    python examples/svm_selection.py --data GMM GMM_separable GMM_inclusion sonar

With `--panels` a figure of each mixture for the widths given: predictions with anchors on the boundary, the samples
nearest to those (thesis, Fig. 2.3), and how much each sample weighs in U (Fig. 14).
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pandas as pd
import torch
from sklearn.svm import SVC
from torch import Tensor

from bu_torch import BisectionAnchorUncertainty, BoundaryUncertainty, functional
from bu_torch.evaluation import cross_validation_error

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
TABLES = FOLDER.parent / "benchmarks" / "data"
MIXTURES = {  # of each component: class, share, mean, standard deviations
    "GMM": ((0, 1, (-1.5, 0), (0.8, 0.8)), (0, 1, (1, 1.5), (0.6, 0.6)), (1, 1, (0, -0.8), (0.8, 0.6)),
            (1, 1, (2, 0), (0.8, 0.8))),
    "GMM_separable": ((0, 1, (-2, -0.5), (0.4, 0.4)), (0, 1, (-1, 1.5), (0.4, 0.4)), (1, 1, (0.6, -1.2), (0.4, 0.4)),
                      (1, 1, (1.6, 0.8), (0.4, 0.4))),
    "GMM_inclusion": ((0, 2, (-1.2, 0), (1, 1.5)), (0, 1, (3, 0), (0.35, 0.7)), (1, 3, (2.5, 0), (1.2, 1.5))),
}  # fmt: skip


def read(name: str, n_samples: int) -> tuple[Tensor, Tensor]:
    """Standardised features and labels, at most `n_samples`, chosen at random."""
    generator = torch.Generator().manual_seed(0)
    if name in MIXTURES:
        unit = n_samples // sum(share for _, share, *_ in MIXTURES[name])
        parts = [
            (torch.tensor(mean) + torch.tensor(scale) * torch.randn(share * unit, 2, generator=generator), label)
            for label, share, mean, scale in MIXTURES[name]
        ]
        features = torch.cat([part for part, _ in parts])
        labels = torch.cat([torch.full((len(part),), label) for part, label in parts])
    else:
        table = pd.read_csv(TABLES / f"{name}.csv.gz")
        labels = torch.tensor(table.pop("label").to_numpy())
        features = torch.tensor(table.to_numpy("float32"))
        chosen = torch.randperm(len(labels), generator=generator)[:n_samples]
        features, labels = features[chosen], labels[chosen]
    spread = features.std(dim=0)
    return (features - features.mean(dim=0)) / torch.where(spread == 0, 1.0, spread), labels


def sweep(
    features: Tensor, labels: Tensor, exponents: list[int], n_folds: int, with_proposal_1: bool
) -> Iterator[dict[str, float]]:
    """One row for each gamma."""
    uncertainty = BoundaryUncertainty(n_draws=4).fit(features, labels)
    anchors = BisectionAnchorUncertainty().fit(features, labels)
    for exponent in exponents:
        svm = SVC(gamma=2.0**exponent)
        errors = cross_validation_error(svm, features, labels, n_folds=n_folds)
        svm.fit(features, labels)
        row = {
            "gamma": exponent,
            "L_tr": errors.training_error,
            "L_val": errors.error,
            "U": float(uncertainty.score(svm.decision_function)),
            "omission": float(uncertainty.omission(svm.decision_function)),
        }
        if with_proposal_1:
            row["U of Proposal 1"] = float(anchors.score(svm.decision_function))
        yield row


def main(arguments: list[str] | None = None) -> dict[str, pd.DataFrame]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*MIXTURES, *sorted(file.name.removesuffix(".csv.gz") for file in TABLES.glob("*.csv.gz"))]
    parser.add_argument("--data", nargs="+", choices=names, default=names)
    parser.add_argument("--samples", type=int, default=1200, help="at most so many of each")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--step", type=int, default=2, help="of log2 gamma")
    parser.add_argument("--proposal-1", action="store_true", help="also anchors by bisection, which take far longer")
    parser.add_argument(
        "--panels", type=int, nargs="+", default=[], help="log2 gammas of scatter plots of the mixtures"
    )
    parser.add_argument("--smoke", action="store_true", help="the inclusion mixture alone, three gammas, two folds")
    parser.add_argument("--plot", type=Path, default=FOLDER / "svm_selection.png")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.data, options.samples, options.folds, options.step = ["GMM_inclusion"], 1200, 2, 2
        options.panels = [0]

    tables = {}
    print("log2 gamma and L_val of the best by:  L_val            U                U - omission     U of Proposal 1")
    for name in options.data:
        features, labels = read(name, options.samples)
        exponents = [-5, 0, 7] if options.smoke else list(range(-15, 16, options.step))
        rows = pd.DataFrame(sweep(features, labels, exponents, options.folds, options.proposal_1)).set_index("gamma")
        tables[name] = rows
        if options.panels and name in MIXTURES:
            scatter(features, labels, options.panels, options.plot.with_stem(f"{options.plot.stem}_{name}"))
        scores = [-rows["L_val"], rows["U"], rows["U"] - rows["omission"]]
        scores += [rows[column] for column in rows if column == "U of Proposal 1"]
        picks = [score.idxmax() for score in scores]
        print(f"{name:>36}  " + "".join(f"{pick:>4} ({rows['L_val'][pick]:.3f})     " for pick in picks), flush=True)
    if len(tables) == 1:
        print(rows.round(3).to_string())
    draw(tables, options.plot)
    return tables


def draw(tables: dict[str, pd.DataFrame], path: Path) -> None:
    _, axes = plt.subplots(len(tables), 1, figsize=(6, 2.6 * len(tables)), squeeze=False)
    for (name, rows), axis in zip(tables.items(), axes[:, 0], strict=True):
        rows[["L_tr", "L_val", "omission"]].plot(ax=axis, title=name, color=["gold", "green", "gray"])
        columns = [column for column in rows if column.startswith("U")]
        (-rows[columns]).add_prefix("-").plot(ax=axis, secondary_y=True, color=["tab:blue", "lightblue"])
        axis.set_xlabel("log2 gamma")
    plt.tight_layout()
    plt.savefig(path, dpi=100)
    plt.close()


def scatter(features: Tensor, labels: Tensor, exponents: list[int], path: Path) -> None:
    """One row of panels for each gamma."""
    uncertainty = BoundaryUncertainty().fit(features, labels)
    bisection = BisectionAnchorUncertainty(max_anchors=2000, n_halvings=15).fit(features, labels)
    shape = (len(exponents), 4)
    figure, axes = plt.subplots(*shape, figsize=(16, 4 * shape[0]), squeeze=False, sharex=True, sharey=True)
    for exponent, row in zip(exponents, axes, strict=True):
        svm = SVC(gamma=2.0**exponent).fit(features, labels)
        anchors = bisection.anchors(svm.decision_function)
        logits = torch.as_tensor(svm.decision_function(uncertainty.perturbed_inputs[0]))
        _, weight = functional.local_uncertainty(logits, labels, uncertainty.neighbors, uncertainty.bayes_pairs)
        near, weighs = anchors.samples.unique(), weight > 1e-6
        colors = {"labels": labels, "predictions, anchors": torch.as_tensor(svm.predict(features))}
        colors |= {"near-boundary samples": labels[near], "weight in U": labels}
        parts = (features, features, features[near], features)
        for axis, points, (title, color) in zip(row, parts, colors.items(), strict=True):
            axis.scatter(*points.T, c=color, cmap="plasma", vmin=0, vmax=1.1, s=6)
            axis.set_title(f"log2 gamma {exponent}: {title}")
        row[1].scatter(*anchors.points.T, c="black", s=3)
        row[3].scatter(*features[weighs].T, c=weight[weighs], cmap="cool", s=10)
    figure.tight_layout()
    figure.savefig(path, dpi=60)
    plt.close(figure)


if __name__ == "__main__":
    main()
