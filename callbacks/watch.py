"""Watching the first batches: does training call the network as a check does?"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from bu_torch.callbacks._lightning import MisconfigurationException
from bu_torch.callbacks._witness import AFTER_BYTES, Witness
from bu_torch.callbacks.averages import SHARDED
from bu_torch.callbacks.network import CHANGE_INPUTS, ONE_TENSOR, NetworkReader
from bu_torch.samples.batches import split_batch
from bu_torch.samples.samples import UnreadableError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

_MOST_BATCHES = 5  # until the network has been called
_OF_BYTES = (
    "A check calls `forward` with floating-point numbers: let it scale them as it does bytes, or scale them in"
    " `on_after_batch_transfer`."
)


class Watch:
    """Compares what the network gets in training with what a check gives it.

    Args:
        network: How a check reads it.
        keys: Of inputs and labels in a batch, as the callback's.
    """

    def __init__(self, network: NetworkReader, keys: tuple[str | int | None, str | int | None]) -> None:
        self._network, self._keys = network, keys
        self._witness: Witness | None = None
        self._n_batches = 0

    def begin(self, trainer: "Trainer", pl_module: "LightningModule", batch: Any) -> None:
        """Prepare to compare what the network gets in this step with what a check would give it."""
        if type(trainer.strategy).__name__ in SHARDED or not Witness.can_watch(pl_module):
            return
        self._witness = witness = Witness(pl_module)  # in each process: all decide together
        # A batch that cannot be taken apart could not be read as a sample either.
        with contextlib.suppress(UnreadableError, TypeError, MisconfigurationException):
            inputs, labels = split_batch(batch, self._keys)
            witness.rehearse(lambda: self._network.read(trainer, pl_module, pl_module, inputs, is_whole=True), labels)
            witness.watch()

    def end(self) -> None:
        """Stop watching."""
        if self._witness is not None:
            self._witness.leave()
        self._witness = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause during a check, whose calls are none of training's."""
        if self._witness is not None:
            self._witness.leave()
        yield
        if self._witness is not None:
            self._witness.watch()

    def end_batch(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Compare the calls of the batch that has ended; all processes together, whatever each has seen.

        Raises:
            MisconfigurationException: If the network got other inputs than a check would give it.
        """
        witness = self._witness
        if witness is None:
            return
        self._n_batches += 1
        objection = witness.objection()
        if trainer.strategy.reduce_boolean_decision(bool(objection), all=False):
            self.end()
            raise MisconfigurationException(
                "In training the network gets other inputs than batches hold"
                f"{f': {objection}' if objection else ', in another process'}. Boundary uncertainty reads what batches"
                " hold, and would measure where the network never is."
                f" {ONE_TENSOR if 'tensors' in objection else _OF_BYTES if AFTER_BYTES in objection else CHANGE_INPUTS}"
            )
        has_seen = trainer.strategy.reduce_boolean_decision(witness.has_seen, all=False)
        is_enough = has_seen or self._n_batches == _MOST_BATCHES or trainer.is_last_batch
        if is_enough and not has_seen and witness.has_rehearsed:
            rank_zero_warn(
                f"Training has not called `{type(pl_module).__name__}`, nor its first layers, as a check does: by"
                " `forward`. If `training_step` goes another way through the network, the scores do not describe the"
                " trained network."
            )
        if is_enough:
            self.end()
