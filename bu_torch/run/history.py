"""The checks of one training: which of them is kept, and when to stop."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bu_torch.internal.output import printable
from bu_torch.rule.rules import Decision, decide, score_of
from bu_torch.run.settings import Settings
from bu_torch.signals.metrics import as_metric

Entry = dict[str, Any]  # one check: epoch, step, signals and score

_SETTLED = 3  # checks
_LATE = 0.1  # share of the checks: so late a kept check may be followed by better ones
_BELOW_CHANCE = 0.8


class History:
    """Checks in order, and the decision after the last one, computed from plain numbers alone.

    It alone knows the best check: `kept`, the best whose weights are kept. Settings that do not decide keep none.
    """

    kept: Entry | None
    decision: Decision  # decision after the last check
    n_not_compared: int  # checks before the first that counts for the patience or as best

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metric, self.rule = settings, as_metric(settings.metric), settings.deciding_rule
        self.entries: list[Entry] = []
        self.reset()

    @property
    def compared(self) -> list[Entry]:
        """Checks since the last `reset`."""
        return self.entries[self.n_not_compared :]

    @property
    def counted(self) -> list[Entry]:
        """Those of them that count for the patience or as best."""
        return [entry for entry in self.compared if self._counts(entry)]

    def _counts(self, entry: Entry) -> bool:
        return entry["epoch"] >= self.settings.start_from_epoch

    @property
    def score_name(self) -> str:
        """Entry of a check that holds its score; "" if nothing is decided."""
        return self.rule.name if self.settings.decides else ""

    def is_last(self, epoch: int, step: int | None = None) -> bool:
        last = self.entries[-1] if self.entries else {}
        return (last.get("epoch"), last.get("step")) == (epoch, step)

    def value_of(self, entry: Entry) -> float:
        """Expected value of the metric, larger is better; -inf if it is not finite."""
        value = self.metric.sign * entry.get(self.metric.signal, math.nan)
        return value if math.isfinite(value) else -math.inf

    def has_best_value(self, entry: Entry) -> bool:
        """Whether a check counts and its expected value of the metric beats that of all others that count."""
        others = [check for check in self.counted if check is not entry]
        return self._counts(entry) and self.value_of(entry) > max(map(self.value_of, others), default=-math.inf)

    def add(self, entry: Entry) -> bool:
        """Add a check with its score, decide, and return whether it is the best, so that it and its weights are kept.

        A resumed training may end an epoch a second time. Such a check replaces the last one, and stays kept if that
        one was kept, because its weights are.
        """
        if self.settings.decides and self.rule.name not in entry:
            entry[self.rule.name] = score_of(self.rule, entry)  # first, because a rule of the user's may raise anything
        was_kept = False
        if self.is_last(entry["epoch"], entry.get("step")):
            was_kept = self.kept is self.entries.pop()
            self.n_not_compared = min(self.n_not_compared, len(self.entries))
            self._decide_anew()
        self.entries.append(entry)
        self._decide(entry)
        if was_kept:
            self.kept = entry
        if not (self.settings.decides and self._counts(entry) and math.isfinite(score := entry[self.rule.name])):
            return False
        return self.kept is None or score > self.kept[self.rule.name]

    def why_stopped(self, epoch: int, step: int | None = None) -> str:
        """Reason to stop after the last check, made at this epoch and step; "" if there is none."""
        decision, compared = self.decision, self.compared
        if not decision.should_stop:
            return ""
        where = f"in epoch {epoch}" if step is None else f"at step {step} of epoch {epoch}"
        start = f"Stopped {where}: {self.rule.title}"
        if not math.isfinite(score := compared[-1][self.score_name]):
            return f"{start} gave a score that is not finite ({score})."
        wait, min_delta = decision.wait, self.settings.min_delta
        now, unit = (epoch, "epoch") if step is None else (step, "step")
        then = compared[-1 - wait].get(unit) if wait < len(compared) else None
        since = f" ({now - then} {unit}s)" if then is not None and now - then > wait else ""
        by = f" by more than {min_delta:g}" if min_delta else ""
        return f"{start} did not improve{by} in the last {'check' if wait == 1 else f'{wait} checks'}{since}."

    def describe_end(self, kept: Entry, summary: Mapping[str, Any], place: str, *, is_averaged: bool) -> list[str]:
        """Say what was kept and its `place`; and why training ended, and whether longer training may help."""
        rule, path, ended = self.rule, summary.get("best_model_path"), summary["reason"]
        step = f", step {kept['step']}" if "step" in kept else ""
        score = f"{rule.shown(kept[self.score_name]):.4f}{rule.unit and f' {rule.unit}'}"
        file = f"in {printable(path)}" if path else ""
        where = f"{file}, {place}" if file and place.startswith("not") else " and ".join(filter(None, (place, file)))
        line = (
            f"bu-torch kept epoch {kept['epoch']}{step} ({rule.title}: {score})."
            f" Its {'averaged ' if is_averaged else ''}weights are {where}."
        )
        n_since = next(n for n, entry in enumerate(reversed(self.entries)) if entry is kept)
        is_open = summary["stopped_epoch"] is None and not ended.startswith("Training failed")
        if is_open and n_since <= _LATE * len(self.entries):
            later = "1 later check" if n_since == 1 else f"{n_since} later checks"
            which = f"Only {later} followed" if n_since else "The kept check is the last"
            lag = ", and so may `averaging=None`, because an average lags" if is_averaged else ""
            ended = f"{ended.rstrip('.')}. {which}: longer training may be better{lag}."
        return [line, ended]

    def why_none_kept(self) -> str:
        """Reason why no epoch is kept."""
        if not self.compared:
            return "no check counted" if self.entries else "no check was made"
        if not self.counted:
            return f"all checks were of epochs before `start_from_epoch={self.settings.start_from_epoch}`"
        return "no finite check counted"

    def reset(self) -> None:
        """Compare later checks with none of those so far."""
        self.n_not_compared = len(self.entries)
        self.kept, self.decision = None, Decision()
        self.rule.reset()

    def rule_settings(self) -> dict[str, Any]:
        """Name and settings of the rule, as states and records have them; empty if nothing is decided."""
        if not self.settings.decides:
            return {}
        return {"rule": self.rule.name, **{f"rule.{name}": value for name, value in self.rule.settings().items()}}

    def state_dict(self) -> dict[str, Any]:
        """Checks as plain numbers, and the state of the rule."""
        kept = next((n for n, entry in enumerate(self.entries) if entry is self.kept), None)
        state = {"history": self.entries, "n_not_compared": self.n_not_compared, "kept": kept}
        return state | {"rule": self.rule.state_dict()}

    def load(self, state: Mapping[str, Any], *, is_compared: bool) -> None:
        """Continue from a checked `state_dict`; with `is_compared=False`, no earlier check counts."""
        self.entries = list(state["history"])
        self.reset()
        if is_compared:
            self.n_not_compared = state["n_not_compared"]
            self.rule.load_state_dict(dict(state.get("rule", {})))
            self._decide_anew()
            self.kept = None if state["kept"] is None else self.entries[state["kept"]]

    def _decide(self, entry: Entry) -> None:
        if self.settings.decides and self._counts(entry):
            patience, min_delta = self.settings.patience, self.settings.min_delta
            self.decision = decide(self.decision, entry[self.rule.name], patience=patience, min_delta=min_delta)

    def _decide_anew(self) -> None:
        self.decision = Decision()
        for entry in self.compared:
            self._decide(entry)


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
