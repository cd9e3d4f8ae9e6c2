"""Boundary uncertainty U and expected accuracy EA where the Bayes boundary is known.

First, two overlapping Gaussians are cut at one place after another. N(0, I) and N((2, 0), I) with equal shares meet at
x_0 = 1. There U is largest, and EA stops changing, which is where EA is largest. (U stays below 1: with M = 40 members
in a cluster the smaller of two small counts is biased down.)

Then, three stripes: class 1 lies between two halves of class 0, and the Bayes boundary has two parts, at x_0 = -1 and
1. A classifier with only one of the parts has about the same U, since that part is in the right place. EA tells that
the other is missing, and so does the omission. A classifier with both parts 0.25 too far out loses little EA, and much
U.

    python examples/two_gaussians.py
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from bu_torch import Signals

SHOWN = {"boundary_uncertainty": "U", "expected_accuracy": "EA", "omission": "omission"}
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


def measured(signals: Signals, classifier: Callable[[Tensor], Tensor]) -> dict[str, float]:
    values = signals.measure(classifier(signals.perturbed_inputs), None).values
    return {short: float(values[name]) for name, short in SHOWN.items()}


def measured_cuts(n_samples: int, n_cuts: int, seed: int) -> dict[float, dict[str, float]]:
    """U and EA of two Gaussians for each place of the cut, and how much EA changes there per unit of x_0."""
    signals = Signals(feature_extractor="inputs").fit(*gaussians(n_samples, n_groups=2, width=1.0, seed=seed))
    places = torch.linspace(-1, 3, n_cuts)
    rows = [measured(signals, lambda x, cut=cut: x[:, 0] - cut) for cut in places]
    (slopes,) = torch.gradient(torch.tensor([row["EA"] for row in rows]), spacing=(places,))
    return {
        cut: {"U": row["U"], "EA": row["EA"], "slope of EA": slope}
        for cut, row, slope in zip(places.tolist(), rows, slopes.tolist(), strict=True)
    }


def measured_stripes(n_samples: int, seed: int) -> dict[str, dict[str, float]]:
    """U, EA and omission of the classifiers of three stripes."""
    signals = Signals(feature_extractor="inputs").fit(*stripes(n_samples, seed))
    return {name: measured(signals, classifier) for name, classifier in STRIPES.items()}


def main(arguments: list[str] | None = None) -> tuple[dict[float, dict[str, float]], dict[str, dict[str, float]]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="fewer samples and places")
    options = parser.parse_args(arguments)
    n_samples, n_cuts = (1000, 5) if options.smoke else (options.samples, 17)

    cuts = measured_cuts(n_samples, n_cuts, options.seed)
    print("cut at x_0      U     EA   slope of EA")
    for cut, row in cuts.items():
        bar = "#" * round(40 * row["U"])
        print(f"{cut:10.2f}  {row['U']:.3f}  {row['EA']:.3f}  {row['slope of EA']:+12.3f}  {bar}")
    print(f"U is largest at {max(cuts, key=lambda cut: cuts[cut]['U']):.2f}")
    print(f"EA is largest at {max(cuts, key=lambda cut: cuts[cut]['EA']):.2f}")
    print(f"EA changes least at {min(cuts, key=lambda cut: abs(cuts[cut]['slope of EA'])):.2f}")
    print("the Bayes boundary is at 1.00")

    parts = measured_stripes(n_samples, options.seed)
    print("\nthree stripes          U     EA   omission")
    for name, row in parts.items():
        print(f"{name:17}  {row['U']:.3f}  {row['EA']:.3f}  {row['omission']:9.3f}")
    return cuts, parts


if __name__ == "__main__":
    main()
