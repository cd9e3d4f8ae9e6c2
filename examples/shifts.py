"""All three estimators of boundary uncertainty where the Bayes boundary is known: two overlapping Gaussians.

N((-1, 0), I) against N((1, 0), I) with equal shares meet at x_0 = 0; a classifier that cuts at a shifted place must
score lower, and the lower the farther. Beside Proposal 2 (`ParzenUncertainty`): Proposal 1, anchors by bisection
(Ha 2019, chapter 2), and the variant with anchors along the gradient (chapter 4).

    python examples/shifts.py
"""

import argparse
import time
from pathlib import Path

import matplotlib
import torch

from bu_torch import BisectionAnchorUncertainty, GradientAnchorUncertainty, ParzenUncertainty

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
SHIFTS = (-2.0, -1.5, -1.0, -0.7, -0.35, 0.0, 0.35, 0.7, 1.0, 1.5, 2.0)
ESTIMATORS = {
    "bisection anchors": BisectionAnchorUncertainty,
    "gradient anchors": GradientAnchorUncertainty,
    "Proposal 2": ParzenUncertainty,
}


def main(arguments: list[str] | None = None) -> dict[str, dict[float, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--smoke", action="store_true", help="fewer samples and shifts")
    parser.add_argument("--plot", type=Path, default=FOLDER / "shifts.png")
    options = parser.parse_args(arguments)
    n_samples = 1000 if options.smoke else options.samples
    shifts = SHIFTS[1::4] if options.smoke else SHIFTS

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n_samples) % 2
    features = torch.randn(n_samples, 2, generator=generator)
    features[:, 0] += 2 * labels - 1

    values: dict[str, dict[float, float]] = {}
    print(f"{'cut at x_0':>18}" + "".join(f"{shift:7.2f}" for shift in shifts) + "   s/score")
    for name, estimator in ESTIMATORS.items():
        fitted = estimator().fit(features, labels)
        started = time.perf_counter()
        values[name] = {s: float(fitted.score(lambda x, s=s: x[:, 0] - s)) for s in shifts}
        seconds = (time.perf_counter() - started) / len(shifts)
        print(f"{name:>18}" + "".join(f"{value:7.3f}" for value in values[name].values()) + f"{seconds:10.2f}")
        plt.plot(list(values[name]), list(values[name].values()), marker="o", label=name)
    plt.xlabel("cut at x_0 (the Bayes boundary is at 0)")
    plt.ylabel("boundary uncertainty")
    plt.legend()
    plt.savefig(options.plot, dpi=120)
    plt.close()
    return values


if __name__ == "__main__":
    main()
