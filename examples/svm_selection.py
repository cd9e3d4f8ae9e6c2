"""Choosing the width of a Gaussian-kernel SVM without validation data: Figs. 8, 14 and 15, thesis Figs. 2.3 and 2.4.

Ha et al. (2021), section 6: SVMs with gamma from 2^-15 to 2^15 on standardised data. C is chosen beforehand by
cross-validation, as in both sources; `--c 1` fixes it. L_tr and L_val are errors on the training and on the validation
folds of cross-validation, L_HO the error on a quarter of the samples held out once, U the boundary uncertainty of the
SVM trained on all samples, from the same samples, the mean of four perturbations. The seconds are those of
cross-validation and of U (one training, its score; what all gammas share is `fit`): section 6.10.2, where U has one
perturbation (`--draws 1`). Three mixtures of
Gaussians show what U sees: GMM (overlap), GMM_separable (an empty region between the classes) and GMM_inclusion (a
boundary in two parts, of which a stiff SVM leaves one out: the omission beside U tells).

    python examples/svm_selection.py --data GMM GMM_separable GMM_inclusion sonar

The runs of `docs/papers.md`, in its order, have the options

    --samples 600 --folds 5 --seeds 0 1 2 3
    --samples 1500
    --samples 600 --step 4 --draws 1
    --data GMM_inclusion GMM_separable --step 3 --seeds 0 1 2 3 4 5 6 7
    --data GMM --samples 2200 --proposal-1 --seeds 0 1 2 3
    --samples 600 --step 4 --proposal-1
    --data GMM banknote german ionosphere sonar --samples 400 --folds 5 --step 4 --proposal-1

`--proposal-1` adds anchors by bisection, with the prior correction of the sources and without; both take far longer.
Section 6.4.2 says that Proposal 2 comes nearer to 1 and is sharper: the largest U, and the share of gammas whose U is
in the highest tenth of its range.
With several `--seeds`, each another draw of samples, moves and anchors, it is counted on how many draws each choice is
within 0.02 of the least L_val, and the largest U is shown with its gamma: of all SVMs, of those that leave out nothing
(omission below 0.01) and of those that leave out a part (above 0.03). With `--panels` a figure of each mixture for the
widths given: predictions with anchors on the boundary, the samples nearest to those (thesis, Fig. 2.3), and how much
each sample weighs in U (Fig. 14).
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import torch
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.svm import SVC
from svms import MIXTURES, TABLES, choose_c, fold_errors, read
from torch import Tensor

from bu_torch import BisectionAnchorUncertainty, ParzenUncertainty, functional

matplotlib.use("Agg")
from matplotlib import pyplot as plt

warnings.filterwarnings("ignore", message=".*look like probabilities")  # an SVM that predicts one class everywhere

FOLDER = Path(__file__).parent
LIMITS = {"max_anchors": 3000, "n_halvings": 20}  # of Proposal 1; the sources: 10000, 30


def sweep(
    features: Tensor,
    labels: Tensor,
    c: float,
    exponents: list[int],
    n_folds: int,
    n_draws: int,
    with_proposal_1: bool,
    seed: int,
) -> Iterator[dict[str, float]]:
    """One row for each gamma."""
    uncertainty = ParzenUncertainty(n_draws=n_draws, seed=seed)
    _, of_fit = timed(lambda: uncertainty.fit(features, labels))
    proposals_1 = {
        name: BisectionAnchorUncertainty(prior_correction=corrected, seed=seed, **LIMITS).fit(features, labels)
        for name, corrected in (("U of Proposal 1", True), ("uncorrected", False))
    }
    for exponent in exponents:
        svm = SVC(C=c, gamma=2.0**exponent)
        (error, training_error), of_folds = timed(lambda svm=svm: fold_errors(svm, features, labels, n_folds))
        split = StratifiedShuffleSplit(1, test_size=0.25, random_state=0)
        held_out, _ = fold_errors(svm, features, labels, n_folds, split)
        _, of_training = timed(lambda svm=svm: svm.fit(features, labels))
        u, of_score = timed(lambda svm=svm: float(uncertainty.score(svm.decision_function)))
        row = {
            "gamma": exponent,
            "L_tr": training_error,
            "L_val": error,
            "L_HO": held_out,
            "U": u,
            "omission": float(uncertainty.omission(svm.decision_function)),
            "s, folds": of_folds,
            "s, U": of_training + of_score,
            "s, fit": of_fit,
        }
        if with_proposal_1:
            row |= {name: float(fitted.score(svm.decision_function)) for name, fitted in proposals_1.items()}
        yield row


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` gives, and its seconds."""
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def main(arguments: list[str] | None = None) -> dict[str, pd.DataFrame]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*MIXTURES, *sorted(file.name.removesuffix(".csv.gz") for file in TABLES.glob("*.csv.gz"))]
    parser.add_argument("--data", nargs="+", choices=names, default=names)
    parser.add_argument("--samples", type=int, default=1200, help="at most so many of each")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--step", type=int, default=2, help="of log2 gamma")
    parser.add_argument("--gammas", type=int, nargs="+", help="log2 gammas instead of -15 to 15")
    parser.add_argument("--c", type=float, help="C of all SVMs instead of the one by cross-validation")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of samples, moves and anchors")
    parser.add_argument("--draws", type=int, default=4, help="perturbations of each sample")
    parser.add_argument("--proposal-1", action="store_true", help="also anchors by bisection, which take far longer")
    parser.add_argument(
        "--panels", type=int, nargs="+", default=[], help="log2 gammas of scatter plots of the mixtures"
    )
    parser.add_argument("--smoke", action="store_true", help="the inclusion mixture alone, three gammas, two folds")
    parser.add_argument("--plot", type=Path, default=FOLDER / "svm_selection.png")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.data, options.samples, options.folds, options.step = ["GMM_inclusion"], 1200, 2, 2
        options.panels, options.c = [0], options.c or 1.0

    tables = {}
    picks_by = ["L_val", "L_HO", "U", "U - omission"] + ["U of Proposal 1", "uncorrected"] * options.proposal_1
    print("log2 gamma and its L_val, chosen by:  " + "".join(f"{name:<18}" for name in picks_by))
    near: dict[str, list[dict[str, bool]]] = {name: [] for name in options.data}
    for table, seed in itertools.product(options.data, options.seeds):
        name = table if len(options.seeds) == 1 else f"{table}, seed {seed}"
        features, labels = read(table, options.samples, seed)
        c = options.c or choose_c(features, labels)
        exponents = [-5, 0, 7] if options.smoke else options.gammas or list(range(-15, 16, options.step))
        settings = (c, exponents, options.folds, options.draws, options.proposal_1, seed)
        rows = pd.DataFrame(sweep(features, labels, *settings))
        tables[name] = rows = rows.set_index("gamma")
        if options.panels and table in MIXTURES:
            scatter(features, labels, c, options.panels, options.plot.with_stem(f"{options.plot.stem}_{name}"))
        scores = {"L_val": -rows["L_val"], "L_HO": -rows["L_HO"], "U - omission": rows["U"] - rows["omission"]}
        picks = [scores.get(by, rows.get(by)).idxmax() for by in picks_by]
        least = rows["L_val"].min()
        near[table].append({by: rows["L_val"][pick] <= least + 0.02 for by, pick in zip(picks_by, picks, strict=True)})
        said = f"{name} ({len(labels)}, C = {c:g})"
        print(f"{said:>36}  " + "".join(f"{pick:>4} ({rows['L_val'][pick]:.3f})      " for pick in picks), flush=True)
    print(f"\nL_val within 0.02 of the least, on so many of {len(options.seeds)} draws (seeds {options.seeds})")
    print(pd.DataFrame({name: pd.DataFrame(draws).sum() for name, draws in near.items()}).T.to_string())
    if len(options.seeds) > 1:
        kinds = {"of all": (0, 1), "leaving out nothing": (0, 0.01), "leaving out a part": (0.03, 1)}
        largest = {
            name: {of: largest_of(rows[rows["omission"].between(*limits)]) for of, limits in kinds.items()}
            for name, rows in tables.items()
        }
        print("\nlargest U, and its log2 gamma", pd.DataFrame(largest).T.to_string(), sep="\n")
    if options.proposal_1:
        print("\nlargest U, and share of gammas within a tenth of the range below it")
        print(pd.DataFrame({name: sharpness(rows) for name, rows in tables.items()}).T.round(3).to_string())
    print("\nseconds: cross-validation; training and U of all gammas, and once the fit")
    for name, rows in tables.items():
        folds, u, of_fit = rows["s, folds"].sum(), rows["s, U"].sum(), rows["s, fit"].iloc[0]
        print(f"{name:>36}  {folds:8.1f}{u:8.1f}{of_fit:8.1f}   {folds / (u + of_fit):.1f} times")
    if len(tables) == 1:
        print(rows.round(3).to_string())
    draw(tables, options.plot)
    return tables


def sharpness(rows: pd.DataFrame) -> dict[str, float]:
    """Height and width of the peak of both proposals, and the width of that of -L_val."""
    found = {}
    for name, values in {"U": rows["U"], "U of Proposal 1": rows["U of Proposal 1"], "-L_val": -rows["L_val"]}.items():
        found |= {f"{name}, largest": values.max()} if name != "-L_val" else {}
        found[f"{name}, share"] = (values >= values.max() - 0.1 * (values.max() - values.min())).mean()
    return found


def largest_of(rows: pd.DataFrame) -> str:
    return f"{rows['U'].max():.3f} ({rows['U'].idxmax()})" if len(rows) else ""


def draw(tables: dict[str, pd.DataFrame], path: Path) -> None:
    n_columns = min(3, len(tables))
    n_rows = -(-len(tables) // n_columns)
    figure, axes = plt.subplots(n_rows, n_columns, figsize=(6 * n_columns, 3 * n_rows), squeeze=False)
    figure.subplots_adjust(left=0.05, right=0.95, top=1 - 0.1 / n_rows, bottom=0.25 / n_rows, hspace=0.5, wspace=0.35)
    for axis in axes.flat[len(tables) :]:
        axis.axis("off")
    for (name, rows), axis in zip(tables.items(), axes.flat[: len(tables)], strict=True):
        rows[["L_tr", "L_val", "L_HO", "omission"]].plot(
            ax=axis, title=name, color=["gold", "green", "black", "gray"], style=["-", "-", ":", "--"], legend=False
        )
        columns = [column for column in rows if column.startswith("U") or column == "uncorrected"]
        shown = (-rows[columns]).rename(columns=lambda column: f"-{column}")
        shown.plot(ax=axis, secondary_y=True, color=["tab:blue", "tab:purple", "plum"], legend=False)
        axis.set_xlabel("log2 gamma")
    lines = [*axis.get_lines(), *axis.right_ax.get_lines()]
    figure.legend(lines, [line.get_label() for line in lines], fontsize=8, loc="lower center", ncols=4)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def scatter(features: Tensor, labels: Tensor, c: float, exponents: list[int], path: Path) -> None:
    """One row of panels for each gamma."""
    uncertainty = ParzenUncertainty().fit(features, labels)
    bisection = BisectionAnchorUncertainty(max_anchors=2000, n_halvings=15).fit(features, labels)
    shape = (len(exponents), 4)
    figure, axes = plt.subplots(*shape, figsize=(16, 4 * shape[0]), squeeze=False, sharex=True, sharey=True)
    for exponent, row in zip(exponents, axes, strict=True):
        svm = SVC(C=c, gamma=2.0**exponent).fit(features, labels)
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
