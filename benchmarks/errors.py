"""The tables of results in README, docs/limits.md and docs/choosing-checkpoints.md, from what `quality.py` has saved.

For each kind of data and labels: the mean test error of bu-torch over data sets, the share of the planned epochs that
it trained, and how much larger the error of other methods is, with a 90 % bootstrap interval over data sets. Then the
excess of bu-torch as a share of another's by labels and collections, the mean excess of each method, and how near the
best epoch the choices of each verdict are.

    python benchmarks/errors.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
from quality import APART, CHOSEN_ON, LONG_LAST, OF_ROWS, OURS, QUARTER, file_of, read, source_of, summarise
from tables import FOLDER

from bu_torch.run.history import Word

RESULTS = FOLDER / "results"
METHODS = {
    "hold-out accuracy, 25 %, averaged": "hold-out by accuracy",
    "hold-out loss, 25 %, averaged": "hold-out by loss",
    "hold-out accuracy, 25 %, then retrained on all, averaged": "refit",
    "last epoch, averaged (0.97)": "last epoch",
}
N_BOOTSTRAP = 2000
NOISES = {
    "none": "clean",
    "uniform-0.2": "20 % at random",
    "pairs-0.2": "20 % a nearby class",
    "pairs-0.4": "40 % a nearby class",
    "hard-0.2": "20 % where labels are hard to tell",
}
# Rows by collection: the kinds of labels that each of them counts.
COLLECTIONS = (
    ("people", ("aggregate", "random1", "worst"), "by people, images"),
    ("distant", ("distant",), "by lists of words, titles"),
    ("images", ("none",), "clean, images"),
    ("images", ("uniform-0.2",), "20 % at random, images"),
    ("texts", ("none",), "clean, texts"),
    ("texts", ("uniform-0.2", "pairs-0.2", "hard-0.2"), "wrong, texts"),
    ("business", ("none",), "clean, tables with a rare class"),
    ("business", ("uniform-0.2",), "20 % at random, tables with a rare class"),
)
SCORES = {
    OURS: "**bu-torch**",
    "accuracy, uncertainty and trust, no average": "without an average of weights",
    "accuracy and trust": "accuracy and trust",
    "expected accuracy": "expected accuracy",
    "trust score": "trust score",
    "boundary uncertainty": "boundary uncertainty",
    "hold-out accuracy, 25 %, averaged": "hold-out 25 % by accuracy, averaged",
    "hold-out loss, 25 %, averaged": "hold-out 25 % by loss, averaged",
    "hold-out accuracy, 25 %, then retrained on all, averaged": "refit, 25 %, averaged",
    "Label Wave, patience 10": "Label Wave, patience 10",
    "gradient disparity, five in all": "gradient disparity, five in all",
    LONG_LAST: "last epoch, averaged",
    "last epoch": "last epoch",
}


def together(results: Path) -> pd.DataFrame:
    """All saved rows but those of collections that stand apart."""
    return read(*sorted(set(results.glob("quality-*.csv.gz")) - {file_of(name, results) for name in APART}))


def kinds(rows: pd.DataFrame) -> list[np.ndarray]:
    kind = np.where(rows.collection.isin(OF_ROWS), "tables", "images and texts")
    return [kind, np.where(rows.noise == "none", "clean", "wrong")]


def errors(results: Path = RESULTS) -> pd.DataFrame:
    """Test error of bu-torch, and how much larger that of other methods is."""
    rows, found = together(results), {}
    for (name, label), part in rows.groupby(kinds(rows)):
        by_set = part.pivot_table(index=part.data.map(source_of), columns="rule", values="test_error")
        more = by_set[list(METHODS)].sub(by_set[OURS], axis=0).to_numpy()
        drawn = np.random.default_rng(0).integers(0, len(more), (N_BOOTSTRAP, len(more)))
        low, high = np.quantile(more[drawn].mean(axis=1), [0.05, 0.95], axis=0)
        shown = (np.round([more.mean(axis=0), low, high], 3) + 0.0).T  # without -0.000
        cells = [f"{mean:+.3f} ({least:+.3f} to {most:+.3f})" for mean, least, most in shown]
        ours = part[part.rule == OURS]
        found[f"{name}, {label} labels ({len(ours)} trainings)"] = {
            "bu-torch": f"{by_set[OURS].mean():.3f}",
            "epochs": f"{(ours.epochs_run / ours.epochs).mean():.0%}".replace("%", " %"),
            **dict(zip(METHODS.values(), cells, strict=True)),
        }
    return pd.DataFrame(found).T.iloc[::-1].rename_axis("data")


def ratios(results: Path = RESULTS) -> pd.DataFrame:
    """Excess of bu-torch as a share of that of the last epoch and of a hold-out set, by labels and collections."""
    rows = together(results)
    parts = {name: rows[rows.noise == noise] for noise, name in NOISES.items()}
    for collection, noises, name in COLLECTIONS:
        parts[name] = rows[(rows.collection == collection) & rows.noise.isin(noises)]
    counted = {f"{name} ({int((part.rule == OURS).sum())})": part for name, part in parts.items()}
    return shares_of_two(counted).rename_axis("labels (trainings)")


def fresh_ratios(results: Path = RESULTS) -> pd.DataFrame:
    """The same on the tables that nothing was chosen on, by labels."""
    rows = read(file_of("fresh", results))
    parts = {name: rows[rows.noise == noise] for noise, name in NOISES.items()}
    n_each = int((rows.rule == OURS).sum()) // len(parts)
    return shares_of_two(parts).rename_axis(f"labels ({n_each} trainings each)")


def shares_of_two(parts: dict[str, pd.DataFrame]) -> pd.DataFrame:
    found = {}
    for name, part in parts.items():
        summary = summarise(part).loc[[LONG_LAST, QUARTER]]
        shares = summary["ours / it"].map("{:.2f}".format)
        if part.data.map(source_of).nunique() > 1:
            shares += " (" + summary["90 %"] + ")"
        found[name] = dict(zip(("last epoch", "hold-out 25 %"), shares, strict=True))
    return pd.DataFrame(found).T


def excesses(results: Path = RESULTS) -> pd.DataFrame:
    """Mean excess of each method on the tables of this repository, and on images and texts."""
    rows = together(results)
    rows = rows[(rows.collection == "tables") | ~rows.collection.isin(OF_ROWS)]
    parts = sorted(rows.groupby(kinds(rows)), key=lambda part: part[0][0] != "tables")
    found = {
        f"{kind}, {label}": summarise(part).excess.reindex(SCORES).map("{:.4f}".format) for (kind, label), part in parts
    }
    return pd.DataFrame(found).rename(SCORES).rename_axis("method")


def verdicts(results: Path = RESULTS) -> pd.DataFrame:
    """Share of the choices of each verdict that are near the best epoch, on data sets that did not set its limits."""
    rows = together(results)
    ours = rows[(rows.rule == OURS) & ~rows.collection.isin(CHOSEN_ON)]
    found = {
        f'`"{word}"`': {
            "within 0.01": f"{(part.excess <= 0.01).mean():.0%}".replace("%", " %"),
            "within 0.02": f"{(part.excess <= 0.02).mean():.0%}".replace("%", " %"),
            "trainings": str(len(part)),
        }
        for word, part in ours.groupby("word")
    }
    return pd.DataFrame(found).T.reindex([f'`"{word}"`' for word in get_args(Word)]).rename_axis("verdict")


def lines(table: pd.DataFrame) -> Iterator[str]:
    """A table as the pages have it."""
    yield f"|{table.index.name} |" + " |".join(table.columns) + "|"
    yield "|---" * (len(table.columns) + 1) + "|"
    for name, row in table.iterrows():
        yield f"|{name} |{' |'.join(row)}|"


def main() -> None:
    for table in (errors(), ratios(), fresh_ratios(), excesses(), verdicts()):
        print("\n".join(lines(table)), end="\n\n")


if __name__ == "__main__":
    main()
