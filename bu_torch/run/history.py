"""The checks of one training so far: which of them is kept, and when to stop."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bu_torch.rule.rules import Reason, SelectionRule, Verdict, decide
from bu_torch.run.settings import MeasurementSettings, Settings

Check = dict[str, Any]


class Outcome(NamedTuple):
    """State of the decision after a check."""

    kept: Check | None = None
    verdict: Verdict = Verdict()


class History:
    """Checks in order, each with what was decided after it: a fold over plain numbers.

    With `MeasurementSettings` alone, nothing is decided.
    """

    def __init__(self, settings: MeasurementSettings) -> None:
        self.settings = settings
        self.selection: SelectionRule | None = None
        if isinstance(settings, Settings):
            self.selection = SelectionRule(settings.rule, start_from_epoch=settings.start_from_epoch)
        self.entries: list[Check] = []
        self.n_not_compared = 0  # checks before the first that counts for the patience or as best
        self.is_kept_new = False  # the last check is the one to keep, and its weights are not saved yet
        self._outcomes: list[Outcome] = []  # parallel to `compared`
        self.reset()

    @property
    def compared(self) -> list[Check]:
        return self.entries[self.n_not_compared :]

    @property
    def is_comparable(self) -> bool:
        return self.n_not_compared < len(self.entries)

    @property
    def kept(self) -> Check | None:
        return self._last.kept

    @property
    def verdict(self) -> Verdict:
        return self._last.verdict

    @property
    def score_name(self) -> str:
        """Entry of a check that holds its score; "" without a rule."""
        return "" if self.selection is None else self.selection.score_name

    @property
    def last_score(self) -> float | None:
        """Score of the last check; None if it does not count."""
        if self.selection is None or not self.is_comparable:
            return None
        return self.selection.score(self.entries[-1])

    @property
    def _last(self) -> Outcome:
        return self._outcomes[-1] if self._outcomes else Outcome()

    def is_last(self, epoch: int, step: int | None = None) -> bool:
        return bool(self.entries) and place_of(self.entries[-1]) == (epoch, step)

    def is_most_accurate(self, entry: Check) -> bool:
        """True if `entry` counts and no other check that counts has as high an expected accuracy."""
        first = 0 if self.selection is None else self.selection.start_from_epoch
        accuracy = entry.get("expected_accuracy", math.nan)
        others = [one for one in self.compared if one["epoch"] >= first and place_of(one) != place_of(entry)]
        is_counted = entry["epoch"] >= first and math.isfinite(accuracy)
        return is_counted and not any(one.get("expected_accuracy", math.nan) >= accuracy for one in others)

    def add(self, entry: Check, *, is_counted: bool = True) -> None:
        """Add a check, add the rule's values to it, and decide.

        A resumed training may end an epoch a second time. Such a check replaces the last one, and stays kept if that
        one was kept, because its weights are saved.
        """
        was_kept = False
        if self.is_last(*place_of(entry)):
            was_kept = self.kept is self.entries.pop()
            self._outcomes = self._outcomes[:-1]
            self.n_not_compared = min(self.n_not_compared, len(self.entries))
        self.entries.append(entry)
        self.is_kept_new = False
        if self.selection is not None:
            self.selection.complete(self.compared)
        outcome = self._after(self._last, entry)
        self.is_kept_new = outcome.kept is entry and not was_kept
        self._outcomes.append(outcome._replace(kept=entry) if was_kept else outcome)
        if not is_counted:
            self.reset()

    def why_stopped(self, epoch: int, step: int | None = None) -> str:
        """Reason to stop after the last check, which was at this epoch and step, in words; "" if there is none."""
        selection, settings, verdict, compared = self.selection, self.settings, self.verdict, self.compared
        if selection is None or not isinstance(settings, Settings) or not verdict.should_stop:
            return ""
        where = f"in epoch {epoch}" if step is None else f"at step {step} of epoch {epoch}"
        start = f"Stopped {where}: {selection.title}"
        if verdict.reason == Reason.NON_FINITE_METRIC:
            return f"{start} gave a score that is not finite ({self.last_score})."
        if verdict.reason == Reason.STOPPING_THRESHOLD:
            return f"{start} rose above the stopping threshold {settings.stopping_threshold}."
        wait = verdict.wait
        now, unit = (epoch, "epoch") if step is None else (step, "step")
        then = compared[-1 - wait].get(unit) if wait < len(compared) else None
        since = f" ({now - then} {unit}s)" if then is not None and now - then > wait else ""
        by = f" by more than {settings.min_delta:g}" if settings.min_delta else ""
        return f"{start} did not improve{by} in the last {'check' if wait == 1 else f'{wait} checks'}{since}."

    def why_none_kept(self) -> str:
        """Reason why no epoch is kept, in words."""
        if not self.compared:
            return "no check counted" if self.entries else "no check was made"
        selection = self.selection
        counted = [] if selection is None else [one for one in map(selection.score, self.compared) if one is not None]
        if selection is not None and not counted:
            return f"all checks were of epochs before `start_from_epoch={selection.start_from_epoch}`"
        if any(map(math.isfinite, counted)):
            return "no weights could be saved"
        return "no finite check counted"

    def fall_back(self, epoch: int | None, step: int | None = None) -> None:
        """Keep the check of this epoch and step, because later weights are lost; None if all are.

        Patience continues. Nothing changes if that check is kept already.
        """
        self.is_kept_new = False
        if self.kept is not None and place_of(self.kept) == (epoch, step):
            return
        first = next((n for n, entry in enumerate(self.compared) if place_of(entry) == (epoch, step)), None)
        left = Outcome() if first is None else self._outcomes[first]._replace(kept=self.compared[first])
        self._outcomes[first:] = [one._replace(kept=left.kept) for one in self._outcomes[first:]]

    def reset(self) -> None:
        """Compare later checks with none of those so far."""
        self.n_not_compared = len(self.entries)
        self._outcomes, self.is_kept_new = [], False
        if self.selection is not None:
            self.selection.rule.reset()

    def rule_settings(self) -> dict[str, Any]:
        """Settings of the rule, by their names in states and records."""
        settings = {} if self.selection is None else self.selection.rule.settings()
        return {f"rule.{name}": value for name, value in settings.items()}

    def state_dict(self) -> dict[str, Any]:
        """Checks as plain numbers, and the state of the rule."""
        state = {"history": self.entries, "n_not_compared": self.n_not_compared}
        return state if self.selection is None else state | {"rule": self.selection.rule.state_dict()}

    def load(self, entries: Sequence[Check], n_not_compared: int, rule: Mapping[str, Any] | None) -> None:
        """Continue from a `state_dict`; without a state of the rule, which then is another one, no check counts."""
        self.entries, self.n_not_compared = list(entries), n_not_compared
        self._outcomes, self.is_kept_new = [], False
        if rule is None:
            self.reset()
        elif self.selection is not None:
            self.selection.rule.load_state_dict(dict(rule))
        for entry in self.compared:
            self._outcomes.append(self._after(self._last, entry))

    def _after(self, before: Outcome, entry: Check) -> Outcome:
        selection, settings = self.selection, self.settings
        if selection is None or not isinstance(settings, Settings) or (score := selection.score(entry)) is None:
            return before
        verdict = decide(
            before.verdict,
            score,
            patience=settings.patience,
            min_delta=settings.min_delta,
            stopping_threshold=settings.stopping_threshold,
            check_finite=settings.check_finite,
        )
        return Outcome(entry if selection.takes_place(entry, before.kept) else before.kept, verdict)


def place_of(entry: Mapping[str, Any]) -> tuple[int, int | None]:
    """Epoch and step of a check; the step is None if it is unknown."""
    return entry["epoch"], entry.get("step")
