"""The training loss, as the module logs it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

NAMES = ("train_loss", "training_loss", "train/loss", "loss/train", "loss")  # the first that is logged counts


def training_loss(trainer: "Trainer", *, is_within_epoch: bool) -> float | None:
    """The training loss that the module has logged; None if there is none.

    It is read off what training has logged in this epoch. `trainer.callback_metrics` also holds what validation has
    logged, and values of earlier epochs.

    Args:
        trainer: In training. All its processes call this, for a loss logged with `sync_dist=True` is their mean.
        is_within_epoch: Take that of the last batch; else the mean of the epoch where the module logs it
            (`on_epoch=True`), or that of the last batch where it does not.
    """
    results = trainer._results
    if results is None:
        return None
    logged = dict(results.metrics(on_step=True)["callback"])
    if not is_within_epoch:
        logged |= results.metrics(on_step=False)["callback"]
    return next((float(logged[name]) for name in NAMES if name in logged), None)
