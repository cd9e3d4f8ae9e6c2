"""Results of a fit, under the names that users read them by."""

from typing import TYPE_CHECKING, Any

from bu_torch.run.tracker import Tracker

if TYPE_CHECKING:
    from bu_torch.callbacks.fit import Fit
    from bu_torch.callbacks.keeper import KeeperMixin, MemoryKeeperMixin
    from bu_torch.callbacks.verdict_bearer import VerdictBearerMixin


class MonitorResults:
    """Measurements."""

    _fit: "Fit"

    @property
    def tracker(self) -> Tracker:
        """Measurements of this fit, and the verdict."""
        return self._fit.tracker

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


class StoppingResults(MonitorResults):
    """Results of the kept check and of stopping."""

    _bearer: "VerdictBearerMixin | None"
    _keeper: "KeeperMixin | MemoryKeeperMixin | None"

    @property
    def _kept(self) -> dict[str, Any] | None:
        """The kept check, if it was saved."""
        return None if self._keeper is None or self._keeper.best_epoch is None else self.tracker.kept

    @property
    def best_epoch(self) -> int | None:
        return None if self._kept is None else self._kept["epoch"]

    @property
    def best_step(self) -> int | None:
        return None if self._kept is None else self._kept.get("step")

    @property
    def score_name(self) -> str:
        return self.tracker.checks.score_name

    @property
    def best_score(self) -> float | None:
        return None if self._kept is None else self._kept[self.score_name]

    @property
    def best_model_path(self) -> str:
        return "" if self._keeper is None else self._keeper.best_model_path

    @property
    def stopped_epoch(self) -> int | None:
        return self._bearer.stopped_epoch if self._bearer is not None and self._bearer.has_stopped else None
