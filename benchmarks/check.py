"""What a change moves: the quick form of the quality benchmark, beside the results that are committed.

    python benchmarks/check.py
    python benchmarks/check.py --accept

Rounding differs between machines, and training amplifies it, so that a kept epoch may move. A mean excess error may
differ from the committed one by `--tolerance`. `--accept` writes the new results in place of the old ones.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd
import quality

RULES = (
    quality.OURS,
    "expected accuracy",
    "trust score",
    "boundary uncertainty",
    quality.QUARTER,
    "last epoch",
    quality.LONG_LAST,
)


def excess(file: Path) -> pd.Series:
    """Mean excess error by rule; NaN for a rule that older results lack."""
    return quality.read(file).groupby("rule").excess.mean().reindex(list(RULES))


def main(arguments: list[str] | None = None) -> bool:
    """Whether no rule has moved further than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tolerance", type=float, default=0.005, help="of a mean excess error")
    parser.add_argument("--results", type=Path, default=quality.FOLDER / "results")
    parser.add_argument("--accept", action="store_true", help="commit to the new results")
    options = parser.parse_args(arguments)
    committed = quality.file_of(quality.QUICK, options.results)
    with tempfile.TemporaryDirectory() as folder:
        quality.main(["--quick", "--results", folder])
        new = quality.file_of(quality.QUICK, Path(folder))
        if options.accept:
            shutil.copy(new, committed)
        table = pd.DataFrame({"committed": excess(committed), "now": excess(new)})
    table["moved"] = ~((table.now - table.committed).abs() <= options.tolerance)
    print(f"\nmean excess error\n{table.round(4)}")
    is_right = not table.moved.any()
    print("\nNothing has moved." if is_right else f"\nMoved by more than {options.tolerance}: see above.")
    return is_right


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
