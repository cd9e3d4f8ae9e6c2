"""Convergence of the estimates that boundary uncertainty rests on: chapter 3 of Ha (2019), in numbers.

Two Gaussians as in `two_gaussians.py`, N(0, I) and N((2, 0), I) with equal shares: the posterior of class 1 is
sigmoid(2 x_0 - 2), 1/2 on the Bayes boundary x_0 = 1 and the same all along any cut x_0 = c.

Ratios: in a disc of volume V lie K of N samples, K_1 of them of class 1. The chapter shows that K / (N V) has the
variance p (1 - P) / (N V) (Eq. 3.7), and that it converges to p(x) and K_1 / K to the posterior (Eq. 3.10, 3.20) if V
goes to 0 and N V to infinity, as V = V_0 N^-a with 0 < a < 1. The table has mean and variance over these, and the root
mean squared error of K_1 / K with its slope in log N. In the plane the bias goes as V and the variance as 1 / (N V), so
the slope should tend to max(-a, (a - 1) / 2).

Estimators: U of the cuts c = 1 and c = 0.5, with limit 1 - |2 sigmoid(2 c - 2) - 1|, from groups of a fixed number of
samples, as the papers have them, and of a number that grows as the root of N, since K must go to infinity.

    python examples/convergence.py
"""

import argparse
import math
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

from bu_torch import BisectionAnchorUncertainty, ParzenUncertainty

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
POINT, VOLUME, SMALLEST = (0.5, 0.5), 6.0, 250  # of the disc, at the smallest N
POWERS = np.array([0, 1 / 3, 2 / 3, 1])
POSTERIOR = 1 / (1 + math.e)
CUTS = {1.0: 1.0, 0.5: 2 * POSTERIOR}  # and the limit of U


def sample(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n)
    return rng.standard_normal((n, 2)) + np.outer(labels, (2, 0)), labels


def ratios(sizes: list[int], n_repeats: int, seed: int) -> pd.DataFrame:
    """Error of K_1 / K, mean and variance of K / (N V) over p(x) and Eq. 3.7; a row for each N and a."""
    density = sum(math.exp(-((POINT[0] - m) ** 2 + POINT[1] ** 2) / 2) for m in (0, 2)) / (4 * math.pi)
    rows = []
    for n in sizes:
        volume, counts = VOLUME * (n / SMALLEST) ** -POWERS, []
        for repeat in range(n_repeats):
            features, labels = sample(n, seed * n_repeats + repeat)
            is_inside = ((features - POINT) ** 2).sum(axis=1)[:, None] < volume / math.pi
            counts.append((is_inside.sum(axis=0), is_inside[labels == 1].sum(axis=0)))
        total, of_one = np.swapaxes(counts, 0, 1)
        share, mean = of_one / np.maximum(total, 1), total.mean(axis=0)
        columns = {"a": POWERS.round(2), "N": n, "K": mean, "density": mean / (n * volume) / density}
        columns["variance"] = total.var(axis=0) / (mean * (1 - mean / n))
        columns["error"] = np.sqrt(((share - POSTERIOR) ** 2).mean(axis=0))
        rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True)


def slopes(table: pd.DataFrame) -> pd.DataFrame:
    """Slope of log error in log N over the upper half of the sizes, and where it should tend."""
    upper = table[table["N"] >= np.median(table["N"].unique())]
    fits = [np.polyfit(np.log(part["N"]), np.log(part["error"]), 1)[0] for _, part in upper.groupby("a")]
    return pd.DataFrame({"slope": fits, "expected": np.maximum(-POWERS, (POWERS - 1) / 2)}, index=POWERS.round(2))


def estimates(sizes: list[int], n_repeats: int, seed: int) -> pd.DataFrame:
    """U at the two cuts, means and deviations over the draws of the samples."""
    rows = []
    for n in sizes:
        for repeat in range(n_repeats):
            data = sample(n, seed * n_repeats + repeat)
            for kind, m in (("", 1.0), (", growing", math.sqrt(n / 1000))):
                one = BisectionAnchorUncertainty("triangle", min_size=round(8 * m), max_size=round(12 * m)).fit(*data)
                two = ParzenUncertainty(round(40 * m)).fit(*data)
                for name, fitted in (("Proposal 1", one), ("Proposal 2", two)):
                    rows += [(c, name + kind, n, float(fitted.score(lambda x, c=c: x[:, 0] - c))) for c in CUTS]
    table = pd.DataFrame(rows, columns=["cut", "estimator", "N", "U"])
    return table.groupby(["cut", "estimator", "N"], sort=False)["U"].agg(["mean", "std"])


def draw(ratio: pd.DataFrame, table: pd.DataFrame, path: Path) -> None:
    plt.style.use(FOLDER.parent / "docs" / "pictures.mplstyle")
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    for a, part in ratio.groupby("a"):
        axes[0].loglog(part["N"], part["error"], marker=".", label=f"a = {a:g}")
    axes[0].set(title="Error of $K_1/K$, $V = V_0 N^{-a}$", xlabel="samples N")
    for axis, cut in zip(axes[1:], CUTS, strict=True):
        for name, part in table.loc[cut].groupby("estimator", sort=False):
            axis.errorbar(part.index.get_level_values("N"), part["mean"], part["std"], marker=".", label=name)
        axis.axhline(CUTS[cut], color="black", linestyle=":")
        axis.set(title=f"U of the cut at {cut:g}; dotted: its limit", xlabel="samples N", xscale="log")
    axes[0].legend()
    axes[1].legend(loc="lower right")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> tuple[pd.DataFrame, ...]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200, help="draws of the samples; a fortieth of them for U")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, default=FOLDER / "convergence.png")
    parser.add_argument("--smoke", action="store_true", help="fewer samples and draws")
    options = parser.parse_args(arguments)
    n_repeats, n_sizes = (80, 4) if options.smoke else (options.repeats, 7)
    ratio = ratios([SMALLEST * 2**k for k in range(n_sizes)], n_repeats, options.seed)
    print(f"{n_repeats} draws, seed {options.seed}\n{ratio.round(4).to_string()}\n\n{slopes(ratio).round(3)}\n")
    table = estimates([SMALLEST * 4**k for k in range((n_sizes + 1) // 2)], n_repeats // 40, options.seed)
    print(f"U, {n_repeats // 40} draws, limits {CUTS}")
    print(table.round(3).unstack("N").to_string())
    draw(ratio, table, options.plot)
    return ratio, slopes(ratio), table


if __name__ == "__main__":
    main()
