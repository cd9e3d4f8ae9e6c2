"""Boundary uncertainty where the Bayes boundary is known: two overlapping Gaussians, cut at one place after another.

N(0, I) against N((2, 0), I) with equal shares meet at x_0 = 1, so U must be largest for the classifier that cuts there.
It stays below 1: with M = 40 members in a cluster the smaller of two small counts is biased down.

    python examples/two_gaussians.py
"""

import argparse

import torch

from bu_torch import BoundaryUncertainty


def main(arguments: list[str] | None = None) -> dict[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--smoke", action="store_true", help="fewer samples and places")
    options = parser.parse_args(arguments)
    n_samples, n_cuts = (1000, 5) if options.smoke else (options.samples, 17)

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n_samples) % 2
    features = torch.randn(n_samples, 2, generator=generator)
    features[:, 0] += 2 * labels
    uncertainty = BoundaryUncertainty(n_draws=4).fit(features, labels)

    values = {}
    print("cut at x_0   U")
    for cut in torch.linspace(-1, 3, n_cuts).tolist():
        values[cut] = float(uncertainty.score(lambda x, cut=cut: x[:, 0] - cut))
        print(f"{cut:10.2f}   {values[cut]:.3f} {'#' * round(40 * values[cut])}")
    print(f"largest at {max(values, key=values.get):.2f}; the Bayes boundary is at 1.00")
    return values


if __name__ == "__main__":
    main()
