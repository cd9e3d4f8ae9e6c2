"""The rules: which epoch each keeps of the curves of a case, and how good those epochs are over all cases."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rivals

from bu_torch.rule.rules import DEFAULT_RULE

PATIENCE = 20
AVERAGE = "averaged_"  # begins the names of what is read of averages of weights
Columns = dict[str, list[float]]
Record = dict[str, Any]  # "case", and the columns of the training on "all" labels and on "part" of them, or "bagging"
Kept = tuple[int, int]  # the kept epoch, and the last epoch that the rule needed


def largest(values: list[float], patience: float = float("inf")) -> Kept:
    """The first largest value, waiting so many epochs for a larger one."""
    kept = 0
    for epoch, value in enumerate(values):
        if value > values[kept]:
            kept = epoch
        elif epoch - kept >= patience:
            return kept, epoch
    return kept, len(values) - 1


def smallest(values: list[float], patience: float = float("inf")) -> Kept:
    return largest([-value for value in values], patience)


def smoothed(values: list[float], width: int = 17) -> list[float]:
    """Centred moving average, over fewer values at the ends."""
    half = width // 2
    return [float(np.mean(values[max(0, t - half) : t + half + 1])) for t in range(len(values))]


def last(values: list[float]) -> Kept:
    return len(values) - 1, len(values) - 1


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which epoch of which training is kept, decided from a column of a training's curves."""

    column: str
    decide: Callable[[list[float]], Kept]
    decides_on: str = "all"
    keeps_from: str = "all"
    needs_checks: bool = False
    of_average: bool = False
    kept_by: str = ""  # column of the epoch kept so far, in place of the largest value

    def can_judge(self, record: Record) -> bool:
        if self.decides_on not in record:
            return False
        columns = self.curves(record, self.decides_on)
        return self.column in columns and (not self.kept_by or self.kept_by in columns)

    def judge(self, record: Record) -> dict[str, float]:
        """What is kept, and where the rule stopped."""
        decided_on, kept_from = self.curves(record, self.decides_on), self.curves(record, self.keeps_from)
        kept, stopped = self.decide(decided_on[self.column])
        if self.kept_by:
            kept = int(decided_on[self.kept_by][stopped])
        # Wall time of its training until it stops, and of a second one where it keeps from that.
        seconds = elapsed(decided_on, stopped, self.needs_checks)
        seconds += elapsed(kept_from, kept, False) if self.keeps_from != self.decides_on else 0.0
        n_epochs = decided_on["epochs"][stopped] if "epochs" in decided_on else stopped + 1
        found = {"kept": kept, "epochs_to_stop": n_epochs, "seconds": seconds}
        return found | {"test_error": kept_from["test_error"][kept]}

    def curves(self, record: Record, part: str) -> Columns:
        """The columns of a training, with those of averages in place of those of weights if the rule is of averages."""
        columns = record[part]
        if not self.of_average:
            return columns
        return columns | {name.removeprefix(AVERAGE): columns[name] for name in columns if name.startswith(AVERAGE)}


def elapsed(curves: Columns, epoch: int, with_checks: bool) -> float:
    return curves["seconds"][epoch] - (0.0 if with_checks else curves["check_seconds"][epoch])


def on_both(name: str, *given: Any, **settings: Any) -> dict[str, Rule]:
    """A rule on weights and the same on their averages."""
    return {name: Rule(*given, **settings), f"{name}, average": Rule(*given, **settings, of_average=True)}


patient_largest, patient_smallest = (partial(best, patience=PATIENCE) for best in (largest, smallest))
DEFAULT = "default"
SCORE = DEFAULT_RULE
KEPT = "kept_so_far"
RULES: dict[str, Rule] = {
    **on_both("best in hindsight", "test_error", smallest),
    # Not causal either: what is left where the trend of the test error is known, but not its jumps from epoch to epoch.
    "best of the smoothed test error": Rule("test_error", lambda errors: smallest(smoothed(errors))),
    DEFAULT: Rule(SCORE, patient_largest, needs_checks=True, of_average=True, kept_by=KEPT),
    f"{DEFAULT}, no limit": Rule(SCORE, largest, needs_checks=True, of_average=True, kept_by=KEPT),
    f"{DEFAULT}, no margin": Rule(SCORE, patient_largest, needs_checks=True, of_average=True),
    "default, no average": Rule(SCORE, patient_largest, needs_checks=True, kept_by=KEPT),
    "expected accuracy": Rule(SCORE, patient_largest, needs_checks=True),
    **on_both("boundary uncertainty", "boundary_uncertainty", patient_largest, needs_checks=True),
    **on_both("trust score", "trust_score", patient_largest, needs_checks=True),
    **on_both("vote agreement", "vote_agreement", patient_largest, needs_checks=True),
    **on_both("label agreement", "label_agreement", patient_largest, needs_checks=True),
    **on_both("neighbor agreement", "neighbor_agreement", patient_largest, needs_checks=True),
    **on_both("steadiest", "prediction_changes", patient_smallest, needs_checks=True),
    **on_both("leave-one-out loss", "loo_loss", patient_smallest),
    **on_both("leave-one-out loss, no limit", "loo_loss", smallest),
    **on_both("marginal likelihood", "log_evidence", patient_largest),
    **on_both("marginal likelihood, no limit", "log_evidence", largest),
    "growth of the distance": Rule("distance", rivals.still),
    "training loss plateau": Rule("train_loss", patient_smallest),
    "Label Wave": Rule("changed_predictions", rivals.label_wave),
    "EB criterion": Rule("evidence", rivals.first_positive),
    **on_both("last epoch", "test_error", last),
    **on_both("hold-out accuracy", "val_accuracy", patient_largest, "part", "part"),
    **on_both("hold-out accuracy, no limit", "val_accuracy", largest, "part", "part"),
    **on_both("hold-out loss", "val_loss", patient_smallest, "part", "part"),
    **on_both("hold-out loss, no limit", "val_loss", smallest, "part", "part"),
    "hold-out accuracy, then retrain": Rule("val_accuracy", patient_largest, "part", "all"),
    **on_both("bagging", "test_error", last, "bagging", "bagging"),
}
REFERENCES = ("hold-out accuracy", "last epoch")
DRAWN = {
    DEFAULT: "the default",
    "trust score, average": "trust score alone",
    "boundary uncertainty, average": "boundary uncertainty alone",
    "hold-out accuracy": "hold-out accuracy",
    "hold-out accuracy, average": "hold-out accuracy, averaged weights",
    "hold-out accuracy, then retrain": "hold-out accuracy, then retrained on all labels",
    "last epoch": "last epoch",
    "last epoch, average": "last epoch, averaged weights",
}


def judge(records: list[Record]) -> pd.DataFrame:
    """One row a case and rule: test error and excess error of what is kept, and where the rule stopped."""
    rows = []
    for record in records:
        hindsight = min(record["all"]["test_error"])
        for name, rule in RULES.items():
            if rule.can_judge(record):
                row = rule.judge(record)
                rows.append({**record["case"], "rule": name, **row, "excess": row["test_error"] - hindsight})
    return pd.DataFrame(rows)


def positive(excess: Any) -> Any:
    """What others are divided by; NaN where it is no worse than the best epoch in hindsight."""
    return np.where(excess > 0, excess, np.nan)


def summarise(judged: pd.DataFrame, n_bootstrap: int = 2000) -> pd.DataFrame:
    """Means over cases, and ratios of mean excess to each reference with a 90 % bootstrap interval over tables.

    Rules are sorted by their mean excess. Those that not all cases have are judged on the cases that have them, and
    their ratios are to the references on all.
    """
    excess = judged.pivot_table(index=["table", "noise", "seed", "setting"], columns="rule", values="excess")
    by_table = excess.groupby("table").mean()
    draws = np.random.default_rng(0).integers(0, len(by_table), (n_bootstrap, len(by_table)))
    rows = []
    for rule, of_rule in judged.groupby("rule"):
        row = {"rule": rule, "test error": of_rule.test_error.mean(), "excess": of_rule.excess.mean()}
        for reference in REFERENCES:
            ours, theirs = (by_table[name].to_numpy() for name in (rule, reference))
            drawn = ours[draws].mean(axis=1) / positive(theirs[draws].mean(axis=1))
            low, high = np.nanquantile(drawn, [0.05, 0.95]) if np.isfinite(drawn).any() else (np.nan, np.nan)
            row[f"/ {reference}"] = float(ours.mean() / positive(theirs.mean()))
            row[f"/ {reference}, 90 %"] = f"{low:.2f}-{high:.2f}"
        theirs = excess[REFERENCES[0]]
        row["wins"] = float((excess[rule] < theirs).mean() + 0.5 * (excess[rule] == theirs).mean())
        row["worst table"] = float((by_table[rule] - by_table[REFERENCES[0]]).max())
        row["epochs"] = of_rule.epochs_to_stop.mean()
        row["seconds"] = of_rule.seconds.mean()
        rows.append(row)
    return pd.DataFrame(rows).set_index("rule").sort_values("excess", kind="stable")


def breakdown(judged: pd.DataFrame) -> pd.DataFrame:
    """Mean excess of each rule as a ratio to that of hold-out accuracy, for each setting and share of label noise."""
    excess = judged.pivot_table(index="rule", columns=["setting", "noise"], values="excess", sort=False)
    return excess / positive(excess.loc[REFERENCES[0]])


def show(*tables: pd.DataFrame) -> None:
    """Print tables of rules in the order of the first, with the default marked."""
    options = {"width": 200, "max_columns": None, "max_rows": None, "float_format": "{:.4f}".format}
    with pd.option_context(*(part for name, value in options.items() for part in (f"display.{name}", value))):
        for table in tables:
            print(table.loc[tables[0].index].rename(index={DEFAULT: f"> {DEFAULT}"}), end="\n\n")


def plot(judged: pd.DataFrame, path: Path) -> None:
    """Mean excess error of the rules in `DRAWN`, one dot a table; the best on top, the default in its own colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.style.use(Path(__file__).parents[1] / "docs" / "pictures.mplstyle")
    by_table = judged[judged.rule.isin(DRAWN)].groupby(["rule", "table"]).excess.mean().unstack()
    by_table = by_table.loc[by_table.mean(axis=1).sort_values(ascending=False, kind="stable").index]
    figure, axis = plt.subplots(figsize=(8, 0.32 * len(by_table) + 0.8), layout="constrained")
    axis.axvline(0, color="tab:gray", linewidth=0.8)
    for row, (rule, excess) in enumerate(by_table.iterrows()):
        color = "tab:red" if rule == DEFAULT else "tab:blue"
        axis.scatter(excess, [row] * len(excess), s=14, color="tab:gray", alpha=0.6)
        axis.scatter(excess.mean(), row, s=90, color=color, marker="|", linewidth=3)
    axis.set(yticks=range(len(by_table)), yticklabels=[DRAWN[rule] for rule in by_table.index])
    axis.set(xlabel="excess test error (dot: a table, bar: mean)", ylim=(-0.7, len(by_table) - 0.3))
    if DEFAULT in by_table.index:
        axis.get_yticklabels()[by_table.index.get_loc(DEFAULT)].set(color="tab:red", weight="bold")
    figure.savefig(path, dpi=120)
    plt.close(figure)
