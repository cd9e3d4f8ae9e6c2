"""Early stopping of Ray Tune's trials without validation data."""

from typing import Any

from bu_torch.integrations.loaders import missing
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.history import History
from bu_torch.run.settings import Settings

try:
    from ray.tune import Stopper
except ImportError as error:
    raise missing("ray", '"ray[tune]"') from error


class BoundaryUncertaintyTrialStopper(Stopper):
    """Stop each trial of Ray Tune by the scores that it reports, with the rule and patience of the callbacks.

    A trial reports its checks, `tune.report(stopper.history[-1])`, and leaves the decision to Tune: patience is set in
    one place for all trials, whatever trains them, and other stoppers and schedulers see the same results.

    Args:
        **settings: `patience`, `min_delta`, `stopping_threshold`, `check_finite`, `start_from_epoch`, `rule`, as in
            `bu_torch.BoundaryUncertaintyStopper`; `rule` as in the trials.

    Raises:
        ValueError: If an argument is out of range, or a result lacks the score or holds no number for it.
        TypeError: If an argument is unknown or of the wrong type.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = Settings(**settings)
        self._trials: dict[str, History] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """True if this trial should stop; its `result` is a check with `epoch`, the rule's signals and the score."""
        checks = self._trials.setdefault(trial_id, History(self._settings))
        name = checks.score_name
        signals = self._settings.deciding_rule.signals if STANDARD_ERROR in result else ()  # a whole check has these
        if absent := [one for one in ("epoch", name, *signals) if one not in result]:
            raise ValueError(f"A result must be a check with `{absent[0]}`, got {', '.join(result)}.")
        if odd := [one for one in ("epoch", name, *signals) if not hasattr(result[one], "__float__")]:
            raise ValueError(f"A result must hold a number as `{odd[0]}`, got {result[odd[0]]!r:.100}.")
        # A trial that resumes from a checkpoint reports some checks again.
        place = result["epoch"], result.get("step", -1)
        before = [one for one in checks.entries if (one["epoch"], one.get("step", -1)) < place]
        checks.load([*before, result], 0, checks.state_dict()["rule"])
        return checks.verdict.should_stop

    def stop_all(self) -> bool:
        """Never end the whole search."""
        return False

    def best_result(self, trial_id: str) -> dict[str, Any] | None:
        """Give the best result of a trial, as reported, with its `checkpoint_dir_name`; None if none counts."""
        return self._trials[trial_id].kept if trial_id in self._trials else None
