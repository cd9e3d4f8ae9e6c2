"""Why the rules keep what they keep: each signal, and what its settings do, beside the test error over the epochs.

Every case is one Lightning training with RMSprop, on all labels of a table's training half. After each epoch all
variants of the signals are read: other radii and numbers of perturbations, cluster sizes, trust with and without the
own sample and with filtering. A variant is judged by two numbers: the Spearman correlation of its curve with the test
accuracy over the epochs, and the excess error of the epoch where it is largest (patience 20) as a ratio to the excess
of hold-out accuracy. Two made-up tables, where nearest neighbours mislead, stand apart.

    python benchmarks/why.py --quick
    python benchmarks/why.py
"""

import argparse
import dataclasses
import itertools
import json
import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import tables
import torch
from fitting import Case, Classifier, Curves, Record, fit, recall, test_error, train_part
from tables import Split
from torch import Tensor
from torch.multiprocessing import get_context
from training import first_largest

from bu_torch import LabelProbabilities, LabelVotes, ParzenUncertainty, TrustScore, functional

RADII = (0.5, 1.0, 2.0)
DRAWS = (1, 2, 4, 8)
CLUSTERS = (10, 20, 40, 80)
HARD = ("ring", "tic_tac_toe")  # made up here
GROUPS = {
    "signal": ("expected accuracy", "boundary uncertainty", "trust score", "label agreement", "vote agreement",
               "steadiness", "training loss"),
    "radius of the perturbation": tuple(
        f"{name}, radius {radius:g}" for name in ("U", "label agreement", "vote agreement", "trust")
        for radius in RADII
    ),
    "draws": tuple(f"{name}, draws {n}" for name in ("U", "vote agreement", "trust") for n in DRAWS),
    "cluster size M": tuple(f"{name}, M {m}" for name in ("Parzen U", "vote agreement") for m in CLUSTERS),
    "own sample in trust": ("trust, own sample in", "trust, own sample out"),
    "filtering of trust, own sample out": ("trust, none", "trust, density 10 %", "trust, disagreement 10 %",
                                           "trust, disagreement 20 %"),
    "votes": ("decay 0", "decay 1", "decay 2", "decay chosen", "own label alone"),
    "what is expected": ("votes alone", "regression alone", "both, mixed", "regression, own sample out"),
}  # fmt: skip


def tic_tac_toe() -> Split:
    """All boards at the end of a game that x began, in 27 indicators; class 1 where x has won."""
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    ends: dict[tuple[int, ...], int] = {}

    def play(board: tuple[int, ...], player: int) -> None:
        won = [board[a] for a, b, c in lines if board[a] and board[a] == board[b] == board[c]]
        if won or all(board):
            ends[board] = int(1 in won)
            return
        for place in (place for place in range(9) if not board[place]):
            play((*board[:place], player, *board[place + 1 :]), 3 - player)

    play((0,) * 9, 1)
    boards = torch.tensor(sorted(ends))
    return torch.nn.functional.one_hot(boards, 3).flatten(1).float(), torch.tensor([ends[b] for b in sorted(ends)])


def ring(n_samples: int = 3000) -> Split:
    """Breiman's ringnorm: a narrow normal distribution within a wide one, in 20 features."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n_samples) % 2
    noise = torch.randn(n_samples, 20, generator=generator)
    return torch.where(labels.unsqueeze(1) == 0, 2 * noise, noise + 2 / 20**0.5), labels


@dataclasses.dataclass
class Reference:
    """The samples, moved once for all epochs, and what each variant of a signal needs."""

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        n_samples = len(self.labels)
        self.clusters = [m for m in CLUSTERS if m <= n_samples]
        self.boundary = {m: ParzenUncertainty(m, max(DRAWS)).fit(self.inputs, self.labels) for m in self.clusters}
        moved = self.boundary[40].perturbed_inputs.float()
        self.points = {radius: (self.inputs + radius * (moved - self.inputs)).flatten(0, 1) for radius in RADII}
        own = torch.arange(n_samples).repeat(max(DRAWS))
        self.distances: dict[str, Tensor] = {}
        trust = TrustScore().fit(self.inputs, self.labels)
        for radius in RADII:
            self.distances[f"out, {radius:g}"] = trust.class_distances(self.points[radius], own)
        self.distances["in"] = trust.class_distances(self.points[1.0])
        for name, filtering, alpha in (
            ("density 10 %", "density", 0.1),
            ("disagreement 10 %", "disagreement", 0.1),
            ("disagreement 20 %", "disagreement", 0.2),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # small classes keep all their samples
                trust = TrustScore(filtering, alpha).fit(self.inputs, self.labels)
            self.distances[name] = trust.class_distances(self.points[1.0], own)
        neighbors = {m: boundary.neighbors for m, boundary in self.boundary.items()}
        fitted = {m: LabelVotes().fit(self.labels, neighbors[m]) for m in self.clusters}
        self.votes = {f"M {m}": votes.votes for m, votes in fitted.items()}
        self.votes |= {f"decay {d}": functional.label_votes(self.labels, neighbors[40], d) for d in (0, 1, 2)}
        both = LabelProbabilities().fit(self.inputs, self.labels, neighbors[40])
        read = [(radius, 4) for radius in RADII] + [(1.0, n) for n in DRAWS]
        self.probabilities = {key: both.predict_proba(self.points[key[0]][: key[1] * n_samples]) for key in read}
        perturbed = self.points[1.0][: 4 * n_samples]
        self.expected = {
            "votes alone": both.votes.votes.repeat(4, 1),
            "regression alone": both.regression.predict_proba(perturbed),
            "both, mixed": self.probabilities[1.0, 4],
            "regression, own sample out": both.regression.left_out.repeat(4, 1),
        }

    def measure(self, module: torch.nn.Module, before: Tensor | None) -> tuple[dict[str, float], Tensor]:
        logits = {radius: torch.cat([module(part) for part in self.points[radius].split(8000)]) for radius in RADII}
        n_samples, labels = len(self.labels), self.labels
        four = 4 * n_samples
        predictions = {radius: logits[radius].argmax(dim=1) for radius in RADII}

        def uncertainty(radius: float, n_draws: int) -> float:
            read = logits[radius][: n_draws * n_samples]
            return float(functional.boundary_uncertainty(read, self.probabilities[radius, n_draws]))

        def trust(distances: str, classes: Tensor) -> Tensor:
            table = self.distances[distances][: len(classes)]
            return functional.trust_score(table, classes)

        first = predictions[1.0][:four]
        row = {
            "trust score": float(functional.mean_trust_score(trust("out, 1", first))),
            "steadiness": -1.0 if before is None else -float((first != before).float().mean()),
        }
        for radius in RADII:
            classes = predictions[radius][:four]
            row[f"U, radius {radius:g}"] = uncertainty(radius, 4)
            row[f"label agreement, radius {radius:g}"] = float((classes == labels.repeat(4)).float().mean())
            row[f"vote agreement, radius {radius:g}"] = float(functional.expected_accuracy(self.votes["M 40"], classes))
            row[f"trust, radius {radius:g}"] = float(functional.mean_trust_score(trust(f"out, {radius:g}", classes)))
        for n in DRAWS:
            classes = predictions[1.0][: n * n_samples]
            row[f"U, draws {n}"] = uncertainty(1.0, n)
            row[f"vote agreement, draws {n}"] = float(functional.expected_accuracy(self.votes["M 40"], classes))
            row[f"trust, draws {n}"] = float(functional.mean_trust_score(trust("out, 1", classes)))
        for m in self.clusters:
            row[f"Parzen U, M {m}"] = float(self.boundary[m].score_logits(logits[1.0]))
            row[f"vote agreement, M {m}"] = float(functional.expected_accuracy(self.votes[f"M {m}"], first))
        for name, key in (("in", "in"), ("out", "out, 1")):
            row[f"trust, own sample {name}"] = float(functional.mean_trust_score(trust(key, first)))
        row["trust, none"] = row["trust, own sample out"]
        for name in ("density 10 %", "disagreement 10 %", "disagreement 20 %"):
            row[f"trust, {name}"] = float(functional.mean_trust_score(trust(name, first)))
        for name in ("decay 0", "decay 1", "decay 2"):
            row[name] = float(functional.expected_accuracy(self.votes[name], first))
        for name, probabilities in self.expected.items():
            row[name] = float(functional.expected_accuracy(probabilities, first))
        row["expected accuracy"] = row["both, mixed"]
        row["boundary uncertainty"] = row["U, radius 1"]
        row["decay chosen"] = row["vote agreement"] = row["vote agreement, radius 1"]
        row["own label alone"] = row["label agreement"] = row["label agreement, radius 1"]
        return row, first


class Variants(L.Callback):
    """All variants of the signals, and the test error, after each epoch."""

    def __init__(self, reference: Reference, test: Split) -> None:
        self.reference, self.test = reference, test
        self.rows: list[dict[str, float]] = []
        self.before: Tensor | None = None

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        row, self.before = self.reference.measure(pl_module, self.before)
        row["training loss"] = -float(trainer.callback_metrics["train_loss"])
        row["test_error"] = test_error(pl_module, self.test)
        self.rows.append(row)


def load(case: Case) -> tuple[Split, Split, int]:
    makers: dict[str, Callable[[], Split]] = {"ring": ring, "tic_tac_toe": tic_tac_toe}
    samples = makers[case.table]() if case.table in makers else tables.read_table(case.table)
    return tables.prepare(*samples, case.seed, case.noise)


def classifier(split: Split, n_classes: int) -> Classifier:
    net = tables.mlp(128, 64)(split[0].shape[1:], n_classes)
    return Classifier(net, partial(torch.optim.RMSprop, lr=1e-3))


def train_held_out(case: Case, split: Split, held_out: Split, test: Split, n_classes: int) -> Curves:
    L.seed_everything(case.seed, verbose=False)
    curves = Curves(test)
    fit(classifier(split, n_classes), split, case.epochs, [curves], held_out)
    return curves


def run(case: Case) -> Record:
    """Curves of all variants, and of a hold-out set in a second training."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "bu_torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    split, test, n_classes = load(case)
    L.seed_everything(case.seed, verbose=False)
    variants = Variants(Reference(*split), test)
    fit(classifier(split, n_classes), split, case.epochs, [variants])
    columns = {name: [row[name] for row in variants.rows] for name in variants.rows[-1]}
    part = train_part(case, split, partial(train_held_out, case, test=test, n_classes=n_classes))
    return {"case": dataclasses.asdict(case), "all": columns, "part": part.columns()}


def judge(records: list[Record]) -> pd.DataFrame:
    """One row a case, group and variant: correlation with the test accuracy, and excess error of the kept epoch."""
    rows = []
    for record in records:
        curves = record["all"]
        errors = np.array(curves["test_error"])
        held = first_largest(record["part"]["val_accuracy"])[0]
        common = {
            **record["case"],
            "hold-out": record["part"]["test_error"][held] - errors.min(),
            "last": errors[-1] - errors.min(),
        }
        for group, names in GROUPS.items():
            for name in (name for name in names if name in curves):
                ranks = pd.DataFrame({"signal": curves[name], "accuracy": -errors}).iloc[2:].corr(method="spearman")
                kept = first_largest(curves[name])[0]
                rows.append(
                    {**common, "group": group, "variant": name, "correlation": ranks.iloc[0, 1],
                     "excess": errors[kept] - errors.min()}
                )  # fmt: skip
    return pd.DataFrame(rows)


def summarise(judged: pd.DataFrame) -> pd.DataFrame:
    """Mean correlation and mean excess as a ratio to hold-out's, for each share of label noise."""
    means = judged.groupby(["group", "variant", "noise"], sort=False)[["correlation", "excess", "hold-out"]].mean()
    means["/ hold-out"] = means.excess / means["hold-out"]
    return means[["correlation", "/ hold-out"]].unstack("noise")


def plot_signals(records: list[Record], shown: list[tuple[str, float]], path: Path) -> None:
    """Test error over the epochs, U and trust beside it, and what each keeps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.style.use(Path(__file__).parents[1] / "docs" / "pictures.mplstyle")

    by_case = {(record["case"]["table"], record["case"]["noise"]): record["all"] for record in records}
    shown = [key for key in shown if key in by_case]
    figure, axes = plt.subplots(
        2, len(shown), figsize=(4 * len(shown), 5.5), layout="constrained", sharex=True, squeeze=False
    )
    names = {"boundary uncertainty": "tab:blue", "trust score": "tab:orange"}
    for (table, noise), (top, bottom) in zip(shown, axes.T, strict=True):
        curves = by_case[table, noise]
        top.plot(curves["test_error"], color="black", linewidth=1)
        kept = {name: first_largest(curves[name])[0] for name in names}
        kept["expected accuracy"] = first_largest(curves["expected accuracy"])[0]
        for (name, epoch), color in zip(kept.items(), (*names.values(), "tab:green"), strict=True):
            top.plot(epoch, curves["test_error"][epoch], "o", color=color, label=f"kept by {name}")
        top.set(title=f"{table}, label noise {noise:.0%}", ylabel="test error")
        bottom.plot(curves["boundary uncertainty"], color="tab:blue")
        bottom.set(xlabel="epoch")
        bottom.set_ylabel("U", color="tab:blue")
        twin = bottom.twinx()
        twin.plot(curves["trust score"], color="tab:orange")
        twin.set_ylabel("trust score", color="tab:orange")
        top.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_variants(summary: pd.DataFrame, path: Path) -> None:
    """Correlation of each variant with the test accuracy, one panel a group."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.style.use(Path(__file__).parents[1] / "docs" / "pictures.mplstyle")

    groups = list(dict.fromkeys(summary.index.get_level_values("group")))
    figure, axes = plt.subplots(len(groups), 1, figsize=(8, 0.3 * len(summary) + 3), layout="constrained", sharex=True,
        height_ratios=[len(summary.loc[group]) + 1 for group in groups])  # fmt: skip
    for axis, group in zip(axes, groups, strict=True):
        rows = summary.loc[group]["correlation"].dropna()
        for noise, color in zip(rows.columns, ("tab:blue", "tab:red"), strict=False):
            axis.scatter(rows[noise], range(len(rows)), color=color, label=f"label noise {noise:.0%}")
        axis.set(yticks=range(len(rows)), yticklabels=rows.index, ylim=(len(rows) - 0.5, -0.5))
        axis.set_title(group, loc="left", fontsize="medium")
        axis.axvline(0, color="gray", linewidth=0.5)
        axis.grid(axis="y", linewidth=0.3)
    axes[0].legend(fontsize="small")
    axes[-1].set(xlabel="Spearman correlation with the test accuracy over the epochs, mean over tables")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three small tables, 40 epochs")
    parser.add_argument("--tables", nargs="+", default=(*tables.TABLES, *HARD), choices=(*tables.TABLES, *HARD))
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=tables.FOLDER / "results")
    parser.add_argument("--curves", type=Path, help="keep all curves in this folder, and use again those it holds")
    options = parser.parse_args(arguments)
    if options.quick:
        options.tables, options.epochs = ("banknote", "ionosphere", "tic_tac_toe"), 40
    cases = [
        Case(table, noise, seed, "rmsprop", options.epochs)
        for seed, noise, table in itertools.product(range(options.seeds), (0.0, 0.2), options.tables)
    ]
    with get_context("spawn").Pool(options.processes) as pool:
        records = list(pool.imap(partial(recall, folder=options.curves, run=run, kind="why"), cases))
    judged = judge(records)
    is_hard = judged.table.isin(HARD)
    summary = summarise(judged[~is_hard])
    by_table = judged[judged.group == "signal"].pivot_table(
        index=["table", "noise"], columns="variant", values="excess", sort=False
    )
    by_table = by_table.join(judged.groupby(["table", "noise"])[["hold-out", "last"]].mean())
    options.results.mkdir(parents=True, exist_ok=True)
    name = "why-quick" if options.quick else "why"
    content = {
        "environment": tables.environment(),
        "summary": json.loads(summary.to_json(orient="split")),
        "excess": json.loads(by_table.to_json(orient="split")),
    }
    (options.results / f"{name}.json").write_text(json.dumps(content))
    shown = [("ionosphere", 0.2), ("banknote", 0.2), ("german", 0.2), ("tic_tac_toe", 0.0)]
    shown = [case for case in shown if case[0] in options.tables]
    plot_signals(records, shown, options.results / f"{name}-signals.png")
    plot_variants(summary, options.results / f"{name}-variants.png")
    with pd.option_context("display.width", 250, "display.max_columns", None, "display.max_rows", None,
        "display.precision", 3):  # fmt: skip
        print(summary, "\nExcess error of the epoch that each signal keeps", by_table, sep="\n")


if __name__ == "__main__":
    main()
