"""Dashboards of loggers that show more than scalars: one class each, and its logger's name in `_BY_LOGGER`."""

from collections.abc import Callable
from typing import Any, Protocol

from bu_torch.callbacks.lightning_trees import Trainer
from bu_torch.run.record import HISTOGRAMS
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.details import Details, Histogram

_SHARES = [f"^{signal.name}$" for signal in SIGNALS.values() if signal.panel == "shares"]
_OTHERS = [f"^{signal.name}$" for signal in SIGNALS.values() if signal.panel != "shares"]
_LAYOUT = {
    "boundary uncertainty": {
        "U, trust score and training loss": ["Multiline", [*_OTHERS, "^(?!val).*loss"]],
        "expected accuracy and agreement": ["Multiline", _SHARES],
    }
}


class Dashboard(Protocol):
    """Displays of a logger beside its scalars."""

    def lay_out(self) -> None:
        """Arrange the curves, once, before training."""

    def show(self, details: Details, step: int) -> None:
        """Show what is behind the numbers of a check, at the step of its epoch's scalars."""


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
            _add_histogram(self._writer, f"boundary/{name}", getattr(details, name), step)
        rows = [
            f"| {pair.first} - {pair.second} | {pair.uncertainty:.3f} | {pair.share:.3f} | {pair.weight:.1f} |"
            for pair in details.pairs
        ]
        if details.n_pairs_left_out:
            rows.append(f"| and {details.n_pairs_left_out} more | | | |")
        head = ["| classes | U | share of samples | samples near the boundary |", "|---|---|---|---|"]
        self._writer.add_text("boundary/pairs", "\n".join(head + rows), step)


_BY_LOGGER: dict[str, Callable[[Any], Dashboard]] = {"TensorBoardLogger": TensorBoard}


def dashboards(trainer: Trainer) -> list[Dashboard]:
    """Those of the trainer's loggers, in the process that writes."""
    if trainer.fast_dev_run or not trainer.is_global_zero:
        return []
    kinds = [(logger, [cls.__name__ for cls in type(logger).__mro__]) for logger in trainer.loggers]
    return [make(logger.experiment) for logger, names in kinds for name, make in _BY_LOGGER.items() if name in names]


def _add_histogram(writer: Any, name: str, histogram: Histogram, step: int) -> None:
    middles = [(low + high) / 2 for low, high in zip(histogram.edges, histogram.edges[1:], strict=False)]
    writer.add_histogram_raw(
        name,
        min=histogram.edges[0],
        max=histogram.edges[-1],
        num=sum(histogram.counts),
        sum=sum(count * middle for count, middle in zip(histogram.counts, middles, strict=True)),
        sum_squares=sum(count * middle**2 for count, middle in zip(histogram.counts, middles, strict=True)),
        bucket_limits=histogram.edges[1:],
        bucket_counts=histogram.counts,
        global_step=step,
    )
