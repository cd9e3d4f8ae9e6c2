"""Is U of the training samples U of new ones? All panels of Figs. 6 and 7, and what the size of the moves does.

Ha et al. (2021), sections 6.4 and 6.5.2: Gaussian-kernel SVMs of many widths on the mixture GMM and on letters, C by
cross-validation, each sample perturbed once. U_tr is U of the training samples; U_te is the whole method with a test
set as its own reference. L_te is the error on that test set, L_HO on a quarter held out, L_tr and L_val those of
cross-validation. `bis` is without the perturbation. The last panel moves all samples farther, up to three times the
distance to the nearest one: how large is the gap |U_tr - U_te| then?

    python examples/svm_panels.py --data GMM
    python examples/svm_panels.py --data letter
"""

import argparse
from pathlib import Path

import matplotlib
import pandas as pd
import torch
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.svm import SVC
from svms import choose_c, fold_errors, mixture, raw, standardized
from torch import Tensor

from bu_torch import ParzenUncertainty, functional

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
MOVES = (0.0, 0.5, 1.0, 2.0, 3.0)  # in distances to the nearest sample; 0 is `bis`, 1 the paper's
Split = tuple[Tensor, Tensor]


def load(name: str, n_training: int, n_test: int) -> tuple[Split, Split]:
    """Training and test samples, standardised on the training samples."""
    if name == "GMM":
        (x, y), (x_test, y_test) = mixture(name, n_training, 0), mixture(name, n_test, 1)
    else:
        features, labels = raw(name, n_training + n_test)
        x, x_test, y, y_test = features[:n_training], features[n_training:], labels[:n_training], labels[n_training:]
    x, x_test = standardized(x, x_test)
    return (x, y), (x_test, y_test)


def uncertainties(fitted: ParzenUncertainty, features: Tensor, labels: Tensor, svm: SVC) -> dict[float, float]:
    """U where samples are moved by so many times the distance to their nearest."""
    values = {}
    for move in MOVES:
        places = features + move * (fitted.perturbed_inputs[0] - features)
        logits = torch.as_tensor(svm.decision_function(places))
        values[move] = float(functional.parzen_uncertainty(logits, labels, fitted.neighbors, fitted.bayes_pairs))
    return values


def sweep(training: Split, test: Split, c: float, exponents: list[int], n_folds: int) -> pd.DataFrame:
    """Errors and U, one row for each gamma."""
    of_training, of_test = (ParzenUncertainty().fit(*part) for part in (training, test))
    rows = {}
    for exponent in exponents:
        svm = SVC(C=c, gamma=2.0**exponent)
        error, training_error = fold_errors(svm, *training, n_folds)
        held_out, _ = fold_errors(svm, *training, n_folds, StratifiedShuffleSplit(1, test_size=0.25, random_state=0))
        svm.fit(*training)
        row = {
            "L_te": float((svm.predict(test[0]) != test[1].numpy()).mean()),
            "L_HO": held_out,
            "L_tr": training_error,
            "L_val": error,
        }
        row |= {f"U_tr {move:g}": u for move, u in uncertainties(of_training, *training, svm).items()}
        row |= {f"U_te {move:g}": u for move, u in uncertainties(of_test, *test, svm).items()}
        rows[exponent] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def gaps(rows: pd.DataFrame) -> pd.DataFrame:
    """|U_tr - U_te| by gamma, one column for each size of the moves."""
    return pd.DataFrame({f"{move:g}": (rows[f"U_tr {move:g}"] - rows[f"U_te {move:g}"]).abs() for move in MOVES})


def show(name: str, rows: pd.DataFrame) -> None:
    shown = rows[["L_te", "L_HO", "L_tr", "L_val", "U_tr 1", "U_te 1", "U_tr 0", "U_te 0"]]
    shown = shown.rename(columns={"U_tr 1": "U_tr", "U_te 1": "U_te", "U_tr 0": "U_tr bis", "U_te 0": "U_te bis"})
    print(shown.round(3).to_string())
    least = rows["L_te"].idxmin()
    print(f"least L_te: {least} ({rows['L_te'][least]:.3f})")
    for column in ("L_val", "L_HO"):
        pick = rows[column].idxmin()
        print(f"chosen by {column}: {pick} (L_te {rows['L_te'][pick]:.3f})")
    for column in ("U_tr 1", "U_te 1", "U_tr 0", "U_te 0"):
        pick = rows[column].idxmax()
        print(f"chosen by {column}: {pick} (L_te {rows['L_te'][pick]:.3f}, U {rows[column][pick]:.3f})")
    of_training, of_test = rows.loc[rows["U_tr 1"].idxmax(), ["U_tr 1", "U_te 1"]]
    apart = of_training / of_test - 1
    print(f"at the gamma chosen by U_tr 1: U_tr {of_training:.3f}, U_te {of_test:.3f}, {apart:+.0%}")
    gap = gaps(rows)
    print("|U_tr - U_te| by the size of the moves")
    print(gap.round(3).to_string())
    stiff = gap.loc[:least]
    print("its largest, its mean; the same up to the gamma of least L_te")
    for move in gap:
        print(
            f"{move:>6}: {gap[move].max():.3f} (at {gap[move].idxmax()}), {gap[move].mean():.3f};"
            f" {stiff[move].max():.3f}, {stiff[move].mean():.3f}"
        )
    print(flush=True)


def draw(tables: dict[str, pd.DataFrame], path: Path) -> None:
    """Two rows of three panels for each data set."""
    shape = (2 * len(tables), 3)
    figure, axes = plt.subplots(*shape, figsize=(14, 3.2 * shape[0]), squeeze=False, layout="constrained")
    for (name, rows), row in zip(tables.items(), axes.reshape(len(tables), 6), strict=True):
        for (title, move), axis in zip({"1": "1", "1bis": "0"}.items(), (row[0], row[3]), strict=True):
            axis.plot(rows["L_te"], color="tab:red", label="L_te (left)")
            axis.plot([], color="black", label="-U_te (right)")
            axis.twinx().plot(-rows[f"U_te {move}"], color="black")
            axis.set(title=f"{name}, panel {title}")
        for column, color, style in (("L_HO", "black", ":"), ("L_tr", "tab:orange", "-"), ("L_val", "green", "-")):
            row[1].plot(rows[column], color=color, linestyle=style, label=column)
        row[1].set(title=f"{name}, panel 2")
        for (title, move), axis in zip({"3": "1", "3bis": "0"}.items(), (row[2], row[4]), strict=True):
            axis.plot(-rows[f"U_tr {move}"], color="tab:blue", label="-U_tr")
            axis.plot(-rows[f"U_te {move}"], color="black", label="-U_te")
            axis.set(title=f"{name}, panel {title}")
        gaps(rows).plot(ax=row[5], title=f"{name}: |U_tr - U_te| by the size of the moves", legend=False)
        for axis in row:
            axis.set_xlabel("log2 gamma")
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, pd.DataFrame]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=["GMM", "letter"], default=["GMM", "letter"])
    parser.add_argument("--samples", type=int, help="training samples (GMM 2200, letter 2000)")
    parser.add_argument("--test-samples", type=int, help="test samples (GMM 20000, letter as many as for training)")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--step", type=int, default=2, help="of log2 gamma")
    parser.add_argument("--smoke", action="store_true", help="the mixture alone, few samples, three gammas, two folds")
    parser.add_argument("--plot", type=Path, default=FOLDER / "svm_panels.png")
    options = parser.parse_args(arguments)
    exponents = list(range(-15, 16, options.step))
    if options.smoke:
        options.data, options.samples, options.test_samples, options.folds = ["GMM"], 300, 600, 2
        exponents = [-9, -1, 7]

    tables = {}
    for name in options.data:
        n_training = options.samples or {"GMM": 2200}.get(name, 2000)
        training, test = load(name, n_training, options.test_samples or {"GMM": 20000}.get(name, n_training))
        c = 1.0 if options.smoke else choose_c(*training)
        print(f"{name}: {len(training[1])} training and {len(test[1])} test samples, C = {c:g}; by log2 gamma")
        tables[name] = sweep(training, test, c, exponents, options.folds)
        show(name, tables[name])
    draw(tables, options.plot)
    return tables


if __name__ == "__main__":
    main()
