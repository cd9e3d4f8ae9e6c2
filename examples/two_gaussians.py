"""Boundary uncertainty U and expected accuracy EA where the Bayes boundary is known.

First, two overlapping Gaussians are cut at one place after another. N(0, I) and N((2, 0), I) with equal shares meet at
x_0 = 1. There U is largest: its share of the most that any boundary reaches is about 1, and falls on both sides. EA
stops changing there, which is where EA is largest. `Parzen U` is U as Proposal 2 estimates it, largest there too. It
stays below 1: with M = 40 members in a cluster the smaller of two small counts is biased down.

Then, three stripes: class 1 lies between two halves of class 0, and the Bayes boundary has two parts, at x_0 = -1 and
1. A classifier with only one of the parts has about the same Parzen U, since that part is in the right place. The
omission tells that the other is missing, and so do EA and the share of U: among the nearest samples, as many as ever,
there are now some with certain labels. A classifier with both parts 0.25 too far out loses little EA, and much Parzen
U.

    python examples/two_gaussians.py
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from bu_torch import Signals, functional

OF_PAPERS = {"parzen_uncertainty": "Parzen U", "omission": "omission"}
SHOWN = {"boundary_uncertainty": "U", "expected_accuracy": "EA"} | OF_PAPERS
# A classifier is the difference of its two logits: class 1 where it is above 0.
STRIPES: dict[str, Callable[[Tensor], Tensor]] = {
    "both parts": lambda x: 1 - x[:, 0].abs(),
    "one part": lambda x: 1 - x[:, 0],
    "both, too far out": lambda x: 1.25 - x[:, 0].abs(),
}


def gaussians(n_samples: int, n_groups: int, width: float, seed: int) -> tuple[Tensor, Tensor]:
    """Groups of equal size side by side, 2 apart, and their numbers."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(n_samples) % n_groups
    features = width * torch.randn(n_samples, 2, generator=generator)
    features[:, 0] += 2 * groups
    return features, groups


def stripes(n_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three groups, the middle one around 0: class 1."""
    features, groups = gaussians(n_samples, n_groups=3, width=0.7, seed=seed)
    return features - torch.tensor([2.0, 0.0]), (groups == 1).long()


def fitted(features: Tensor, labels: Tensor) -> Signals:
    return Signals(feature_extractor="inputs", also=tuple(OF_PAPERS)).fit(features, labels)


def measured(signals: Signals, classifier: Callable[[Tensor], Tensor]) -> dict[str, float]:
    values = signals.measure(classifier(signals.perturbed_inputs), None).values
    most = functional.boundary_uncertainty(signals.probabilities, signals.probabilities)
    shown = {short: float(values[name]) for name, short in SHOWN.items()}
    return shown | {"share": float(values["boundary_uncertainty"] / most)}


def measured_cuts(n_samples: int, n_cuts: int, seed: int) -> dict[float, dict[str, float]]:
    """Signals of two Gaussians for each place of the cut, and how much EA changes there per unit of x_0."""
    signals = fitted(*gaussians(n_samples, n_groups=2, width=1.0, seed=seed))
    places = torch.linspace(-1, 3, n_cuts)
    rows = [measured(signals, lambda x, cut=cut: x[:, 0] - cut) for cut in places]
    (slopes,) = torch.gradient(torch.tensor([row["EA"] for row in rows]), spacing=(places,))
    return {
        cut: row | {"slope of EA": slope}
        for cut, row, slope in zip(places.tolist(), rows, slopes.tolist(), strict=True)
    }


def measured_stripes(n_samples: int, seed: int) -> dict[str, dict[str, float]]:
    """Signals of the classifiers of three stripes."""
    signals = fitted(*stripes(n_samples, seed))
    return {name: measured(signals, classifier) for name, classifier in STRIPES.items()}


def main(arguments: list[str] | None = None) -> tuple[dict[float, dict[str, float]], dict[str, dict[str, float]]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="fewer samples and places")
    options = parser.parse_args(arguments)
    n_samples, n_cuts = (1000, 5) if options.smoke else (options.samples, 17)

    cuts = measured_cuts(n_samples, n_cuts, options.seed)
    print("cut at x_0      U   share   Parzen U     EA   slope of EA")
    for cut, row in cuts.items():
        bar = "#" * round(40 * row["share"])
        print(
            f"{cut:10.2f}  {row['U']:.3f}   {row['share']:.3f}      {row['Parzen U']:.3f}  {row['EA']:.3f}"
            f"  {row['slope of EA']:+12.3f}  {bar}"
        )
    for name in ("U", "Parzen U", "EA"):
        print(f"{name} is largest at {max(cuts, key=lambda cut, name=name: cuts[cut][name]):.2f}")
    print(f"EA changes least at {min(cuts, key=lambda cut: abs(cuts[cut]['slope of EA'])):.2f}")
    print("the Bayes boundary is at 1.00")

    parts = measured_stripes(n_samples, options.seed)
    print("\nthree stripes          U   share   Parzen U     EA   omission")
    for name, row in parts.items():
        print(
            f"{name:17}  {row['U']:.3f}   {row['share']:.3f}      {row['Parzen U']:.3f}  {row['EA']:.3f}"
            f"  {row['omission']:9.3f}"
        )
    return cuts, parts


if __name__ == "__main__":
    main()
