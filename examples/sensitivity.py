"""What boundary uncertainty depends on: the perturbation, the size M of a cluster, the number K of prototypes.

Ha et al. (2021), sections 6.5 to 6.7, for Gaussian-kernel SVMs on standardised data, C by cross-validation. Fig. 10:
how certain a flexible SVM looks at its training samples, at the perturbed ones and at new ones. Figs. 11 to 13: U
against gamma without the perturbation, for M from 20 to 160 and for K from 3 to 40 (which matters beyond two classes
alone), beside cross-validation and, for the mixture GMM, U of 2000 new samples. `cube` is the law of the paper's text:
each feature is moved by d(x) times a number uniform in [-1, 1], where `perturb` moves the whole sample by d(x) in a
random direction. With several `--seeds`, each another draw of samples and moves, it is counted on how many each variant
chooses a gamma whose L_val is more than 0.01 above or below that of M = 40, and on how many the gamma is larger.

    python examples/sensitivity.py --data GMM wine_white3
    python examples/sensitivity.py --seeds 0 1 2 3 --folds 5  # Figs. 11 to 13 of `docs/papers.md`
"""

import argparse
import itertools
from pathlib import Path

import matplotlib
import pandas as pd
import torch
from scipy.stats import ks_2samp
from sklearn.svm import SVC
from svms import choose_c, fold_errors
from torch import Tensor

from bu_torch import FeatureSpace, ParzenUncertainty, PrototypeClassifier, functional, perturb

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
TABLES = FOLDER.parent / "benchmarks" / "data"
GMM = torch.tensor([[-1.5, 0, 0.8, 0.8], [1, 1.5, 0.6, 0.6], [0, -0.8, 0.8, 0.6], [2, 0, 0.8, 0.8]])  # mean, deviation
SIZES = (20, 40, 80, 120, 160)
PROTOTYPES = (3, 10, 20, 40)
FLEXIBLE = 5  # log2 gamma of Fig. 10


def mixture(n_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples of four Gaussians, the first two of class 0, in units that do not depend on the draw."""
    generator = torch.Generator().manual_seed(seed)
    part = torch.arange(n_samples) % len(GMM)
    return (GMM[part, :2] + GMM[part, 2:] * torch.randn(n_samples, 2, generator=generator)) / 1.4, part // 2


def read(name: str, n_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    if name == "GMM":
        return mixture(n_samples, seed)
    table = pd.read_csv(TABLES / f"{name}.csv.gz")
    table = table.sample(min(n_samples, len(table)), random_state=seed)
    labels = torch.tensor(table.pop("label").to_numpy())
    features = torch.tensor(table.to_numpy("float32"))
    spread = features.std(dim=0)
    return (features - features.mean(dim=0)) / torch.where(spread == 0, 1.0, spread), labels


def cubes(fitted: ParzenUncertainty, features: Tensor) -> Tensor:
    """As many draws as `fitted` has, each feature moved on its own by up to the distance to the nearest sample."""
    space, generator = FeatureSpace().fit(features), torch.Generator().manual_seed(0)
    points = space.transform(features)
    moved = [perturb(points, fitted.nearest_distance, generator, law="uniform") for _ in range(fitted.n_draws)]
    return (torch.stack(moved) * space.scale_ + space.mean_).to(features.dtype)


def sweep(
    name: str, features: Tensor, labels: Tensor, c: float, exponents: list[int], n_folds: int, n_new: int, seed: int
) -> pd.DataFrame:
    """Errors and U in all variants, one row for each gamma."""
    # The nearest 20 are among the 160.
    fitted = ParzenUncertainty(max(SIZES), n_draws=4, seed=seed).fit(features, labels)
    standardized = FeatureSpace().fit(features).transform(features)
    pairs = {k: PrototypeClassifier(k).fit(standardized, labels).top_pairs(standardized) for k in PROTOTYPES}
    new = ParzenUncertainty(n_draws=4).fit(*mixture(n_new, 1 + 1000 * seed)) if name == "GMM" else None
    places = torch.cat((features, fitted.perturbed_inputs.flatten(0, 1), cubes(fitted, features).flatten(0, 1)))

    rows = {}
    for exponent in exponents:
        svm = SVC(C=c, gamma=2.0**exponent)
        row = {"L_val": fold_errors(svm, features, labels, n_folds)[0]}
        logits = torch.as_tensor(svm.fit(features, labels).decision_function(places))
        at, *draws = logits.split(len(labels))
        draws, in_cubes = draws[:4], draws[4:]

        def mean_u(draws: list[Tensor], size: int = 40, pairs: Tensor = fitted.bayes_pairs) -> float:
            members = fitted.neighbors[:, :size]
            values = [functional.parzen_uncertainty(draw, labels, members, pairs) for draw in draws]
            return float(torch.stack(values).mean())

        row |= {"without": mean_u([at]), "cube": mean_u(in_cubes)} | {
            f"M = {size}": mean_u(draws, size) for size in SIZES
        }
        if len(labels.unique()) > 2:
            row |= {f"K = {k}": mean_u(draws, pairs=pairs[k]) for k in PROTOTYPES}
        if new is not None:
            row["new samples"] = float(new.score(svm.decision_function))
        rows[exponent] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def covariate_shift(n_samples: int, is_quick: bool, path: Path) -> pd.DataFrame:
    """Fig. 10: F of a flexible SVM at training, perturbed and new samples.

    The mean of |F|, and how far the distribution of F (positive on the side of the label) is from that at new samples:
    the largest difference of the two distribution functions.
    """
    features, labels = mixture(n_samples, 0)
    fitted = ParzenUncertainty().fit(features, labels)
    svm = SVC(C=1.0 if is_quick else choose_c(features, labels), gamma=2.0**FLEXIBLE).fit(features, labels)
    new, new_labels = mixture(n_samples, 1)
    parts = {"training": features, "perturbed": fitted.perturbed_inputs[0], "new": new}
    sides = {"training": labels, "perturbed": labels, "new": new_labels}
    signed = {name: (2 * sides[name].numpy() - 1) * svm.decision_function(points) for name, points in parts.items()}
    figure, axes = plt.subplots(1, 4, figsize=(16, 4), sharex=True, sharey=True)
    figure.subplots_adjust(left=0.03, right=0.9, wspace=0.05)
    axes[0].scatter(*features.T, c=labels, marker="x", cmap="plasma", s=15)
    axes[0].set_title("labels")
    rows = {}
    for (name, points), axis in zip(parts.items(), axes[1:], strict=True):
        gap = svm.decision_function(points)
        distance = ks_2samp(signed[name], signed["new"]).statistic
        rows[name] = {"|F|": abs(gap).mean(), "distance": distance}
        drawn = axis.scatter(*points.T, c=gap, cmap="cool", vmin=-1.2, vmax=1.2, s=8)
        axis.set_title(f"F at {name} samples")
    figure.colorbar(drawn, cax=figure.add_axes((0.92, 0.11, 0.01, 0.77)))
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return pd.DataFrame.from_dict(rows, orient="index")


def main(arguments: list[str] | None = None) -> dict[str, pd.DataFrame]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["GMM", *sorted(file.name.removesuffix(".csv.gz") for file in TABLES.glob("*.csv.gz"))]
    parser.add_argument("--data", nargs="+", choices=names, default=names)
    parser.add_argument("--samples", type=int, default=600, help="at most so many of each")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of samples and moves")
    parser.add_argument("--smoke", action="store_true", help="two data sets, three gammas, two folds")
    parser.add_argument("--plots", type=Path, default=FOLDER, help="folder the figures go to")
    options = parser.parse_args(arguments)
    exponents = list(range(-15, 16, 2))
    if options.smoke:
        options.data, options.samples, options.folds, exponents = ["GMM", "wine_white3"], 400, 2, [-13, 1, 13]

    shift = covariate_shift(options.samples, options.smoke, options.plots / "sensitivity_shift.png")
    print(f"an SVM with log2 gamma {FLEXIBLE}: mean |F|, and the distance of its distribution to that at new samples")
    print(shift.round(3).to_string(), "\n")
    n_new = 400 if options.smoke else 2000
    tables, changes = {}, []
    for table, seed in itertools.product(options.data, options.seeds):
        name = table if len(options.seeds) == 1 else f"{table}, seed {seed}"
        features, labels = read(table, options.samples, seed)
        c = 1.0 if options.smoke else choose_c(features, labels)
        tables[name] = rows = sweep(table, features, labels, c, exponents, options.folds, n_new, seed)
        print(f"{name} ({len(labels)}, C = {c:g}): log2 gamma chosen, L_val there, U there and at the largest gamma")
        error = {"L_val": (best := rows["L_val"].idxmin(), rows["L_val"][best], rows["M = 40"][best], float("nan"))}
        picks = {
            c: (at := rows[c].idxmax(), rows["L_val"][at], rows[c][at], rows[c].iloc[-1]) for c in rows.columns[1:]
        }
        print(
            pd.DataFrame(error | picks, index=["chosen", "L_val", "U", "U at end"]).round(3).to_string(),
            "\n",
            flush=True,
        )
        for variant, (gamma, chosen, *_) in picks.items():
            more = chosen - picks["M = 40"][1]
            changes.append((table, variant, more > 0.01, more < -0.01, gamma > picks["M = 40"][0]))
    if len(options.seeds) > 1:
        counts = pd.DataFrame(changes, columns=["data", "variant", "worse", "better", "larger gamma"])
        by_data = counts.groupby(["variant", "data"]).sum().unstack(1).T
        by_variant = counts.drop(columns="data").groupby("variant").agg(["sum", "count"])
        print(f"of {len(options.seeds)} draws", by_data.to_string(), "\nof all draws", by_variant.to_string(), sep="\n")
    draw(tables, options.plots / "sensitivity.png")
    return tables | {"shift": shift}


def draw(tables: dict[str, pd.DataFrame], path: Path) -> None:
    """Figs. 11 to 13, one row for each data set."""
    figure, axes = plt.subplots(len(tables), 3, figsize=(15, 3 * len(tables)), squeeze=False)
    edge = 0.15 / len(tables)
    figure.subplots_adjust(left=0.06, right=0.95, top=1 - edge, bottom=edge, hspace=0.5, wspace=0.35)
    explained: set[str] = set()
    for (name, rows), row in zip(tables.items(), axes, strict=True):
        variants = (
            ["M = 40", "without", "cube"],
            [f"M = {m}" for m in SIZES],
            ["M = 40", *(f"K = {k}" for k in PROTOTYPES)],
        )
        titles = ("M = 40, without perturbation, in cubes", "size M", "prototypes K (M = 40: K by AIC)")
        for columns, title, axis in zip(variants, titles, row, strict=True):
            if columns[-1] not in rows:
                axis.axis("off")
                continue
            rows["L_val"].plot(ax=axis, color="green", linestyle="--", ylabel="L_val", title=f"{name}: {title}")
            shown = -rows[columns + [c for c in rows if c == "new samples"]]
            colors = [plt.cm.turbo(0.1 + 0.8 * i / (len(columns) - 1)) for i in range(len(columns))] + ["black"]
            shown.add_prefix("-U, ").plot(ax=axis, secondary_y=True, color=colors[: shown.shape[1]], legend=False)
            axis.set_xlabel("log2 gamma")
            if title not in explained:
                axis.right_ax.legend(fontsize=7)
            explained.add(title)
    figure.savefig(path, dpi=70)
    plt.close(figure)


if __name__ == "__main__":
    main()
