"""Which moves of the samples make U a good watcher of a network? The experiment of Fig. 9 with several laws and seeds.

Ha et al. (2021), section 6, as in `letter_mlp.py`: an MLP on half of the letters, U after each epoch. A seed decides
halves, network, batches, perturbation and noise. U is read at samples moved by four laws: `sphere` (Algorithm 1, as
`perturb`: by the distance to the nearest sample, in a random direction), `uniform` (the text: each feature by that
distance times a number uniform in [-1, 1]), `half` (half of `sphere`) and `none` (the samples themselves). With noise,
so many of the training labels are drawn anew from all classes; the test half keeps its own.

For each law: the epoch of the largest U and its test error, the same with a patience of 20 epochs, and the rank
correlation with test accuracy over the epochs of U (`rank`), of its changes from epoch to epoch (`changes`) and of its
means over 11 epochs (`trend`). `agrees` is the share of moved samples at which the two likeliest classes of the network
are the likely Bayes pair: elsewhere u is 0. `contradicted` is that share among the samples whose label is not in their
likely Bayes pair; a network that learns such a label by heart has another pair. `as printed` is U of `sphere` without
this test, as Eq. 36 stands in print.

    python examples/perturbation_laws.py
"""

import argparse
from pathlib import Path

import matplotlib
import pandas as pd
import torch
from letter_mlp import LetterMLP, Split, error, keep_by_patience, load
from sensitivity import cubes
from torch import Tensor, nn

from bu_torch import BoundaryUncertainty
from bu_torch.functional.boundary import pair_terms
from bu_torch.functional.pairs import index_pairs, sum_by_pair, top_pairs

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
LAWS = {"sphere": "tab:blue", "uniform": "tab:orange", "half": "tab:purple", "none": "black"}
PATIENCE = 20  # epochs
AROUND = 11  # epochs of a mean


class Watched:
    """Training samples moved by each law, and what U needs of them."""

    def __init__(self, training: Split, seed: int) -> None:
        features, self.labels = training
        fitted = BoundaryUncertainty(seed=seed).fit(*training)
        sphere = fitted.perturbed_inputs[0]
        half = (features + sphere) / 2
        self.places = torch.cat((sphere, cubes(fitted, features)[0], half, features))
        self.neighbors, self.bayes_pairs = fitted.neighbors, fitted.bayes_pairs
        self.is_contradicted = (self.labels.unsqueeze(1) != self.bayes_pairs).all(dim=1)

    @torch.no_grad()
    def measure(self, module: nn.Module) -> dict[str, float]:
        """U, shares of agreeing pairs and U as printed, by law."""
        values = {}
        pairs, index = index_pairs(self.bayes_pairs)
        for law, logits in zip(LAWS, module(self.places).chunk(len(LAWS)), strict=True):
            terms = pair_terms(logits, self.labels, self.neighbors, pairs, index)
            top = top_pairs(logits)
            agrees = (top == self.bayes_pairs).all(dim=1).double()
            values[f"U, {law}"] = float((terms.values * terms.shares).sum())
            values[f"agrees, {law}"] = float(agrees.mean())
            values[f"contradicted, {law}"] = float(agrees[self.is_contradicted].mean())
            if law == "sphere":
                local = pair_terms(logits, self.labels, self.neighbors, *index_pairs(top)).local
                sums = (sum_by_pair(part, index, len(pairs)) for part in (local * terms.counts, terms.counts))
                values["as printed"] = float((torch.div(*sums).nan_to_num(0) * terms.shares).sum())
        return values


def redraw(labels: Tensor, share: float, seed: int) -> Tensor:
    """Labels of which so many are drawn anew from all classes."""
    generator = torch.Generator().manual_seed(seed)
    is_redrawn = torch.rand(len(labels), generator=generator) < share
    return torch.where(is_redrawn, torch.randint(int(labels.max()) + 1, labels.shape, generator=generator), labels)


def run(seed: int, noise: float, n_samples: int, n_epochs: int) -> pd.DataFrame:
    """One training, one row for each epoch."""
    (features, labels), test = load(n_samples, seed)
    labels = redraw(labels, noise, seed)
    watched = Watched((features, labels), seed)
    torch.manual_seed(seed)
    module = LetterMLP()
    optimizer = module.configure_optimizers()
    rows = []
    for epoch in range(n_epochs):
        for batch in torch.randperm(len(labels)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features[batch]), labels[batch]).backward()
            optimizer.step()
        errors = {"training error": error(module, (features, labels)), "test error": error(module, test)}
        rows.append({"noise": noise, "seed": seed, "epoch": epoch} | errors | watched.measure(module))
    return pd.DataFrame(rows)


def choices(rows: pd.DataFrame) -> pd.DataFrame:
    """What each law keeps of each training, one row for each."""
    kept = []
    for (noise, seed), one in rows.groupby(["noise", "seed"]):
        errors = one["test error"].to_numpy()
        common = {"noise": noise, "seed": seed, "last": errors[-1], "best": errors.min()}
        for law in LAWS:
            u = one[f"U, {law}"].to_numpy()
            largest, early = int(u.argmax()), keep_by_patience(u.tolist(), PATIENCE)
            at = {"epoch": largest, "error": errors[largest], "early": early, "early error": errors[early]}
            both = one[[f"U, {law}", "test error"]] * [1, -1]
            ways = {"rank": both, "changes": both.diff(), "trend": both.rolling(AROUND).mean()}
            at |= {way: float(part.corr(method="spearman").iloc[0, 1]) for way, part in ways.items()}
            kept.append({"law": law} | common | at)
    return pd.DataFrame(kept)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """-U by each law and test error, means over the seeds in bands from the least to the largest."""
    groups = dict(list(rows.groupby("noise")))
    figure, axes = plt.subplots(len(groups), 5, figsize=(20, 3.4 * len(groups)), squeeze=False, layout="constrained")
    for (noise, group), line in zip(groups.items(), axes, strict=True):
        panels = {"test error": "tab:red"} | {f"U, {law}": color for law, color in LAWS.items()}
        for axis, (name, color) in zip(line, panels.items(), strict=True):
            by_epoch = group.groupby("epoch")[name]
            values = by_epoch.mean() * (-1 if name.startswith("U") else 1)
            low, high = (part * (-1 if name.startswith("U") else 1) for part in (by_epoch.min(), by_epoch.max()))
            axis.plot(values, color=color)
            axis.fill_between(values.index, low, high, color=color, alpha=0.2, linewidth=0)
            sign = "-" if name.startswith("U") else ""
            axis.set(title=f"{sign}{name}; noise {noise:g}", xlabel="epoch")
    figure.savefig(path, dpi=70)
    plt.close(figure)


def report(rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Tables of means over the seeds and the figure; what each law keeps of each training."""
    kept = choices(rows)
    of_laws = kept.drop(columns="seed").groupby(["noise", "law"], sort=False)
    print(f"\nmeans over the seeds {rows['seed'].unique().tolist()}, then their standard errors")
    print(of_laws.mean().round(4).to_string())
    print(of_laws.sem().round(4).to_string())
    last = rows["epoch"].max()
    print(f"\nmeans at some epochs; {last} is the last one")
    at = rows[rows["epoch"].isin([20, 60, last])].drop(columns="seed").groupby(["noise", "epoch"])
    print(at.mean().T.round(3).to_string())
    draw(rows, path)
    return kept


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.2])
    parser.add_argument("--max-epochs", type=int, default=150)
    parser.add_argument("--samples", type=int, default=20000, help="how many of the 20000 samples to use")
    parser.add_argument("--rows", type=Path, default=FOLDER / "runs" / "perturbation_laws.csv")
    parser.add_argument("--plot", type=Path, default=FOLDER / "perturbation_laws.png")
    parser.add_argument("--smoke", action="store_true", help="1300 samples, three epochs, two seeds")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.samples, options.max_epochs, options.seeds = 1300, 3, [0, 1]

    parts = []
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for noise in options.noise:
            parts.append(run(seed, noise, options.samples, options.max_epochs))
            rows = pd.concat(parts, ignore_index=True)
            rows.to_csv(options.rows, index=False)
            print(choices(parts[-1]).round(4).to_string(index=False), flush=True)
    return report(rows, options.plot)


if __name__ == "__main__":
    main()
