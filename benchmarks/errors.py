"""The table in README, from the saved results of `quality.py`.

For each kind of data and labels: the mean test error of bu-torch over data sets, the share of the planned epochs that
it trained, and how much larger the error of other methods is, with a 90 % bootstrap interval over data sets.

    python benchmarks/errors.py
"""

from pathlib import Path

import numpy as np
import pandas as pd
from quality import APART, OF_ROWS, OURS, file_of, read, source_of
from tables import FOLDER

METHODS = {
    "hold-out accuracy, 25 %, averaged": "hold-out by accuracy",
    "hold-out loss, 25 %, averaged": "hold-out by loss",
    "hold-out accuracy, 25 %, then retrained on all, averaged": "refit",
    "last epoch, averaged (0.97)": "last epoch",
}
N_BOOTSTRAP = 2000


def table(results: Path = FOLDER / "results") -> pd.DataFrame:
    rows = read(*sorted(set(results.glob("quality-*.csv.gz")) - {file_of(name, results) for name in APART}))
    kind = np.where(rows.collection.isin(OF_ROWS), "tables", "images and texts")
    labels = np.where(rows.noise == "none", "clean", "wrong")
    found = {}
    for (name, label), part in rows.groupby([kind, labels]):
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
    return pd.DataFrame(found).T.iloc[::-1]


def main() -> None:
    found = table()
    print("|data |" + " |".join(found.columns) + "|")
    print("|---" * (len(found.columns) + 1) + "|")
    for name, row in found.iterrows():
        print(f"|{name} |{' |'.join(row)}|")


if __name__ == "__main__":
    main()
