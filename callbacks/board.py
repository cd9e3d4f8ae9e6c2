"""Display of a check: for loggers, the progress bar, and callbacks that read `callback_metrics`."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info
from torch import Tensor

from bu_torch.callbacks.dashboards import Dashboard, dashboards
from bu_torch.callbacks.lightning_trees import Callback, Trainer
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.settings import MeasurementSettings
from bu_torch.signals.catalogue import SIGNALS

_LEFT_OUT = ("epoch", "step", STANDARD_ERROR)
_MEASURED = [field.name for field in fields(MeasurementSettings) if field.name not in ("cache", "averaging_device")]
_MEASURED += ["every_n_epochs", "every_n_train_steps", "reference", "input_key", "label_key"]


class Board:
    """Shows the values of checks, under names that no other callback uses for other values."""

    def __init__(self) -> None:
        self._suffix = ""  # of the names
        self._names: list[str] = []  # in `callback_metrics`
        self._withdrawn: dict[str, Tensor] = {}  # values that `callback_metrics` lacks until training ends

    def set_up(self, trainer: Trainer, callback: Callback, monitors: list[Any]) -> None:
        """Choose the names, and arrange the curves of loggers that can."""
        self._suffix = suffix_of(callback, monitors)
        if self._suffix:
            rank_zero_info(
                f"The names that {type(callback).__name__} logs end in {self._suffix}, because an earlier"
                " callback measures with other settings."
            )
            return
        for dashboard in dashboards(trainer):
            dashboard.lay_out()

    def dashboards(self, trainer: Trainer) -> list[Dashboard]:
        """Loggers that show more than scalars."""
        return [] if self._suffix else dashboards(trainer)

    def show(self, trainer: Trainer, check: dict[str, Any], step: int) -> None:
        """Log a check, at the step of its epoch's other values or at one of its own.

        Not by `log_dict`, which is slow for so many values. Within an epoch it would also give loggers those on a step
        of `log_every_n_steps` alone, and keep all in `callback_metrics` for the rest of the epoch.
        """
        shown = {f"{name}{self._suffix}": value for name, value in check.items() if name not in _LEFT_OUT}
        self._names = list(shown)
        for logger in trainer.loggers:
            logger.log_metrics({**shown, "epoch": trainer.current_epoch}, step)
            logger.save()
        values = {name: torch.tensor(value) for name, value in shown.items()}
        trainer.callback_metrics.update(values)
        trainer.logged_metrics.update(values)
        in_bar = {f"{signal.name}{self._suffix}" for signal in SIGNALS.values() if signal.is_in_progress_bar}
        trainer.progress_bar_metrics.update({name: value for name, value in shown.items() if name in in_bar})

    def withdraw(self, trainer: Trainer) -> None:
        """Take the last check's values from `callback_metrics`: they are not those of the weights to come."""
        metrics = trainer.callback_metrics
        self._withdrawn |= {name: metrics.pop(name) for name in self._names if name in metrics}
        self._names = []

    def put_back(self, trainer: Trainer) -> None:
        """Undo it for callbacks that look when an epoch or the training ends."""
        for name, value in self._withdrawn.items():
            trainer.callback_metrics.setdefault(name, value)
        self._names = [*self._names, *self._withdrawn]
        self._withdrawn = {}


def suffix_of(callback: Any, monitors: Sequence[Any]) -> str:
    """End of the names that `callback` logs: "" for the first of `monitors`, "_2" for the next that differs.

    Those that measure alike log equal values, and share their names.
    """
    known: list[Any] = []  # settings that differ
    for one in monitors:
        settings = tuple(getattr(one, name) for name in _MEASURED)
        number = next((n for n, other in enumerate(known) if _equal(settings, other)), len(known))
        known += [settings] * (number == len(known))
        if one is callback:
            return f"_{number + 1}" if number else ""
    return ""


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    is_plain = all(isinstance(one, bool | int | float | str | dict | list) for one in (first, second))
    return first is second or (is_plain and bool(first == second))
