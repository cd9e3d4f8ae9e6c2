"""How many anchors a class is to have: Fig. 4.3 of Ha (2019), on a mixture of Gaussians.

Section 4.4.1: the samples of a class lie on one axis at their near-boundary-ness, the boundary at 0, and the class gets
as many anchors as its histogram holds in the bin of 0. Gaussian-kernel SVMs, C = 1: a wide kernel, a good one, a narrow
one that overfits. `wanted` is that count, `within` the count in a bin of the same width with 0 in its middle, and
`found` the anchors that `GradientAnchorUncertainty` makes, as near to that as steps come. The thesis shows 175 for a
class of data that it does not give.

    python examples/anchor_counts.py
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from gradient_selection import Svm, read

from bu_torch import GradientAnchorUncertainty
from bu_torch.functional.checks import as_logits
from bu_torch.papers.gradient import near_boundary_ness

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
EXPONENTS = (-9, -1, 7)


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2200)
    parser.add_argument("--plot", type=Path, default=FOLDER / "anchor_counts.png")
    parser.add_argument("--smoke", action="store_true", help="fewer samples")
    options = parser.parse_args(arguments)
    features, labels = read("GMM", 400 if options.smoke else options.samples)
    uncertainty = GradientAnchorUncertainty().fit(features, labels)
    figure, axes = plt.subplots(2, len(EXPONENTS), figsize=(4 * len(EXPONENTS), 6), layout="constrained")
    rows = []
    for exponent, column in zip(EXPONENTS, axes.T, strict=True):
        svm = Svm(C=1.0, gamma=2.0**exponent).fit(features.numpy(), labels.numpy())
        signed = near_boundary_ness(as_logits(svm.logits(features)), labels)
        anchors = uncertainty.anchors(svm.logits).samples
        for c, axis in enumerate(column):
            values = signed[labels == c].numpy()
            counts, edges = np.histogram(values, bins="auto")
            at_zero = int(np.clip(np.searchsorted(edges, 0, side="right") - 1, 0, len(counts) - 1))
            width = edges[1] - edges[0]
            row = {"log2 gamma": exponent, "class": c, "errors": int((values > 0).sum()), "bins": len(counts)}
            row |= {"width": width, "wanted": counts[at_zero], "within": int((abs(values) < width / 2).sum())}
            rows.append(row | {"found": int((labels[anchors] == c).sum()), "U": float(uncertainty.score(svm.logits))})
            axis.bar(
                edges[:-1],
                counts,
                width,
                align="edge",
                color=["C1" if k == at_zero else "C0" for k in range(len(counts))],
            )
            axis.axvline(0, color="black", linestyle=":")
            axis.set(title=f"log2 gamma {exponent}, class {c}: {counts[at_zero]} anchors", xlabel="near-boundary-ness")
    table = pd.DataFrame(rows)
    print(f"GMM, {len(labels)} samples, seed 0\n{table.round(3).to_string(index=False)}")
    figure.savefig(options.plot, dpi=70)
    plt.close(figure)
    return table


if __name__ == "__main__":
    main()
