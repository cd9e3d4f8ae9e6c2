"""Results of a run, under the names that users of a callback or of a plain loop read them by."""

from typing import Any

from bu_torch.run.tracker import Tracker


class MeasurementResults:
    """Measurements of what `tracker` holds."""

    @property
    def tracker(self) -> Tracker:
        """Measurements of this fit, and the verdict."""
        raise NotImplementedError

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.tracker.history

    @property
    def setup_seconds(self) -> float:
        return self.tracker.account.setup_seconds

    @property
    def check_seconds(self) -> float:
        return self.tracker.account.check_seconds

    @property
    def record_path(self) -> str:
        return self.tracker.account.path


class KeptResults(MeasurementResults):
    """Results of the kept check besides."""

    @property
    def _kept(self) -> dict[str, Any] | None:
        """The kept check, if its weights are there."""
        return self.tracker.kept

    @property
    def score_name(self) -> str:
        return self.tracker.checks.score_name

    @property
    def best_epoch(self) -> int | None:
        return None if self._kept is None else self._kept["epoch"]

    @property
    def best_step(self) -> int | None:
        return None if self._kept is None else self._kept.get("step")

    @property
    def best_score(self) -> float | None:
        return None if self._kept is None else self._kept[self.score_name]
