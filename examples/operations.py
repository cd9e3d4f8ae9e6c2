"""Counted operations of Proposal 2 against Proposal 1: Table 3.

Ha et al. (2021), sections 5 and 6.10: what a score costs beyond what all classifiers share, in additions,
multiplications, comparisons, exponentials and rows classified. Here the operations are those that torch carries out, an
elementwise one counted once for each entry it makes, a sum or an extremum once for each entry it takes; moving data is
not counted, nor what happens inside the classifier. The nearest sample of an anchor is searched among all, d additions
and multiplications a distance. The paper does not count but estimates, from as many anchors as samples, 20 halvings, 10
clusterings of 20 steps, M = 40 and a search that looks at log2(N) samples: `by formula`.

    python examples/operations.py
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
import pandas as pd
from sklearn.svm import SVC
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bu_torch import BisectionAnchorUncertainty, ParzenUncertainty
from bu_torch.papers import bisection

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent
TABLES = FOLDER.parent / "benchmarks" / "data"
KINDS = {
    "additions": "add sub rsub neg sum mean cumsum index_add scatter_add bincount norm",
    "multiplications": "mul div square pow sqrt reciprocal",
    "comparisons": "lt le gt ge eq ne max min argmax argmin amax amin maximum minimum sort argsort aminmax clamp topk",
    "exponentials": "exp log log1p xlogy",
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}
REDUCTIONS = {"sum", "mean", "argmax", "argmin", "amax", "amin", "max", "min", "aminmax", "norm", "bincount"}


class Count(TorchDispatchMode):
    """Elementary operations of all that torch does inside the block, and rows that a wrapped model classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter({kind: 0 for kind in (*KINDS, "rows classified", "samples searched")})
        self.is_on = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch's compiler is imported, to keep away from it

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__.rstrip("_")
        if self.is_on and name in KIND_OF:
            entries = args[0].numel() if name in REDUCTIONS else _entries(made)
            if name in ("sort", "argsort"):
                entries = _comparisons(args[0])
            if name in ("index_add", "scatter_add"):
                entries = args[3].numel()
            self.of[KIND_OF[name]] += entries
        return made

    def outside(self, work: Callable, count: Callable) -> Callable:
        """`work`, its own operations left out, `count` called with its arguments."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            count(*args)
            before, self.is_on = self.is_on, False
            try:
                return work(*args, **kwargs)
            finally:
                self.is_on = before

        return counted

    def classified(self, inputs: Tensor) -> None:
        self.of["rows classified"] += len(inputs)

    def searched(self, base: Tensor, queries: Tensor, *_: Any) -> None:
        self.of["samples searched"] += len(queries)
        for kind in ("additions", "multiplications"):
            self.of[kind] += len(queries) * base.numel()


def _comparisons(values: Tensor) -> int:
    """Of a sort of the rows."""
    return values.numel() * math.ceil(math.log2(max(2, values.shape[-1])))


def _entries(made: Any) -> int:
    return made.numel() if isinstance(made, Tensor) else sum(_entries(part) for part in made)


def operations(fitted: Any, model: Callable) -> Counter[str]:
    """What one score costs."""
    count = Count()
    search = mock.patch.object(bisection, "nearest", count.outside(bisection.nearest, count.searched))
    with search, count:
        fitted.score(count.outside(model, count.classified))
    return count.of


def by_formula(n: int, d: int) -> dict[str, float]:
    """Gains of Table 3 after section 5, the shares that both have (c_comp, c_CL: i_max R_A / N) included."""
    per_sample = 20 * d + math.log2(n) * d + 10 * 20 * d * math.log2(n / 12)
    return {"additions": per_sample / 40, "multiplications": (per_sample - 20 * d) / 40} | dict.fromkeys(
        ("comparisons", "rows classified"), 20.0
    )


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(file.name.removesuffix(".csv.gz") for file in TABLES.glob("*.csv.gz"))
    parser.add_argument("--data", nargs="+", choices=names, default=names)
    parser.add_argument("--samples", type=int, default=600, help="at most so many of each")
    parser.add_argument("--smoke", action="store_true", help="one data set, few samples")
    parser.add_argument("--plot", type=Path, default=FOLDER / "operations.png")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.data, options.samples = ["banknote"], 120

    rows = {}
    for name in options.data:
        table = pd.read_csv(TABLES / f"{name}.csv.gz")
        table = table.sample(min(options.samples, len(table)), random_state=0)
        labels, features = table.pop("label").to_numpy(copy=True), table.to_numpy("float32")
        features = (features - features.mean(axis=0)) / features.std(axis=0).clip(1e-6)
        model = SVC(gamma="scale").fit(features, labels).decision_function
        first, second = (
            operations(estimator().fit(features, labels), model)
            for estimator in (BisectionAnchorUncertainty, ParzenUncertainty)
        )
        rows[name] = {("Proposal 1", kind): first[kind] for kind in first}
        rows[name] |= {("Proposal 2", kind): second[kind] for kind in second if kind != "samples searched"}
        gained = ("additions", "multiplications", "comparisons", "rows classified")
        rows[name] |= {("gain", kind): first[kind] / second[kind] for kind in gained}
        rows[name] |= {("by formula", kind): gain for kind, gain in by_formula(*features.shape).items()}
        print(f"{name}\n{pd.Series(rows[name]).unstack(0).map('{:.3g}'.format).to_string()}\n", flush=True)
    table = pd.DataFrame(rows).T
    axis = table["gain"].plot.bar(logy=True, figsize=(10, 6), ylabel="operations of Proposal 1 / Proposal 2")
    axis.axhspan(100, 1000, color="gray", alpha=0.2, zorder=0, label="in the paper")
    axis.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1))
    plt.tight_layout()
    plt.savefig(options.plot, dpi=100)
    plt.close()
    return table


if __name__ == "__main__":
    main()
