"""Which epoch is kept by the metric that is meant, beside a hold-out set that decides by the same metric.

On tables of two classes a network trains on all labels; the engine checks the averages of its weights, and the epoch
of the best expected metric is kept. Another trains on 75 %, and the epoch with the best metric on the other 25 % is
kept. All wait 20 epochs for a better one. *Excess* is what is kept less than the best epoch of the weights themselves
on all labels, in hindsight, by the metric on test data; of losses it is how much more. Networks, splits and noise are
those of `quality.py`, AdamW in batches of 32.

    python benchmarks/metrics.py                      # german, banknote, breast_cancer_wisconsin, ionosphere
    python benchmarks/metrics.py --folder BUSINESS    # and the tables of two classes in a folder
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import tables
import torch
import training
from noise import corrupt
from tables import FOLDER
from training import AVERAGE, Columns, first_largest

from bu_torch.rule.rules import DEFAULT_RULE
from bu_torch.run.history import confidence_in, describe_blindness
from bu_torch.signals.metrics import METRICS, ExpectedMetric

TABLES = ("german", "banknote", "breast_cancer_wisconsin", "ionosphere")
NOISES = ("none", "uniform-0.2")
EPOCHS = 100


def train(table: str, seed: int, n_epochs: int) -> list[dict[str, Columns]]:
    """Curves of a training on all labels and of one on 75 %, for each kind of noise."""
    (inputs, labels), test, n_classes = tables.load(table, seed)
    draws = ((noise, torch.Generator().manual_seed(2000 + seed)) for noise in NOISES)
    drawn = torch.stack([corrupt(labels, inputs, n_classes, *draw) for draw in draws])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    rest, held = order.tensor_split([len(order) - len(order) // 4])
    test = (test[0][:4000], test[1][:4000])
    optimizer = partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2)
    run = partial(training.run, optimizer=optimizer, test=test, n_epochs=n_epochs, seed=seed)

    def nets() -> training.Stack:
        torch.manual_seed(seed)
        return training.Stack((inputs.shape[1], 128, 64, n_classes), len(drawn))

    of_all = run(nets(), samples=(inputs, drawn), watch={"rule": training.Everything()})
    held_out = inputs[held], drawn[:, held]
    of_rest = run(nets(), samples=(inputs[rest], drawn[:, rest]), held_out=held_out)
    return [{"all": first, "quarter": second} for first, second in zip(of_all, of_rest, strict=True)]


def judge(curves: dict[str, Columns], metric: str) -> dict[str, float]:
    """Excess by this metric of what each way keeps."""
    of_all, of_rest = curves["all"], curves["quarter"]
    sign = 1.0 if METRICS[metric].is_larger_better else -1.0
    expected = [sign * value for value in of_all[f"{AVERAGE}expected_{metric}"]]
    best = max(of_all[f"test_{metric}"])
    found = {
        "expected metric": of_all[f"{AVERAGE}test_{metric}"][first_largest(expected)[0]],
        "the default": of_all[f"{AVERAGE}test_{metric}"][first_largest(of_all[AVERAGE + DEFAULT_RULE])[0]],
        "hold-out 25 %": of_rest[f"test_{metric}"][first_largest(of_rest[f"val_{metric}"])[0]],
        "hold-out 25 %, averaged": of_rest[f"{AVERAGE}test_{metric}"][
            first_largest(of_rest[f"{AVERAGE}val_{metric}"])[0]
        ],
        "last epoch, averaged": of_all[f"{AVERAGE}test_{metric}"][-1],
    }
    excess = {name: best - value for name, value in found.items()}
    excess["word"] = word(of_all, METRICS[metric])
    truth = pd.Series(of_all[f"{AVERAGE}test_{metric}"])
    return excess | {"correlation": pd.Series(expected).corr(truth, method="spearman")}


def word(columns: Columns, metric: ExpectedMetric) -> str:
    """The word about the choice by a metric, as a summary has it."""
    kept, last = first_largest([metric.sign * value for value in columns[AVERAGE + metric.signal]])
    names = {"expected_accuracy": "expected_accuracy", metric.signal: metric.signal}
    names["standard_error"] = f"{metric.signal}_error"
    seen = [{name: columns[AVERAGE + column][epoch] for name, column in names.items()} for epoch in range(last + 1)]
    skill, alone = columns["skill"][0], columns[f"alone_{metric.name}"][0]
    blind = bool(describe_blindness(seen[kept][metric.signal], alone, "", (skill, skill), metric))
    n_samples = int(columns["n_measured"][0])
    return confidence_in(seen[kept], seen, skill, n_samples, alone, is_blind=blind, metric=metric).word


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="of tables, CSV files with a column `label`")
    parser.add_argument("--tables", nargs="+", default=TABLES, help="that are shipped")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    files = [] if options.folder is None else [str(file) for file in sorted(options.folder.glob("*.csv*"))]
    chosen = [*options.tables, *(file for file in files if int(tables.read_table(file)[1].max()) == 1)]
    rows: list[dict[str, Any]] = []
    for table, seed in itertools.product(chosen, range(options.seeds)):
        for noise, curves in zip(NOISES, train(table, seed, options.epochs), strict=True):
            about = {"data": Path(table).name.partition(".csv")[0], "noise": noise, "seed": seed}
            rows += [about | {"metric": metric} | judge(curves, metric) for metric in METRICS]
    found = pd.DataFrame(rows)
    options.results.mkdir(parents=True, exist_ok=True)
    found.round(5).to_csv(options.results / "metrics.csv", index=False)
    means = found.groupby(["metric", "noise"], sort=False).mean(numeric_only=True).drop(columns="seed")
    means["ratio to hold-out"] = means["expected metric"] / means["hold-out 25 %"]
    pd.set_option("display.width", 200, "display.max_columns", None)
    print(f"{len(found) // len(METRICS)} trainings\n{means.round(4).to_string()}")
    by_word = found["expected metric"].groupby(found["word"])
    right = {
        f"right within {most}": by_word.agg(lambda excess, most=most: (excess <= most).mean()) for most in (0.01, 0.02)
    }
    print(pd.DataFrame(right | {"trainings": by_word.size()}).round(3).to_string())
    print(json.dumps(tables.environment()))
    return found


if __name__ == "__main__":
    main()
