"""Error rates of classifiers whose three classes are cut from a continuum: a simulation with its figures 2 to 7.

Mevik (2003), section 7: y = x_1 + x_2 + x_2^2 + epsilon is cut at 0 and 0.6 and seen as z = y + delta, at three levels
of each error. At each of the nine settings 100 training sets of 100 objects estimate the data errors, the minimal
errors and, by 20-fold cross-validation, the errors of four classifiers; a test set of 10000 objects with the true y
says what they are. The errors' standard deviations are taken as known, as the paper seems to do; the last table
estimates sigma_epsilon as its section 8.1 proposes. In the left panels of figures 4 and 6 means of ten equal groups
stand where the paper has loess curves.

    python examples/continuum.py
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold
from sklearn.neighbors import KNeighborsClassifier

from bu_torch import evaluation

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
EDGES = np.array([0.0, 0.6])
COVARIANCE = np.array([[2.0, 0.4], [0.4, 1.0]])
SIGMA_EPSILON, SIGMA_DELTA = (0.15, 0.3, 0.9), (0.0, 0.15, 0.5)
PUBLISHED = {  # section 7: the approximate true values, and the standard deviations of their estimates
    "data error rate": ((0, 0.05, 0.15), (0, 0.011, 0.020)),
    "data squared error rate": ((0, 0.0007, 0.024), (0, 1.4e-4, 2.0e-3)),
    "minimal error rate": ((0.05, 0.10, 0.20), (0.011, 0.016, 0.021)),
    "minimal squared error rate": ((0.00075, 0.0060, 0.13), (2.0e-4, 1.1e-3, 1.6e-2)),
}
ERRORS = ("error rate", "adjusted error count", "error count")
SQUARED = ("squared error rate", "adjusted squared error count", "squared error count")
LARGE = 400_000
FACTORS = ["sigma_epsilon", "sigma_delta"]
SYMBOLS = {"sigma_epsilon": r"$\sigma_\epsilon$", "sigma_delta": r"$\sigma_\delta$"}


def classes(values: np.ndarray) -> np.ndarray:
    return np.digitize(values, EDGES)


def response(x: np.ndarray) -> np.ndarray:
    return x.sum(axis=1) + x[:, 1] ** 2


class Regression:
    """The class whose interval holds a least squares estimate of f."""

    def fit(self, x: np.ndarray, z: np.ndarray) -> "Regression":
        self.model = LinearRegression().fit(self.terms(x), z)
        return self

    def terms(self, x: np.ndarray) -> np.ndarray:
        return np.column_stack((x, x[:, 1] ** 2))

    def value(self, x: np.ndarray) -> np.ndarray:
        return self.model.predict(self.terms(x))

    def predict(self, x: np.ndarray) -> np.ndarray:
        return classes(self.value(x))


CLASSIFIERS: dict[str, Callable] = {
    "lda": LinearDiscriminantAnalysis,
    "qda": QuadraticDiscriminantAnalysis,
    "5-nn": lambda: KNeighborsClassifier(5),
    "regression": Regression,
}


def fit(name: str, x: np.ndarray, z: np.ndarray):  # noqa: ANN201  (any of the above)
    return CLASSIFIERS[name]().fit(x, z if name == "regression" else classes(z))


def estimate(predictions: np.ndarray, z: np.ndarray, sigma_epsilon: float, sigma_delta: float) -> dict[str, float]:
    """The six estimates of a classifier's errors."""
    given = (predictions, z, EDGES)
    return {
        "error rate": float(evaluation.error_rate(*given, sigma_epsilon)),
        "adjusted error count": float(evaluation.adjusted_error_count(*given, sigma_delta)),
        "error count": float(evaluation.error_count(*given)),
        "squared error rate": float(evaluation.squared_error_rate(*given, sigma_epsilon)),
        "adjusted squared error count": float(evaluation.adjusted_squared_error_count(*given, sigma_delta)),
        "squared error count": float(evaluation.squared_error_count(*given)),
    }


def data_and_minimal(y: np.ndarray, f: np.ndarray, sigma_epsilon: float, sigma_delta: float) -> dict[str, float]:
    """Data errors of `y` and minimal errors of `f`; a training set has only z for both."""
    return {
        "data error rate": float(evaluation.data_error_rate(y, EDGES, sigma_delta)),
        "data squared error rate": float(evaluation.data_squared_error_rate(y, EDGES, sigma_delta)),
        "minimal error rate": float(evaluation.minimal_error_rate(f, EDGES, sigma_epsilon)),
        "minimal squared error rate": float(evaluation.minimal_squared_error_rate(f, EDGES, sigma_epsilon)),
    }


def estimated_sigma_epsilon(x: np.ndarray, z: np.ndarray, sigma_delta: float) -> dict[str, float]:
    fitted = fit("regression", x, z).value(x)
    return {
        "of residuals": float(evaluation.sigma_epsilon_of_residuals(z, fitted, sigma_delta, n_parameters=4)),
        "of neighbors": float(evaluation.sigma_epsilon_of_neighbors(z, x, sigma_delta, n_neighbors=5)),
    }


def cross_validated(name: str, x: np.ndarray, z: np.ndarray, folds: KFold) -> np.ndarray:
    predictions = np.empty(len(z), dtype=int)
    for kept, held_out in folds.split(x):
        predictions[held_out] = fit(name, x[kept], z[kept]).predict(x[held_out])
    return predictions


def training_set(
    rng: np.random.Generator, n: int, sigma_epsilon: float, sigma_delta: float, folds: KFold
) -> tuple[np.ndarray, ...]:
    """Inputs and measurements; drawn again where a fold leaves too few of a class for a covariance."""
    while True:
        x = rng.multivariate_normal((0, 0), COVARIANCE, n)
        z = response(x) + rng.normal(0, sigma_epsilon, n) + rng.normal(0, sigma_delta, n)
        if min(np.bincount(classes(z[kept]), minlength=3).min() for kept, _ in folds.split(x)) >= 4:
            return x, z


def large_sample_bias(n: int, seed: int) -> pd.DataFrame:
    """Bias in per cent of data and minimal errors estimated from z in place of y and f, one row for each setting."""
    rng = np.random.default_rng(seed)
    rows = []
    for sigma_epsilon in SIGMA_EPSILON:
        f = response(rng.multivariate_normal((0, 0), COVARIANCE, n))
        y = f + rng.normal(0, sigma_epsilon, n)
        for sigma_delta in SIGMA_DELTA:
            sigmas = (sigma_epsilon, sigma_delta)
            z = y + rng.normal(0, sigma_delta, n)
            truth, found = data_and_minimal(y, f, *sigmas), data_and_minimal(z, z, *sigmas)
            bias = {name: 100 * (found[name] / truth[name] - 1) if truth[name] else 0.0 for name in truth}
            rows.append(dict(zip(FACTORS, sigmas, strict=True)) | bias)
    return pd.DataFrame(rows)


def simulate(
    n_sets: int, n_folds: int, n_train: int, n_test: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Per training set: estimated and true data and minimal errors; those of the classifiers; sigma_epsilon."""
    rng = np.random.default_rng(seed)
    of_data, of_classifiers, of_sigma = [], [], []
    for sigma_epsilon in SIGMA_EPSILON:
        x_test = rng.multivariate_normal((0, 0), COVARIANCE, n_test)
        y_test = response(x_test) + rng.normal(0, sigma_epsilon, n_test)
        for sigma_delta in SIGMA_DELTA:
            sigmas = (sigma_epsilon, sigma_delta)
            setting = dict(zip(FACTORS, sigmas, strict=True))
            truth = data_and_minimal(y_test, response(x_test), *sigmas)
            for number in range(n_sets):
                folds = KFold(n_folds, shuffle=True, random_state=number)
                x, z = training_set(rng, n_train, *sigmas, folds)
                found = data_and_minimal(z, z, *sigmas)
                of_data += [setting | {"of": name, "true": truth[name], "estimate": found[name]} for name in found]
                of_sigma.append(setting | estimated_sigma_epsilon(x, z, sigma_delta))
                for name in CLASSIFIERS:
                    predictions = fit(name, x, z).predict(x_test)
                    truths = {
                        "true error": float(evaluation.error_count(predictions, y_test, EDGES)),
                        "true squared error": float(evaluation.squared_error_count(predictions, y_test, EDGES)),
                    }
                    estimates = estimate(cross_validated(name, x, z, folds), z, *sigmas)
                    of_classifiers.append(setting | {"classifier": name} | truths | estimates)
    return pd.DataFrame(of_data), pd.DataFrame(of_classifiers), pd.DataFrame(of_sigma)


def compare_with_published(of_data: pd.DataFrame) -> pd.DataFrame:
    """True values, and the estimates' standard deviations, beside the published ones; the largest bias in per cent."""
    rows = []
    for name, (values, deviations) in PUBLISHED.items():
        part = of_data[of_data["of"] == name]
        factor = FACTORS[name.startswith("data")]
        settings = part.groupby(FACTORS).agg(true=("true", "mean"), mean=("estimate", "mean"), sd=("estimate", "std"))
        settings["bias"] = 100 * (settings["mean"] / settings["true"] - 1)
        for level, value, deviation in zip(part[factor].unique(), values, deviations, strict=True):
            at = settings.xs(level, level=factor)
            rows.append(
                {
                    "of": name,
                    factor: level,
                    "true": at["true"].mean(),
                    "published": value,
                    "sd": at["sd"].mean(),
                    "published sd": deviation,
                    "worst bias %": at["bias"].loc[at["bias"].abs().idxmax()] if value else 0.0,
                }
            )
    return pd.DataFrame(rows)


def with_bias(of_classifiers: pd.DataFrame, names: tuple[str, ...], truth: str) -> pd.DataFrame:
    """One row an estimate: its bias beside the setting, the classifier and the true error."""
    long = of_classifiers.melt([*FACTORS, "classifier", truth], list(names), "estimator", "estimate")
    return long.assign(bias=long["estimate"] - long[truth])


def plot_data_bias(path: Path, of_data: pd.DataFrame, names: tuple[str, str]) -> None:
    """Figures 2 and 3: bias against sigma_delta, one line a sigma_epsilon."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="tight")
    for axis, name in zip(axes, names, strict=True):
        part = of_data[of_data["of"] == name]
        bias = (part["estimate"] - part["true"]).groupby([part[f] for f in FACTORS]).mean().unstack(0)
        bias.plot(ax=axis, marker="o", xticks=SIGMA_DELTA, ylabel="bias", title=name)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.legend([rf"$\sigma_\epsilon$ = {s}" for s in bias.columns])
        axis.set_xlabel(SYMBOLS["sigma_delta"])
    save(figure, path)


def plot_bias(path: Path, long: pd.DataFrame, truth: str) -> None:
    """Figures 4 and 6: bias against the true error and at the levels of the two errors."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="tight")
    for name, part in long.groupby("estimator", sort=False):
        groups = part.groupby(pd.qcut(part[truth], 10, duplicates="drop"), observed=True)
        axes[0].plot(groups[truth].mean(), groups["bias"].mean(), marker=".", label=name)
        for axis, factor in zip(axes[1:], reversed(FACTORS), strict=True):
            part.groupby(factor)["bias"].mean().plot(ax=axis, marker="o", label=name)
    axes[0].set(xlabel=truth, ylabel="bias")
    axes[1].set(xlabel=SYMBOLS["sigma_delta"], xticks=SIGMA_DELTA)
    axes[2].set(xlabel=SYMBOLS["sigma_epsilon"], xticks=SIGMA_EPSILON)
    for axis in axes:
        axis.axhline(0, color="black", linewidth=0.6)
    axes[1].legend()
    save(figure, path)


def deviations(long: pd.DataFrame, factor: str) -> pd.DataFrame:
    """Standard deviation of each estimate over the training sets, averaged over classifiers and the other factor."""
    each = long.groupby(["estimator", *FACTORS, "classifier"], sort=False)["estimate"].std()
    return each.groupby(["estimator", factor], sort=False).mean().unstack(0)


def plot_deviations(path: Path, long: pd.DataFrame) -> None:
    """Figures 5 and 7."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="tight", sharey=True)
    for axis, factor in zip(axes, FACTORS, strict=True):
        deviations(long, factor).plot(ax=axis, marker="o", ylabel="standard deviation", legend=factor == FACTORS[0])
        axis.set(xlabel=SYMBOLS[factor], xticks=SIGMA_EPSILON if factor == FACTORS[0] else SIGMA_DELTA)
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, pd.DataFrame]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=100, help="training sets at each setting")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plots", type=Path, default=FOLDER, help="folder the figures go to")
    parser.add_argument("--smoke", action="store_true", help="a few training sets and folds: does it run?")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    n_sets, n_folds = (2, 4) if options.smoke else (options.sets, 20)
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):  # many small fits
        of_data, of_classifiers, of_sigma = simulate(n_sets, n_folds, n_train=100, n_test=10000, seed=options.seed)

    published = compare_with_published(of_data)
    pd.set_option("display.width", 160, "display.max_columns", 20)
    print("true values of the settings and spread of their estimates\n")
    print(published.to_string(index=False, float_format="{:.3g}".format, na_rep=""))
    n_large = 20_000 if options.smoke else LARGE
    large = large_sample_bias(n_large, options.seed)
    print(f"\nbias in per cent at {n_large} objects in place of 100\n")
    print(large.to_string(index=False, float_format="{:.3g}".format))
    plot_data_bias(options.plots / "continuum_figure2.png", of_data, ("data error rate", "data squared error rate"))
    plot_data_bias(
        options.plots / "continuum_figure3.png", of_data, ("minimal error rate", "minimal squared error rate")
    )
    tables = {"published": published, "large": large}
    for names, truth, figure in ((ERRORS, "true error", 4), (SQUARED, "true squared error", 6)):
        long = with_bias(of_classifiers, names, truth)
        plot_bias(options.plots / f"continuum_figure{figure}.png", long, truth)
        plot_deviations(options.plots / f"continuum_figure{figure + 1}.png", long)
        by_delta = long.pivot_table("bias", "estimator", "sigma_delta", sort=False)
        table = by_delta.assign(bias=by_delta.mean(axis=1), sd=deviations(long, "sigma_delta").mean())
        tables[truth] = table
        print(
            f"\nestimates of the {truth} (mean {long[truth].mean():.3g}): bias by sigma_delta, on average, and spread\n"
        )
        print(table.to_string(float_format="{:.3g}".format))
    tables["sigma_epsilon"] = of_sigma.groupby(FACTORS).mean()
    print("\nestimates of sigma_epsilon\n")
    print(tables["sigma_epsilon"].to_string(float_format="{:.3g}".format))
    print(f"\nfigures: {options.plots / 'continuum_figure2.png'} to continuum_figure7.png")
    return tables


if __name__ == "__main__":
    main()
