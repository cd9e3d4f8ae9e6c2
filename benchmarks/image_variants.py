"""How images are perturbed, and the space in which they are near: the default beside alternatives.

The kinds are the tuning ones of `images.py`. Each training is read, after each epoch, at the perturbed samples of all
variants: in each space, and with each operation in the space that the default chooses, one draw each. A variant's
expected accuracy keeps an epoch, as the default rule does. Printed are the excess error of that epoch (its test error
minus that of the best epoch in hindsight) and Spearman's correlation of expected accuracy with test accuracy over the
epochs.

    python benchmarks/image_variants.py --emoji emoji-datasource-google-15.1.2.tgz
    python benchmarks/image_variants.py --kinds conv augmented tuned
"""

import argparse
import itertools
import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import images
import lightning as L
import pandas as pd
import quality
import torch
from quality import Case, Split
from torch import Tensor, nn

from bu_torch import functional, perturb, perturb_toward_neighbors
from bu_torch.estimators.label_probabilities import LabelProbabilities
from bu_torch.estimators.label_regression import LabelRegression
from bu_torch.estimators.space_choice import left_out_skill
from bu_torch.neighbors.graph import NeighborGraph
from bu_torch.space.features import FeatureSpace, standardization, standardize
from bu_torch.space.layers import LayerFeatures
from bu_torch.space.patches import PatchFeatures

DEFAULT = "0.3-0.7 of the way to one of 5"
CHOICE = ("inputs", "patches", "module")  # of the default
Operation = Callable[[Split, Tensor, torch.Generator], Tensor]  # of samples, clusters and random numbers


def toward(samples: Split, neighbors: Tensor, generator: torch.Generator, **how: float) -> Tensor:
    return perturb_toward_neighbors(samples[0], neighbors, generator, **how)


def toward_own_class(samples: Split, neighbors: Tensor, generator: torch.Generator) -> Tensor:
    """As the default, of neighbours with the same label alone; one without any stays where it is."""
    inputs, labels = samples
    is_other = (labels[neighbors] != labels.unsqueeze(1)).long()
    ordered = neighbors.gather(1, is_other.argsort(dim=1, stable=True))  # the sample itself, and its class
    n_own = (1 - is_other).sum(dim=1) - 1
    places = 1 + (torch.rand(len(labels), generator=generator) * n_own.clamp(max=5)).long().clamp(max=4)
    places = torch.where(n_own > 0, places, 0)
    part = 0.3 + 0.4 * torch.rand(len(labels), 1, 1, 1, generator=generator)
    return torch.lerp(inputs, inputs[ordered.gather(1, places.unsqueeze(1)).squeeze(1)], part)


def at_random(samples: Split, neighbors: Tensor, generator: torch.Generator) -> Tensor:
    """Algorithm 1, which is the default for vectors."""
    inputs = samples[0]
    mean, scale = standardization(inputs.flatten(1))
    points = standardize(inputs, mean, scale)
    distance = torch.stack([(points[row[1:]] - points[row[0]]).norm(dim=1).min() for row in neighbors])
    return (perturb(points, distance, generator) * scale + mean).to(inputs.dtype).reshape(inputs.shape)


OPERATIONS: dict[str, Operation] = {
    DEFAULT: toward,
    "to the nearest": partial(toward, n_nearest=1),
    "to one of 10": partial(toward, n_nearest=10),
    "0.1-0.5 of the way": partial(toward, low=0.1, high=0.5),
    "half the way": partial(toward, low=0.5, high=0.5),
    "of the same class": toward_own_class,
    "in a random direction": at_random,
}


def spaces(inputs: Tensor, net: nn.Module) -> dict[str, FeatureSpace]:
    found = {
        "inputs": FeatureSpace(),
        "patches": FeatureSpace("patches"),
        "module": FeatureSpace(LayerFeatures(net, batch_size=64).transform),
    }
    for size, n_cells in ((8, 2), (10, 2), (6, 3)):
        features = PatchFeatures(size=size, n_cells=n_cells).fit(inputs)
        found[f"patches of {size} pixels, {n_cells} x {n_cells} cells"] = FeatureSpace(features.transform)
    return found


class Readings(L.Callback):
    """Expected accuracy of each variant after each epoch, and what the labels tell in its space."""

    def __init__(self, samples: Split, net: nn.Module, seed: int) -> None:
        inputs, labels = samples
        self.columns: dict[str, list[float]] = {}
        self.skills: dict[str, float] = {}
        self.read: dict[str, tuple[Tensor, Tensor]] = {}  # perturbed samples and their class probabilities
        found = spaces(inputs, net)
        points = {name: space.fit_transform(inputs) for name, space in found.items()}
        self.skills = {name: left_out_skill(of_space, labels, None, seed) for name, of_space in points.items()}
        chosen = max(CHOICE, key=lambda name: self.skills[name])
        for name, space in found.items():
            neighbors = NeighborGraph(40).fit(points[name]).neighbors
            expected = LabelProbabilities(regression=LabelRegression(seed=seed)).fit(points[name], labels, neighbors)
            for how in OPERATIONS if name == chosen else [DEFAULT]:
                generator = torch.Generator().manual_seed(seed)
                perturbed = OPERATIONS[how](samples, neighbors, generator)
                variant = f"in {name}" if how == DEFAULT else how
                self.read[variant] = perturbed, expected.predict_proba(space.transform(perturbed))
        self.chosen = f"in {chosen}"

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        pl_module.eval()
        with torch.no_grad():
            for variant, (perturbed, probabilities) in self.read.items():
                predictions = quality.predict(pl_module, perturbed)
                value = float(functional.expected_accuracy(probabilities, predictions))
                self.columns.setdefault(variant, []).append(value)
        pl_module.train()


def run(case: Case, emoji: Path | None) -> dict[str, object]:
    """Curves of all variants of one training."""
    split, test, net = images.prepare(case, emoji)
    readings = Readings(split, net, case.seed)
    curves = images.train(case, split, test, net, None, readings)
    columns = {"the default": readings.columns[readings.chosen], **readings.columns}
    return {"expected": columns, "test_error": curves.columns()["test_error"], "skills": readings.skills}


def judge(record: dict[str, object], case: Case) -> list[dict[str, object]]:
    error = pd.Series(record["test_error"])
    rows = []
    for variant, values in record["expected"].items():
        kept, _ = quality.largest(values, quality.PATIENCE)
        correlation = pd.Series(values).corr(-error, method="spearman")
        skill = record["skills"].get(variant.removeprefix("in "))
        found = {"excess": error[kept] - error.min(), "correlation": correlation, "skill": skill, "kept": kept}
        rows.append({"kind": case.setting, "noise": case.noise, "seed": case.seed, "variant": variant, **found})
    return rows


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["emoji_64"], choices=list(images.TUNING))
    parser.add_argument("--emoji", type=Path, help="the npm package emoji-datasource-google, packed or unpacked")
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.2])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--curves", type=Path, help="keep all curves in this folder, and use again those it holds")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rows = []
    kinds = images.there(options.kinds, options.emoji)
    for seed, noise, kind in itertools.product(range(options.seeds), options.noise, kinds):
        case = Case(images.KINDS[kind].data, noise, seed, kind, options.epochs)
        train = partial(run, emoji=options.emoji)
        rows += judge(quality.recall(case, options.curves, train, "variants"), case)
    found = pd.DataFrame(rows)
    cases = ["kind", "noise", "seed"]
    wide = found.pivot_table(index="variant", columns=cases, values=["excess", "correlation"], sort=False)
    means = found.groupby("variant", sort=False)[["excess", "correlation", "skill"]].mean()
    with pd.option_context("display.width", 250, "display.max_columns", None, "display.precision", 4):
        print(means, wide.excess, wide.correlation, sep="\n\n")
    return found


if __name__ == "__main__":
    main()
