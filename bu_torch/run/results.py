"""Results of a tracker, as attributes of a callback or of a plain loop's stopper."""

from typing import Any

from bu_torch.run.tracker import Tracker


class MeasurementResults:
    """Results of a tracker as attributes of a callback or of a plain loop's stopper."""

    @property
    def tracker(self) -> Tracker:
        raise NotImplementedError

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.tracker.checks

    @property
    def setup_seconds(self) -> float:
        return self.tracker.timer.setup_seconds

    @property
    def check_seconds(self) -> float:
        return self.tracker.timer.check_seconds

    @property
    def record_path(self) -> str:
        return self.tracker.timer.path


class KeptResults(MeasurementResults):
    """Results of measuring, and those of the kept check."""

    @property
    def _kept(self) -> dict[str, Any] | None:
        """Check that is kept; None if none counts, or if its weights are lost."""
        return self.tracker.history.kept

    @property
    def summary(self) -> dict[str, Any]:
        return self.tracker.summary

    @property
    def score_name(self) -> str:
        return self.tracker.history.score_name

    @property
    def best_epoch(self) -> int | None:
        return None if self._kept is None else self._kept["epoch"]

    @property
    def best_step(self) -> int | None:
        return None if self._kept is None else self._kept.get("step")

    @property
    def best_score(self) -> float | None:
        return None if self._kept is None else self._kept[self.score_name]
