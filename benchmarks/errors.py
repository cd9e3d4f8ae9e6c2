"""Test errors by kind of data and of labels, from the results of `quality.py` and `finetune.py`: the table in README.

python benchmarks/errors.py
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

RESULTS = Path(__file__).parent / "results"
LEFT_OUT = ("quick", "fresh", "seven", "images_unseen")  # collections
KINDS = {
    "tables": "tables",
    "business": "tables with a rare class",
    "images": "images",
    "people": "images, labels of people",
    "strong": "images, strong augmentation",
    "texts": "texts",
    "distant": "titles, labels by word lists",
}
RULES = {
    "bu-torch": "bu-torch",
    "hold-out accuracy, 25 %": "hold-out 25 %",
    "hold-out accuracy, 10 %": "10 %",
    "refit, 20 %": "refit 20 %",
    "last epoch, averaged (0.97)": "last, averaged",
    "last epoch": "last",
    "best epoch": "best",
}
FINE_TUNING = {
    "default": "bu-torch",
    "hold-out accuracy": "hold-out 25 %",
    "averaged last": "last, averaged",
    "last": "last",
    "best": "best",
}
EPOCHS = "epochs: bu-torch, hold-out"


def kind_of(collection: str, noise: str) -> str:
    """The sort of data, of a collection that is named after it or is of tables; clean labels are of no other kind."""
    name = collection.partition("_")[0]
    if noise == "none":
        name = {"people": "images", "distant": "texts"}.get(name, name)
    return name if name in KINDS else "tables"


def table(results: Path = RESULTS) -> pd.DataFrame:
    """Mean test errors by rule, and epochs that were trained, over all trainings of a row."""
    files = [results / f"quality-{name}.csv.gz" for name in LEFT_OUT]
    found = [pd.read_csv(file) for file in sorted(set(results.glob("quality-*.csv.gz")) - set(files))]
    rows = {}
    if found:
        wide = pd.concat(found).pivot_table(
            index=["collection", "data", "setting", "noise", "seed", "epochs"],
            columns="rule",
            values=["test_error", "epochs_run"],
        )
        collections, noises, planned = (wide.index.get_level_values(name) for name in ("collection", "noise", "epochs"))
        kinds = np.array([kind_of(*pair) for pair in zip(collections, noises, strict=True)])
        for kind, title in KINDS.items():
            for said, is_part in {"clean": noises == "none", "wrong": noises != "none"}.items():
                is_of_row = (kinds == kind) & is_part
                if not is_of_row.any():
                    continue
                part = wide[is_of_row]
                ran = part["epochs_run"].mean()
                epochs = f"{ran['bu-torch']:.0f}, {ran['hold-out accuracy, 25 %']:.0f} of {planned[is_of_row][0]}"
                means = part["test_error"].mean(skipna=False).reindex(list(RULES)).rename(RULES)
                rows[f"{title}, {said} ({len(part)})"] = {**means, EPOCHS: epochs}
    rows |= fine_tuned(results / "finetune.json")
    return pd.DataFrame(rows).T


def fine_tuned(file: Path) -> dict[str, dict[str, Any]]:
    """The same of pretrained networks, all of which are trained to the last epoch."""
    if not file.exists():
        return {}
    runs = json.loads(file.read_text())["rows"]
    cases = pd.DataFrame([run["case"] for run in runs])
    errors = pd.DataFrame([run["errors"] for run in runs]).rename(columns=FINE_TUNING).reindex(columns=RULES.values())
    n_epochs = cases["epochs"].max()
    return {
        f"pretrained networks, {said} ({is_part.sum()})": {
            **errors[is_part].mean(skipna=False),
            EPOCHS: f"{n_epochs}, {n_epochs} of {n_epochs}",
        }
        for said, is_part in {"clean": cases["noise"] == 0, "wrong": cases["noise"] > 0}.items()
    }


def main(results: Path = RESULTS) -> None:
    found = table(results)
    names = [*RULES.values(), EPOCHS]
    print("| data (trainings) | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for name, row in found.iterrows():
        errors = row[list(RULES.values())].astype(float)
        cells = ["" if pd.isna(value) else f"{round(value, 6):.3f}" for value in errors]
        least = min(cell for cell, rule in zip(cells, errors.index, strict=True) if cell and rule != "best")
        bold = [cell == least and rule != "best" for cell, rule in zip(cells, errors.index, strict=True)]
        shown = [f"**{cell}**" if is_bold else cell for cell, is_bold in zip(cells, bold, strict=True)]
        print(f"| {name} | {' | '.join([*shown, row.iloc[-1]])} |")


if __name__ == "__main__":
    main()
