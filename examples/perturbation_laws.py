"""Which moves of the samples make U a good watcher of a network? The experiment of Fig. 9 with several laws and seeds.

Ha et al. (2021), section 6, as in `letter_mlp.py`: an MLP on half of the letters, U after each epoch. A seed decides
halves, network, batches, perturbation and noise. U is read at samples moved by four laws: `sphere` (Algorithm 1, as
`perturb`: by the distance to the nearest sample, in a random direction), `uniform` (the text: each feature by that
distance times a number uniform in [-1, 1]), `half` (half of `sphere`) and `none` (the samples themselves). Each law has
two readings: the two likeliest classes of a sample (Eq. 27) at the moved sample, or, as the paper writes it, at the
sample itself (`at x`). `probabilities` is U from label probabilities, the estimate of this package, where `sphere` has
moved the samples. `hold-out` is a second network, trained on 75 % of the training half, which keeps the epoch of
the least error on the other 25 %. With noise, so many of the training labels are drawn anew from all classes, those of
the hold-out set too; the test half keeps its own.

For each law and reading: the epoch of the largest U and its test error, the same with a patience of 20 epochs, and the
rank correlation with test accuracy over the epochs of U (`rank`), of its changes from epoch to epoch (`changes`) and of
its means over 11 epochs (`trend`). `agrees` is the share of moved samples at which the two likeliest classes of the
network are the likely Bayes pair: elsewhere u is 0. `contradicted` is that share among the samples whose label is not
in their likely Bayes pair; a network that learns such a label by heart has another pair. `as printed` is U of `sphere`
without this test, as Eq. 36 stands in print.

`--data` takes other tables than the letters, and batches of 32; `--draws` averages U over several moves of each sample.

    python examples/perturbation_laws.py

The six tables of `docs/papers.md` are run by `--data banknote german ionosphere landsat wine_red3 wine_white3 --samples
1200 --draws 2 --seeds 0 1 --max-epochs 60`.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pandas as pd
import torch
from letter_mlp import LetterMLP, Split, error, keep_by_patience, load
from sensitivity import cubes
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from bu_torch import BoundaryUncertainty, ParzenUncertainty, functional
from bu_torch.functional.checks import sum_by_group
from bu_torch.papers.parzen import top_pairs

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
LAWS = {"sphere": "tab:blue", "uniform": "tab:orange", "half": "tab:purple", "none": "black"}
READINGS = [*LAWS, *(f"{law}, at x" for law in LAWS if law != "none")]  # unmoved, both are the same
CHOOSING = [*READINGS, "probabilities"]
PATIENCE = 20  # epochs
AROUND = 11  # epochs of a mean


class Watched:
    """Training samples moved by each law, and what U needs of them."""

    def __init__(self, training: Split, seed: int, n_draws: int = 1) -> None:
        features, self.labels = training
        self.n_draws = n_draws
        fitted = ParzenUncertainty(n_draws=n_draws, seed=seed).fit(*training)
        sphere = fitted.perturbed_inputs
        of_laws = (sphere, cubes(fitted, features), (features + sphere) / 2, features.expand_as(sphere))
        self.places = torch.cat(of_laws).flatten(0, 1)
        self.neighbors, self.bayes_pairs = fitted.neighbors, fitted.bayes_pairs
        self.of_probabilities = BoundaryUncertainty(n_draws=n_draws, seed=seed, feature_extractor="inputs")
        self.of_probabilities.fit(*training)
        self.is_contradicted = (self.labels.unsqueeze(1) != self.bayes_pairs).all(dim=1)

    @torch.no_grad()
    def measure(self, module: nn.Module) -> dict[str, float]:
        """U, shares of agreeing pairs and U as printed, by law: means over the draws."""
        of_laws = module(self.places).view(len(LAWS), self.n_draws, len(self.labels), -1)
        draws = [self.measure_draw(of_laws[:, draw]) for draw in range(self.n_draws)]
        values = {name: sum(draw[name] for draw in draws) / self.n_draws for name in draws[0]}
        return values | {"U, probabilities": float(self.of_probabilities.score_logits(of_laws[0].flatten(0, 1)))}

    def measure_draw(self, of_laws: Tensor) -> dict[str, float]:
        """The same of one draw, from logits (laws, N, J)."""
        values = {}
        pairs, index = torch.unique(self.bayes_pairs, dim=0, return_inverse=True)
        top_at_x = top_pairs(of_laws[-1])
        for law, logits in zip(LAWS, of_laws, strict=True):
            top = top_pairs(logits)
            for reading, read in {law: top, f"{law}, at x": top_at_x}.items():
                if reading in READINGS:
                    given = logits, self.labels, self.neighbors, self.bayes_pairs
                    values[f"U, {reading}"] = float(functional.parzen_uncertainty(*given, predicted_pairs=read))
            agrees = (top == self.bayes_pairs).all(dim=1).double()
            values[f"agrees, {law}"] = float(agrees.mean())
            values[f"contradicted, {law}"] = float(agrees[self.is_contradicted].mean())
            if law == "sphere":
                local, counts = functional.local_uncertainty(logits, self.labels, self.neighbors, top)
                sums = (sum_by_group(part, index, len(pairs)) for part in (local * counts, counts))
                shares = index.bincount() / len(index)
                values["as printed"] = float((torch.div(*sums).nan_to_num(0) * shares).sum())
        return values


def redraw(labels: Tensor, share: float, seed: int) -> Tensor:
    """Labels of which so many are drawn anew from all classes."""
    generator = torch.Generator().manual_seed(seed)
    is_redrawn = torch.rand(len(labels), generator=generator) < share
    return torch.where(is_redrawn, torch.randint(int(labels.max()) + 1, labels.shape, generator=generator), labels)


def run(name: str, seed: int, noise: float, n_samples: int, n_epochs: int, n_draws: int) -> pd.DataFrame:
    """One training and one with a hold-out set, one row for each epoch."""
    (features, labels), test = load(n_samples, seed, name)
    labels = redraw(labels, noise, seed)
    watched = Watched((features, labels), seed, n_draws)
    rows = []
    for module in epochs((features, labels), seed, n_epochs):
        errors = {"training error": error(module, (features, labels)), "test error": error(module, test)}
        rows.append({"data": name, "noise": noise, "seed": seed, "epoch": len(rows)} | errors | watched.measure(module))
    fitted, held_out = train_test_split(range(len(labels)), test_size=0.25, stratify=labels, random_state=seed)
    others = epochs((features[fitted], labels[fitted]), seed, n_epochs)
    for row, module in zip(rows, others, strict=True):
        row["hold-out"] = error(module, (features[held_out], labels[held_out]))
        row["test error, hold-out"] = error(module, test)
    return pd.DataFrame(rows)


def epochs(split: Split, seed: int, n_epochs: int) -> Iterator[nn.Module]:
    """A network after each epoch of its training."""
    features, labels = split
    torch.manual_seed(seed)
    module = LetterMLP(features.shape[1], int(labels.max()) + 1)
    batch_size = 128 if module.net[-1].out_features == 26 else 32
    optimizer = module.configure_optimizers()
    for _ in range(n_epochs):
        for batch in torch.randperm(len(labels)).split(batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features[batch]), labels[batch]).backward()
            optimizer.step()
        yield module


def choices(rows: pd.DataFrame) -> pd.DataFrame:
    """What each law, each reading and hold-out keep of each training, one row for each."""
    kept = []
    for (data, noise, seed), one in rows.groupby(["data", "noise", "seed"], sort=False):
        for law in (*CHOOSING, "hold-out"):
            name, of = ("test error, hold-out", -one[law]) if law == "hold-out" else ("test error", one[f"U, {law}"])
            errors, u = one[name].to_numpy(), of.to_numpy()
            common = {"data": data, "noise": noise, "seed": seed, "last": errors[-1], "best": errors.min()}
            largest, early = int(u.argmax()), keep_by_patience(u.tolist(), PATIENCE)
            at = {"epoch": largest, "error": errors[largest], "early": early, "early error": errors[early]}
            both = pd.concat((of, -one[name]), axis=1)
            ways = {"rank": both, "changes": both.diff(), "trend": both.rolling(AROUND).mean()}
            at |= {way: float(part.corr(method="spearman").iloc[0, 1]) for way, part in ways.items()}
            kept.append({"law": law} | common | at)
    return pd.DataFrame(kept)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """-U by each law (dotted: at x) and test error (dashed: hold-out's network), means over the seeds and ranges."""
    groups = dict(list(rows.groupby("noise")))
    figure, axes = plt.subplots(len(groups), 5, figsize=(20, 3.4 * len(groups)), squeeze=False, layout="constrained")
    for (noise, group), line in zip(groups.items(), axes, strict=True):
        panels = {"test error": "tab:red"} | {f"U, {law}": color for law, color in LAWS.items()}
        for axis, (name, color) in zip(line, panels.items(), strict=True):
            sign = -1 if name.startswith("U") else 1
            for column, style in {name: "-", f"{name}, at x": ":", f"{name}, hold-out": "--"}.items():
                if column in group:
                    by_epoch = group.groupby("epoch")[column]
                    values = sign * by_epoch.mean()
                    axis.plot(values, style, color=color)
                    low, high = sign * by_epoch.min(), sign * by_epoch.max()
                    axis.fill_between(values.index, low, high, color=color, alpha=0.15, linewidth=0)
            axis.set(title=f"{'-' if sign < 0 else ''}{name}; noise {noise:g}", xlabel="epoch")
    figure.savefig(path, dpi=70)
    plt.close(figure)


def report(rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Tables of means over the seeds and the figure; what each law keeps of each training."""
    kept = choices(rows)
    of_laws = kept.drop(columns=["seed", "data"]).groupby(["noise", "law"], sort=False)
    print(f"\nmeans over the seeds {rows['seed'].unique().tolist()}, then their standard errors")
    print(of_laws.mean().round(4).to_string())
    print(of_laws.sem().round(4).to_string())
    print("\nseeds in which a law's error is below hold-out's, without patience and with it")
    for name in ("error", "early error"):
        errors = kept.pivot_table(name, ["data", "noise", "seed"], "law", sort=False)
        print(errors.lt(errors.pop("hold-out"), axis=0).groupby("noise").sum().T.to_string())
    last = rows["epoch"].max()
    print(f"\nmeans at some epochs; {last} is the last one")
    at = rows[rows["epoch"].isin([20, 60, last])].drop(columns=["seed", "data"]).groupby(["noise", "epoch"])
    print(at.mean().T.round(3).to_string())
    draw(rows, path)
    return kept


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["letter"], help="tables of benchmarks/data")
    parser.add_argument("--draws", type=int, default=1, help="moves of each sample")
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
    for name, seed, noise in itertools.product(options.data, options.seeds, options.noise):
        parts.append(run(name, seed, noise, options.samples, options.max_epochs, options.draws))
        rows = pd.concat(parts, ignore_index=True)
        rows.to_csv(options.rows, index=False)
        print(choices(parts[-1]).round(4).to_string(index=False), flush=True)
    return report(rows, options.plot)


if __name__ == "__main__":
    main()
