"""Test errors by kind of data, from the results of the other benchmarks: the table in README.

python benchmarks/errors.py
"""

import json
from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).parent / "results"
KINDS = {"tables": ["quality", "quality-unseen", "quality-keel"], "images": ["images"], "texts": ["text"]}
RULES = {
    "default": "bu-torch",
    "hold-out accuracy": "hold-out",
    "last epoch, average": "last epoch, averaged",
    "last epoch": "last epoch",
    "best in hindsight": "best",
}


def cases(names: list[str]) -> pd.DataFrame:
    """One row a training and rule."""
    return pd.concat([pd.DataFrame(json.loads((RESULTS / f"{name}.json").read_text())["cases"]) for name in names])


def table() -> pd.DataFrame:
    rows = {}
    for kind, names in KINDS.items():
        found = cases(names)
        for noise, part in found.groupby("noise"):
            labels = "clean labels" if noise == 0 else f"{noise:.0%} label noise"
            n_trainings = (part["rule"] == "default").sum()
            rows[f"{kind}, {labels} ({n_trainings})"] = part.groupby("rule")["test_error"].mean()[list(RULES)]
    return pd.DataFrame(rows).T.rename(columns=RULES)


def main() -> None:
    found = table()
    print("| data (trainings) | " + " | ".join(found) + " |")
    print("|---" * (len(found.columns) + 1) + "|")
    for name, row in found.iterrows():
        least = row.drop("best").round(3).min()
        cells = [
            f"**{value:.3f}**" if rule != "best" and round(value, 3) == least else f"{value:.3f}"
            for rule, value in row.items()
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
