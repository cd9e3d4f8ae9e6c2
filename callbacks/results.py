"""Results of a fit by a trainer, which outlive it."""

from typing import TYPE_CHECKING, Any

from bu_torch.run.tracker import KeptResults

if TYPE_CHECKING:
    from bu_torch.callbacks.keeper import KeeperMixin, MemoryKeeperMixin
    from bu_torch.callbacks.verdict_bearer import VerdictBearerMixin


class StoppingResults(KeptResults):
    """Results of the kept check and of stopping."""

    _bearer: "VerdictBearerMixin | None"
    _keeper: "KeeperMixin | MemoryKeeperMixin | None"

    @property
    def _kept(self) -> dict[str, Any] | None:
        """The kept check, if it was saved."""
        return None if self._keeper is None or self._keeper.best_epoch is None else self.tracker.kept

    @property
    def best_model_path(self) -> str:
        return "" if self._keeper is None else self._keeper.best_model_path

    @property
    def stopped_epoch(self) -> int | None:
        return self._bearer.stopped_epoch if self._bearer is not None and self._bearer.has_stopped else None
