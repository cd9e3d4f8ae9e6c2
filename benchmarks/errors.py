"""Test errors by kind of data and of labels, from the results of `quality.py`: the table in README.

python benchmarks/errors.py
"""

from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).parent / "results"
LEFT_OUT = ("quick",)  # collections
KINDS = ("tables", "images", "texts")
RULES = {
    "bu-torch": "bu-torch",
    "hold-out accuracy, 25 %": "hold-out 25 %",
    "hold-out accuracy, 10 %": "hold-out 10 %",
    "last epoch, averaged (0.97)": "last epoch, averaged",
    "last epoch": "last epoch",
    "best epoch": "best",
}


def kind_of(collection: str) -> str:
    """The sort of data, of a collection that is named after it or is of tables."""
    name = collection.partition("_")[0]
    return name if name in KINDS else "tables"


def table(results: Path = RESULTS) -> pd.DataFrame:
    """Mean test errors by rule, over all trainings of a row."""
    files = [results / f"quality-{name}.csv.gz" for name in LEFT_OUT]
    found = [pd.read_csv(file) for file in sorted(set(results.glob("quality-*.csv.gz")) - set(files))]
    rows = {}
    if found:
        errors = pd.concat(found).pivot_table(
            index=["collection", "data", "setting", "noise", "seed"], columns="rule", values="test_error"
        )[list(RULES)]
        kinds = errors.index.get_level_values("collection").map(kind_of)
        noises = errors.index.get_level_values("noise")
        for kind in KINDS:
            for said, is_part in {"clean labels": noises == "none", "wrong labels": noises != "none"}.items():
                part = errors[(kinds == kind) & is_part]
                if len(part):
                    rows[f"{kind}, {said} ({len(part)})"] = part.mean()
    return pd.DataFrame(rows, index=list(RULES)).T.rename(columns=RULES)


def main(results: Path = RESULTS) -> None:
    found = table(results)
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
