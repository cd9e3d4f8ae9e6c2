"""The checks of one training: which of them is kept, and when to stop."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bu_torch.internal.output import cleaned
from bu_torch.rule.rules import Reason, SelectionRule, Verdict, decide
from bu_torch.run.settings import Settings
from bu_torch.signals.metrics import as_metric

Entry = dict[str, Any]  # one check: epoch, step, signals and score

_SETTLED = 3  # checks
_LATE = 0.1  # share of the checks: so late a kept check may be followed by better ones
_BELOW_CHANCE = 0.8


class History:
    """Checks in order, and the decision after the last one, computed from plain numbers alone.

    It alone knows the best check: `kept`, the best whose weights are saved.
    """

    kept: Entry | None
    verdict: Verdict  # decision after the last check
    n_not_compared: int  # checks before the first that counts for the patience or as best
    _before: Verdict  # decision before the last check, which may be made again

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.selection: SelectionRule | None = None
        metric = as_metric(settings.metric)
        if settings.decides:
            first = settings.start_from_epoch
            self.selection = SelectionRule(settings.deciding_rule, start_from_epoch=first, metric=metric)
        self.value_name, self.sign = ("expected_accuracy", 1.0) if metric is None else (metric.signal, metric.sign)
        self.entries: list[Entry] = []
        self.reset()

    @property
    def compared(self) -> list[Entry]:
        """Checks since the last `reset`; those of epochs before `start_from_epoch` are among them, without a score."""
        return self.entries[self.n_not_compared :]

    @property
    def score_name(self) -> str:
        """Entry of a check that holds its score; "" without a rule."""
        return "" if self.selection is None else self.selection.score_name

    @property
    def last_score(self) -> float | None:
        """Score of the last check; None if it does not count."""
        compared = self.compared
        return None if self.selection is None or not compared else self.selection.score(compared[-1])

    def is_last(self, epoch: int, step: int | None = None) -> bool:
        return bool(self.entries) and place_of(self.entries[-1]) == (epoch, step)

    def has_best_value(self, entry: Entry) -> bool:
        """Whether `entry` counts and its expected accuracy, or metric, beats that of all other checks that count."""
        first = 0 if self.selection is None else self.selection.start_from_epoch
        value = self.sign * entry.get(self.value_name, math.nan)
        before = [check for check in self.compared if check["epoch"] >= first and place_of(check) != place_of(entry)]
        counts = entry["epoch"] >= first and math.isfinite(value)
        return counts and not any(self.sign * check.get(self.value_name, math.nan) >= value for check in before)

    def add(self, entry: Entry, *, is_counted: bool = True) -> bool:
        """Add a check with its score, decide, and return whether its weights are to be saved and `keep` called.

        A resumed training may end an epoch a second time. Such a check replaces the last one, and stays kept if that
        one was kept, because its weights are saved.
        """
        if self.selection is not None:
            self.selection.complete([entry])  # first, because a rule of the user's may raise anything
        was_kept = False
        if self.is_last(*place_of(entry)):
            was_kept = self.kept is self.entries.pop()
            self.verdict = self._before
            self.n_not_compared = min(self.n_not_compared, len(self.entries))
        self.entries.append(entry)
        if self.selection is not None:
            self._decide(entry)
        if was_kept:
            self.kept = entry
        if not is_counted:
            self.reset()
            return False
        return self.selection is not None and not was_kept and self.selection.is_better(entry, self.kept)

    def keep(self, entry: Entry | None) -> Entry | None:
        """Keep a check, whose weights are saved, and return the one that was kept before."""
        before, self.kept = self.kept, entry
        return before

    def why_stopped(self, epoch: int, step: int | None = None) -> str:
        """Reason to stop after the last check, made at this epoch and step; "" if there is none."""
        selection, settings, verdict, compared = self.selection, self.settings, self.verdict, self.compared
        if selection is None or not verdict.should_stop:
            return ""
        where = f"in epoch {epoch}" if step is None else f"at step {step} of epoch {epoch}"
        start = f"Stopped {where}: {selection.rule.title}"
        if verdict.reason == Reason.NON_FINITE_METRIC:
            return f"{start} gave a score that is not finite ({self.last_score})."
        wait = verdict.wait
        now, unit = (epoch, "epoch") if step is None else (step, "step")
        then = compared[-1 - wait].get(unit) if wait < len(compared) else None
        since = f" ({now - then} {unit}s)" if then is not None and now - then > wait else ""
        by = f" by more than {settings.min_delta:g}" if settings.min_delta else ""
        return f"{start} did not improve{by} in the last {'check' if wait == 1 else f'{wait} checks'}{since}."

    def describe_end(self, summary: Mapping[str, Any], place: str, *, is_averaged: bool) -> tuple[str, str]:
        """Say what was kept and its `place`; and why training ended, and whether longer training may help."""
        best, selection, path = self.kept, self.selection, summary.get("best_model_path")
        assert best is not None and selection is not None  # noqa: S101, PT018  (the caller has seen them)
        rule, score = selection.rule, best[selection.score_name]
        step = f", step {best['step']}" if "step" in best else ""
        kept = (
            f"bu-torch kept epoch {best['epoch']}{step}"
            f" ({rule.title}: {rule.shown(score):.4f}{rule.unit and f' {rule.unit}'})."
            f" Its {'averaged ' if is_averaged else ''}weights are {place}"
            f"{f' and in {cleaned(path)}' if path else ''}."
        )
        n_since, ended = next(n for n, entry in enumerate(reversed(self.entries)) if entry is best), summary["reason"]
        is_open = summary["stopped_epoch"] is None and not ended.startswith("Training failed")
        if is_open and n_since <= _LATE * len(self.entries):
            which = f"Only {n_since} later checks followed" if n_since else "The kept check is the last"
            lag = ", or pass `averaging=None`, because the average lags" if is_averaged else ""
            ended = f"{ended.rstrip('.')}. {which}: train longer{lag}."
        return kept, ended

    def why_none_kept(self) -> str:
        """Reason why no epoch is kept."""
        if not self.compared:
            return "no check counted" if self.entries else "no check was made"
        selection = self.selection
        scores = [] if selection is None else list(map(selection.score, self.compared))
        counted = [score for score in scores if score is not None]
        if selection is not None and not counted:
            return f"all checks were of epochs before `start_from_epoch={selection.start_from_epoch}`"
        if any(map(math.isfinite, counted)):
            return "no weights could be saved"
        return "no finite check counted"

    def forget_kept(self, error: Exception | None = None) -> str:
        """Keep no check so far, because the best weights are lost; returns the warning. Patience continues."""
        self.kept = None
        why = "its weights are not in the state" if error is None else f"{type(error).__name__}: {error}"[:300]
        return f"The best epoch so far is lost ({cleaned(why)}). The best of the coming epochs is kept instead."

    def reset(self) -> None:
        """Compare later checks with none of those so far."""
        self.n_not_compared = len(self.entries)
        self.kept, self.verdict, self._before = None, Verdict(), Verdict()
        if self.selection is not None:
            self.selection.rule.reset()

    def rule_settings(self) -> dict[str, Any]:
        """Name and settings of the rule, as states and records have them; empty without a rule."""
        if self.selection is None:
            return {}
        rule = self.selection.rule
        return {"rule": rule.name, **{f"rule.{name}": value for name, value in rule.settings().items()}}

    def state_dict(self) -> dict[str, Any]:
        """Checks as plain numbers, and the state of the rule."""
        kept = next((n for n, entry in enumerate(self.entries) if entry is self.kept), None)
        state = {"history": self.entries, "n_not_compared": self.n_not_compared, "kept": kept}
        return state if self.selection is None else state | {"rule": self.selection.rule.state_dict()}

    def load(self, state: Mapping[str, Any], *, is_compared: bool) -> None:
        """Continue from a checked `state_dict`; with `is_compared=False`, no earlier check counts."""
        self.entries = list(state["history"])
        self.reset()
        if not is_compared:
            return
        self.n_not_compared = state["n_not_compared"]
        if self.selection is not None:
            self.selection.rule.load_state_dict(dict(state.get("rule", {})))
            for entry in self.compared:
                self._decide(entry)
        self.kept = None if state["kept"] is None else self.entries[state["kept"]]

    def _decide(self, entry: Entry) -> None:
        self._before = self.verdict
        selection, settings = self.selection, self.settings
        if selection is not None and (score := selection.score(entry)) is not None:
            self.verdict = decide(self.verdict, score, patience=settings.patience, min_delta=settings.min_delta)


def place_of(entry: Mapping[str, Any]) -> tuple[int, int | None]:
    """Epoch and step of a check; the step is None if it is unknown."""
    return entry["epoch"], entry.get("step")


def describe_worse_than_chance(checks: Sequence[Entry], n_columns: int, data: Mapping[str, int]) -> str:
    """Warning that the network, whose logits have `n_columns`, predicts worse than chance; "" if it does not."""
    last, n_present = [check["expected_accuracy"] for check in checks[-_SETTLED:]], data["n_present"]
    is_too_wide = len(checks) == 1 and n_columns > data["n_classes"]
    is_settled = len(checks) >= _SETTLED and last[-1] <= last[0]  # else the network still learns
    if not (is_too_wide or is_settled) or max(last) >= _BELOW_CHANCE / n_present:
        return ""
    return (
        f"Expected accuracy is {last[-1]:.2f} at check {len(checks)}, worse than chance, and the network gives"
        f" {n_columns} columns for {n_present} classes. The scores describe it only if `forward` gives one logit for"
        " each class of the labels that it is trained on: no embedding (`output_key=` names the logits in a tuple or a"
        " dict), and no labels that `training_step` changes (change them in the dataset or `on_after_batch_transfer`)."
    )


def describe_exception(exception: BaseException) -> str:
    """Say why training ended early."""
    if isinstance(exception, KeyboardInterrupt):
        return "Training was interrupted (KeyboardInterrupt)."
    return f"Training failed: {type(exception).__name__}{f': {exception}' if str(exception) else '.'}"
