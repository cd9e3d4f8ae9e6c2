"""What checks show to loggers, the progress bar and other callbacks, and what is read from there."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bu_torch.callbacks.trainer import Trainer
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.signals.catalogue import SIGNALS

LOSSES = ("train_loss", "training_loss", "train/loss", "loss/train", "loss")  # the first that is logged counts
_LEFT_OUT = ("epoch", "step", STANDARD_ERROR)


class MetricLogger:
    """Shows the values of checks to loggers, the progress bar, and callbacks that read `callback_metrics`."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}  # last check

    def show(self, trainer: Trainer, check: dict[str, Any], *, is_by_steps: bool) -> None:
        """Log a check at the step at which Lightning logs the last batch.

        `log_dict` would be slow, skip steps within an epoch, and keep values in `callback_metrics` until its end.
        """
        if trainer.barebones:  # it logs nothing, and warns of attempts
            return
        step = trainer.fit_loop.epoch_loop._batches_that_stepped - (not is_by_steps)  # counted after the batch's end
        shown = {name: value for name, value in check.items() if name not in _LEFT_OUT}
        for logger in trainer.loggers:
            logger.log_metrics({**shown, "epoch": trainer.current_epoch}, step)
            logger.save()
        self._values = {name: torch.tensor(value, device="cpu") for name, value in shown.items()}
        trainer.callback_metrics.update(self._values)
        trainer.logged_metrics.update(self._values)
        in_bar = {signal.name for signal in SIGNALS.values() if signal.is_in_progress_bar}
        trainer.progress_bar_metrics.update({name: value for name, value in shown.items() if name in in_bar})

    def withdraw(self, trainer: Trainer) -> None:
        """Remove the last check's values from `callback_metrics`, because they do not describe the weights to come."""
        for name in self._values:
            trainer.callback_metrics.pop(name, None)

    def show_again(self, trainer: Trainer) -> None:
        """Undo `withdraw` for callbacks that read values when an epoch or the training ends."""
        for name, value in self._values.items():
            trainer.callback_metrics.setdefault(name, value)


def record_folder(trainer: Trainer) -> Path | None:
    """Folder of this run's checkpoints, or of its logs; None if it keeps nothing on this machine's disk."""
    if trainer.fast_dev_run or trainer.barebones:
        return None
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    if folder is None and trainer.loggers:
        folder = trainer.log_dir  # all processes must ask for it
    return None if folder is None or "://" in str(folder) or not trainer.is_global_zero else Path(folder)


def training_loss(trainer: Trainer, *, is_within_epoch: bool) -> float | None:
    """The training loss that the module has logged; None if there is none.

    It is the epoch's mean if the module logs that (`on_epoch=True`); otherwise, and within an epoch, the last batch's.
    All processes must read it: it may be their mean. (`trainer.callback_metrics` also has older and validation values.)
    """
    results = trainer._results
    if results is None:
        return None
    logged = dict(results.metrics(on_step=True)["callback"])
    if not is_within_epoch:
        logged |= results.metrics(on_step=False)["callback"]
    return next((float(logged[name]) for name in LOSSES if name in logged), None)
