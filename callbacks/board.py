"""Display of a check: for loggers, the progress bar, and callbacks that read `callback_metrics`."""

from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info
from torch import Tensor

from bu_torch.callbacks.lightning_tree import Trainer
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.account import HISTOGRAMS
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.details import Details, Histogram

_LEFT_OUT = ("epoch", "step", STANDARD_ERROR)
_SHARES = [f"^{signal.name}$" for signal in SIGNALS.values() if signal.panel == "shares"]
_OTHERS = [f"^{signal.name}$" for signal in SIGNALS.values() if signal.panel != "shares"]
_LAYOUT = {
    "boundary uncertainty": {
        "U, trust score and training loss": ["Multiline", [*_OTHERS, "^(?!val).*loss"]],
        "expected accuracy and agreement": ["Multiline", _SHARES],
    }
}


class TensorBoard:
    """Histograms, a table of pairs, and panels in the tab "Custom Scalars", by `logger.experiment`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def lay_out(self) -> None:
        """Arrange the curves, once, before training."""
        self._writer.add_custom_scalars(_LAYOUT)

    def show(self, details: Details, step: int) -> None:
        """Show what is behind the numbers of a check, at the step of its epoch's scalars."""
        for name in HISTOGRAMS:
            histogram: Histogram = getattr(details, name)
            edges, counts = histogram.edges, histogram.counts
            bins = [((low + high) / 2, n) for low, high, n in zip(edges, edges[1:], counts, strict=False)]
            self._writer.add_histogram_raw(
                f"boundary/{name}",
                min=edges[0],
                max=edges[-1],
                num=sum(counts),
                sum=sum(n * middle for middle, n in bins),
                sum_squares=sum(n * middle**2 for middle, n in bins),
                bucket_limits=edges[1:],
                bucket_counts=counts,
                global_step=step,
            )
        rows = ["| classes | U | share of samples | sum of kernel weights near the boundary |", "|---|---|---|---|"]
        rows += [
            f"| {pair.first} - {pair.second} | {pair.uncertainty:.3f} | {pair.share:.3f} | {pair.weight:.1f} |"
            for pair in details.pairs
        ]
        if details.n_pairs_left_out:
            rows.append(f"| and {details.n_pairs_left_out} more | | | |")
        self._writer.add_text("boundary/pairs", "\n".join(rows), step)


class Board:
    """Shows the values of checks, under names that no other callback uses for other values."""

    def __init__(self) -> None:
        self._suffix = ""  # ends the names
        self._names: list[str] = []  # in `callback_metrics`
        self._withdrawn: dict[str, Tensor] = {}  # values that `callback_metrics` lacks until `show_again`

    def set_up(self, trainer: Trainer, suffix: str) -> None:
        """Take the end of the names, and arrange the curves of loggers that can."""
        self._suffix = suffix
        if suffix:
            rank_zero_info(
                f"The names that this boundary uncertainty logs end in {suffix}, because an earlier callback measures"
                " with other settings."
            )
        for dashboard in self.dashboards(trainer):
            dashboard.lay_out()

    def dashboards(self, trainer: Trainer) -> list[TensorBoard]:
        """Those of the trainer's loggers, in the process that writes, for the callback whose names have no suffix."""
        if self._suffix or trainer.fast_dev_run or not trainer.is_global_zero:
            return []
        return [
            TensorBoard(logger.experiment)
            for logger in trainer.loggers
            if any(cls.__name__ == "TensorBoardLogger" for cls in type(logger).__mro__)
        ]

    def show(self, trainer: Trainer, check: dict[str, Any], step: int) -> None:
        """Log a check, at the step of its epoch's other values or at one of its own.

        `log_dict` is slow; within an epoch it skips steps, and keeps the values in `callback_metrics` to the end of it.
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

    def show_again(self, trainer: Trainer) -> None:
        """Undo `withdraw` for callbacks that look when an epoch or the training ends."""
        for name, value in self._withdrawn.items():
            trainer.callback_metrics.setdefault(name, value)
        self._names = [*self._names, *self._withdrawn]
        self._withdrawn = {}
