"""Prices of two classes: what the networks that are kept cost at the threshold that is named, and at the implied one.

    python benchmarks/prices.py FOLDER

An alarm costs 10, a miss 200: calibrated probabilities would need a threshold of .05. Five tables of scikit-learn's
`make_classification` have 3000 training rows, 5 % of class 1, and 21,000 test rows. FOLDER holds `mlc_churn`,
`credit_data` and `attrition`, as `rare.py` takes them. AdamW trains in batches of 32, for 100 epochs or until the rule
ends it. A hold-out set of 25 % chooses its epoch by the cost at its own best threshold, which it keeps.
"""

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import tables
import torch
from rare import BATCH, EPOCHS, PATIENCE
from sklearn.datasets import make_classification
from tables import FOLDER, Split
from torch import nn

from bu_torch import BoundaryUncertaintyStopper

COSTS = [[0.0, 10.0], [200.0, 10.0]]
IMPLIED = 10 / 200
BUSINESS = ("mlc_churn", "credit_data", "attrition")


def made_up(seed: int) -> tuple[Split, Split]:
    """A table in which one class of two is rare; features are standardised."""
    inputs, labels = make_classification(24_000, 20, n_informative=8, weights=[0.955], flip_y=0.01, random_state=seed)
    inputs = (inputs - inputs[:3000].mean(0)) / inputs[:3000].std(0)
    x, y = torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)
    return (x[:3000], y[:3000]), (x[3000:], y[3000:])


def cost(net: nn.Module, samples: Split, threshold: float) -> float:
    """Mean cost of a sample."""
    with torch.no_grad():
        offers = (net(samples[0]).softmax(dim=1)[:, 1] >= threshold).long()
    return float(torch.tensor(COSTS)[samples[1], offers].mean())


def best_threshold(net: nn.Module, samples: Split) -> float:
    grid = torch.cat((torch.linspace(0, 0.1, 51), torch.linspace(0.11, 1, 90))).tolist()
    return min(grid, key=lambda threshold: cost(net, samples, threshold))


def epochs(net: nn.Module, samples: Split, seed: int) -> Iterator[int]:
    """Train, epoch by epoch."""
    torch.manual_seed(seed)
    steps = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        for rows in torch.randperm(len(samples[1])).split(BATCH):
            steps.zero_grad()
            nn.functional.cross_entropy(net(samples[0][rows]), samples[1][rows]).backward()
            steps.step()
        yield epoch


def network(samples: Split, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return tables.mlp(128, 64)(samples[0].shape[1:], 2)


def costs_of(samples: Split, test: Split, seed: int) -> dict[str, float]:
    """Cost of a test sample by each way."""
    found = {}
    for name, options in (("the default", {}), ("prices", {"metric": COSTS})):
        net, stopper = network(samples, seed), BoundaryUncertaintyStopper(*samples, patience=PATIENCE, **options)
        for epoch in epochs(net, samples, seed):
            if stopper.check(net, epoch):
                break
        stopper.restore(net)
        found[f"{name}, implied threshold"] = cost(net, test, IMPLIED)
    named = stopper.summary["threshold"]
    found["prices, named threshold"] = cost(net, test, IMPLIED if named is None else named)
    found |= {"named": named, "word": stopper.summary["word"], "expected": stopper.summary["expected_cost"]}
    order = torch.randperm(len(samples[1]), generator=torch.Generator().manual_seed(seed))
    rest, held = (tuple(part[rows] for part in samples) for rows in order.tensor_split([3 * len(order) // 4]))
    net, best = network(rest, seed), (float("inf"), 0, None)
    for epoch in epochs(net, rest, seed):
        threshold = best_threshold(net, held)
        if (value := cost(net, held, threshold)) < best[0]:
            best, kept = (value, epoch, threshold), copy.deepcopy(net)
        elif epoch - best[1] >= PATIENCE:
            break
    return found | {"hold-out 25 %": cost(kept, test, best[2])}


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="of each table in the folder")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    todo = [(f"made up {seed}", 0, *made_up(seed)) for seed in range(5)]
    for table in BUSINESS:
        for seed in range(options.seeds):
            samples, test, _ = tables.load(str(options.folder / f"{table}.csv.gz"), seed)
            todo.append((table, seed, samples, test))
    rows = []
    for data, seed, samples, test in todo:
        rows.append({"data": data, "seed": seed} | costs_of(samples, test, seed))
        print(data, seed, file=sys.stderr, flush=True)
    frame = pd.DataFrame(rows)
    frame.round(4).to_csv(options.results / "prices.csv", index=False)
    print(frame.round(3).to_string())
    frame["ratio"] = frame["prices, named threshold"] / frame["prices, implied threshold"]
    for name, part in frame.groupby(frame.data.str.startswith("made up").map({True: "made up", False: "business"})):
        ways = [way for way in part if way.startswith(("the default", "prices", "hold-out"))]
        print(f"\n{name}: {part[ways].mean().round(3).to_dict()}")
        mean = part.ratio.prod() ** (1 / len(part))
        print(f"named / implied: geometric mean {mean:.3f}, largest {part.ratio.max():.3f}")
    return frame


if __name__ == "__main__":
    main()
