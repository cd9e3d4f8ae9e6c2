"""How near is that to the best that anyone could choose? bu-torch beside a choice by half of the test samples.

    python benchmarks/oracle.py tables
    python benchmarks/oracle.py fresh --folder FOLDER    # of tables, as `keel.py` fills it

Trains as `quality.py` does, and splits the test samples into halves, a hundred times. The oracle keeps the average with
the least error on one half, whose labels are right and in no training. All rules are then judged on the other half:
their test error there minus that of the best epoch there. The best epoch has been lucky, too, so no rule reaches 0.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import training
from noise import KINDS as NOISES
from quality import LAST, OURS, QUARTER, RULES, SETTINGS, Unit, begin_process, units
from tables import FOLDER
from torch.multiprocessing import get_context
from training import AVERAGE, PATIENCE, first_largest

N_SPLITS = 100
HITS = "hits"  # a column: of each test sample, whether it is predicted right
ORACLE, STOPPED = "half of the test samples", f"half of the test samples, patience {PATIENCE}"
BEST = "best average in hindsight"
look = training.look


def look_at_each(*given: Any) -> dict[str, Any]:
    """What `training.look` gives, and the hits."""
    member, (inputs, labels), *_ = given
    return look(*given) | {HITS: (training.read(member, inputs).argmax(dim=1) == labels).numpy()}


def run(unit: Unit, curves: Path) -> list[dict[str, Any]]:
    """The excess of each rule in the trainings of a unit, mean over the splits; `quality.py` finds the curves."""
    begin_process()
    training.look = look_at_each
    rows = []
    for noise, record in zip(unit.noises, unit.run(), strict=True):
        about = {"data": Path(unit.data).name.partition(".csv")[0], "setting": unit.setting, "noise": noise}
        rows.append(about | {"seed": unit.seed} | judge(record))
        plain = {
            part: {name: column for name, column in columns.items() if not name.endswith(HITS)}
            for part, columns in record.items()
        }
        unit.file(curves, noise).write_text(json.dumps(plain))
    print(f"{unit.data} {unit.setting} {unit.seed}", flush=True)
    return rows


def judge(record: dict[str, Any]) -> dict[str, float]:
    weights, averages = (np.array(record["all"][prefix + HITS]) for prefix in ("", AVERAGE))
    kept = {rule: np.array(RULES[rule](record, HITS)) for rule in (OURS, QUARTER, LAST)}
    generator, found = np.random.default_rng(0), []
    for _ in range(N_SPLITS):
        first, second = np.array_split(generator.permutation(averages.shape[1]), 2)
        known, errors = averages[:, first].mean(axis=1), 1 - averages[:, second].mean(axis=1)
        each = {rule: 1 - hits[second].mean() for rule, hits in kept.items()}
        each |= {ORACLE: errors[known.argmax()], STOPPED: errors[first_largest(list(known))[0]], BEST: errors.min()}
        found.append(pd.Series(each) - (1 - weights[:, second].mean(axis=1).max()))
    return dict(pd.concat(found, axis=1).mean(axis=1))


def show(rows: pd.DataFrame) -> None:
    """Print mean excesses, and the paired difference to the oracle with its standard error over data sets."""
    pd.set_option("display.width", 200)
    rules = [OURS, ORACLE, STOPPED, QUARTER, LAST, BEST]
    labels = np.where(rows.noise == "none", "clean labels", "wrong labels")
    for name, part in [*rows.groupby(labels), *rows.groupby("noise")]:
        by_set = part.groupby("data")[rules].mean()
        apart = by_set.rsub(by_set[OURS], axis=0)
        table = pd.DataFrame({"excess": by_set.mean(), "ours - it": apart.mean(), "error": apart.sem()})
        print(f"\n{name}, {len(part)} trainings of {len(by_set)} data sets\n{table.round(4).to_string()}")


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", choices=("tables", "others", "business", "seven", "fresh"))
    parser.add_argument("--show", action="store_true", help="train nothing, show the saved results")
    parser.add_argument("--folder", type=Path, help="of tables, as `keel.py` fills it")
    parser.set_defaults(tables=None, emoji=None)
    parser.add_argument("--settings", nargs="+", default=["rmsprop", "adamw"], choices=list(SETTINGS))
    parser.add_argument("--noise", nargs="+", default=list(NOISES), choices=list(NOISES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--curves", type=Path, default=FOLDER / "data" / "curves", help="as in `quality.py`")
    options = parser.parse_args(arguments)
    file = options.results / f"oracle-{options.collection}.csv"
    if not options.show:
        with get_context("spawn").Pool(options.processes) as pool:
            options.curves.mkdir(parents=True, exist_ok=True)
            found = pool.imap(partial(run, curves=options.curves), units(options.collection, options))
            rows = pd.DataFrame([row for each in found for row in each])
        rows.round(6).to_csv(file, index=False)
    rows = pd.read_csv(file)
    show(rows)
    return rows


if __name__ == "__main__":
    main()
