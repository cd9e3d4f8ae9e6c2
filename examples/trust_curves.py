"""Which predictions to trust: the trust score beside the classifier's own confidence and two simpler scores.

Jiang et al. (2018), section 5, in three parts. First its curves (Fig. 1) on three tables and three classifiers: a
random half trains the classifier and the scores, the other half tells how precise each score is at each percentile in
finding right ("trustworthy") and wrong ("suspicious") predictions; alpha is chosen by cross-validation in the training
half. The same precision with other choices of k, alpha and the distance to a class tells how much they matter (Remarks
1 and 2). Second (Fig. 2) an MLP on digits after more and more epochs: as it gets better the trust score adds less.
Third (Fig. 3) the space in which distances are taken: logits, the layer before them and its principal components, and
inputs beside them. Where the paper is silent: features are standardised on the training half, tables are cut to 2000
samples, and accuracy is varied by the number of epochs.

    python examples/trust_curves.py
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from bu_torch import LayerFeatures, TrustScore
from bu_torch.evaluation import select_alpha, suspicious_precision, trustworthy_precision
from bu_torch.functional import trust_score

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
TABLES = ("digits", "landsat", "spambase")
CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "logistic regression": lambda seed: LogisticRegression(max_iter=300),
    "random forest": lambda seed: RandomForestClassifier(50, random_state=seed),
    "MLP": lambda seed: MLPClassifier(max_iter=50, random_state=seed),
}
SCORES = ("trust score", "model confidence", "1-NN ratio", "kNN agreement")
ALPHAS, KS = (0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2), (5, 10, 20, 40)
PERCENTILES = np.arange(100)
Half = tuple[np.ndarray, np.ndarray]


def load(name: str, n_samples: int) -> Half:
    if name == "digits":
        features, labels = load_digits(return_X_y=True)
    else:
        table = pd.read_csv(FOLDER.parent / "benchmarks" / "data" / f"{name}.csv.gz")
        labels = table.pop("label").to_numpy()
        features = table.to_numpy(float)
    if len(labels) > n_samples:
        features, _, labels, _ = train_test_split(
            features, labels, train_size=n_samples, stratify=labels, random_state=0
        )
    return features, labels


def halves(features: np.ndarray, labels: np.ndarray, seed: int) -> tuple[Half, Half]:
    x_train, x_test, y_train, y_test = train_test_split(
        features, labels, test_size=0.5, stratify=labels, random_state=seed
    )
    scaler = StandardScaler().fit(x_train)
    return (scaler.transform(x_train), y_train), (scaler.transform(x_test), y_test)


def compare(make: Callable[[int], Any], train: Half, test: Half, seed: int, n_folds: int) -> dict[str, Any]:
    """Curves of each score on one classifier, and its error rate and alpha."""
    classifier = make(seed).fit(*train)
    held_out = cross_val_predict(make(seed), *train, cv=3)
    alpha = select_alpha(*train, held_out, n_folds=n_folds, seed=seed).alpha if (held_out != train[1]).any() else 0.0
    probabilities = classifier.predict_proba(test[0])
    predictions = probabilities.argmax(axis=1)
    neighbors = KNeighborsClassifier(10).fit(*train)
    shares = neighbors.predict_proba(test[0])  # of the classes among the nearest
    trust = TrustScore("density", alpha).fit(*train)
    distances = TrustScore().fit(*train).class_distances(test[0])
    scores = {
        "trust score": trust.score(test[0], predictions),
        "model confidence": torch.from_numpy(probabilities.max(axis=1)),
        "1-NN ratio": trust_score(distances, distances.argmin(dim=1)),
        "kNN agreement": torch.from_numpy(
            shares[range(len(predictions)), neighbors.classes_.searchsorted(predictions)]
        ),
    }
    is_correct = torch.from_numpy(predictions == test[1])
    others = {f"alpha {alpha:g}": TrustScore("density", alpha).fit(*train).class_distances(test[0]) for alpha in ALPHAS}
    others |= {f"k {k}, alpha 1/8": TrustScore("density", 1 / 8, k).fit(*train).class_distances(test[0]) for k in KS}
    others |= distances_of_classes(train, test[0])
    choices = {
        name: at_accuracy(trust_score(found, torch.from_numpy(predictions)), is_correct)
        for name, found in others.items()
    }
    curves = {
        name: (trustworthy_precision(score, is_correct).numpy(), suspicious_precision(score, is_correct).numpy())
        for name, score in scores.items()
    }
    detected = {name: at_accuracy(score, is_correct) for name, score in scores.items()}
    found = {"curves": curves, "detected": detected, "choices": choices}
    return found | {"error": float((~is_correct).double().mean()), "alpha": alpha}


def distances_of_classes(train: Half, points: np.ndarray) -> dict[str, Tensor]:
    """Distances (n, J) to the tenth nearest sample of each class, and to its centroid."""
    classes = [torch.from_numpy(train[0][train[1] == label]) for label in range(train[1].max() + 1)]
    at = torch.from_numpy(points)
    tenth = [torch.cdist(at, one).kthvalue(min(10, len(one)), dim=1).values for one in classes]
    centroids = torch.stack([one.mean(dim=0) for one in classes])
    return {"10th nearest": torch.stack(tenth, dim=1), "centroid": torch.cdist(at, centroids)}


def at_accuracy(scores: Tensor, is_correct: Tensor) -> float:
    """Precision in finding wrong predictions at the percentile of the accuracy."""
    accuracy = float(is_correct.double().mean())
    return float(suspicious_precision(scores, is_correct, [100 * accuracy])) if accuracy < 1 else float("nan")


def curves_of_tables(n_samples: int, n_repeats: int, n_folds: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    results = {}
    for table in TABLES:
        data = load(table, n_samples)
        for name, make in CLASSIFIERS.items():
            results[table, name] = [compare(make, *halves(*data, seed), seed, n_folds) for seed in range(n_repeats)]
    return results


def summary(results: dict[tuple[str, str], list[dict[str, Any]]]) -> pd.DataFrame:
    """Means over the runs: area under both curves, precision at the percentile of the accuracy.

    `ahead` is the number of runs in which the area by trust is larger than that by confidence.
    """
    rows = []
    for (table, classifier), runs in results.items():
        row = {"table": table, "classifier": classifier, "error": np.mean([run["error"] for run in runs])}
        row["alpha"] = np.median([run["alpha"] for run in runs])
        for kind, label in enumerate(("trustworthy", "suspicious")):
            areas = {s: np.array([run["curves"][s][kind].mean() for run in runs]) for s in SCORES}
            row |= {(label, s): values.mean() for s, values in areas.items()}
            row[label, "ahead"] = int((areas["trust score"] > areas["model confidence"]).sum())
        rows.append(row | {("detected", s): np.nanmean([run["detected"][s] for run in runs]) for s in SCORES})
    return pd.DataFrame(rows)


def plot_curves(path: Path, results: dict[tuple[str, str], list[dict[str, Any]]], kind: int) -> None:
    figure, axes = plt.subplots(3, 3, figsize=(13, 10), sharex=True)
    for axis, ((table, classifier), runs) in zip(axes.flat, results.items(), strict=True):
        for score in SCORES:
            curves = np.array([run["curves"][score][kind] for run in runs])
            mean, error = curves.mean(axis=0), curves.std(axis=0) / np.sqrt(len(runs))
            axis.plot(PERCENTILES, mean, "--" if score == "model confidence" else "-", label=score)
            axis.fill_between(PERCENTILES, mean - error, mean + error, alpha=0.15)
        rate = np.mean([run["error"] for run in runs])
        axis.axvline(100 * (1 - rate if kind else rate), color="black", linestyle=":")
        axis.set_title(f"{table}, {classifier}")
    axes[0, 0].legend()
    for axis in axes[-1]:
        axis.set_xlabel("percentile")
    for axis in axes[:, 0]:
        axis.set_ylabel("share wrong" if kind else "share right")
    figure.subplots_adjust(left=0.06, right=0.99, bottom=0.05, top=0.97)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def as_accuracy_varies(n_repeats: int, epochs: tuple[int, ...]) -> pd.DataFrame:
    """Precision at the percentile of the accuracy after so many epochs, of the trust score and the confidence."""
    data, rows = load("digits", 2000), []
    for seed in range(n_repeats):
        train, test = halves(*data, seed)
        trust = TrustScore().fit(*train)
        network = MLPClassifier((20,), learning_rate_init=0.003, random_state=seed)
        for epoch in range(1, max(epochs) + 1):
            network.partial_fit(*train, classes=np.unique(train[1]))
            if epoch in epochs:
                probabilities = network.predict_proba(test[0])
                predictions = probabilities.argmax(axis=1)
                is_correct = torch.from_numpy(predictions == test[1])
                rows.append(
                    {
                        "epoch": epoch,
                        "accuracy": float(is_correct.double().mean()),
                        "trust score": at_accuracy(trust.score(test[0], predictions), is_correct),
                        "model confidence": at_accuracy(torch.from_numpy(probabilities.max(axis=1)), is_correct),
                    }
                )
    return pd.DataFrame(rows).groupby("epoch").mean()


def plot_accuracy(path: Path, table: pd.DataFrame) -> None:
    figure, axis = plt.subplots(figsize=(6, 4), layout="tight")
    for name in ("trust score", "model confidence"):
        axis.plot(table["accuracy"], table[name], "o-" if name == "trust score" else "o--", label=name)
    axis.set(xlabel="accuracy of the classifier", ylabel="share wrong at the percentile of the accuracy")
    axis.legend()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def by_layer(n_samples: int, n_epochs: int, seed: int) -> dict[str, float]:
    """Precision at the percentile of the accuracy with distances in several spaces of one network, on letters."""
    features, labels = load("letter", n_samples)
    (x_train, y_train), (x_test, y_test) = halves(features, labels, seed)
    x_train, x_test = (torch.from_numpy(x).float() for x in (x_train, x_test))
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 26))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    targets = torch.from_numpy(y_train)
    for _ in range(n_epochs):
        for rows in torch.randperm(len(x_train), generator=generator).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x_train[rows]), targets[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        probabilities = network(x_test).softmax(dim=1)
    predictions = probabilities.argmax(dim=1)
    is_correct = predictions == torch.from_numpy(y_test)
    spaces = {"inputs": (x_train, x_test)}
    for name in ("logits", "penultimate"):
        space = LayerFeatures(network, name)
        spaces[name] = (space.transform(x_train), space.transform(x_test))
    components = PCA(20, random_state=0).fit(spaces["penultimate"][0])
    spaces["penultimate, 20 components"] = tuple(map(components.transform, spaces["penultimate"]))
    scores = {"model confidence": probabilities.amax(dim=1)}
    scores |= {f"trust score, {n}": TrustScore().fit(a, y_train).score(b, predictions) for n, (a, b) in spaces.items()}
    found = {name: at_accuracy(score, is_correct) for name, score in scores.items()}
    return found | {"accuracy": float(is_correct.double().mean())}


def main(arguments: list[str] | None = None) -> dict[str, pd.DataFrame]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repeats", type=int, default=5, help="random halves of each table; four times as many in part 2"
    )
    parser.add_argument("--plots", type=Path, default=FOLDER, help="folder the figures go to")
    parser.add_argument("--smoke", action="store_true", help="one run on few samples: does it run?")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.filterwarnings("ignore", "Classes .* fewer than n_neighbors")

    n_samples, n_repeats, n_folds = (200, 1, 2) if options.smoke else (2000, options.repeats, 5)
    results = curves_of_tables(n_samples, n_repeats, n_folds)
    table = summary(results)
    pd.set_option("display.width", 200, "display.max_columns", 20)
    for label in ("trustworthy", "suspicious", "detected"):
        columns = [column for column in table if column[0] == label]
        shown = table[["table", "classifier", "error", "alpha", *columns]]
        print(
            f"\n{label}, {n_repeats} runs (seeds 0 to {n_repeats - 1})\n"
            + shown.rename(columns=lambda c: c[1] if isinstance(c, tuple) else c).round(3).to_string()
        )
    plot_curves(options.plots / "trust_curves_trustworthy.png", results, 0)
    plot_curves(options.plots / "trust_curves_suspicious.png", results, 1)

    runs = [{"table": name} | run["choices"] for (name, _), found in results.items() for run in found]
    choices = pd.DataFrame(runs).groupby("table", sort=False).mean().T
    print("\nprecision at the percentile of the accuracy by k, alpha and distance, means over classifiers and runs")
    print(choices.round(3).to_string())

    epochs = (1, 2, 4) if options.smoke else (1, 2, 3, 5, 8, 12, 20, 40, 80)
    varied = as_accuracy_varies((1 if options.smoke else 4) * n_repeats, epochs)
    print("\nas the accuracy of an MLP on digits varies\n" + varied.round(3).to_string())
    plot_accuracy(options.plots / "trust_curves_accuracy.png", varied)

    size = (600, 2) if options.smoke else (6000, 30)
    layers = pd.DataFrame([by_layer(*size, seed) for seed in range(n_repeats)]).agg(["mean", "min", "max"]).T
    print("\ndistances in several spaces of an MLP on letters, by run\n" + layers.round(3).to_string())
    return {"curves": table, "choices": choices, "accuracy": varied, "layers": layers}


if __name__ == "__main__":
    main()
