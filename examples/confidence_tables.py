"""Seven confidence sets for the error rate of one classifier: the pattern of Tables 2 to 5 and Figure 1.

Laber and Murphy (2008), section 5: a linear classifier is fitted by squared loss to n samples; each method builds a
95 % set for its error rate from these samples alone; the rest of the table (5000 new samples of a simulated set) says
what the error rate is. Coverage is how often it lies in the set. The figure sets coverage against the kurtosis of the
training error: the excess kurtosis, over bootstrap draws, of the error of a draw's fit on the draw, its absolute value
averaged over the repetitions.

Tables have the columns 1 and the first four principal components of the standardised features. The paper does not
define its simulated sets; these are:

- donut: the plane, classes at radius N(1, 0.4^2) and N(2, 0.4^2); columns 1, x, y, x^2, xy, y^2 (near the Bayes rule).
- outlier: x ~ N(+-1, 1) by class, and 5 % of the samples at -10 times that; columns 1, x (far from it).
- three points: x in {-1, 0, 1}, class 1 with probability 0.9, 0.2, 0.8; columns 1, x (an error rate of few values).
- chi-squared: two chi-squared variables of 1 degree of freedom, less their mean; class 1 where they lie farther from 0
  than half of all do; columns as they are, without 1, so a line says little (low noise, far from the Bayes rule).

    python examples/confidence_tables.py
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from scipy.stats import kurtosis
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from bu_torch.evaluation import generalization_interval

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parents[1] / "benchmarks" / "data"
TABLES = ("spambase", "ionosphere", "german", "breast_cancer_wisconsin", "banknote", "sonar")
SHORT = {
    "cud": "CUD",
    "bootstrap_quantile": "BS1",
    "bootstrap_corrected": "BS2",
    "kohavi": "K",
    "martin": "M",
    "yang": "Y",
    "langford": "L",
}
Split = tuple[np.ndarray, np.ndarray]


def donut(n: int, rng: np.random.Generator) -> Split:
    y = rng.integers(2, size=n)
    radius, angle = rng.normal(1 + y, 0.4), rng.uniform(0, 2 * np.pi, n)
    a, b = radius * np.cos(angle), radius * np.sin(angle)
    return np.stack((np.ones(n), a, b, a * a, a * b, b * b), axis=1), y


def outlier(n: int, rng: np.random.Generator) -> Split:
    y = rng.integers(2, size=n)
    x = rng.normal(2 * y - 1, 1) * np.where(rng.random(n) < 0.05, -10, 1)
    return np.stack((np.ones(n), x), axis=1), y


def three_points(n: int, rng: np.random.Generator) -> Split:
    x = rng.integers(3, size=n)
    y = rng.random(n) < np.array([0.9, 0.2, 0.8])[x]
    return np.stack((np.ones(n), x - 1.0), axis=1), y.astype(int)


def chi_squared(n: int, rng: np.random.Generator) -> Split:
    x = rng.chisquare(1, size=(n, 2)) - 1
    return x, (np.hypot(*x.T) > 0.96).astype(int)


SIMULATED: dict[str, Callable[[int, np.random.Generator], Split]] = {
    "donut": donut,
    "outlier": outlier,
    "three points": three_points,
    "chi-squared": chi_squared,
}


@cache
def load(name: str, n_components: int) -> Split:
    table = pd.read_csv(FOLDER / f"{name}.csv.gz")
    y = table.pop("label").to_numpy()
    x = PCA(n_components, random_state=0).fit_transform(StandardScaler().fit_transform(table.to_numpy(float)))
    return np.hstack((np.ones((len(x), 1)), x)), y


def split(name: str, n: int, n_components: int, rng: np.random.Generator) -> tuple[Split, Split]:
    """Samples to train on and samples to test on."""
    if name in SIMULATED:
        return SIMULATED[name](n, rng), SIMULATED[name](5000, rng)
    x, y = load(name, n_components)
    order = rng.permutation(len(y))
    return (x[order[:n]], y[order[:n]]), (x[order[n:]], y[order[n:]])


def error(coefficients: np.ndarray, part: Split) -> float:
    return float(np.mean((part[0] @ coefficients >= 0) != part[1]))


def fit(part: Split) -> np.ndarray:
    return np.linalg.lstsq(part[0], 2.0 * part[1] - 1, rcond=None)[0]


def one_table(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Coverage and mean width of each method, and the mean absolute kurtosis of the training error."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    covered: dict[str, list[bool]] = {method: [] for method in options.methods}
    widths: dict[str, list[float]] = {method: [] for method in options.methods}
    peaks = []
    for repetition in range(options.repetitions):
        train, test = split(name, options.samples, options.components, rng)
        truth = error(fit(train), test)
        for method in options.methods:
            interval = generalization_interval(*train, method=method, n_bootstrap=options.draws, seed=repetition)
            covered[method].append(interval.lower <= truth <= interval.upper)
            widths[method].append(interval.upper - interval.lower)
        draws = [rng.integers(options.samples, size=options.samples) for _ in range(options.draws)]
        errors = [error(fit(part), part) for part in ((train[0][rows], train[1][rows]) for rows in draws)]
        peaks.append(abs(kurtosis(errors)) if np.ptp(errors) else 0.0)
    row = {"kurtosis": float(np.mean(peaks))}
    for method in options.methods:
        row[f"coverage {SHORT[method]}"] = float(np.mean(covered[method]))
        row[f"width {SHORT[method]}"] = float(np.mean(widths[method]))
    return row


def draw(table: pd.DataFrame, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4))
    for column in (name for name in table if name.startswith("coverage")):
        axes.plot(table["kurtosis"], table[column], "o", label=column.split()[1])
    axes.axhline(0.95, color="grey", linewidth=0.8)
    axes.set(xlabel="mean |kurtosis| of the training error", ylabel="coverage")
    axes.legend()
    figure.savefig(path, bbox_inches="tight", dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--repetitions", type=int, default=100, help="the paper: 1000")
    parser.add_argument("--draws", type=int, default=200, help="bootstrap draws of each method")
    parser.add_argument("--components", type=int, default=4, help="principal components of a table")
    parser.add_argument("--tables", nargs="+", default=[*TABLES, *SIMULATED], choices=[*TABLES, *SIMULATED])
    parser.add_argument("--methods", nargs="+", default=list(SHORT), choices=list(SHORT))
    parser.add_argument("--jobs", type=int, default=1, help="processes, a table each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="where to draw Figure 1")
    parser.add_argument("--smoke", action="store_true", help="a few repetitions of two tables")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.repetitions, options.draws, options.tables = 3, 20, ["ionosphere", "three points"]

    run = partial(one_table, options=options)
    if options.jobs == 1:
        rows = [run(name) for name in options.tables]
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(run, options.tables))
    table = pd.DataFrame(rows, index=options.tables)
    for what in ("coverage", "width"):
        columns = {name: name.split()[1] for name in table if name.startswith(what)}
        print(f"{what}, n = {options.samples}, {options.repetitions} repetitions, {options.draws} draws")
        print(table[list(columns)].rename(columns=columns).round(3).to_string(), end="\n\n")
    print(table["kurtosis"].round(2).to_string())
    if options.plot:
        draw(table, options.plot)
    return table


if __name__ == "__main__":
    main()
