"""Rates of the trust score: theorems 1 to 4 of Jiang et al. (2018), in numbers.

Theorems 1 to 3 bound the Hausdorff distance between what the density filter keeps (Algorithm 1) and the true
high-density set by n^-e, up to logarithms: with k = n^(2 / (2 + D)) and a density that crosses its level at a slope
(beta = 1), e = min(1 / (2 D), 1 / (2 + D)); on a manifold D is its own dimension, also amid noise. `slope` is that of
the mean distance, over the upper half of the sizes. Densities: 1 - |x|^2 in the unit ball (line, plane, space) and 1 +
cos(angle) on a circle in space; alpha is 0.1. Noisy: 0.05 of all are uniform in a cube of side 3, which leaves alpha
0.05 / 0.95.
Theorem 4: where the score is above 1 by enough for an error eps of the sets, a classifier agrees with the Bayes rule,
where it is as far below, it does not. Two classes have the plane's density, with radius 1.4 around x_0 = -1.2 and 1.2,
and overlap. A new sample is `decided` if its distances to the sets differ by more than 2 eps; `wrong` is on the other
side of 1 than it should be: of these, and of all.

    python examples/trust_rates.py
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from scipy.spatial import KDTree
from scipy.stats import beta

from bu_torch import TrustScore

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SIZES = [250, 500, 1000, 2000, 4000, 8000, 16_000]
ALPHA, NOISE, RADIUS, CENTERS = 0.1, 0.05, 1.4, np.array([[-1.2, 0], [1.2, 0]])
SETTINGS = {"line": 1, "plane": 2, "space": 3, "circle": 1, "noisy circle": 1}  # dimensions


def place(setting: str, mass: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Points in random directions, each where so much of the mass lies nearer to the centre, or to angle 0."""
    if "circle" in setting:
        angle = 2 * np.arcsin(np.sqrt(beta.ppf(mass, 0.5, 1.5))) * rng.choice((-1, 1), len(mass))
        return np.stack((np.cos(angle), 0.6 * np.sin(angle), 0.8 * np.sin(angle)), axis=1)
    direction = rng.standard_normal((len(mass), d := SETTINGS[setting]))
    return np.sqrt(beta.ppf(mass, d / 2, 2) / (direction**2).sum(axis=1))[:, None] * direction


def draw(setting: str, n: int, rng: np.random.Generator) -> np.ndarray:
    samples = place(setting, rng.random(n), rng)
    share = NOISE if setting == "noisy circle" else 0
    return np.where(rng.random((n, 1)) < share, rng.uniform(-1.5, 1.5, samples.shape), samples)


def hausdorff(setting: str, kept: np.ndarray, rng: np.random.Generator) -> float:
    """Distance between kept samples and the true set, as 20 000 points, half of them on its edge."""
    mass = 1 - ((ALPHA - NOISE) / (1 - NOISE) if setting == "noisy circle" else ALPHA)
    points = place(setting, mass * np.minimum(2 * rng.random(20_000), 1), rng)
    outward = np.linalg.norm(kept, axis=1).max() - np.linalg.norm(points, axis=1).max()
    beyond = KDTree(points).query(kept)[0].max() if "circle" in setting else outward
    return float(max(beyond, KDTree(kept).query(points)[0].max()))


def distances(sizes: list[int], n_draws: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    found, rates, half = pd.DataFrame(index=sizes), {}, len(sizes) // 2
    for setting, d in SETTINGS.items():
        errors = np.empty((len(sizes), n_draws))
        for at in np.ndindex(errors.shape):
            rng = np.random.default_rng((seed, *at))
            samples = draw(setting, n := sizes[at[0]], rng)
            trust = TrustScore("density", ALPHA, round(n ** (2 / (2 + d)))).fit(samples, np.zeros(n, dtype=int))
            errors[at] = hausdorff(setting, samples[trust.kept_.numpy()], rng)
        found[setting] = errors.mean(axis=1)
        x = np.log(sizes[half:]) - np.log(sizes[half:]).mean()
        spread = (errors[half:].T / errors[half:].mean(axis=1)).std(axis=0) / n_draws**0.5
        row = {"slope": x @ np.log(found[setting][half:]) / (x @ x), "error": np.linalg.norm(x * spread) / (x @ x)}
        rates[setting] = row | {"stated": -min(1 / (2 * d), 1 / (2 + d))}
    return found, pd.DataFrame(rates).T


def agreement(sizes: list[int], n_draws: int, seed: int) -> pd.DataFrame:
    rows = []
    for n in np.repeat(sizes, n_draws):
        rng = np.random.default_rng((seed, n, len(rows)))
        samples = RADIUS * draw("plane", n, rng) + CENTERS[labels := rng.integers(2, size=n)]
        trust = TrustScore("density", ALPHA, round((n / 2) ** 0.5)).fit(samples, labels)
        kept = [samples[(labels == c) & trust.kept_.numpy()] - CENTERS[c] for c in (0, 1)]
        eps = RADIUS * max(hausdorff("plane", part / RADIUS, rng) for part in kept)
        new = RADIUS * draw("plane", 20_000, rng) + CENTERS[rng.integers(2, size=20_000)]
        nearer = np.subtract(*trust.class_distances(new).numpy().T)  # above 0 where class 1 is nearer
        decided, is_wrong = abs(nearer) > 2 * eps, (nearer > 0) != (new[:, 0] > 0)
        rows.append((n, eps, decided.mean(), is_wrong[decided].mean(), is_wrong.mean()))
    return pd.DataFrame(rows, columns=["n", "eps", "decided", "wrong", "wrong of all"]).groupby("n").mean()


def plot(found: pd.DataFrame, rates: pd.DataFrame, agree: pd.DataFrame, path: Path) -> None:
    plt.style.use(Path(__file__).parents[1] / "docs" / "pictures.mplstyle")
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    labels = {name: f"{name}, {slope:.2f} ({stated:.2f})" for name, slope, _, stated in rates.itertuples()}
    found.rename(columns=labels).plot(ax=axes[0], marker=".", loglog=True, title="Distance: slope (stated)")
    agree.drop(columns="wrong").plot(ax=axes[1], marker=".", loglog=True, title="Where the score tells the Bayes rule")
    for axis in axes:
        axis.set(ylim=(1e-3, 1), xlabel="samples n", xticks=found.index, xticklabels=found.index)
        axis.minorticks_off()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> tuple[pd.DataFrame, ...]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, default=Path(__file__).with_suffix(".png"))
    parser.add_argument("--smoke", action="store_true", help="fewer samples and draws")
    options = parser.parse_args(arguments)
    settings = (SIZES[:4], 2, options.seed) if options.smoke else (SIZES, options.draws, options.seed)
    found, rates, agree = *distances(*settings), agreement(*settings)
    shown = (table.round(4).to_string() for table in (found, rates, agree))
    print(f"{settings[1]} draws, seed {options.seed}", *shown, sep="\n\n")
    plot(found, rates, agree, options.plot)
    return found, rates, agree


if __name__ == "__main__":
    main()
